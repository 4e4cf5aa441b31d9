"""Convolutions of quantised integers: exact int32 sums (ONNX ConvInteger), and requantised ones (QLinearConv)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.ops._conv_pose import Convolution, Geometry, Options, Window, forward_shape, geometry, hashable, pose
from numbaprims.ops._quantize_given import factor_of
from numbaprims.ops.primitive import problems

_INPUTS = ("x", "weight", "c", "bias", "prepared", "extra")
_quantized = Convolution("conv_integer", _INPUTS, pose("forward", forward_shape), dtypes=None)
_LIMITS = {"i8": (-128, 127), "u8": (0, 255)}


def conv_integer(
    x: Any,
    weight: Any,
    *,
    x_zero_point: Any = 0,
    weight_zero_point: Any = 0,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Convolve integers with zero points into exact int32 sums, as ONNX ConvInteger.

    ``out[n, k, p] = sum over c, r of (x[n, c, p * stride - padding + r * dilation] - x_zero_point)
    * (weight[k, c, r] - weight_zero_point[k])``; outside of itself x is `x_zero_point`.

    Args:
        x: (N, C, H, W) as in `numbaprims.conv`; int8 or uint8.
        weight: (K, C / groups, R, S); int8.
        x_zero_point: an integer in the range of `x`.
        weight_zero_point: an integer in the range of `weight`, or (K,) of them.
        stride: as in `numbaprims.conv`; so are `padding`, `dilation`, `groups`, `layout`, `algorithm`.
        padding: as in `numbaprims.conv`.
        dilation: as in `numbaprims.conv`.
        groups: as in `numbaprims.conv`.
        layout: as in `numbaprims.conv`.
        algorithm: as in `numbaprims.conv`.
        out: where the result goes.

    Returns:
        (N, K, P, Q), int32.

    Raises:
        TypeError: other dtypes, mixed libraries, zero points that are no integers.
        ValueError: as `numbaprims.conv`; also zero points out of range or of another length than K.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, w = np.full((1, 1, 1, 3), 7, np.uint8), np.ones((1, 1, 1, 2), np.int8)
        >>> numbaprims.conv_integer(x, w, x_zero_point=5)
        array([[[[4, 4]]]], dtype=int32)
    """
    window = Window(*hashable((stride, padding, dilation, groups, layout)))
    dtypes, library, shape = _enter(x, weight, window)
    x_zero, w_zero = _zero_points(dtypes, shape.k, x_zero_point, weight_zero_point)
    zeros, extra = _zeros(x_zero, w_zero.any()), None
    if zeros != "none":
        extra = np.zeros((3, shape.k), np.float32)
        extra[1] = w_zero
        extra = registry.placed(library, extra, "f32")
    options = Options(window, algorithm=algorithm, zeros=zeros)
    return _quantized.run((x, weight, None, None, None, extra), options, (*_NUMBERS, float(x_zero)), out)


def qlinear_conv(
    x: Any,
    x_scale: Any,
    x_zero_point: Any,
    weight: Any,
    weight_scale: Any,
    weight_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Convolve quantised integers into quantised integers, as ONNX QLinearConv.

    ``out = saturate(round((conv_integer(x, weight) + bias) * (x_scale * weight_scale / y_scale)) + y_zero_point)``;
    halves are rounded to even, the factor and its product are float32.

    Args:
        x: (N, C, H, W) as in `numbaprims.conv`; int8 or uint8.
        x_scale: a positive number: `x` stands for (x - x_zero_point) * x_scale.
        x_zero_point: an integer in the range of `x`.
        weight: (K, C / groups, R, S); int8.
        weight_scale: a positive number, or (K,) of them.
        weight_zero_point: an integer in the range of `weight`, or (K,) of them.
        y_scale: a positive number.
        y_zero_point: an int8 or uint8 scalar (``np.uint8(128)``), whose dtype is that of the result.
        bias: (K,) int32, in units of x_scale * weight_scale; or None.
        stride: as in `numbaprims.conv`; so are `padding`, `dilation`, `groups`, `layout`, `algorithm`.
        padding: as in `numbaprims.conv`.
        dilation: as in `numbaprims.conv`.
        groups: as in `numbaprims.conv`.
        layout: as in `numbaprims.conv`.
        algorithm: as in `numbaprims.conv`.
        out: where the result goes.

    Returns:
        (N, K, P, Q) of the dtype of `y_zero_point`.

    Raises:
        TypeError: other dtypes, mixed libraries, zero points that are no integers.
        ValueError: as `numbaprims.conv`; also zero points out of range, scales that are not positive and finite in
            float32, or whose factor is not, and either of another length than K.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, w = np.full((1, 1, 1, 3), 7, np.uint8), np.ones((1, 1, 1, 2), np.int8)
        >>> numbaprims.qlinear_conv(x, 0.5, 5, w, 0.25, 0, 0.2, np.int8(-3))
        array([[[[-1, -1]]]], dtype=int8)

    References:
        Jacob et al., Quantization and training of neural networks for efficient integer-arithmetic-only inference,
        2018, section 2.2.
    """
    scales, zeros = (x_scale, weight_scale, y_scale), (x_zero_point, weight_zero_point, y_zero_point)
    window = Window(*hashable((stride, padding, dilation, groups, layout)))
    dtypes, library, shape = _enter(x, weight, window)
    return requantized(dtypes, library, weight, shape.k, scales, zeros, bias, window, algorithm)(x, out)


def requantized(
    dtypes: tuple[str, str], library: arrays.Library, weight: Any, k: int, scales: tuple[Any, Any, Any],
    zeros: tuple[Any, Any, Any], bias: Any, window: Window, algorithm: str,
) -> Callable[[Any, Any], Any]:  # fmt: skip
    """``qlinear_conv`` of a weight of k filters as a function of x and out; scales and zero points, of x, the weight
    and the result, are checked and put where the arrays lie now, and at no call."""
    x_zero, w_zero = _zero_points(dtypes, k, *zeros[:2])
    y_dtype, y_zero = _result_zero(zeros[2])
    factor, w_factor = _scale(scales[0], "x_scale", 1), _scale(scales[1], "weight_scale", k)
    extra = np.empty((3, k), np.float32)
    with np.errstate(all="ignore"):
        every = factor * w_factor / _scale(scales[2], "y_scale", 1)
    extra[0] = factor_of(every, "x_scale weight_scale / y_scale")
    extra[1] = w_zero
    extra[2] = y_zero
    options = Options(window, algorithm=algorithm, zeros=_zeros(x_zero, w_zero.any()), requantized=y_dtype)
    placed = registry.placed(library, extra, "f32")

    def run(x: Any, out: Any) -> Any:
        return _quantized.run((x, weight, None, bias, None, placed), options, (*_NUMBERS, float(x_zero)), out)

    return run


def with_extra(
    x: Any, x_zero_point: int, weight: Any, extra: Any, weight_zeros: int, y_zero_point: Any = None, bias: Any = None,
    out: Any = None, algorithm: str = "auto", **window: Any,
) -> Any:  # fmt: skip
    """`conv_integer`, or `qlinear_conv` into the type of `y_zero_point`, by a made `extra`, at which nobody looks;
    `weight_zeros`: whether one of the weight's zero points is not 0."""
    made = Window(*hashable(tuple(window[name] for name in Window._fields)))
    _enter(x, weight, made)
    zeros = _zeros(x_zero_point, weight_zeros)
    dtype = "" if y_zero_point is None else _result_zero(y_zero_point)[0]
    options = Options(made, algorithm=algorithm, zeros=zeros, requantized=dtype)
    own = extra if dtype or zeros != "none" else None
    return _quantized.run((x, weight, None, bias, None, own), options, (*_NUMBERS, float(x_zero_point)), out)


# alpha, beta, and the parameters of no activation
_NUMBERS = (1.0, 0.0, 0.0, 0.0, 0.0)
PROBLEMS = problems(conv_integer, qlinear_conv)


def _enter(x: Any, weight: Any, window: Window) -> tuple[tuple[str, str], arrays.Library, Geometry]:
    """The dtypes of both operands, the library of x, and the geometry."""
    (a, dtype, library), (b, w_dtype, _) = arrays.enter(x, "x"), arrays.enter(weight, "weight")
    if dtype not in _LIMITS or w_dtype != "i8":
        raise TypeError(
            f"x is a {arrays.describe(x)} and weight a {arrays.describe(weight)}; x must be int8 or uint8, weight int8"
        )
    return (dtype, w_dtype), library, geometry(a.shape, b.shape, window)


def _values(given: Any, name: str, length: int) -> np.ndarray:
    """A scalar or `length` values, as an array that broadcasts to them."""
    values = arrays.values_of(given, name)
    if values.ndim > 1 or values.size not in (1, length):
        expected = "a scalar" if length == 1 else f"a scalar or ({length},), one value a filter"
        raise ValueError(f"{name} has shape {values.shape}; it must be {expected}")
    return values


def _integers(given: Any, name: str, length: int, dtype: str) -> np.ndarray:
    values = _values(given, name, length)
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} is {given!r}; a zero point is an integer")
    low, high = _LIMITS[dtype]
    if ((values < low) | (values > high)).any():
        raise ValueError(
            f"{name} is {given!r}; it must lie in {low} ... {high}, the range of {arrays.LONG_NAMES[dtype]}"
        )
    return values.astype(np.int64)


def _zero_points(dtypes: tuple[str, str], k: int, x_given: Any, w_given: Any) -> tuple[int, np.ndarray]:
    x_zero = _integers(x_given, "x_zero_point", 1, dtypes[0])
    return int(x_zero.item()), _integers(w_given, "weight_zero_point", k, dtypes[1])


def _zeros(x_zero: int, w_zero: Any) -> str:
    """Which zero points are not 0, as a problem says it."""
    return {(0, 0): "none", (1, 0): "input", (0, 1): "weight", (1, 1): "both"}[bool(x_zero), bool(w_zero)]


def _result_zero(given: Any) -> tuple[str, int]:
    """The result's dtype and zero point."""
    dtype = arrays.dtype_name(given.dtype) if hasattr(given, "dtype") else None
    if dtype not in _LIMITS:
        raise TypeError(f"y_zero_point is {given!r}; it must be an int8 or uint8 scalar, whose dtype the result takes")
    return dtype, int(_integers(given, "y_zero_point", 1, dtype).item())


def _scale(given: Any, name: str, length: int) -> np.ndarray:
    return factor_of(_values(given, name, length), name, "a scale is positive and finite")
