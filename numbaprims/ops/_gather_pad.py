"""pad, pad_backward and split: copies of boxes of an array."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES, FLOATS
from numbaprims.ops._gather_index_problem import SplitProblem
from numbaprims.ops._gather_problem import MODES, PadProblem, merged, sizes_of
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, scalar
from numbaprims.reference import gather as reference
from numbaprims.reference.convert import from_float64
from numbaprims.shapes import element_strides, sizes_of as sizes_of_shape

Pads = tuple[tuple[int, int], ...]


def bits_of(value: Any, dtype: str, name: str = "value") -> int:
    """Of the constant in the array's type."""
    storage = DTYPES[dtype].storage
    if dtype in FLOATS:
        stored = from_float64(scalar(value, name), dtype)
    else:
        bounds = (0, 1) if dtype == "bool" else (np.iinfo(storage).min, np.iinfo(storage).max)
        try:
            number: float = operator.index(value)  # float64 does not hold all of int64
        except TypeError:
            number = scalar(value, name)
        if not bounds[0] <= number <= bounds[1] or number != int(number):
            raise ValueError(f"{name} is {value!r}; the array's elements are integers from {bounds[0]} to {bounds[1]}")
        stored = np.array(int(number), storage)
    return int(stored.reshape(1).view(f"u{storage.itemsize}")[0])


def _strides(mode: str, shape: tuple[int, ...], pads: Pads, padded: Any, x: Any) -> Any:
    axes = merged(shape, pads, mode, element_strides(padded), element_strides(x))
    inner = axes[-1]
    return axes, "rows" if inner.padded_step == inner.step == 1 else "strided"


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    pads, mode, value = options
    x, dtype = given.storages[0], str(given.dtypes[0])
    if len(pads) != x.ndim:
        raise ValueError(f"pads is {pads} and {given.words(0)}; it must have a pair for each axis")
    shape = _padded(x.shape, pads, mode)
    bits = bits_of(value, dtype)

    def problem(outs: Sequence[Any]) -> Problem:
        axes, layout = _strides(mode, x.shape, pads, outs[0], x)
        return PadProblem("pad", dtype, mode, sizes_of(x.shape, pads, mode, shape), layout, axes, bits)

    return Pose((Result(shape, dtype),), problem)


def _padded(shape: tuple[int, ...], pads: Pads, mode: str) -> tuple[int, ...]:
    """The shape of a padded array; ValueError where there is none."""
    found = []
    for axis, (size, (low, high)) in enumerate(zip(shape, pads, strict=True)):
        left = size - max(0, -low) - max(0, -high)
        if left < 0:
            raise ValueError(f"pads is {pads}, which take {size - left} of the {size} elements along axis {axis}")
        if left == 0 and mode != "constant" and max(low, high) > 0:
            raise ValueError(f"pads is {pads} and mode {mode!r}; along axis {axis} there is no element to repeat")
        found.append(left + max(0, low) + max(0, high))
    return tuple(found)


_pad = Primitive(
    "pad", ("x",), _pose, lambda values, options, _: reference.pad(values[0], *options), dtypes=tuple(DTYPES)
)  # fmt: skip


def _pose_backward(given: Given, options: tuple[Any, ...]) -> Pose:
    pads, mode, shape = options
    dy, dtype = given.storages[0], str(given.dtypes[0])
    if len(pads) != len(shape):
        raise ValueError(f"pads is {pads} and shape {shape}; pads must have a pair for each axis")
    wanted = _padded(shape, pads, mode)
    if dy.shape != wanted:
        raise ValueError(f"{given.words(0)}; the padded array of {shape} has the shape {wanted}")

    def problem(outs: Sequence[Any]) -> Problem:
        if mode == "constant":
            back = tuple((-low, -high) for low, high in pads)
            axes, layout = _strides(mode, wanted, back, outs[0], dy)
            return PadProblem("pad", dtype, mode, sizes_of(wanted, back, mode, shape), layout, axes)
        axes, layout = _strides(mode, shape, pads, dy, outs[0])
        return PadProblem("fold", dtype, mode, sizes_of(shape, pads, mode, wanted), layout, axes)

    return Pose((Result(shape, dtype),), problem)


def _define_backward(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    pads, mode, shape = options
    return reference.pad_backward(values[0], shape, pads, mode)


_backward = Primitive("pad_backward", ("dy",), _pose_backward, _define_backward)


def as_pads(pads: Any, rank: int) -> Pads:
    """NumPy's pad_width: a number, a pair for all axes, a pair for each axis."""
    try:
        if isinstance(pads, (int, np.integer)):
            return ((int(pads), int(pads)),) * rank
        given = list(pads)
        if len(given) in (1, 2) and all(isinstance(each, (int, np.integer)) for each in given):
            return ((int(given[0]), int(given[-1])),) * rank
        pairs = tuple((operator.index(low), operator.index(high)) for low, high in given)
    except (TypeError, ValueError):
        raise TypeError(f"pads is {pads!r}; it must be a number, a pair, or a pair of integers for each axis") from None
    return pairs * rank if len(pairs) == 1 else pairs


_of_hashable = functools.lru_cache(4096)(as_pads)


def _said(pads: Any, rank: int, mode: Any) -> tuple[Pads, str]:
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"mode is {mode!r}; allowed are {', '.join(MODES)}")
    try:
        return _of_hashable(pads, rank), mode
    except TypeError:  # a list
        return as_pads(pads, rank), mode


def pad(x: Any, pads: Any, mode: str = "constant", value: float = 0.0, *, out: Any = None) -> Any:
    """Surround an array by a constant, or by elements of its own: ``y[i] = x[map(i - before)]`` along each axis.

    "constant": `value`; "edge": the nearest element; "reflect": mirrored at the first and the last element, which
    are not repeated (``c b | a b c | b a``), as often as it takes; "wrap": from the other end (``b c | a b c | a b``).
    Pads below zero take elements away, before any are added.

    Args:
        x: any shape, strides and type.
        pads: NumPy's pad_width: a number, a pair (before, after) for all axes, or a pair for each axis.
        mode: "constant", "reflect", "edge" or "wrap".
        value: the constant.
        out: where y goes; it shares no memory with x.

    Returns:
        y, in C order, of x's dtype and library; along each axis before + size + after elements.

    Raises:
        TypeError: pads that are no integers.
        ValueError: an unknown mode, a number of pairs that is not that of axes, pads that take more than there is, an
            axis without elements to repeat, a value that the integers of x do not hold, an `out` of another shape or
            one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.pad(np.int64([1, 2, 3]), (2, 1), "reflect")
        array([3, 2, 1, 2, 3, 2])

    References:
        numpy.pad; ONNX Pad; torch.nn.functional.pad.
    """
    storage = x if type(x) is np.ndarray else arrays.enter(x, "x")[0]
    pads, mode = _said(pads, storage.ndim, mode)
    return _pad.run((x,), (pads, mode, value if mode == "constant" else 0), (), out)


def pad_backward(dy: Any, shape: Any, pads: Any, mode: str = "constant", *, out: Any = None) -> Any:
    """Gradient of `pad`: ``dx[j] = sum of dy[i] over the i that x[j] was put to``, 0 for what was cropped.

    The sums go in the order of i along each axis, the innermost last, in float32 for 16 bits: the same bits with any
    number of threads.

    Args:
        dy: the gradient of y; any strides; float64, float32, float16 or bfloat16.
        shape: of x.
        pads, mode: those of `pad`.
        out: where dx goes; it shares no memory with dy.

    Returns:
        dx, in C order, of dy's dtype and library.

    Raises:
        TypeError: integers in dy, pads that are no integers.
        ValueError: as of `pad`; a dy that is not of the padded shape.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.pad_backward(np.ones(6, np.float32), (3,), (2, 1), "reflect")
        array([1., 3., 2.], dtype=float32)

    References:
        The chain rule; torch's reflection_pad and replication_pad.
    """
    sizes = sizes_of_shape(shape, "shape")
    pads, mode = _said(pads, len(sizes), mode)
    return _backward.run((dy,), (pads, mode, sizes), (), out)


# ---------------------------------------------------------------- split


def _pose_split(given: Given, options: tuple[Any, ...]) -> Pose:
    sizes, axis = options
    x, dtype = given.storages[0], str(given.dtypes[0])
    results = [Result((*x.shape[:axis], size, *x.shape[axis + 1 :]), dtype) for size in sizes]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])

    def problem(outs: Sequence[Any]) -> Problem:
        parts, places, start = [], [], 0
        for at, (size, out) in enumerate(zip(sizes, outs, strict=True)):
            crop = tuple((-start, start + size - x.shape[axis]) if d == axis else (0, 0) for d in range(x.ndim))
            start += size
            if out.size:
                axes, layout = _strides("constant", x.shape, crop, out, x)
                parts.append(PadProblem("pad", dtype, "constant", (), layout, axes))
                places.append(at)
        layout = "rows" if all(part.layout == "rows" for part in parts) else "strided"
        return SplitProblem("split", dtype, "", ((outer, inner), sizes), layout, tuple(parts), tuple(places))

    return Pose(tuple(results), problem)


def _define_split(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    return tuple(np.split(values[0], np.cumsum(options[0])[:-1], options[1]))


_split = Primitive("split", ("x",), _pose_split, _define_split, dtypes=tuple(DTYPES))


def axis_of(axis: Any, rank: int, **given: Any) -> int:
    """A dimension counted from the front; ValueError where there is none."""
    at = integer(axis, "axis")
    if not -rank <= at < rank:
        words = (f"{name} is a {arrays.describe(x)}" for name, x in given.items())
        raise ValueError(f"axis is {axis} and {' and '.join(words)}")
    return at % rank


def split(x: Any, sizes: Any, axis: int = 0) -> tuple[Any, ...]:
    """Cut an array into parts along an axis, each an array of its own: ``parts[k] = x[start_k : start_k + sizes[k]]``.

    Args:
        x: any shape, strides and type.
        sizes: elements of each part along the axis, which add up to x's; or a number of parts, of
            ``ceil(size / number)`` elements each and the last of what is left (ONNX's num_outputs; NumPy's sections
            where these divide evenly).
        axis: along which.

    Returns:
        The parts, in C order, of x's dtype and library.

    Raises:
        TypeError: sizes or an axis that are no integers.
        ValueError: an axis that x does not have, sizes that do not add up or are below 0, more parts than elements.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.split(np.arange(5), (2, 3))
        (array([0, 1]), array([2, 3, 4]))

    References:
        ONNX Split; numpy.split; torch.split.
    """
    storage = x if type(x) is np.ndarray else arrays.enter(x, "x")[0]
    at = axis_of(axis, storage.ndim, x=x)
    length = storage.shape[at]
    try:
        if isinstance(sizes, (int, np.integer)):
            count = int(sizes)
            each = -(-length // max(count, 1))
            enough = 0 <= each * (count - 1) <= length
            parts = (*[each] * (count - 1), length - each * (count - 1)) if enough else ()
        else:
            parts = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise TypeError(f"sizes is {sizes!r}; it must be an integer or a sequence of them") from None
    if not parts or min(parts) < 0 or sum(parts) != length:
        raise ValueError(f"sizes is {sizes!r} and axis {axis} of x has {length} elements; they must add up to these")
    found = _split.run((x,), (parts, at))
    return (found,) if len(parts) == 1 else tuple(found)
