"""Programs of pointwise kernels, from loops over arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numbaprims.dispatch.solver import Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.jit import GpuKernel
from numbaprims.gpu.launch import by_alignment, make_launcher, step
from numbaprims.gpu.pointwise.form import THREADS, Form, tile_of, tile_size

MOST = 1 << 30
"""Elements that indices of 32 bits count: a thread's last step must not wrap around."""
LAUNCH = 3e-6
LEAST_TILE = 16
"""Elements along both loops of a tile."""
MOST_BLOCKS = (1 << 31) - 1
"""Of a grid: each item has its thread.  A loop over as many as run at a time took 7 % longer (relu of 64 Mi, H100)."""
UNROLL = 2
"""Packs that a thread loads at a time, of all operands."""


class Array(NamedTuple):
    """An array of a launch along the loops of its elements."""

    place: int
    """Which of the launch's arrays."""
    dtype: str
    strides: tuple[int, ...]
    """In elements, the outermost loop's first."""
    offset: int = 0
    """The element that the loops begin at."""


def width(inner: int, results: Sequence[Array], operands: Sequence[Array], most: int = 16) -> int:
    """Elements of a pack: as many as lie side by side and aligned in every array, 16 bytes of the largest at most.

    An operand may be one element for all of a run, which is `inner` elements."""
    long = [*results, *(each for each in operands if each.strides[-1])]
    V = min(most, 16 // max(DTYPES[each.dtype].itemsize for each in long))
    if any(each.strides[-1] != 1 for each in long):
        return 1
    steps = [inner_step for each in long for inner_step in (*each.strides[:-1], each.offset)]
    while V > inner or any(each % V for each in steps):
        V //= 2
    return V


def seconds(bytes_moved: float, target: Any, efficiency: float) -> float:
    """A launch, and the bytes at a part of the memory's speed."""
    return float(LAUNCH + bytes_moved / (efficiency * target.bandwidth))


def reciprocal(d: int) -> tuple[int, int]:
    """(m, s) with x / d rounded down = (2 x m >> 32) >> s for every x below 2**31.

    m d - 2**(31 + s) is above 0 and at most d <= 2**s; x times it is below 2**(31 + s) (Granlund and Montgomery).

    >>> [(2 * x * reciprocal(7)[0] >> 32) >> reciprocal(7)[1] for x in (6, 7, 2**31 - 1)]
    [0, 1, 306783378]
    """
    s = (d - 1).bit_length()
    return (1 << 31 + s) // d + 1, s


def divisor(size: int, wide: bool) -> tuple[int, ...]:
    """What a kernel takes for a size that it divides by (`device.tile.divisor`)."""
    return (size,) if wide else (size, *reciprocal(size))


def wide_places(*counts: int) -> bool:
    """Whether places need 64 bits, of arrays that reach so far: a thread's last step must not wrap around."""
    return max(map(abs, counts)) > MOST


def walker(
    make: Callable[[Form], GpuKernel],
    formula: str,
    compute: str,
    shape: Sequence[int],
    results: Sequence[Array],
    operands: Sequence[Array],
    target: Any,
    scalars: Callable[[tuple[float, ...]], tuple[Any, ...]],
    V: int,
    turns: bool = False,
) -> Launcher:
    """The launcher of a formula over loops; packs of V elements, as `width` gives it, where the arrays of a call are
    aligned to their bytes, else single ones.  `scalars` gives a launch's numbers and words of its floats; `turns`:
    operands that are contiguous along another loop than the results are read by tiles."""
    loops = [axis for axis, length in enumerate(shape) if length > 1] or [len(shape) - 1]
    shape = [shape[axis] for axis in loops]
    arrays = [each._replace(strides=tuple(each.strides[axis] for axis in loops)) for each in (*results, *operands)]
    far = max(abs(stride) for each in arrays for stride in each.strides)
    wide = math.prod(shape) > MOST or far >= 1 << 31
    places = [(each.place, each.offset * DTYPES[each.dtype].itemsize) for each in arrays]

    turned = _turned_loops(shape, arrays, len(results)) if turns else None
    if turned is not None:
        # the loop that operands are contiguous along goes before the results'
        loops = [k for k in range(len(shape)) if k not in turned] + [*turned]
        shape = [shape[k] for k in loops]
        arrays = [each._replace(strides=tuple(each.strides[k] for k in loops)) for each in arrays]
        V = _tile_width(shape, arrays)

    def launcher(aligned: bool) -> Launcher:
        lanes = V if aligned else 1
        words = [each.dtype + ":one" * (lanes > 1 and not each.strides[-1]) for each in arrays]
        if turned is not None:
            words = [
                word + ":turned" * (each.strides[-1] not in (0, 1)) for word, each in zip(words, arrays, strict=True)
            ]
        count = len(results)
        unrolled = lanes > 1 and len(shape) == 1 and operands
        U = max(1, UNROLL // len(operands)) if unrolled else 1
        form = Form(formula, compute, ",".join(words[:count]), ",".join(words[count:]), lanes, len(shape), wide, U)
        if turned is None:
            run = sum(divmod(shape[-1], lanes))
            items = [*shape[:-1], run]
            last, blocks = (shape[-1], math.prod(items)), -(-math.prod(items) // (THREADS * U))
            blocks = max(1, min(blocks, MOST_BLOCKS))
        else:
            T = tile_of(form)
            items = [*shape[:-2], *(-(-size // T) for size in shape[-2:])]
            last, blocks = (shape[-1], shape[-2]), math.prod(items)
        sizes = [divisor(size, wide) for size in items[1:]]
        steps = [stride for each in arrays for stride in each.strides[: form.steps]]
        fixed = (*itertools.chain(*sizes), *steps, *last)

        def values(given: Any, floats: Any, _: Any) -> tuple[Any, ...]:
            return (*[given[place].pointer + at for place, at in places], *scalars(floats), *fixed)

        return make_launcher([step(make(form), blocks, values)])

    if V == 1:
        return launcher(False)
    long = [each for each in arrays if each.strides[-1]]
    return by_alignment(launcher, {each.place: V * DTYPES[each.dtype].itemsize for each in long})


def turns(shape: Sequence[int], results: Sequence[Array], operands: Sequence[Array]) -> bool:
    """Whether `walker` takes tiles."""
    return _turned_loops(shape, [*results, *operands], len(results)) is not None


def _turned_loops(shape: Sequence[int], arrays: Sequence[Array], results: int) -> tuple[int, int] | None:
    """(the loop that operands are contiguous along, that of the results), where these differ: both long enough for
    tiles, and no array contiguous along neither."""
    itemsize = max(DTYPES[each.dtype].itemsize for each in arrays)

    def along(each: Array) -> int | None:
        return next((k for k, (n, step) in enumerate(zip(shape, each.strides, strict=True)) if step == 1 < n), None)

    inner = along(arrays[0])
    others = {along(each) for each in arrays[results:] if inner is None or each.strides[inner] not in (0, 1)}
    if inner is None or len(others) != 1 or any(along(each) != inner for each in arrays[:results]):
        return None
    other = others.pop()
    count = sum(each.strides[inner] not in (0, 1) for each in arrays[results:])
    if (
        other is None
        or min(shape[inner], shape[other]) < LEAST_TILE
        or count * tile_size(itemsize) ** 2 * itemsize > 40960
    ):
        return None
    return other, inner


def _tile_width(shape: Sequence[int], arrays: Sequence[Array]) -> int:
    """Elements of a pack along both of the last loops."""
    V = 16 // max(DTYPES[each.dtype].itemsize for each in arrays)
    far = [step for each in arrays for step in (*each.strides, each.offset) if step != 1]
    while any(each % V for each in (*shape[-2:], *far)):
        V //= 2
    return V
