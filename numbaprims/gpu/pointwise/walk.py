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
from numbaprims.gpu.pointwise.form import THREADS, Form

MOST = 1 << 30
"""Elements that indices of 32 bits count: a thread's last step must not wrap around."""
LAUNCH = 3e-6
BLOCKS = 8
"""Blocks a multiprocessor: its 2048 threads."""


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
) -> Launcher:
    """The launcher of a formula over loops; packs of V elements, as `width` gives it, where the arrays of a call are
    aligned to their bytes, else single ones.  `scalars` gives a launch's numbers and words of its floats."""
    loops = [axis for axis, length in enumerate(shape) if length > 1] or [len(shape) - 1]
    shape = [shape[axis] for axis in loops]
    arrays = [each._replace(strides=tuple(each.strides[axis] for axis in loops)) for each in (*results, *operands)]
    far = max(abs(stride) for each in arrays for stride in each.strides)
    wide = math.prod(shape) > MOST or far >= 1 << 31
    places = [(each.place, each.offset * DTYPES[each.dtype].itemsize) for each in arrays]

    def launcher(aligned: bool) -> Launcher:
        lanes = V if aligned else 1
        words = [each.dtype + ":one" * (lanes > 1 and not each.strides[-1]) for each in arrays]
        count = len(results)
        form = Form(formula, compute, ",".join(words[:count]), ",".join(words[count:]), lanes, len(shape), wide)
        run = sum(divmod(shape[-1], lanes))
        total = math.prod(shape[:-1]) * run
        sizes = [(size,) if wide else (size, *reciprocal(size)) for size in (*shape[1:-1], run)[: len(shape) - 1]]
        steps = [stride for each in arrays for stride in each.strides[: form.steps]]
        fixed = (*itertools.chain(*sizes), *steps, shape[-1], total)

        def values(given: Any, floats: Any, _: Any) -> tuple[Any, ...]:
            return (*[given[place].pointer + at for place, at in places], *scalars(floats), *fixed)

        blocks = max(1, min(-(-total // THREADS), BLOCKS * target.multiprocessors))
        return make_launcher([step(make(form), blocks, values)])

    if V == 1:
        return launcher(False)
    long = [each for each in arrays if each.strides[-1]]
    return by_alignment(launcher, {each.place: V * DTYPES[each.dtype].itemsize for each in long})
