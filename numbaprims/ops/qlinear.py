"""Quantised integers in and out: sums, averages and activations, as the operators of onnxruntime have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays, settings
from numbaprims.dispatch.problem import Problem
from numbaprims.ops import pooling, reduction
from numbaprims.ops._quantize_given import (
    QuantizeProblem,
    check_apart,
    factor_of,
    known,
    scale_number,
    zero_number,
)
from numbaprims.ops._reduction_problem import mapped
from numbaprims.ops._tensor_problem import broadcast
from numbaprims.ops.activation import activation as activate
from numbaprims.ops.gemm_quantized import result_zero
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems
from numbaprims.ops.quantize import dequantize, quantize
from numbaprims.reference import quantize as reference
from numbaprims.reference.quantize import LIMITS
from numbaprims.shapes import channels_last, element_strides

_BYTES = ("i8", "u8")


def _dtype(x: Any, name: str) -> str:
    found = arrays.enter(x, name)[1]
    if found not in _BYTES:
        raise TypeError(f"{name} is a {arrays.describe(x)}; it must be int8 or uint8")
    return found


# ---------------------------------------------------------------- sums


def _pose_elements(given: Given, options: tuple[Any, ...]) -> Pose:
    word, dtype = options[:2]
    inputs, shape = given.storages, broadcast(given)
    like = next((at for at, x in enumerate(inputs) if x.shape == shape), None)

    def problem(outs: Sequence[Any]) -> Problem:
        steps = [element_strides(np.broadcast_to(x, shape)) for x in (outs[0], *inputs)]
        shared = any(np.may_share_memory(outs[0], x) for x in inputs)
        dtypes = [dtype, *map(str, given.dtypes)]
        found: Problem = mapped(QuantizeProblem, word, "f32", dtypes, shape, steps, in_place=shared)
        return found

    return Pose((Result(shape, dtype, like=like),), problem)


_add = Primitive(
    "qlinear_add", ("a", "b"), _pose_elements,
    lambda values, options, numbers: reference.qlinear_add(values[0], values[1], numbers, options[2]),
    dtypes=_BYTES, others=("b",), exact=("a", "b"), required=2,
)  # fmt: skip


def qlinear_add(
    a: Any, a_scale: Any, a_zero_point: Any, b: Any, b_scale: Any, b_zero_point: Any, y_scale: Any, y_zero_point: Any,
    *, activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Add quantised arrays that broadcast:
    ``y = saturate(round((a_scale (a - a_zero_point) + b_scale (b - b_zero_point)) / y_scale + y_zero_point))``.

    Args:
        a: int8 or uint8; any shape and strides.
        a_scale: a positive number, as are the other scales.
        a_zero_point: an integer in the range of a; None: 0.
        b: int8 or uint8, of a shape that broadcasts with a's.
        b_scale: see a_scale.
        b_zero_point: an integer in the range of b; None: 0.
        y_scale: see a_scale.
        y_zero_point: an int8 or uint8 scalar (``np.uint8(128)``), whose dtype is that of y.
        activation: None or "relu".
        out: where y goes; it may be a or b.

    Returns:
        y, of the dtype of `y_zero_point`. What does not depend on elements is added up in float64 and rounded to
        float32, as the factors are; halves are rounded to even. It can be one step off where the exact sum is half way.

    Raises:
        TypeError: other dtypes, mixed libraries, zero points that are no integers.
        ValueError: scales that are not positive and finite in float32, or whose quotients are not, zero points out of
            range, shapes that do not broadcast, another activation, an `out` that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> a, b = np.uint8([10, 20]), np.int8([-4, 4])
        >>> numbaprims.qlinear_add(a, 0.5, 10, b, 1.0, 0, 0.5, np.uint8(100))
        array([ 92, 118], dtype=uint8)

    References:
        onnxruntime, com.microsoft.QLinearAdd.
    """
    given = a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point
    options, numbers = known(_sum_of, (_dtype(a, "a"), _dtype(b, "b"), *given, activation))
    return _add.run((a, b), options, numbers, out)


def _sum_of(
    one: str, other: str, a_scale: Any, a_zero: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any,
    activation: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """(options, numbers) of a call."""
    dtype, zero = result_zero(y_zero)
    y = scale_number(y_scale, "y_scale", "f32")
    factor_a, factor_b = scale_number(a_scale, "a_scale", "f32") / y, scale_number(b_scale, "b_scale", "f32") / y
    factor_of(factor_a, "a_scale / y_scale")
    factor_of(factor_b, "b_scale / y_scale")
    a_zero = 0.0 if a_zero is None else zero_number(a_zero, "a_zero_point", one)
    b_zero = 0.0 if b_zero is None else zero_number(b_zero, "b_zero_point", other)
    low, high = LIMITS[dtype]
    if activation is not None and not (isinstance(activation, str) and activation == "relu"):
        raise ValueError(f"activation is {activation!r}; it must be None or 'relu'")
    cuts = activation == "relu" and zero > low
    low = int(zero) if cuts else low
    word = f"qlinear_add.{low}_{high}" if cuts else "qlinear_add"
    return (word, dtype, (low, high)), (factor_a, factor_b, zero - (factor_a * a_zero + factor_b * b_zero))


# ---------------------------------------------------------------- averages


def _pose_mean(given: Given, options: tuple[Any, ...]) -> Pose:
    dtype, axes = options
    x = given.storages[0]
    kept = tuple(1 if at in axes else size for at, size in enumerate(x.shape))
    results = [Result(kept, dtype)]
    return reduction.pose(QuantizeProblem, given, "qlinear_mean", x.shape, axes, results, {"y": kept})


_mean = Primitive(
    "qlinear_global_avg_pool", ("x",), _pose_mean,
    lambda values, options, numbers: reference.qlinear_mean(values[0], options[1], numbers, options[0]), dtypes=_BYTES,
)  # fmt: skip


def qlinear_global_avg_pool(
    x: Any, x_scale: Any, x_zero_point: Any, y_scale: Any, y_zero_point: Any, *, layout: str = "NCHW", out: Any = None
) -> Any:
    """Average quantised images over their pixels: ``y[n, c] = saturate(round(sum over pixels of (x - x_zero_point)
    (x_scale / (y_scale pixels))) + y_zero_point)``.

    Args:
        x: (N, C, H, W), int8 or uint8, as in `numbaprims.global_avg_pool`.
        x_scale: a positive number.
        x_zero_point: an integer in the range of x; None: 0.
        y_scale: a positive number.
        y_zero_point: an int8 or uint8 scalar, whose dtype is that of y.
        layout: "NCHW" or "NHWC".
        out: where y goes.

    Returns:
        y (N, C, 1, 1), of the dtype of `y_zero_point`; sums are exact, the factor is float32.

    Raises:
        TypeError: as `qlinear_add`.
        ValueError: as `qlinear_add`; also images without pixels.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.arange(8, dtype=np.uint8).reshape(1, 2, 2, 2)
        >>> numbaprims.qlinear_global_avg_pool(x, 0.5, 0, 0.25, np.uint8(1)).ravel()
        array([ 4, 12], dtype=uint8)

    References:
        onnxruntime, com.microsoft.QLinearGlobalAveragePool.
    """
    own, rank = _dtype(x, "x"), len(x.shape) - 2
    if not 1 <= rank <= 3:
        raise ValueError(f"x is a {arrays.describe(x)}; pooling takes one to three dimensions beside N and C")
    axes = tuple(range(1, rank + 1) if channels_last(layout, rank) else range(2, rank + 2))
    pixels = math.prod(x.shape[axis] for axis in axes)
    if not pixels:
        raise ValueError(f"x is a {arrays.describe(x)}; windows need one element at least")
    dtype, numbers = known(_mean_of, (own, pixels, x_scale, x_zero_point, y_scale, y_zero_point))
    return _mean.run((x,), (dtype, axes), numbers, out)


def _mean_of(own: str, pixels: int, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any) -> tuple[str, Any]:
    dtype, zero = result_zero(y_zero)
    x_zero = 0.0 if x_zero is None else zero_number(x_zero, "x_zero_point", own)
    factor = scale_number(x_scale, "x_scale", "f32") / (scale_number(y_scale, "y_scale", "f32") * pixels)
    factor_of(factor, "x_scale / (y_scale pixels)")
    return dtype, (factor, -x_zero * pixels, zero)


def qlinear_avg_pool(
    x: Any, x_scale: Any, x_zero_point: Any, y_scale: Any, y_zero_point: Any, kernel_size: Any, *, out: Any = None,
    **window: Any,
) -> Any:  # fmt: skip
    """Average windows of quantised images: ``y = quantize(avg_pool(dequantize(x)))``, three passes.

    Args:
        x: (N, C, H, W), int8 or uint8, as in `numbaprims.avg_pool`.
        x_scale: a positive number.
        x_zero_point: an integer in the range of x; None: 0.
        y_scale: a positive number.
        y_zero_point: an int8 or uint8 scalar, whose dtype is that of y.
        kernel_size: as in `numbaprims.avg_pool`, as are all other keywords.
        out: where y goes.
        window: see kernel_size.

    Returns:
        y, of the dtype of `y_zero_point`; averages are float32.

    Raises:
        TypeError: as `qlinear_add`.
        ValueError: as `qlinear_add` and `numbaprims.avg_pool`.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
        >>> numbaprims.qlinear_avg_pool(x, 1.0, 0, 0.5, np.uint8(0), 2).ravel()
        array([ 5,  9, 21, 25], dtype=uint8)

    References:
        onnxruntime, com.microsoft.QLinearAveragePool.
    """
    _dtype(x, "x")
    dtype, zero = result_zero(y_zero_point)
    check_apart(out, x=x)
    averages = pooling.avg_pool(dequantize(x, x_scale, x_zero_point), kernel_size, **window)
    return quantize(averages, y_scale, zero, dtype=dtype, out=out)


# ---------------------------------------------------------------- activations


_lookup = Primitive("qlinear_activation", ("x",), _pose_elements, lambda *_: None, dtypes=_BYTES, exact=("x",))


def _activation_of(own: str, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any) -> tuple[str, Any]:
    dtype, zero = result_zero(y_zero)
    x_zero = 0.0 if x_zero is None else zero_number(x_zero, "x_zero_point", own)
    return dtype, (scale_number(x_scale, "x_scale"), x_zero, scale_number(y_scale, "y_scale"), zero)


def _table(
    kind: str, own: str, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any, *words: Any
) -> tuple[str, np.ndarray, float]:
    """(dtype of the result, what each byte of x becomes, where that lies)"""
    every = np.arange(256, dtype=np.uint8).view(np.int8 if own == "i8" else np.uint8)
    dtype, numbers = _activation_of(own, x_scale, x_zero, y_scale, y_zero)
    with settings.config(algorithm={}), settings.trial(None):
        made = _one_by_one(every, kind, dict(zip(words[::2], words[1::2], strict=True)), numbers, dtype)
    return dtype, made, float(made.ctypes.data)


def _one_by_one(x: Any, kind: str, parameters: dict[str, Any], numbers: Sequence[float], dtype: str) -> Any:
    x_scale, x_zero, y_scale, y_zero = numbers
    return quantize(activate(dequantize(x, x_scale, x_zero), kind, **parameters), y_scale, y_zero, dtype=dtype)


def qlinear_activation(
    x: Any, kind: str, x_scale: Any, x_zero_point: Any, y_scale: Any, y_zero_point: Any, *, out: Any = None,
    **parameters: Any,
) -> Any:  # fmt: skip
    """Apply an activation to quantised integers by a table of its 256 values:
    ``y = quantize(activation(dequantize(x), kind))``.

    Args:
        x: int8 or uint8; any shape and strides.
        kind: as in `numbaprims.activation`, of one array: "relu", "leaky_relu", "sigmoid", "tanh", "hard_swish", ...
        x_scale: a positive number.
        x_zero_point: an integer in the range of x; None: 0.
        y_scale: a positive number.
        y_zero_point: an int8 or uint8 scalar, whose dtype is that of y.
        out: where y goes; it may be x where their dtypes are one.
        parameters: of the kind, as in `numbaprims.activation`.

    Returns:
        y, of the dtype of `y_zero_point`: what `dequantize`, the activation in float32 and `quantize` give. Tables are
        kept for the next call; arrays of a GPU take the three passes.

    Raises:
        TypeError: as `qlinear_add`.
        ValueError: as `qlinear_add` and `numbaprims.activation`; "prelu" and "glu", which take more.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.qlinear_activation(np.int8([-128, 0, 127]), "sigmoid", 0.1, 0, 1 / 256, np.uint8(0))
        array([  0, 128, 255], dtype=uint8)

    References:
        onnxruntime, com.microsoft.QLinearSigmoid and QLinearLeakyRelu.
    """
    storage, own, _ = arrays.enter(x, "x")
    if own not in _BYTES:
        raise TypeError(f"x is a {arrays.describe(x)}; it must be int8 or uint8")
    if isinstance(kind, str) and kind in ("prelu", "glu"):
        raise ValueError(f"kind is {kind!r}; a table is for functions of one element")
    device = settings.current().device
    if not isinstance(storage, np.ndarray) or device not in (None, "cpu"):
        dtype, numbers = _activation_of(own, x_scale, x_zero_point, y_scale, y_zero_point)
        made = _one_by_one(x, kind, parameters, numbers, dtype)
        return made if out is None else quantize(dequantize(made, 1.0), 1.0, dtype=dtype, out=out)
    words = [each for pair in parameters.items() for each in pair]
    given = kind, own, x_scale, x_zero_point, y_scale, y_zero_point, *words
    trial = settings.current().trial
    if trial is not None and trial.asks:
        dtype, _ = _activation_of(own, *given[2:6])
        return _lookup.run((x,), ("lookup", dtype), (0.0,), out)  # nobody reads a table
    dtype, table, address = known(_table, given)
    if getattr(trial, "later", False):
        trial.kept.append(table)  # else it lives until the call has read it
    return _lookup.run((x,), ("lookup", dtype), (address,), out) if table.size else None


PROBLEMS = problems(qlinear_add, qlinear_global_avg_pool, qlinear_avg_pool, qlinear_activation)
