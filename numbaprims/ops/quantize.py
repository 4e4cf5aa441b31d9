"""Floats as integers of 8 and 4 bits with a scale and a zero point, and back."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import FLOATS, LONG_NAMES
from numbaprims.ops import reduction
from numbaprims.ops._reduction_problem import mapped
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems, scalar
from numbaprims.reference import quantize as reference
from numbaprims.reference.convert import to_float64
from numbaprims.reference.quantize import LIMITS
from numbaprims.shapes import element_strides

_NAMES = {"int8": "i8", "uint8": "u8", "int4": "i4", "uint4": "u4"}
#: Integers of 4 bits stand two in a byte.
_PACKED = ("i4", "u4")
#: Zero points of integers of 4 bits are those of 8.
_ZEROS = {"i4": "i8", "u4": "u8"}


@dataclasses.dataclass(frozen=True)
class QuantizeProblem(reduction.Reduction):
    """A function of elements, or rows with their scales."""

    stem: ClassVar[str] = "quantize"

    @property
    def compute(self) -> str:
        # sums of products of bytes are exact in float64
        long = self.formula == "qlinear_mean" and self.n > 1 << 16
        return "f64" if self.formula == "integer_sum" or long else super().compute

    def bench_command(self) -> str:
        kind = self.formula.split(":")[1].partition(".")[0] if ":" in self.formula else self.formula
        return f"numbaprims bench quantize --kind {kind} --shapes {self.rows}x{self.n}"


def name_of(dtype: Any, name: str = "dtype") -> str:
    """The short name of a type of integers, "i4" and "u4" among them."""
    found = _NAMES.get(str(dtype).removeprefix("torch.")) or (dtype if dtype in LIMITS else None)
    if found is None and not isinstance(dtype, str):
        try:
            found = _NAMES.get(np.dtype(dtype).name)
        except TypeError:
            pass
    if found is None:
        raise TypeError(f"{name} is {dtype!r}; it must be one of {', '.join(_NAMES)}")
    return str(found)


def number_of(value: Any) -> float | None:
    """A parameter that is one number which the host can read; None for an array."""
    if isinstance(value, (int, float, np.number)):
        return float(value)
    if not hasattr(value, "shape") or tuple(value.shape) not in ((), (1,)):
        return None
    storage, dtype, _ = arrays.enter(value, "scale")
    return float(to_float64(storage, dtype).item()) if isinstance(storage, np.ndarray) else None


def scale_number(value: Any, name: str) -> float:
    """A scale that is one number."""
    found = number_of(value)
    found = scalar(value, name) if found is None else found
    if not 0.0 < found < float("inf"):
        raise ValueError(f"{name} is {value!r}; a scale is positive and finite")
    return found


def zero_number(value: Any, name: str, dtype: str) -> float:
    """A zero point that is one number, in the range of a type."""
    found = number_of(value)
    found = scalar(value, name) if found is None else found
    if found != int(found):
        raise TypeError(f"{name} is {value!r}; a zero point is an integer")
    low, high = LIMITS.get(dtype, (-(1 << 31), (1 << 31) - 1))
    if not low <= found <= high:
        raise ValueError(f"{name} is {value!r}; it must lie in {low} ... {high}, the range of the integers")
    return found


def _cut(shape: tuple[int, ...], own: tuple[int, ...], axis: int | None, block: int, words: str) -> Any:
    """(the shape of x, with blocks as a dimension of their own; that in which parameters broadcast to it)"""
    if block:
        assert axis is not None
        counts = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
        if own != counts:
            raise ValueError(f"{words}; blocks of {block} along axis {axis} need {counts}")
        return (*shape[:axis], counts[axis], block, *shape[axis + 1 :]), (*own[: axis + 1], 1, *own[axis + 1 :])
    if len(own) == len(shape) and all(a in (1, b) for a, b in zip(own, shape, strict=True)):
        return shape, own
    if len(own) == 1 and own[0] == 1:
        return shape, (1,) * len(shape)
    if len(own) == 1 and axis is not None and own[0] == shape[axis]:
        return shape, tuple(own[0] if at == axis else 1 for at in range(len(shape)))
    at = "" if axis is None else f" along axis {axis}"
    raise ValueError(f"{words}: one value, one each{at}, or a shape with 1 where it broadcasts")


def _split(x: Any, cut: tuple[int, ...], axis: int | None, block: int) -> tuple[int, ...]:
    """The strides of an array whose axis is cut into blocks."""
    steps = element_strides(x)
    if not block or axis is None:
        return steps
    return (*steps[:axis], steps[axis] * block, *steps[axis:])


def _pose_of(given: Given, word: str, result: str, arrays: int, axis: int | None, block: int) -> Pose:
    """`arrays` operands of x's shape, then parameters: a launch for each of the formulas of `formulas.quantized`."""
    x, compute = given.storages[0], "f64" if "f64" in (given.dtypes[0], result) else str(given.dtypes[0])
    if result == "f64" or given.dtypes[0] == "i32":
        compute = "f64"
    inputs = [each for each in given.storages if each is not None]
    dtypes = [result, *(str(each) for each in given.dtypes if each is not None)]
    shape: tuple[int, ...] = x.shape
    views = []
    for at, each in enumerate(given.storages[arrays:], arrays):
        if each is not None:
            words = f"{given.words(0)} and {given.words(at)}"
            shape, view = _cut(x.shape, each.shape, axis, block, words)
            views.append(each.reshape(view))
    cut, whole = shape, inputs[:arrays]

    def problem(outs: Sequence[Any]) -> Problem:
        steps = [_split(each, cut, axis, block) for each in (outs[0], *whole)]
        steps += [element_strides(np.broadcast_to(each, cut)) for each in views]
        shared = any(np.may_share_memory(outs[0], each) for each in inputs)
        found: Problem = mapped(QuantizeProblem, word, compute, dtypes, cut, steps, in_place=shared)
        return found

    return Pose((Result(x.shape, result, like=0),), problem)


def _way(given: Given, first: int, takes: tuple[str, ...], zero: str) -> str:
    """How parameters are given, as a formula's name says it."""
    found = ""
    for at in range(first, len(given.storages)):
        dtype, is_scale = given.dtypes[at], "scale" in given.names[at]
        if dtype is None:
            continue
        if dtype not in (takes if is_scale else (zero,)):
            words = ", ".join(LONG_NAMES[each] for each in (takes if is_scale else (zero,)))
            raise TypeError(f"{given.words(at)}; it must be {words}")
        found = "_by" if is_scale and found != "_at" else "_at"
    return found


def _limits(dtype: str) -> str:
    return ".{}_{}".format(*LIMITS[dtype]) if dtype in _PACKED else ""


# ---------------------------------------------------------------- scales and zero points


class _Given(NamedTuple):
    """The parameters of a call: arrays, or None for what is a number."""

    scale: Any
    zero: Any
    numbers: tuple[float, ...]
    axis: int | None
    block: int = 0
    """Elements along the axis that share one; 0: each index has its own."""

    def part(self, blocks: slice, block: int) -> _Given:
        """Those of some blocks."""
        assert self.axis is not None
        index = (*(slice(None),) * self.axis, blocks)
        scale, zero = (None if each is None else each[index] for each in (self.scale, self.zero))
        return self._replace(scale=scale, zero=zero, block=block)

    def half(self, start: int, count: int, x: Any) -> _Given:
        """Those of `count` elements along the last axis of x, every other one from `start` on."""
        last, n = len(x.shape) - 1, x.shape[-1]
        if self.block and self.axis == last:
            return self._replace(block=-(-count // self.scale.shape[last]))
        part = slice(start, start + 2 * count, 2)
        scale, zero = (
            each if each is None or tuple(each.shape)[-1:] != (n,) or (len(each.shape) <= last and self.axis != last)
            else each[..., part]
            for each in (self.scale, self.zero)
        )  # fmt: skip
        return self._replace(scale=scale, zero=zero)


def _entered(x: Any, scale: Any, zero: Any, axis: Any, block: Any, dtype: str) -> _Given:
    one = number_of(scale)
    if one is not None:
        found = scale_number(scale, "scale")
        return _Given(None, None, (found, 0.0 if zero is None else zero_number(zero, "zero_point", dtype)), None)
    axis = _index(axis, x)
    if block is not None:
        block = operator.index(block)
        if axis is None or block < 1:
            raise ValueError(f"block_size is {block} and axis {axis}; it must be 1 or more, and an axis given")
    if zero is None:
        return _Given(scale, None, (0.0,), axis, block or 0)
    if number_of(zero) is not None and (not hasattr(zero, "shape") or tuple(scale.shape) != tuple(zero.shape)):
        return _Given(scale, None, (zero_number(zero, "zero_point", dtype),), axis, block or 0)
    return _Given(scale, zero, (), axis, block or 0)


def _index(axis: Any, x: Any) -> int | None:
    if axis is None:
        return None
    ndim, axis = len(x.shape), operator.index(axis)
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis is {axis} and x a {arrays.describe(x)}; allowed is {-ndim} to {ndim - 1}")
    return int(axis % ndim)


def _parts(shape: tuple[int, ...], given: _Given, packed: bool, words: str) -> list[tuple[slice, _Given]]:
    """Whole blocks, and what is left of the last one: where along the axis, and the parameters."""
    axis, block = given.axis, given.block
    if not block or axis is None:
        return [(slice(None), given)]
    _cut(shape, tuple(given.scale.shape), axis, block, words)
    if packed and axis == len(shape) - 1 and block % 2:
        raise ValueError(f"block_size is {block}; along the last axis of integers of 4 bits it must be even")
    size = shape[axis]
    whole = size // block
    found = [(slice(0, whole * block), given.part(slice(0, whole), block))] if whole else []
    if whole * block < size:
        found.append((slice(whole * block, size), given.part(slice(whole, whole + 1), size - whole * block)))
    return found


def _made(x: Any, shape: tuple[int, ...], dtype: str, out: Any) -> Any:
    """The array that parts of a result go to."""
    storage, _, library = arrays.enter(x, "x")
    if out is None:
        return library.empty(shape, dtype)[0]
    arrays.check_overlap(arrays.check_out(out, shape, dtype, library=library), [(storage, "x", False)])
    return out


def _at(axis: int | None, part: slice, each: int = 1) -> tuple[Any, ...]:
    """The index of a part along an axis; of `each` elements one, where they are packed."""
    if axis is None or part == slice(None):
        return (...,)
    return (*(slice(None),) * axis, slice(part.start // each, -(-part.stop // each)))


# ---------------------------------------------------------------- quantize


def _pose_quantize(given: Given, options: tuple[Any, ...]) -> Pose:
    dtype, kind, axis, block = options
    count = 1 if given.names[1] == "scale" else 2
    way = _way(given, count, tuple({str(given.dtypes[0]), "f32"}), _ZEROS.get(dtype, dtype))
    word = "quantize" + ("_pair" if count == 2 else "_lone" if dtype in _PACKED else "") + way
    return _pose_of(given, word + _limits(dtype), "u8" if dtype in _PACKED else dtype, count, axis, block)


def _define_quantize(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    dtype, kind, axis, block = options
    count = len(values) // 3
    found = []
    for x, scale, zero in (values[at::count] for at in range(count)):
        scale, zero = _values(x, scale, zero, axis, block, numbers)
        found.append(reference.quantize(x, scale, zero, dtype, kind))
    return found[0] if dtype not in _PACKED else reference.pack(*found, *(0.0,) * (2 - count))


def _kind(x: Any) -> str:
    """The type in which floats are divided."""
    return "f64" if getattr(getattr(x, "dtype", None), "itemsize", 4) == 8 else "f32"


def _values(x: Any, scale: Any, zero: Any, axis: int | None, block: int, numbers: Any) -> tuple[Any, Any]:
    """Parameters as they broadcast to x."""

    def full(values: Any) -> Any:
        cut, view = _cut(x.shape, values.shape, axis, block, "")
        return np.broadcast_to(values.reshape(view), cut).reshape(x.shape)

    if scale is None:
        return numbers[0], numbers[1]
    return full(scale), numbers[0] if zero is None else full(zero)


_OWN = ("scale", "zero_point")
_quantize = Primitive("quantize", ("x", *_OWN), _pose_quantize, _define_quantize, others=_OWN)
_PAIRS = ("scale", "odd scale", "zero_point", "odd zero_point")
_quantize_pairs = Primitive("quantize", ("x", "odd x", *_PAIRS), _pose_quantize, _define_quantize, others=_PAIRS)


def quantize(
    x: Any, scale: Any, zero_point: Any = None, *, axis: int | None = None, block_size: int | None = None,
    dtype: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Quantise floats: ``y = saturate(round(x / scale) + zero_point)``, halves to even.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16, the last two divided in float32.
        scale: a positive number; or an array of float32 or of x's dtype: (x.shape[axis],), one for each index of the
            axis; with `block_size` x's shape, the axis' size being that of its blocks, rounded up; or x's shape with 1
            where it broadcasts.
        zero_point: an integer in the range of `dtype`, or an array of it as `scale`; int8 for int4, uint8 for uint4.
            None: 0.
        axis: what the parameters belong to.
        block_size: elements along the axis that share parameters; the last block may be shorter.
        dtype: "int8", "uint8", "int4" or "uint4"; None: that of `zero_point`, uint8 where that has none. Integers of
            4 bits are packed along the last axis, two a byte, the first in the lower half; of an odd number the last
            upper half is 0.
        out: where y goes; it shares no memory with x.

    Returns:
        y, of x's library and shape; of 4 bits uint8, the last axis half as long, rounded up.
        NaN becomes the zero point.

    Raises:
        TypeError: a dtype that there is none, mixed libraries, a zero point that is no integer.
        ValueError: a scale that is not positive and finite, a zero point out of range, parameters whose shapes do not
            fit, blocks of an odd size along the last axis of integers of 4 bits, an `out` of another shape or one that
            overlaps. Elements of arrays of parameters are not looked at.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.quantize(np.float32([-1, 0.25, 2]), 0.5, np.uint8(3))
        array([1, 3, 7], dtype=uint8)
        >>> numbaprims.quantize(np.float32([1, -1, 7]), 1.0, dtype="int4")
        array([241,   7], dtype=uint8)

    References:
        ONNX QuantizeLinear.
    """
    if dtype is None:
        dtype = zero_point.dtype if hasattr(zero_point, "dtype") else "uint8"
    name = name_of(dtype)
    given = _entered(x, scale, zero_point, axis, block_size, name)
    if not given.block and name not in _PACKED:
        return _quantize((x, given.scale, given.zero), (name, _kind(x), given.axis, 0), given.numbers, out)
    packed, shape = name in _PACKED, tuple(x.shape)
    if packed and not shape:
        raise ValueError(f"x is a {arrays.describe(x)}; what is packed must have a dimension at least")
    made = _made(x, (*shape[:-1], -(-shape[-1] // 2)) if packed else shape, "u8" if packed else name, out)
    each = 2 if packed and given.axis == len(shape) - 1 else 1
    for place, own in _parts(shape, given, packed, f"x is a {arrays.describe(x)}, scale a {arrays.describe(scale)}"):
        taken, to = x[_at(given.axis, place)], made[_at(given.axis, place, each)]
        if packed:
            _pack(taken, own, name, to)
        else:
            _quantize((taken, own.scale, own.zero), (name, _kind(x), own.axis, own.block), own.numbers, to)
    return made


def _pack(x: Any, given: _Given, name: str, out: Any) -> None:
    """Pairs of elements along the last axis, and the last one of an odd number."""
    n = x.shape[-1]
    pairs = n // 2
    if pairs:
        one, other = given.half(0, pairs, x), given.half(1, pairs, x)
        halves = x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
        operands = (*halves, one.scale, other.scale, one.zero, other.zero)
        _quantize_pairs(operands, (name, _kind(x), one.axis, one.block), one.numbers, out[..., :pairs])
    if n % 2:
        lone = given.half(n - 1, 1, x)
        _quantize(
            (x[..., n - 1 :], lone.scale, lone.zero),
            (name, _kind(x), lone.axis, lone.block),
            lone.numbers,
            out[..., pairs:],
        )


# ---------------------------------------------------------------- dequantize


def _pose_dequantize(given: Given, options: tuple[Any, ...]) -> Pose:
    dtype, part, to, axis, block = options
    x = given.dtypes[0]
    if x != ("u8" if dtype in _PACKED else dtype):
        raise TypeError(f"{given.words(0)}; integers of 4 bits are packed in uint8")
    way = _way(given, 1, ("f32", to), _ZEROS.get(dtype, dtype))
    return _pose_of(given, f"dequantize{part}{way}{_limits(dtype)}", to, 1, axis, block)


def _define_dequantize(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    x, scale, zero = values
    dtype, part, _, axis, block = options
    if part:
        x = reference.halves(x, dtype)[part == "_upper"]
    scale, zero = _values(x, scale, zero, axis, block, numbers)
    return reference.dequantize(x, scale, zero)


_dequantize = Primitive(
    "dequantize", ("x", *_OWN), _pose_dequantize, _define_dequantize, dtypes=("i8", "u8", "i32"), others=_OWN
)


def dequantize(
    x: Any, scale: Any, zero_point: Any = None, *, axis: int | None = None, block_size: int | None = None,
    dtype: Any = None, length: int | None = None, out_dtype: Any = "float32", out: Any = None,
) -> Any:  # fmt: skip
    """Give quantised integers back as floats: ``y = (x - zero_point) scale``.

    Args:
        x: any shape and strides; int8, uint8 or int32; uint8 that holds pairs of int4 or uint4, see `dtype`.
        scale: a positive number, or an array of float32 or of `out_dtype`, as in `quantize`.
        zero_point: an integer, or an array of them, of x's dtype, int8 for int4. None: 0.
        axis: what the parameters belong to.
        block_size: elements along the axis that share parameters; the last block may be shorter.
        dtype: "int4" or "uint4": what `quantize` packed along the last axis; None: x's own.
        length: elements of the last axis of what is packed; None: twice its bytes.
        out_dtype: "float32", "float64", "float16" or "bfloat16"; the last two are rounded once from float32.
        out: where y goes; it shares no memory with x.

    Returns:
        y, of x's library and shape; of 4 bits the last axis has `length`.

    Raises:
        TypeError: as `quantize`.
        ValueError: as `quantize`; also a length that is not that of the bytes.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.dequantize(np.uint8([1, 3, 7]), 0.5, 3)
        array([-1.,  0.,  2.], dtype=float32)
        >>> numbaprims.dequantize(np.uint8([241, 7]), 1.0, dtype="int4", length=3)
        array([ 1., -1.,  7.], dtype=float32)

    References:
        ONNX DequantizeLinear.
    """
    to = arrays.dtype_name(out_dtype)
    if to not in FLOATS:
        raise TypeError(f"out_dtype is {out_dtype!r}; it must be one of {', '.join(map(LONG_NAMES.get, FLOATS))}")  # type: ignore[arg-type]
    own = arrays.enter(x, "x")[1]
    name = own if dtype is None else name_of(dtype)
    shape = tuple(x.shape)
    if name in _PACKED and shape:
        n = 2 * shape[-1] if length is None else operator.index(length)
        if -(-n // 2) != shape[-1]:
            raise ValueError(
                f"length is {n} and x a {arrays.describe(x)}; its last axis must be half of it, rounded up"
            )
        shape = (*shape[:-1], n)
    elif length is not None or name in _PACKED:
        raise ValueError(
            f"x is a {arrays.describe(x)} and dtype {dtype!r}; a length is that of what is packed along an axis"
        )
    given = _entered(_Shape(shape), scale, zero_point, axis, block_size, name)
    if not given.block and name not in _PACKED:
        return _dequantize((x, given.scale, given.zero), (name, "", to, given.axis, 0), given.numbers, out)
    made = _made(x, shape, to, out)
    each = 2 if name in _PACKED and given.axis == len(shape) - 1 else 1
    for place, part in _parts(
        shape, given, each == 2, f"x is a {arrays.describe(x)}, scale a {arrays.describe(scale)}"
    ):
        taken, to_part = x[_at(given.axis, place, each)], made[_at(given.axis, place)]
        if name in _PACKED:
            for start, half in enumerate(("_lower", "_upper")):
                goes = to_part[..., start::2]
                count = goes.shape[-1]
                if count:
                    mine = part.half(start, count, to_part)
                    options = name, half, to, mine.axis, mine.block
                    _dequantize((taken[..., :count], mine.scale, mine.zero), options, mine.numbers, goes)
        else:
            _dequantize((taken, part.scale, part.zero), (name, "", to, part.axis, part.block), part.numbers, to_part)
    return made


class _Shape(NamedTuple):
    """What has a shape."""

    shape: tuple[int, ...]


# ---------------------------------------------------------------- scales from the elements


def _pose_dynamic(given: Given, options: tuple[Any, ...]) -> Pose:
    axis, symmetric, _ = options
    x, dtype = given.storages[0], "i8" if symmetric else "u8"
    axes = tuple(range(x.ndim)) if axis is None else (_index(axis, x),)
    kept = tuple(1 if at in axes else size for at, size in enumerate(x.shape))
    own = () if axis is None else kept
    if axis is not None and not x.shape[axes[0]] and x.size == 0 and 0 not in own:
        own = kept
    kind = "f64" if given.dtypes[0] == "f64" else "f32"
    results = [Result(x.shape, dtype, like=0), Result(own, kind), Result(own, dtype)]
    formula = "dynamic_quantize" + "_symmetric" * symmetric
    views = {"scale": kept, "zero_point": kept}
    return reduction.pose(QuantizeProblem, given, formula, x.shape, axes, results, views)


_dynamic = Primitive(
    "dynamic_quantize", ("x",), _pose_dynamic,
    lambda values, options, _: reference.dynamic_quantize(values[0], *options),
)  # fmt: skip


def dynamic_quantize(x: Any, *, axis: int | None = None, symmetric: bool = False, out: Any = None) -> Any:
    """Quantise floats by the range that they have: ``scale = (max(x, 0) - min(x, 0)) / 255,
    zero_point = round(-min(x, 0) / scale), y = saturate(round(x / scale) + zero_point)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16, the last two computed in float32.
        axis: what is reduced for a scale; None: all of x, the row's own with -1.
        symmetric: to int8 in -127 ... 127 by ``scale = max |x| / 127``, zero_point 0.
        out: where y goes; it shares no memory with x.

    Returns:
        (y, scale, zero_point): y is uint8, int8 if symmetric, of x's shape; scale float32 (float64 of float64);
        zero_point of y's dtype. With an axis the last two have x's shape with 1 there, as `quantize` and `dequantize`
        take them. Of zeros alone the scale is 1. Where x holds NaN, the scale is NaN and y 0.

    Raises:
        TypeError: a dtype that is none of floats.
        ValueError: an axis that there is none, an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> y, scale, zero_point = numbaprims.dynamic_quantize(np.float32([-51, 0, 204]))
        >>> y, float(scale), int(zero_point)
        (array([  0,  51, 255], dtype=uint8), 1.0, 51)

    References:
        ONNX DynamicQuantizeLinear.
    """
    if symmetric.__class__ is not bool:
        raise TypeError(f"symmetric is {symmetric!r}; it must be True or False")
    return _dynamic((x,), (_index(axis, x), symmetric, _kind(x)), (), out)


# ---------------------------------------------------------------- find and tune


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    if problem.formula.startswith("dynamic"):
        made = reduction.Example(problem)
        axis = made.axes[0] if math.prod(problem.kept) > 1 else None
        return "dynamic_quantize", (made.array(problem.dtype),), {
            "axis": axis, "symmetric": problem.formula.endswith("symmetric"),
        }  # fmt: skip
    raise NotImplementedError(problem.formula)


PROBLEMS = problems(quantize, dequantize, dynamic_quantize)
EXAMPLES = {"quantize": _example_call}
