"""Quantisation: its problem, scales and zero points as they are given, and how these broadcast."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import LONG_NAMES
from numbaprims.ops import reduction
from numbaprims.ops._reduction_problem import mapped
from numbaprims.ops.primitive import Given, Pose, Result, integer, scalar
from numbaprims.reference.convert import from_float64, to_float64
from numbaprims.reference.quantize import LIMITS
from numbaprims.shapes import element_strides

_NAMES = {"int8": "i8", "uint8": "u8", "int4": "i4", "uint4": "u4"}
#: Integers of 4 bits stand two in a byte.
PACKED = ("i4", "u4")
#: Zero points of integers of 4 bits are those of 8.
ZEROS = {"i4": "i8", "u4": "u8"}


@dataclasses.dataclass(frozen=True)
class QuantizeProblem(reduction.Reduction):
    """A function of elements, or rows with their scales."""

    stem: ClassVar[str] = "quantize"

    @property
    def compute(self) -> str:
        # sums of bytes that float32 does not hold
        sums = self.formula in ("qlinear_mean", "integer_sum")
        return "f64" if sums and self.n > 1 << 16 else super().compute

    def bench_command(self) -> str:
        word = self.formula.partition(":")[2] or self.formula
        kind = next(kind for name, kind in _BENCHED.items() if word.startswith(name))
        rows, n = (1, self.rows * self.n) if self.layout == "strided" else (self.rows, self.n)
        return f"numbaprims bench quantize --kind {kind} --shapes {rows}x{n}"


#: What a formula's name begins with -> how its bench is called.
_BENCHED = {
    "quantize": "quantize", "requantize": "quantize", "dequantize": "dequantize", "dynamic": "dynamic",
    "qlinear_add": "add", "qlinear_mean": "global_avg", "lookup": "sigmoid", "signed": "quantize",
    "integer_sum": "global_avg",
}  # fmt: skip


#: What is compared by value, so that what follows from it may be kept.
_PLAIN = {
    type(None), bool, int, float, str, *(np.dtype(code).type for code in "bBhHiIlLqQefd"),
}  # fmt: skip


def known(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """What a call's scales and zero points give: some 8 us of checks at the first one."""
    return kept(function, *given) if _PLAIN.issuperset(map(type, given)) else function(*given)


@functools.lru_cache(maxsize=1024, typed=True)
def kept(function: Callable[..., Any], *given: Any) -> Any:
    """`known` of what is `plain`."""
    return function(*given)


def plain(*given: Any) -> bool:
    """Whether these are numbers and names."""
    return _PLAIN.issuperset(map(type, given))


def check_apart(out: Any, **inputs: Any) -> None:
    """Refuse an `out` that overlaps an input which a result passes by way of an array of its own."""
    if out is not None:
        given = [(arrays.enter(x, name)[0], name, False) for name, x in inputs.items()]
        arrays.check_overlap(arrays.enter(out, "out")[0], given)


def name_of(dtype: Any, name: str = "dtype") -> str:
    """The short name of a type of integers, "i4" and "u4" among them."""
    short = isinstance(dtype, str) and dtype in LIMITS
    found = dtype if short else _NAMES.get(str(dtype).removeprefix("torch."))
    if found is None and not isinstance(dtype, str):
        try:
            found = _NAMES.get(np.dtype(dtype).name)
        except TypeError:
            pass
    if found is None:
        raise TypeError(f"{name} is {dtype!r}; it must be one of {', '.join(_NAMES)}")
    return str(found)


def number_of(value: Any, name: str = "scale") -> float | None:
    """A parameter that is one number which the host can read; None for an array."""
    if isinstance(value, (int, float, np.number)):
        return scalar(value, name)
    if not hasattr(value, "shape") or tuple(value.shape) not in ((), (1,)):
        return None
    storage, dtype, _ = arrays.enter(value, name)
    return float(to_float64(storage, dtype).item()) if isinstance(storage, np.ndarray) else None


def scale_number(value: Any, name: str, kind: str = "f64") -> float:
    """A scale that is one number, positive and finite in the type that is computed in."""
    found = number_of(value, name)
    found = scalar(value, name) if found is None else found
    if not 0.0 < found < float("inf"):
        raise ValueError(f"{name} is {value!r}; a scale is positive and finite")
    if kind == "f32" and not 0.0 < float(from_float64(found, kind)) < float("inf"):
        raise ValueError(f"{name} is {value!r}; a scale is positive and finite in float32 too")
    return found


def factor_of(factor: Any, name: str, rule: str = "it must be above 0 and finite") -> np.ndarray:
    """What integers are multiplied by, as float32; ValueError where that is not above 0 and finite, as quotients of
    scales may be."""
    with np.errstate(all="ignore"):
        found = np.asarray(factor, np.float32)
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise ValueError(f"{name} is {found} in float32; {rule}")
    return found


def zero_number(value: Any, name: str, dtype: str) -> float:
    """A zero point that is one number, in the range of a type."""
    found = number_of(value, name)
    found = scalar(value, name) if found is None else found
    if not found.is_integer():
        raise TypeError(f"{name} is {value!r}; a zero point is an integer")
    low, high = LIMITS.get(dtype, (-(1 << 31), (1 << 31) - 1))
    if not low <= found <= high:
        raise ValueError(f"{name} is {value!r}; it must lie in {low} ... {high}, the range of the integers")
    return found


def cut_of(shape: tuple[int, ...], own: tuple[int, ...], axis: int | None, block: int, words: str) -> Any:
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


def pose_of(given: Given, word: str, result: str, arrays: int, axis: int | None, block: int) -> Pose:
    """`arrays` operands of x's shape, then parameters: a launch for each of the formulas of `formulas.quantized`."""
    x, compute = given.storages[0], "f64" if "f64" in (given.dtypes[0], result) else "f32"
    if given.dtypes[0] == "i32" and word.startswith("dequantize"):
        compute = "f64"
    inputs = [each for each in given.storages if each is not None]
    dtypes = [result, *(str(each) for each in given.dtypes if each is not None)]
    shape: tuple[int, ...] = x.shape
    views = []
    for at, each in enumerate(given.storages[arrays:], arrays):
        if each is not None:
            words = f"{given.words(0)} and {given.words(at)}"
            shape, view = cut_of(x.shape, each.shape, axis, block, words)
            views.append(each.reshape(view))
    cut, whole = shape, inputs[:arrays]

    def problem(outs: Sequence[Any]) -> Problem:
        steps = [_split(each, cut, axis, block) for each in (outs[0], *whole)]
        steps += [element_strides(np.broadcast_to(each, cut)) for each in views]
        shared = any(np.may_share_memory(outs[0], each) for each in inputs)
        found: Problem = mapped(QuantizeProblem, word, compute, dtypes, cut, steps, in_place=shared)
        return found

    return Pose((Result(x.shape, result, like=0),), problem)


def way_of(given: Given, first: int, takes: tuple[str, ...], zero: str) -> str:
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


def limits_of(dtype: str) -> str:
    return ".{}_{}".format(*LIMITS[dtype]) if dtype in PACKED else ""


# ---------------------------------------------------------------- scales and zero points


class Parameters(NamedTuple):
    """The parameters of a call: arrays, or None for what is a number."""

    scale: Any
    zero: Any
    numbers: tuple[float, ...]
    axis: int | None
    block: int = 0
    """Elements along the axis that share one; 0: each index has its own."""

    def part(self, blocks: slice, block: int) -> Parameters:
        """Those of some blocks."""
        assert self.axis is not None
        index = (*(slice(None),) * self.axis, blocks)
        scale, zero = (None if each is None else each[index] for each in (self.scale, self.zero))
        return self._replace(scale=scale, zero=zero, block=block)

    def half(self, start: int, count: int, x: Any) -> Parameters:
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


def entered(x: Any, scale: Any, zero: Any, axis: Any, block: Any, dtype: str, kind: str) -> Parameters:
    """The parameters of a call that computes in a type."""
    axis = index_of(axis, x)
    if block is not None:
        block = integer(block, "block_size")
        if axis is None or block < 1:
            raise ValueError(f"block_size is {block} and axis {axis}; it must be 1 or more, and an axis given")
    if number_of(scale, "scale") is not None:
        found = scale_number(scale, "scale", kind)
        return Parameters(None, None, (found, 0.0 if zero is None else zero_number(zero, "zero_point", dtype)), None)
    if zero is None:
        return Parameters(scale, None, (0.0,), axis, block or 0)
    shape = tuple(arrays.enter(scale, "scale")[0].shape)
    if number_of(zero, "zero_point") is not None and shape != tuple(getattr(zero, "shape", ())):
        return Parameters(scale, None, (zero_number(zero, "zero_point", dtype),), axis, block or 0)
    return Parameters(scale, zero, (), axis, block or 0)


def index_of(axis: Any, x: Any) -> int | None:
    if axis is None:
        return None
    if not hasattr(x, "shape"):
        arrays.enter(x, "x")  # says what it is
    ndim, axis = len(x.shape), integer(axis, "axis")
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis is {axis} and x a {arrays.describe(x)}; allowed is {-ndim} to {ndim - 1}")
    return int(axis % ndim)


def parts_of(shape: tuple[int, ...], given: Parameters, packed: bool, x: Any) -> list[tuple[slice, Parameters]]:
    """Whole blocks, and what is left of the last one: where along the axis, and the parameters."""
    axis, block = given.axis, given.block
    for name, each in (("scale", given.scale), ("zero_point", given.zero)):
        if each is not None:  # a part is of another shape than what the caller gave
            words = f"x is a {arrays.describe(x)}, {name} a {arrays.describe(each)}"
            cut_of(shape, tuple(arrays.enter(each, name)[0].shape), axis, block, words)
    if not block or axis is None:
        return [(slice(None), given)]
    if packed and axis == len(shape) - 1 and block % 2:
        raise ValueError(f"block_size is {block}; along the last axis of integers of 4 bits it must be even")
    size = shape[axis]
    whole = size // block
    found = [(slice(0, whole * block), given.part(slice(0, whole), block))] if whole else []
    if whole * block < size:
        found.append((slice(whole * block, size), given.part(slice(whole, whole + 1), size - whole * block)))
    return found


def made_of(x: Any, shape: tuple[int, ...], dtype: str, out: Any) -> Any:
    """The array that parts of a result go to."""
    storage, _, library = arrays.enter(x, "x")
    if out is None:
        return library.empty(shape, dtype)[0]
    arrays.check_overlap(arrays.check_out(out, shape, dtype, library=library), [(storage, "x", False)])
    return out


def place_of(axis: int | None, part: slice, each: int = 1) -> tuple[Any, ...]:
    """The index of a part along an axis; of `each` elements one, where they are packed."""
    if axis is None or part == slice(None):
        return (...,)
    return (*(slice(None),) * axis, slice(part.start // each, -(-part.stop // each)))
