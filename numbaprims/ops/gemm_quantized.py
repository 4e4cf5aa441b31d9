"""Products of quantised integers: exact int32 sums (ONNX MatMulInteger), and requantised ones (QLinearMatMul)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import LONG_NAMES
from numbaprims.ops import reduction
from numbaprims.ops._reduction_problem import mapped
from numbaprims.ops.gemm import gemm
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems
from numbaprims.ops.quantize import QuantizeProblem, number_of, scale_number, zero_number
from numbaprims.ops.tensor import binary
from numbaprims.reference import quantize as reference
from numbaprims.reference.convert import to_float64
from numbaprims.shapes import element_strides

_BYTES = ("i8", "u8")


# ---------------------------------------------------------------- what zero points add


def _pose_sum(given: Given, options: tuple[Any, ...]) -> Pose:
    (axis,), x = options, given.storages[0]
    kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    results = [Result(kept, "i32")]
    return reduction.pose(QuantizeProblem, given, "integer_sum", x.shape, (axis,), results, {"y": kept})


_integer_sum = Primitive(
    "gemm_integer", ("x",), _pose_sum,
    lambda values, options, numbers: values[0].sum(options[0], keepdims=True) * numbers[0] + numbers[1], dtypes=_BYTES,
)  # fmt: skip


def _pose_map(given: Given, options: tuple[Any, ...]) -> Pose:
    """A function of elements, with factors of the innermost dimension."""
    word, dtype = options
    x = given.storages[0]

    def problem(outs: Sequence[Any]) -> Problem:
        steps = [
            element_strides(np.broadcast_to(each, x.shape)) for each in (outs[0], *given.storages) if each is not None
        ]
        dtypes = [dtype, *(each for each in given.dtypes if each is not None)]
        found: Problem = mapped(QuantizeProblem, word, "f32", dtypes, x.shape, steps)
        return found

    return Pose((Result(x.shape, dtype),), problem)


_signed = Primitive("gemm_integer", ("b",), _pose_map, lambda values, *_: values[0] - 128, dtypes=("u8",))


def _define_requantize(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    total, factors = values
    factor, zero = (numbers[0], numbers[1]) if factors is None else (factors, numbers[0])
    return reference.requantize(total, factor, zero, options[1])


_requantize = Primitive(
    "qlinear_gemm", ("sums", "factors"), _pose_map, _define_requantize, dtypes=("i32",), others=("factors",)
)


# ---------------------------------------------------------------- public functions


def _zero(value: Any, name: str, dtype: str, length: int) -> Any:
    """A zero point as a float, or as an array of the host."""
    if value is None:
        return 0.0
    if number_of(value) is not None:
        return zero_number(value, name, dtype)
    storage, own, _ = arrays.enter(value, name)
    if tuple(storage.shape) != (length,):
        raise ValueError(f"{name} is a {arrays.describe(value)}; it must be one integer, or ({length},) of them")
    if own != dtype or not isinstance(storage, np.ndarray):
        raise TypeError(f"{name} is a {arrays.describe(value)}; it must be {LONG_NAMES[dtype]}, an array of the host")
    return storage.astype(np.int32) if storage.any() else 0.0


def _zero_terms(a: Any, b: Any, a_zero: Any, b_zero: Any, shape: tuple[int, int, int], library: Any) -> Any:
    """What zero points add to products, which broadcasts to these; None of none.

    sum (a - y) (b - z) = sum a b - y sum b - (sum a - k y) z
    """
    (_, k, _), terms = shape, []
    one, other = isinstance(a_zero, float), isinstance(b_zero, float)
    if not one:
        terms.append(binary(_columns(b, -1.0), library.wrap(a_zero[:, None], "i32"), "mul"))
    elif a_zero:
        terms.append(_columns(b, -a_zero))
    if not other or b_zero:
        if one and other:
            terms.append(_rows(a, -b_zero, k * a_zero * b_zero))
        else:
            rows = _rows(a, -1.0, k * a_zero if one else 0.0)
            if not one:
                rows = binary(rows, library.wrap(k * a_zero[:, None], "i32"), "add")
            factor = np.full((1, 1), b_zero, np.int32) if other else b_zero[None, :]
            terms.append(binary(rows, library.wrap(factor, "i32"), "mul"))
    return None if not terms else terms[0] if len(terms) == 1 else binary(*terms, "add")


def _columns(b: Any, factor: float) -> Any:
    return _integer_sum((b,), (len(b.shape) - 2,), (factor, 0.0))


def _rows(a: Any, factor: float, fixed: float) -> Any:
    return _integer_sum((a,), (len(a.shape) - 1,), (factor, fixed))


def gemm_integer(
    a: Any, b: Any, a_zero_point: Any = None, b_zero_point: Any = None, *, bias: Any = None, out: Any = None
) -> Any:
    """Multiply matrices of integers with zero points into exact int32 sums:
    ``out[i, j] = sum over k of (a[i, k] - a_zero_point) (b[k, j] - b_zero_point) + bias[j]``.

    Args:
        a: (..., M, K), int8 or uint8; any strides.
        b: (..., K, N), int8 or uint8 (which is copied to int8 first); leading dimensions broadcast against those of a.
        a_zero_point: an integer in the range of a, or (M,) of a's dtype. None: 0.
        b_zero_point: an integer in the range of b, or (N,) of b's dtype. None: 0.
        bias: (N,) int32.
        out: where the result goes.

    Returns:
        (..., M, N), int32, of a's library; sums beyond its range wrap around.

    Raises:
        TypeError: other dtypes, mixed libraries, zero points that are no integers.
        ValueError: shapes that do not fit, zero points out of range or of another length, an `out` that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> a, b = np.uint8([[7, 8]]), np.int8([[1], [-1]])
        >>> numbaprims.gemm_integer(a, b, 5, 2)
        array([[-11]], dtype=int32)

    References:
        ONNX MatMulInteger.
    """
    (x, a_dtype, library), (y, b_dtype, _) = arrays.enter(a, "a"), arrays.enter(b, "b")
    if a_dtype not in _BYTES or b_dtype not in _BYTES:
        raise TypeError(f"a is a {arrays.describe(a)} and b a {arrays.describe(b)}; they must be int8 or uint8")
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2]:
        return gemm(a, b)  # which says what is wrong
    (m, k), n = x.shape[-2:], y.shape[-1]
    a_zero, b_zero = _zero(a_zero_point, "a_zero_point", a_dtype, m), _zero(b_zero_point, "b_zero_point", b_dtype, n)
    if b_dtype == "u8":
        b, b_zero = _signed((b,), ("signed", "i8")), b_zero - 128
    c = _zero_terms(a, b, a_zero, b_zero, (m, k, n), library)
    return gemm(a, b, c=c, beta=0.0 if c is None else 1.0, bias=bias, out=out)


def qlinear_gemm(
    a: Any, a_scale: Any, a_zero_point: Any, b: Any, b_scale: Any, b_zero_point: Any, y_scale: Any, y_zero_point: Any,
    bias: Any = None, *, out: Any = None,
) -> Any:  # fmt: skip
    """Multiply matrices of quantised integers into quantised integers:
    ``y = saturate(round((gemm_integer(a, b) + bias) (a_scale b_scale / y_scale)) + y_zero_point)``.

    Args:
        a: as in `gemm_integer`; it stands for (a - a_zero_point) a_scale.
        a_scale: a positive number.
        a_zero_point: as in `gemm_integer`.
        b: as in `gemm_integer`.
        b_scale: a positive number, or (N,) of them.
        b_zero_point: as in `gemm_integer`.
        y_scale: a positive number.
        y_zero_point: an int8 or uint8 scalar (``np.uint8(128)``), whose dtype is that of the result.
        bias: (N,) int32, in units of a_scale b_scale; or None.
        out: where y goes.

    Returns:
        y (..., M, N), of the dtype of `y_zero_point`; halves are rounded to even, the factor and its product are
        float32.

    Raises:
        TypeError: as `gemm_integer`.
        ValueError: as `gemm_integer`; also scales that are not positive and finite, or of another length than N.

    Example:
        >>> import numpy as np, numbaprims
        >>> a, b = np.uint8([[7, 8]]), np.int8([[1], [-1]])
        >>> numbaprims.qlinear_gemm(a, 0.5, 5, b, 0.25, 2, 0.5, np.int8(3))
        array([[0]], dtype=int8)

    References:
        ONNX QLinearMatMul; Jacob et al., Quantization and training of neural networks for efficient
        integer-arithmetic-only inference, 2018, section 2.2.
    """
    dtype, y_zero = result_zero(y_zero_point)
    sums = gemm_integer(a, b, a_zero_point, b_zero_point, bias=bias)
    factors, numbers = _factors(a_scale, b_scale, y_scale, y_zero, sums)
    return _requantize((sums, factors), ("requantize" if factors is None else "requantize_by", dtype), numbers, out)


def _factors(a_scale: Any, b_scale: Any, y_scale: Any, zero: float, sums: Any) -> tuple[Any, tuple[float, ...]]:
    """(factors of columns or None, numbers), in float32."""
    one = np.float32(scale_number(a_scale, "a_scale"))
    y = np.float32(scale_number(y_scale, "y_scale"))
    if number_of(b_scale) is not None:
        return None, (float(one * np.float32(scale_number(b_scale, "b_scale")) / y), zero)
    storage, dtype, _ = arrays.enter(b_scale, "b_scale")
    n = sums.shape[-1]
    if tuple(storage.shape) != (n,) or not isinstance(storage, np.ndarray):
        raise ValueError(f"b_scale is a {arrays.describe(b_scale)}; it must be one number, or ({n},) of the host")
    values = to_float64(storage, dtype).astype(np.float32)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"b_scale is {b_scale!r}; a scale is positive and finite")
    return arrays.enter(sums, "y")[2].wrap(one * values / y, "f32"), (zero,)


def result_zero(given: Any) -> tuple[str, float]:
    """The dtype and the zero point of a result."""
    dtype = arrays.dtype_name(given.dtype) if hasattr(given, "dtype") else None
    if dtype not in _BYTES:
        raise TypeError(f"y_zero_point is {given!r}; it must be an int8 or uint8 scalar, whose dtype the result takes")
    return dtype, zero_number(given, "y_zero_point", dtype)


PROBLEMS = problems(gemm_integer, qlinear_gemm)
