"""The gradient of a pad: rows of dy that stand for one row of x are added up in a line, then the line's sides in it.

Sums have one order, that of dy, whatever the number of workers: a row of dx is one tile's.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gather.kernels import ARGS, LOOP, SEGMENT
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_first,
    load_scalar,
    load_wide,
    load_wide_first,
    load_word,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_scalar,
    zeros,
)
from numbaprims.dtypes import DTYPES


@functools.cache
def make_fold(dtype: str, W: int) -> RangeKernel:
    """Rows of dx; with W = 1 elements lie any step apart.

    The table of a loop has a first word for each index and one behind the last, then the places in dy of the rows that
    go into each.
    """
    acc = DTYPES[dtype].accumulate

    @range_kernel("gather_fold", ARGS.types(out=dtype, x=dtype, line=acc), spec=(dtype, W))
    def fold(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        line = advance(args.line, worker * args.each)
        loops, width, x_step, out_step = args.loops, args.width, args.x_step, args.out_step
        middle = advance(line, args.before)
        for tile in range(lo, hi):
            for row in range(tile * args.band, min(args.rows, (tile + 1) * args.band)):
                index, to, of, ways = row, 0, 0, 1
                for d in range(loops - 1, -1, -1):
                    loop = args.plan_loops + 8 * LOOP * d
                    above = index // load_word(loop, 0)
                    digit = index - above * load_word(loop, 0)
                    index = above
                    to += digit * load_word(loop, 1)
                    table = load_word(loop, 3)
                    if table:
                        ways *= load_word(table, digit + 1) - load_word(table, digit)
                    else:
                        of += digit * load_word(loop, 2)
                for way in range(ways):
                    index, rest, place = row, way, of
                    for d in range(loops - 1, -1, -1):
                        loop = args.plan_loops + 8 * LOOP * d
                        above = index // load_word(loop, 0)
                        digit = index - above * load_word(loop, 0)
                        index = above
                        table = load_word(loop, 3)
                        if table:
                            first = load_word(table, digit)
                            count = load_word(table, digit + 1) - first
                            others = rest // count
                            place += load_word(table, load_word(loop, 0) + 1 + first + rest - others * count)
                            rest = others
                    dy = advance(args.x, place)
                    v = 0
                    if way == 0:
                        for v in range(0, width - W + 1, W):
                            store(line, v, load_wide(dy, v * x_step, W))
                    else:
                        for v in range(0, width - W + 1, W):
                            store(line, v, load(line, v, W) + load_wide(dy, v * x_step, W))
                    v = width // W * W
                    if v < width:
                        more = load_wide_first(dy, v * x_step, width - v, W)
                        if way:
                            more = load_first(line, v, width - v, W) + more
                        store_first(line, v, width - v, more)
                out = advance(args.out, to)
                if ways:
                    for s in range(args.segments):
                        segment = args.plan_segments + 8 * SEGMENT * s
                        start, count = load_word(segment, 0), load_word(segment, 1)
                        source, step = load_word(segment, 2), load_word(segment, 3)
                        v = 0
                        if step == 1:
                            while v + W <= count:
                                store(middle, source + v, load(middle, source + v, W) + load(line, start + v, W))
                                v += W
                        while v < count:
                            at = source + v * step
                            store_scalar(middle, at, load_scalar(middle, at) + load_scalar(line, start + v))
                            v += 1
                    for k in range(args.first):
                        store_narrow(out, k * out_step, zeros(acc, 1))
                    inside = advance(out, args.first * out_step)
                    for v in range(0, args.kept - W + 1, W):
                        store_narrow(inside, v * out_step, load(middle, v, W))
                    v = args.kept // W * W
                    if v < args.kept:
                        store_narrow_first(inside, v * out_step, args.kept - v, load_first(middle, v, args.kept - v, W))
                    for k in range(args.first + args.kept, args.size):
                        store_narrow(out, k * out_step, zeros(acc, 1))
                else:
                    for k in range(args.size):
                        store_narrow(out, k * out_step, zeros(acc, 1))

    return fold
