"""Decoding: the best class of each step, and the search for the best prefixes; a sample a tile."""

from __future__ import annotations

import functools
import math

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    any_lane,
    exp,
    extract,
    first_lanes,
    load_wide_first,
    load_wide_scalar,
    load_word,
    log1p,
    max_number,
    reduce_max,
    scalar,
    select,
    splat,
    store_narrow_scalar,
    store_scalar,
    zeros,
)
from numbaprims.dtypes import DTYPES
from numbaprims.formulas import beams
from numbaprims.formulas.beams import NONE

# out: labels (sample, path, time), and of each sample and path how many and their score; x (time, sample, class); steps
# of each sample.  A worker's: FLOATS parts of `width` + 1 float64; 4 `nodes` int64, INTS parts of `width` + 1.
ARGS = Arguments(
    arrays=("out", "count", "score", "x", "table"),
    ints=("x_t", "x_n", "x_c", "steps", "classes", "blank", "width", "paths", "nodes"),
    own=("floats", "integers"),
)  # fmt: skip


@functools.cache
def make_greedy(dtype: str, W: int) -> RangeKernel:
    """Samples lo ... hi - 1: the largest class of each step, the first of equal ones, NaN never."""
    elem = DTYPES[dtype].accumulate
    types = ARGS.types(out="i64", count="i64", score=dtype, x=dtype, table="i64")

    @range_kernel("ctc_greedy", types, spec=(dtype, W))
    def ctc_greedy(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        classes = args.classes
        for n in range(lo, hi):
            count, before, total = 0, NONE, 0.0
            out = advance(args.out, n * args.steps)
            for t in range(load_word(address_of(args.table), n)):
                x = advance(args.x, n * args.x_n + t * args.x_t)
                label = 0
                if args.x_c == 1:
                    best = zeros(elem, W) - math.inf
                    for c in range(0, classes, W):
                        left = min(W, classes - c)
                        best = max_number(best, select(first_lanes(left, W), load_wide_first(x, c, left, W), -math.inf))
                    most = reduce_max(best)
                    while label < classes and not any_lane(
                        load_wide_first(x, label, min(W, classes - label), W) == most
                    ):
                        label += W
                    # zeros behind the last class may be equal to it: then it is not found, and one before is
                    while label < classes and load_wide_scalar(x, label) != most:
                        label += 1
                else:
                    most = scalar(-math.inf, elem)
                    for c in range(classes):
                        if load_wide_scalar(x, c * args.x_c) > most:
                            most, label = load_wide_scalar(x, c * args.x_c), c
                if label >= classes:
                    label = 0
                total += float(most)
                if label != args.blank and label != before:
                    store_scalar(out, count, label)
                    count += 1
                before = label
            for k in range(count, args.steps):
                store_scalar(out, k, args.blank)
            store_scalar(args.count, n, count)
            store_narrow_scalar(args.score, n, scalar(total, elem))

    return ctc_greedy


@helper
def both(a, b):  # type: ignore[no-untyped-def]
    """log(e**a + e**b) of float64."""
    most, least = max(a, b), min(a, b)
    if least > -math.inf and most < math.inf:
        most += extract(log1p(exp(splat(least - most, 1))), 0)
    return most


@helper
def as_double(x, i, dtype):  # type: ignore[no-untyped-def]
    """An element as float64."""
    return float(load_wide_scalar(x, i))


search, trace = beams.make_search(helper, as_double, both, advance)


@functools.cache
def make_beams(dtype: str) -> RangeKernel:
    """The best prefixes of samples lo ... hi - 1, in logarithms of float64."""
    elem = DTYPES[dtype].accumulate
    types = ARGS.types(out="i64", count="i64", score=dtype, x=dtype, table="i64", floats="f64", integers="i64")

    @range_kernel("ctc_beams", types, spec=(dtype,))
    def ctc_beams(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        width, blank, nodes = args.width, args.blank, args.nodes
        floats, ints = args.floats[worker], args.integers[worker]
        for n in range(lo, hi):
            length = load_word(address_of(args.table), n)
            found = search(
                args.x, n * args.x_n, args.x_t, args.x_c, length, args.classes, blank, width, nodes, floats, ints, dtype
            )  # fmt: skip
            for path in range(args.paths):
                at = n * args.paths + path
                count, score = trace(args.out, at * args.steps, args.steps, blank, path, found, nodes, floats, ints)
                store_scalar(args.count, at, count)
                store_narrow_scalar(args.score, at, scalar(score, elem))

    return ctc_beams
