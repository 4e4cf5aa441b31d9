"""Products of quantised integers: exact int32 sums (ONNX MatMulInteger), and requantised ones (QLinearMatMul)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import LONG_NAMES
from numbaprims.ops import reduction
from numbaprims.ops._gemm_pose import INTEGER_OPTIONS, INTEGERS, REQUANTIZED
from numbaprims.ops._quantize_given import (
    QuantizeProblem,
    check_apart,
    factor_of,
    known,
    number_of,
    plain,
    scale_number,
    zero_number,
)
from numbaprims.ops._reduction_problem import mapped
from numbaprims.ops.gemm import gemm
from numbaprims.ops.gemm_plan import GemmPlan
from numbaprims.ops.plans import with_plan
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems, scalar
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
    lambda values, options, _: values[0].sum(options[0], keepdims=True), dtypes=_BYTES,
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
    if number_of(value, name) is not None:
        return zero_number(value, name, dtype)
    storage, own, _ = arrays.enter(value, name)
    if tuple(storage.shape) != (length,):
        raise ValueError(f"{name} is a {arrays.describe(value)}; it must be one integer, or ({length},) of them")
    if own != dtype or not isinstance(storage, np.ndarray):
        raise TypeError(f"{name} is a {arrays.describe(value)}; it must be {LONG_NAMES[dtype]}, an array of the host")
    return storage.astype(np.int32) if storage.any() else 0.0


def _two_zeros(a_zero: Any, a_dtype: str, b_zero: Any, b_dtype: str) -> tuple[Any, Any]:
    """Those of both operands, where they are numbers."""
    return _zero(a_zero, "a_zero_point", a_dtype, 0), _zero(b_zero, "b_zero_point", b_dtype, 0)


def _zero_terms(a: Any, b: Any, a_zero: Any, b_zero: Any, k: int, library: Any, inside: bool) -> Any:
    """What zero points add to products, which broadcasts to these; None of none.

    sum (a - y) (b - z) = sum (a - y) b - (sum a - k y) z; `inside`: the first sum is the product's own, otherwise
    sum a b - y sum b
    """
    if inside and type(b_zero) is float:
        rows = _sums(a, -1)
        if a_zero:
            rows = binary(rows, _one(-k * int(a_zero), library), "add")
        return binary(rows, _one(-int(b_zero), library), "mul")
    terms = []
    y, z = np.asarray(a_zero, np.int32).reshape(-1, 1), np.asarray(b_zero, np.int32).reshape(1, -1)
    if y.any() and not inside:
        terms.append(_combined(_sums(b, -2), -y, "mul", library))
    if z.any():
        rows = _sums(a, -1)
        if y.any():
            rows = _combined(rows, -k * y, "add", library)
        terms.append(_combined(rows, -z, "mul", library))
    return None if not terms else terms[0] if len(terms) == 1 else binary(terms[0], terms[1], "add")


@functools.lru_cache(256)
def _one(number: int, library: Any) -> Any:
    """A number that broadcasts to sums, which wrap around as they do."""
    return registry.placed(library, np.array([[number]]).astype(np.int32), "i32")


def _combined(sums: Any, zero: np.ndarray, op: str, library: Any) -> Any:
    return binary(sums, registry.placed(library, zero, "i32"), op)


def _sums(x: Any, axis: int) -> Any:
    return _integer_sum.run((x,), (len(x.shape) + axis,))


def _integer_plan(b: Any, a_zero_point: Any = None, *, bias: Any = None) -> QuantizedPlan:
    """Pack B once: ``plan(a)`` is then ``gemm_integer(a, b, a_zero_point, bias=bias)``."""
    return QuantizedPlan(b, a_zero_point, bias, ())


@with_plan(_integer_plan)
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
    return _multiply(a, b, a_zero_point, b_zero_point, bias, out)


def _multiply(a: Any, b: Any, a_zero_point: Any, b_zero_point: Any, bias: Any, out: Any, ending: Any = None) -> Any:
    (x, a_dtype, library), (y, b_dtype, _) = arrays.enter(a, "a"), arrays.enter(b, "b")
    if a_dtype not in _BYTES or b_dtype not in _BYTES:
        raise TypeError(f"a is a {arrays.describe(a)} and b a {arrays.describe(b)}; they must be int8 or uint8")
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2]:
        return gemm(a, b)  # which says what is wrong
    (m, k), n = x.shape[-2:], y.shape[-1]
    if plain(a_zero_point, b_zero_point):
        a_zero, b_zero = known(_two_zeros, (a_zero_point, a_dtype, b_zero_point, b_dtype))
    else:
        a_zero, b_zero = (
            _zero(a_zero_point, "a_zero_point", a_dtype, m),
            _zero(b_zero_point, "b_zero_point", b_dtype, n),
        )
    if b_dtype == "u8":
        check_apart(out, b=b)
        b, b_zero = _signed((b,), ("signed", "i8")), b_zero - 128
    host = registry.device_of(library) == "cpu"
    # panels of b hold the sums of its columns
    inside = host and type(a_zero) is float
    c = None
    if not inside or type(b_zero) is not float or b_zero:
        c = _zero_terms(a, b, a_zero, b_zero, k, library, inside)
    factors, options, numbers = ending or (None, (None, None), (1.0, 1.0))
    if host:
        numbers = *(numbers if factors is None else (1.0, *numbers)), a_zero if inside else 0.0
        product = INTEGERS if ending is None else REQUANTIZED
        return product.run((a, b, c, bias, None, factors), INTEGER_OPTIONS[options[1]], numbers, out)
    check_apart(out, a=a, b=b)
    sums = gemm(a, b, c=c, beta=0.0 if c is None else 1.0, bias=bias, out=None if ending else out)
    return _requantize((sums, factors), options, numbers, out) if ending else sums


def _linear_plan(
    a_scale: Any, a_zero_point: Any, b: Any, b_scale: Any, y_scale: Any, y_zero_point: Any, bias: Any = None
) -> QuantizedPlan:
    """Pack B once: ``plan(a)`` is then `qlinear_gemm` of these, b having a zero point of 0."""
    return QuantizedPlan(b, a_zero_point, bias, (a_scale, b_scale, y_scale, y_zero_point))


@with_plan(_linear_plan)
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
        ValueError: as `gemm_integer`; also scales that are not positive and finite in float32, or whose factor is not,
            or of another length than N.

    Example:
        >>> import numpy as np, numbaprims
        >>> a, b = np.uint8([[7, 8]]), np.int8([[1], [-1]])
        >>> numbaprims.qlinear_gemm(a, 0.5, 5, b, 0.25, 2, 0.5, np.int8(3))
        array([[0]], dtype=int8)

    References:
        ONNX QLinearMatMul; Jacob et al., Quantization and training of neural networks for efficient
        integer-arithmetic-only inference, 2018, section 2.2.
    """
    ending = _ending(b, a_scale, b_scale, y_scale, y_zero_point)
    return _multiply(a, b, a_zero_point, b_zero_point, bias, out, ending)


def with_factors(
    a: Any, b: Any, factors: Any, y_zero_point: Any, bias: Any = None, a_zero_point: Any = None,
    b_zero_point: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """`qlinear_gemm` of a factor for each column, at which nobody looks."""
    dtype, zero = result_zero(y_zero_point)
    return _multiply(a, b, a_zero_point, b_zero_point, bias, out, (factors, ("requantize_by", dtype), (zero,)))


def _ending(b: Any, a_scale: Any, b_scale: Any, y_scale: Any, y_zero_point: Any) -> tuple[Any, Any, Any]:
    """(factors of columns or None, options, numbers) of what makes results of sums."""
    if number_of(b_scale, "b_scale") is not None:
        return None, *known(_ending_of, (a_scale, b_scale, y_scale, y_zero_point))
    (dtype, zero), one = result_zero(y_zero_point), np.float32(scale_number(a_scale, "a_scale", "f32"))
    (values, of, _), library, n = arrays.enter(b_scale, "b_scale"), arrays.enter(b, "b")[2], b.shape[-1]
    if tuple(values.shape) != (n,) or not isinstance(values, np.ndarray):
        raise ValueError(f"b_scale is a {arrays.describe(b_scale)}; it must be one number, or ({n},) of the host")
    scales, y = factor_of(to_float64(values, of), "b_scale"), np.float32(scale_number(y_scale, "y_scale", "f32"))
    factors = factor_of(_quotient(one, scales, y), _FACTOR)
    return registry.placed(library, factors, "f32"), ("requantize_by", dtype), (zero,)


def _ending_of(a_scale: Any, b_scale: Any, y_scale: Any, y_zero_point: Any) -> tuple[Any, Any]:
    dtype, zero = result_zero(y_zero_point)
    given = zip((a_scale, b_scale, y_scale), ("a_scale", "b_scale", "y_scale"), strict=True)
    factor = factor_of(_quotient(*(np.float32(scale_number(value, name, "f32")) for value, name in given)), _FACTOR)
    return ("requantize", dtype), (float(factor), zero)


_FACTOR = "a_scale b_scale / y_scale"


def _quotient(one: Any, other: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return one * other / y


def result_zero(given: Any) -> tuple[str, float]:
    """The dtype and the zero point of a result."""
    word = str(getattr(given, "dtype", "")).removeprefix("torch.")
    dtype = {"int8": "i8", "uint8": "u8"}.get(word)
    if dtype is None:
        raise TypeError(f"y_zero_point is {given!r}; it must be an int8 or uint8 scalar, whose dtype the result takes")
    return dtype, zero_number(given, "y_zero_point", dtype)


class QuantizedPlan(GemmPlan):
    """``plan(a)`` is `gemm_integer` or `qlinear_gemm` of a `b` that was packed once."""

    def __init__(self, b: Any, a_zero_point: Any, bias: Any, scales: tuple[Any, ...]) -> None:
        self._given, self._arguments = (a_zero_point, bias, scales), {"trans_b": False, "bias": bias}
        view, dtype, _ = arrays.enter(b, "b")
        if dtype != "i8" or view.ndim != 2:
            raise ValueError(f"b is a {arrays.describe(b)}; a plan takes one matrix (K, N) of int8, of zero point 0")
        self._zero = 0.0 if a_zero_point is None else scalar(a_zero_point, "a_zero_point")
        factors, options, numbers = _ending(b, *scales) if scales else (None, (None, None), (1.0, 1.0))
        numbers = *(numbers if factors is None else (1.0, *numbers)), self._zero
        product = REQUANTIZED if scales else INTEGERS
        self._hold(b, product, INTEGER_OPTIONS[options[1]], numbers, None, factors)

    def _bind(self, a: Any, *more: Any) -> Any:
        _, dtype, library = arrays.enter(a, "a")
        zero_number(self._zero, "a_zero_point", dtype)
        return super()._bind(a, *more) if registry.device_of(library) == "cpu" else self._unpacked

    def _unpacked(self, a: Any, out: Any) -> Any:
        """Without what tiles of the CPU end in."""
        b, (zero, bias, scales) = self._mine, self._given
        if not scales:
            return gemm_integer(a, b, zero, bias=bias, out=out)
        a_scale, b_scale, y_scale, y_zero = scales
        return qlinear_gemm(a, a_scale, zero, b, b_scale, None, y_scale, y_zero, bias, out=out)

    def __reduce__(self) -> tuple[Any, ...]:
        return QuantizedPlan, (self._mine, *self._given)


PROBLEMS = problems(gemm_integer, qlinear_gemm)
