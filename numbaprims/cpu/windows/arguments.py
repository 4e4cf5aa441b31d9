"""What windows kernels take, and where windows lie along each dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.simd import Arguments
from numbaprims.dtypes import DTYPES

DIMENSIONS = "dhw"
ARRAYS = ("out", "indices", "x", "dy", "y")
# c, and of each dimension: size of the input, outputs, step between the taps of a window (1 where windows adapt), and
# the addresses of the tables of `tables`.  shares: of every output, along d, then h, then w, an element's share of an
# average in the type that is computed in, of integers how many they are; then 1.  power: address of p.  x_n, x_c, ...:
# elements from image to image and so on, of each array.  blocks: of `block` channels, or `bands` of `band` rows of a
# plane.  pitch: elements of a buffered row, or from one to the next; front:
# those in front of the first, of `cells` in all.  even: whether planes lie one after another over images too.  asks:
# whether lines of rows are asked for in their order, before rows are read side by side; of given places how many bytes
# ahead.
ARGS = Arguments(
    arrays=ARRAYS,
    ints=(
        "c", *(word + d for word in ("size_", "outs_", "step_", "windows_", "around_") for d in DIMENSIONS),
        *(f"{name}_{d}" for name in ARRAYS for d in "nc" + DIMENSIONS),
        "shares", "power", "blocks", "block", "bands", "band", "pitch", "front", "cells", "even", "asks",
    ),
    own=("values", "places", "keys", "taps", "nowhere"),
)  # fmt: skip
FIRST, NUMBER, THIRD = range(3)
"""Words of an entry of a table."""
NOWHERE = 2**31 - 1
"""The place of what is no element."""


def spatial(values: tuple[int, ...], other: int) -> tuple[int, ...]:
    """Numbers of three dimensions from those of one to three."""
    return (*(other,) * (3 - len(values)), *values)


def windows(size: int, out: int, kernel: int, stride: int, before: int, after: int, dilation: int, every: bool) -> Any:
    """For each output of a dimension the first element of its window, how many there are, and how many an average
    counts; `kernel` is 0 where windows adapt, `every` counts padding too."""
    o = np.arange(out)
    if not kernel:
        first = o * size // out
        number = -(-(o + 1) * size // out) - first
        return np.stack([first, number, number], axis=1)
    start = o * stride - before
    skipped = np.maximum(-(start // dilation), 0)
    number = np.clip(-((start - size) // dilation), 0, kernel) - skipped
    count = np.minimum(-((start - size - after) // dilation), kernel) if every else number
    return np.stack([start + skipped * dilation, np.maximum(number, 0), count], axis=1)


def around(table: Any, size: int, step: int) -> Any:
    """For each element of a dimension the first output whose window holds it, how many there are, and the step from
    one to the next."""
    first, number, last = np.full(size, len(table)), np.zeros(size, int), np.zeros(size, int)
    if len(table) <= table[:, NUMBER].max():
        places = [(np.arange(n) * step + at, o) for o, (at, n, _) in enumerate(table)]
    else:
        outputs = np.arange(len(table))
        places = [
            (table[held, FIRST] + t * step, outputs[held])
            for t in range(table[:, NUMBER].max())
            for held in [table[:, NUMBER] > t]
        ]
    for at, o in places:
        np.minimum.at(first, at, o)  # windows that the padding cuts begin at the same element
        np.maximum.at(last, at, o)
        np.add.at(number, at, 1)
    between = np.where(number > 1, (last - first) // np.maximum(number - 1, 1), 1)
    return np.stack([first, number, between], axis=1)


def tables(problem: Any) -> tuple[dict[str, int], tuple[Any, ...]]:
    """The integers of every kernel, and the arrays that they point to."""
    p = problem
    size, out = spatial(p.size, 1), spatial(p.out, 1)
    kernel, stride = spatial(p.kernel, 1), spatial(p.stride, 1)
    before, after, dilation = spatial(p.before, 0), spatial(p.after, 0), spatial(p.dilation, 1)
    ints, keep, counts = {"c": p.c}, [], []

    def put(name: str, values: Any) -> None:
        keep.append(np.ascontiguousarray(values))
        ints[name] = keep[-1].ctypes.data

    for d, name in enumerate(DIMENSIONS):
        step = max(dilation[d], 1)
        table = windows(
            size[d], out[d], 0 if p.adaptive else kernel[d], stride[d], before[d], after[d], step, p.count_include_pad
        )
        ints |= {f"size_{name}": size[d], f"outs_{name}": out[d], f"step_{name}": step}
        put(f"windows_{name}", table.astype(np.int64))
        counts.append(table[:, THIRD])
        if p.direction == "backward":
            put(f"around_{name}", around(table, size[d], step).astype(np.int64))
    if computed(p) != "i32":
        counts = [1.0 / np.maximum(count, 1) for count in counts]
    put("shares", np.concatenate([*counts, [1]]).astype(np.float64 if p.dtype == "f64" else np.float32))
    put("power", np.array([p.p], np.float64))
    for name, strides in zip(ARRAYS, p.strides, strict=True):
        if strides is not None:
            ints |= array_strides(name, strides)
    return ints, tuple(keep)


def array_strides(name: str, strides: tuple[int, ...]) -> dict[str, int]:
    """The integers of an array's strides over (n, c, spatial...)."""
    all_ = (*strides[:2], *spatial(strides[2:], 0))
    return {f"{name}_{d}": step for d, step in zip("nc" + DIMENSIONS, all_, strict=True)}


def kind_of(problem: Any) -> str:
    """The kind of the formulas."""
    if problem.op == "lp":
        return {1.0: "lp_1", 2.0: "lp_2"}.get(problem.p, "lp")
    return str(problem.op)


def computed(problem: Any) -> str:
    """The type that is computed in."""
    return DTYPES[problem.dtype].accumulate


def lowest(kind: str, acc: str) -> float | int:
    """What a window begins with."""
    if kind != "max":
        return 0 if acc == "i32" else 0.0
    return -(2**31) if acc == "i32" else float("-inf")


def line_of(dtype: str) -> int:
    """Elements in a line of the caches."""
    return 64 // DTYPES[dtype].itemsize
