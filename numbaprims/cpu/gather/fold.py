"""The gradient of a pad: rows of dy that stand for one row of x are added up in a line, then the line's sides in it.

Sums have one order, that of dy, whatever the number of workers: a row of dx is one tile's.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gather.kernels import ARGS, LOOP, SEGMENT
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
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


@helper
def add_sides(middle, line, args, W):  # type: ignore[no-untyped-def]
    """What stands beside the middle of a line, added to it."""
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


@functools.cache
def make_fold(dtype: str, W: int) -> RangeKernel:
    """Rows of dx; with W = 1 elements lie any step apart.

    The table of a loop has a first word for each index and one behind the last, then the places in dy of the rows that
    go into each.
    """
    acc = DTYPES[dtype].accumulate
    # one row of dy for one of dx: it is copied, and its sides added where they go
    DIRECT = acc == dtype and W > 1

    @range_kernel("gather_fold", ARGS.types(out=dtype, x=dtype, line=acc), spec=(dtype, W))
    def fold(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        line = args.line[worker]
        loops, width, x_step, out_step = args.loops, args.width, args.x_step, args.out_step
        middle, kept, whole = advance(line, args.before), args.kept, args.kept == args.size
        last_loop = args.plan_loops + 8 * LOOP * (loops - 1)
        last, last_table = load_word(last_loop, 0), load_word(last_loop, 3)
        for tile in range(lo, hi):
            row = tile * args.band
            stop_row = min(args.rows, row + args.band)
            while row < stop_row:
                outer = row // last
                i = row - outer * last
                stop = min(last, i + stop_row - row)
                row += stop - i
                index, to, of, ways = outer, 0, 0, 1
                for d in range(loops - 2, -1, -1):
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
                while i < stop:
                    begin, own = 0, 1
                    if last_table:
                        begin = load_word(last_table, i)
                        own = load_word(last_table, i + 1) - begin
                    out = advance(args.out, to + i * load_word(last_loop, 1))
                    for way in range(ways * own):
                        # the rows of the last loop follow one another
                        rest = way // own
                        place = of + i * load_word(last_loop, 2)
                        if last_table:
                            place = of + load_word(last_table, last + 1 + begin + way - rest * own)
                        index = outer
                        for d in range(loops - 2, -1, -1):
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
                        if DIRECT and whole and ways * own == 1:
                            copied = advance(dy, args.before)
                            for v in range(0, kept - W + 1, W):
                                store(out, v, load(copied, v, W))
                            if kept >= W:
                                store(out, kept - W, load(copied, kept - W, W))
                            else:
                                store_first(out, 0, kept, load_first(copied, 0, kept, W))
                            add_sides(out, dy, args, W)
                        elif way == 0:
                            for v in range(0, width - W + 1, W):
                                store(line, v, load_wide(dy, v * x_step, W))
                            v = width // W * W
                            if v < width:
                                store(line, v, load_wide_first(dy, v * x_step, width - v, W))
                        else:
                            for v in range(0, width - W + 1, W):
                                store(line, v, load(line, v, W) + load_wide(dy, v * x_step, W))
                            v = width // W * W
                            if v < width:
                                store(line, v, load(line, v, W) + load_wide_first(dy, v * x_step, width - v, W))
                    if not (DIRECT and whole and ways * own == 1):
                        if ways * own:
                            add_sides(middle, line, args, W)
                            for k in range(args.first):
                                store_narrow(out, k * out_step, zeros(acc, 1))
                            inside = advance(out, args.first * out_step)
                            for v in range(0, kept - W + 1, W):
                                store_narrow(inside, v * out_step, load(middle, v, W))
                            v = kept // W * W
                            if v < kept:
                                last_part = load_first(middle, v, kept - v, W)
                                store_narrow_first(inside, v * out_step, kept - v, last_part)
                            for k in range(args.first + kept, args.size):
                                store_narrow(out, k * out_step, zeros(acc, 1))
                        else:
                            for k in range(args.size):
                                store_narrow(out, k * out_step, zeros(acc, 1))
                    i += 1

    return fold
