"""Functions of elements of arrays that broadcast, and copies in another order."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES, FLOATS, LONG_NAMES
from numbaprims.formulas.maps import BINARY as BINARY, BITWISE
from numbaprims.ops import examples, reduction
from numbaprims.ops._concat import concatenated
from numbaprims.ops._reduction_problem import BITS, mapped
from numbaprims.ops._tensor_problem import TensorProblem as TensorProblem, broadcast, pose
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems, scalar, truth
from numbaprims.reference import tensor as reference
from numbaprims.shapes import element_strides

#: Integers whose sums and products float32 and float64 hold, until they saturate.
_NARROW = ("i8", "u8", "i32")

# ---------------------------------------------------------------- binary


def _pose_binary(given: Given, options: tuple[Any, ...]) -> Pose:
    op, scaled = options
    if op not in BINARY:
        raise ValueError(f"op is {op!r}; it must be one of {', '.join((*BINARY, *BITWISE))}")
    known, dtype = BINARY[op], str(given.dtypes[0])
    takes: tuple[str, ...] = FLOATS
    if op.startswith("logical"):
        takes = tuple(DTYPES)
    elif known.exact:
        takes = (*FLOATS, *_NARROW, "bool") if known.gives else (*FLOATS, *_NARROW)
    if dtype not in takes:
        raise TypeError(f"{given.words(0)}; {op} takes {', '.join(LONG_NAMES[each] for each in takes)}")
    if scaled and (known.gives or dtype not in FLOATS):
        raise ValueError(f"op is {op!r} and {given.words(0)}; alpha1, alpha2, beta and c are for numbers of floats")
    return pose(given, op + ".scaled" * scaled, broadcast(given), known.gives or dtype)


def _define_binary(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    (a, b, c), (alpha1, alpha2, beta) = values, numbers or (1.0, 1.0, 1.0)
    return reference.binary(a, b, c, options[0], alpha1, alpha2, beta)


_binary = Primitive(
    "binary", ("a", "b", "c"), _pose_binary, _define_binary, dtypes=tuple(DTYPES), exact=("a", "b", "c"), required=2
)


class _Bits(Primitive):
    """Of integers, which float64 does not hold."""

    def _define(
        self, storages: list[Any], kinds: list[Any], made: list[Any], pose: Pose, options: Any, numbers: Any
    ) -> None:
        if made[0].size:
            made[0][...] = getattr(np, options[0])(*storages[:2])


def _pose_bitwise(given: Given, options: tuple[Any, ...]) -> Pose:
    op, dtype = options[0], str(given.dtypes[0])
    takes = ("i8", "u8", "i32", "i64", *(("bool",) if op.startswith("bitwise") else ()))
    if dtype not in takes:
        raise TypeError(f"{given.words(0)}; {op} takes {', '.join(LONG_NAMES[each] for each in takes)}")
    if options[1]:
        raise ValueError(f"op is {op!r}; alpha1, alpha2, beta and c are for numbers of floats")
    bits, shape = BITS.get(dtype, dtype), broadcast(given)
    return pose(given, op if bits in FLOATS else f"{op}.{bits}", shape, dtype, stored=(bits, bits, bits))


_bitwise = _Bits(
    "binary", ("a", "b", "c"), _pose_bitwise, _define_binary, dtypes=tuple(DTYPES), exact=("a", "b", "c"), required=2
)


def binary(
    a: Any, b: Any, op: str, *, alpha1: float = 1.0, alpha2: float = 1.0, c: Any = None, beta: float = 1.0,
    out: Any = None,
) -> Any:  # fmt: skip
    """Combine the elements of two arrays that broadcast: ``y = op(alpha1 a, alpha2 b) + beta c``.

    Args:
        a: any shape and strides; float64, float32, float16 or bfloat16, the last two computed in float32. Integers
            but int64 are added, subtracted, multiplied and compared too, and saturate; "logical_and" and its kin
            take every type.
        b: of a's dtype, of a shape that broadcasts with a's.
        op: "add", "sub", "mul", "div", "min", "max" (NaN where either is), "pow", "mod" (with the sign of b), "fmod"
            (exact, with the sign of a), "floor_div", "atan2";
            "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift" of integers, int64 too, and but for
            shifts of bool (a right shift keeps the sign; by too many places or a negative count, nothing else is left);
            "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"; "logical_and", "logical_or",
            "logical_xor".
        alpha1: a factor of a, where a holds floats and op gives them; alpha2 one of b.
        alpha2: see alpha1.
        c: an array that is added, of a's dtype.
        beta: its factor.
        out: where y goes; it may be a, b or c.

    Returns:
        y, of the shape to which the arrays broadcast, of a's dtype or bool, and of a's library.

    Raises:
        TypeError: a dtype that the operation does not take, mixed dtypes or libraries.
        ValueError: an op that there is none, shapes that do not broadcast, factors of what takes none, an `out` of
            another shape or one that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.binary(np.float32([[1, 2], [3, 4]]), np.float32([10, 20]), "add")
        array([[11., 22.],
               [13., 24.]], dtype=float32)

    References:
        MIOpen miopenOpTensor; ONNX Add, Sub, Mul, Div, Min, Max, Pow, Mod (of its integers), Equal, Less, And,
        BitwiseAnd, BitShift.
    """
    of = _bitwise if isinstance(op, str) and op in BITWISE else _binary
    if type(alpha1) is not float or type(alpha2) is not float:
        alpha1, alpha2 = scalar(alpha1, "alpha1"), scalar(alpha2, "alpha2")
    if c is None and alpha1 == 1.0 and alpha2 == 1.0:
        return of.run((a, b, None), (op, False), (), out)
    numbers = (alpha1, alpha2, scalar(beta, "beta"))
    return of.run((a, b, c), (op, True), numbers, out)


# ---------------------------------------------------------------- where


def _pose_where(given: Given, options: tuple[Any, ...]) -> Pose:
    _, a, b = given.dtypes
    if a != b:
        arrays.require_same(given.arrays[1], "a", given.arrays[2], "b")
    bits = BITS.get(str(a), str(a))
    condition = BITS.get(str(given.dtypes[0]), str(given.dtypes[0]))
    return pose(given, "where", broadcast(given), str(a), stored=(bits, condition, bits, bits))


_where = Primitive(
    "where", ("condition", "a", "b"), _pose_where, 
    lambda values, options, numbers: np.where(values[0] != 0, *values[1:]),
    dtypes=tuple(each for each in DTYPES if each not in ("i32", "i64")), others=("a", "b"), exact=("a", "b"),
    required=3,
)  # fmt: skip


def where(condition: Any, a: Any, b: Any, *, out: Any = None) -> Any:
    """Choose elements of two arrays: ``y = a where the condition is other than 0, else b``.

    Args:
        condition: bool, uint8, int8 or floats; any shape and strides.
        a: any type; the three shapes broadcast.
        b: of a's dtype.
        out: where y goes; it may be a or b.

    Returns:
        y, of the shape to which the arrays broadcast, of a's dtype and library.

    Raises:
        TypeError: mixed dtypes or libraries, a condition of int32 or int64.
        ValueError: shapes that do not broadcast, an `out` of another shape or one that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.where(np.array([True, False]), np.int64([1, 2]), np.int64([7]))
        array([1, 7])

    References:
        ONNX Where.
    """
    return _where.run((condition, a, b), (), (), out)


# ---------------------------------------------------------------- one array


def _pose_scale(given: Given, options: tuple[Any, ...]) -> Pose:
    return pose(given, "scale", given.storages[0].shape, str(given.dtypes[0]))


def _pose_fill(given: Given, options: tuple[Any, ...]) -> Pose:
    dtype = str(given.dtypes[0])
    word = "fill_truth" if dtype == "bool" else "fill"
    return pose(given, word, given.storages[0].shape, dtype, reads=False)


def _pose_cast(given: Given, options: tuple[Any, ...]) -> Pose:
    source, (dtype,) = str(given.dtypes[0]), options
    bits = BITS.get(dtype, dtype)
    word = "truth" if dtype == "bool" and source != "bool" else "cast"
    stored = (bits, bits) if dtype == source else (dtype, source)
    return pose(given, word, given.storages[0].shape, dtype, stored=stored)


_scale = Primitive("scale", ("x",), _pose_scale, lambda values, _, numbers: values[0] * numbers[0], exact=("x",))
_fill = Primitive(
    "fill", ("x",), _pose_fill, lambda values, _, numbers: np.full_like(values[0], numbers[0]), dtypes=tuple(DTYPES),
    exact=("x",),
)  # fmt: skip
_cast = Primitive(
    "cast", ("x",), _pose_cast, lambda values, options, _: reference.cast(values[0], *options), dtypes=tuple(DTYPES),
    exact=("x",),
)  # fmt: skip


def _pose_truth(given: Given, options: tuple[Any, ...]) -> Pose:
    return pose(given, options[0], given.storages[0].shape, "bool")


def _define_truth(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    return getattr(np, options[0])(values[0]) if options[0] != "isnever" else np.zeros_like(values[0])


#: Whether inf is looked for, whether -inf -> the formula.
_INFINITE = {(True, True): "isinf", (True, False): "isposinf", (False, True): "isneginf", (False, False): "isnever"}
_isnan, _isinf = (Primitive(name, ("x",), _pose_truth, _define_truth) for name in ("isnan", "isinf"))


def isnan(x: Any, *, out: Any = None) -> Any:
    """Say where an array is NaN.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        out: where the result goes; it shares no memory with x.

    Returns:
        bool, of x's shape and library.

    Raises:
        TypeError: integers.
        ValueError: an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.isnan(np.float32([1, np.nan])).tolist()
        [False, True]

    References:
        ONNX IsNaN.
    """
    return _isnan((x,), ("isnan",), (), out)


def isinf(x: Any, *, detect_positive: bool = True, detect_negative: bool = True, out: Any = None) -> Any:
    """Say where an array is infinite.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16.
        detect_positive: whether inf is.
        detect_negative: whether -inf is.
        out: where the result goes; it shares no memory with x.

    Returns:
        bool, of x's shape and library.

    Raises:
        TypeError: integers.
        ValueError: an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.isinf(np.float32([1, np.inf, -np.inf]), detect_negative=False).tolist()
        [False, True, False]

    References:
        ONNX IsInf; torch.isinf, isposinf, isneginf.
    """
    which = truth(detect_positive, "detect_positive"), truth(detect_negative, "detect_negative")
    return _isinf((x,), (_INFINITE[which],), (), out)


def scale(x: Any, alpha: float, *, out: Any = None) -> Any:
    """Multiply an array by a number: ``y = alpha x``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16, the last two computed in float32.
        alpha: a real number.
        out: where y goes; it may be x.

    Returns:
        y, of x's shape, dtype and library; a new array lies in memory as x does.

    Raises:
        TypeError: integers, an alpha that is no number.
        ValueError: an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.scale(np.float32([1, 2]), 0.5)
        array([0.5, 1. ], dtype=float32)

    References:
        MIOpen miopenScaleTensor.
    """
    return _scale.run((x,), (), (scalar(alpha, "alpha"),), out)


def fill(x: Any, value: float) -> Any:
    """Set all elements of an array: ``x = value``.

    Args:
        x: any shape, strides and type; it is written.
        value: a real number, rounded to floats, towards zero and saturated to integers; of bool whether it is not 0.

    Returns:
        x.

    Raises:
        TypeError: a value that is no number.
        ValueError: an x that cannot be written.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.fill(np.empty(2, np.float32), 3)
        array([3., 3.], dtype=float32)

    References:
        MIOpen miopenSetTensor.
    """
    number = scalar(value, "value")
    dtype = str(arrays.enter(x, "x")[1])
    if dtype == "bool" or dtype[0] in "iu":  # the definition rounds to the nearest
        number = float(reference.cast(np.array(number), dtype))
    return _fill.run((x,), (), (number,), x)


def cast(x: Any, dtype: Any, *, out: Any = None) -> Any:
    """Change the type of an array: ``y = dtype(x)``.

    Args:
        x: any shape, strides and type.
        dtype: a name ("int8"), a dtype of NumPy or of torch. Floats are rounded to nearest even; to integers they are
            rounded towards zero and saturate, NaN becoming 0; to bool whatever is other than 0 is True.
        out: where y goes.

    Returns:
        y, of x's shape and library; a new array lies in memory as x does.

    Raises:
        TypeError: a dtype that there is none.
        ValueError: an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.cast(np.float32([-1.5, 300, np.nan]), "uint8")
        array([  0, 255,   0], dtype=uint8)

    References:
        ONNX Cast with saturate=1.
    """
    return _cast.run((x,), (arrays.dtype_name(dtype, "dtype"),), (), out)


# ---------------------------------------------------------------- order


def _pose_transform(given: Given, options: tuple[Any, ...]) -> Pose:
    (axes,), x, dtype = options, given.storages[0], str(given.dtypes[0])
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"axes is {axes} and {given.words(0)}; it must hold each of its axes once")
    bits, lies = BITS.get(dtype, dtype), element_strides(x)
    shape, turned = (tuple(each[axis] for axis in axes) for each in (x.shape, lies))

    def problem(outs: Sequence[Any]) -> Problem:
        steps = (element_strides(outs[0]), turned)
        found: Problem = mapped(TensorProblem, "cast", bits, (bits, bits), shape, steps)
        return found

    return Pose((Result(shape, dtype),), problem)


_transform = Primitive(
    "transform", ("x",), _pose_transform, lambda values, options, _: values[0].transpose(*options),
    dtypes=tuple(DTYPES),
)  # fmt: skip


def transform(x: Any, axes: Any, *, out: Any = None) -> Any:
    """Copy an array with its axes in another order: ``y = x.transpose(axes)``, NCHW to NHWC by (0, 2, 3, 1).

    Args:
        x: any shape, strides and type.
        axes: which axis of x each of y's is.
        out: where y goes; it shares no memory with x.

    Returns:
        y, in C order, of x's dtype and library.

    Raises:
        TypeError: axes that are no integers.
        ValueError: axes that are not those of x, each once; an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.transform(np.float32([[1, 2], [3, 4]]), (1, 0))
        array([[1., 3.],
               [2., 4.]], dtype=float32)

    References:
        MIOpen miopenTransformTensor; ONNX Transpose.
    """
    try:
        order = tuple(operator.index(axis) for axis in axes)
    except TypeError:
        raise TypeError(f"axes is {axes!r}; it must be a tuple of integers") from None
    return _transform.run((x,), (order,), (), out)


def concat(parts: Any, axis: int = 0, *, out: Any = None) -> Any:
    """Put arrays one behind the other along an axis.

    Args:
        parts: arrays of one dtype and library, whose shapes differ along the axis only; any strides.
        axis: along which.
        out: where y goes; it shares no memory with the parts.

    Returns:
        y, in C order.

    Raises:
        TypeError: mixed dtypes or libraries, an axis that is no integer.
        ValueError: no parts, shapes that do not fit, an `out` of another shape or one that overlaps a part.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.concat((np.float32([[1], [2]]), np.float32([[3], [4]])), axis=1)
        array([[1., 3.],
               [2., 4.]], dtype=float32)

    References:
        ONNX Concat.
    """
    try:
        given = tuple(parts)
    except TypeError:
        raise TypeError(f"parts is {parts!r}; it must be a sequence of arrays") from None
    return concatenated(given, integer(axis, "axis"), out, cast)


# ---------------------------------------------------------------- find and tune


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    made = reduction.Example(problem, apart=True)
    op, _, scaled = problem.formula.split(":")[1].partition(".")
    operands = []
    for word in problem.inputs:
        _, kind, dtype = word.split(":")
        shape = [1 if (at in made.axes) != (kind == "along") else size for at, size in enumerate(made.shape)]
        if kind == "flat":
            shape[max(at for at in range(len(shape)) if at not in made.axes)] = 1
        if op in BITWISE:
            dtype = {"f64": "i64", "f32": "i32"}.get(dtype, dtype)
        operands.append(made.array(dtype, low=0.5) if kind == "row" else examples.array(tuple(shape), dtype, low=0.5))
    result = problem.results[0].rpartition(":")[2]
    if op in ("fill", "fill_truth"):
        return "fill", (made.array(result), 1.0), {}
    if op in ("scale", "cast", "truth"):
        return "scale" if op == "scale" else "cast", (*operands, 2.0 if op == "scale" else result), {}
    if op == "isnan":
        return op, tuple(operands), {}
    for (positive, negative), word in _INFINITE.items():
        if op == word:
            return "isinf", tuple(operands), {"detect_positive": positive, "detect_negative": negative}
    if op == "where":
        return "where", tuple(operands), {}
    a, b, *c = operands
    return "binary", (a, b, op), {"c": c[0] if c else None, "alpha1": 2.0 if scaled else 1.0}


PROBLEMS = problems(binary, where, isnan, isinf, scale, fill, cast, transform, concat)
EXAMPLES = {"tensor": _example_call}
