"""The kernels of cumulative sums, and of products in their place.

Along a row: the prefix sums of a vector of W lanes take log2 W shuffles and additions, in blocks of 128 bits by shifts
(Hillis and Steele 1986), then from the last lane of one half to the other (Sklansky 1960), four vectors side by side;
then one addition a vector for what came before, which is the only chain.  Across rows: a line of
sums in the first-level cache, to which one row after the other is added.  Bound: x read and y written once; a scalar
loop waits for an addition at each element.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    first_lanes,
    load,
    load_first,
    load_scalar,
    load_wide,
    load_wide_first,
    load_word,
    reverse,
    select,
    shuffle,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_word,
    zeros,
)
from numbaprims.cpu.simd.atomics import load_acquire, relax, store_release, yield_cpu
from numbaprims.dtypes import DTYPES

PATIENCE = 1024
"""Looks at a flag before another thread may have this CPU."""

# Along.  `outer` times `rows` rows: those of a block begin where `starts` (the address of int64[outer][2], y and x)
# says, `_row` elements apart; `_col`: from one element to the next.  A tile is `block` rows; of chunks it is one of
# `chunks` parts of `chunk` elements.  totals: sums up to the end of each part; flags: a word each, 1 where it is
# there.
ROWS = Arguments(
    arrays=("out", "x"),
    ints=("n", "rows", "block", "starts", "blocks", "out_row", "x_row", "out_col", "x_col", "chunk", "chunks"),
    shared=("totals", "flags"),
)
# Across.  A tile is `block` of `inner` rows that lie side by side; `_step`: from one element of a row to the next.
# line: `block` sums of each worker.
ACROSS = Arguments(
    arrays=("out", "x"), ints=("n", "inner", "block", "blocks", "starts", "out_step", "x_step"), own=("line",)
)


@helper
def joined(a, b, PRODUCT):  # type: ignore[no-untyped-def]
    """The sum, or the product."""
    return a * b if PRODUCT else a + b


@helper
def neutral(acc, W, PRODUCT):  # type: ignore[no-untyped-def]
    """What changes no sum, or no product."""
    return zeros(acc, W) + 1 if PRODUCT else zeros(acc, W)


@helper
def prefix(x, none, S0, S1, S2, S3, PRODUCT):  # type: ignore[no-untyped-def]
    """The sum of the lanes up to each."""
    if S0 != "":
        x = joined(x, shuffle(x, none, S0), PRODUCT)
    if S1 != "":
        x = joined(x, shuffle(x, none, S1), PRODUCT)
    if S2 != "":
        x = joined(x, shuffle(x, none, S2), PRODUCT)
    if S3 != "":
        x = joined(x, shuffle(x, none, S3), PRODUCT)
    return x


@helper
def taken(x, at, step, W, REVERSE):  # type: ignore[no-untyped-def]
    """A vector in the order of the sums."""
    v = load_wide(x, at * step, W)
    return reverse(v) if REVERSE else v


@helper
def some(x, at, left, none, W, PRODUCT):  # type: ignore[no-untyped-def]
    """The first elements of a vector, and what changes nothing."""
    v = load_wide_first(x, at, left, W)
    return select(first_lanes(left, W), v, none) if PRODUCT else v


@helper
def given(out, at, step, carry, sums, base, none, LATER, EXCLUSIVE, REVERSE, PRODUCT):  # type: ignore[no-untyped-def]
    """Write sums; exclusive ones a lane later."""
    y = joined(base, joined(carry, shuffle(sums, none, LATER) if EXCLUSIVE else sums, PRODUCT), PRODUCT)
    store_narrow(out, at * step, reverse(y) if REVERSE else y)


@helper
def scan(out, x, n, base, out_col, x_col, none, W, S0, S1, S2, S3, LATER, LAST, EXCLUSIVE, REVERSE, PRODUCT):  # type: ignore[no-untyped-def]
    """The sums of a run, which begin at 0 and are added to `base`; elements lie `_col` apart. Gives all of it."""
    carry = none
    done = 0
    while done + 4 * W <= n:
        at, way = (n - done - W, -W) if REVERSE else (done, W)
        s0 = prefix(taken(x, at, x_col, W, REVERSE), none, S0, S1, S2, S3, PRODUCT)
        s1 = prefix(taken(x, at + way, x_col, W, REVERSE), none, S0, S1, S2, S3, PRODUCT)
        s2 = prefix(taken(x, at + 2 * way, x_col, W, REVERSE), none, S0, S1, S2, S3, PRODUCT)
        s3 = prefix(taken(x, at + 3 * way, x_col, W, REVERSE), none, S0, S1, S2, S3, PRODUCT)
        c1 = joined(carry, shuffle(s0, s0, LAST), PRODUCT)
        c2 = joined(c1, shuffle(s1, s1, LAST), PRODUCT)
        c3 = joined(c2, shuffle(s2, s2, LAST), PRODUCT)
        given(out, at, out_col, carry, s0, base, none, LATER, EXCLUSIVE, REVERSE, PRODUCT)
        given(out, at + way, out_col, c1, s1, base, none, LATER, EXCLUSIVE, REVERSE, PRODUCT)
        given(out, at + 2 * way, out_col, c2, s2, base, none, LATER, EXCLUSIVE, REVERSE, PRODUCT)
        given(out, at + 3 * way, out_col, c3, s3, base, none, LATER, EXCLUSIVE, REVERSE, PRODUCT)
        carry = joined(c3, shuffle(s3, s3, LAST), PRODUCT)
        done += 4 * W
    while done + W <= n:
        at = n - done - W if REVERSE else done
        s0 = prefix(taken(x, at, x_col, W, REVERSE), none, S0, S1, S2, S3, PRODUCT)
        given(out, at, out_col, carry, s0, base, none, LATER, EXCLUSIVE, REVERSE, PRODUCT)
        carry = joined(carry, shuffle(s0, s0, LAST), PRODUCT)
        done += W
    if W > 1 and done < n:
        left = n - done
        at = 0 if REVERSE else done
        v = some(x, at, left, none, W, PRODUCT)
        v = reverse(v) if REVERSE else v
        s0 = prefix(v, none, S0, S1, S2, S3, PRODUCT)
        y = joined(base, joined(carry, shuffle(s0, none, LATER) if EXCLUSIVE else s0, PRODUCT), PRODUCT)
        store_narrow_first(out, at, left, reverse(y) if REVERSE else y)
        carry = joined(carry, shuffle(s0, s0, LAST), PRODUCT)
    return carry


@helper
def total(x, n, none, W, S0, S1, S2, S3, LAST, PRODUCT):  # type: ignore[no-untyped-def]
    """The sum of a run, in all lanes."""
    a, b, c, d = none, none, none, none
    done = 0
    while done + 4 * W <= n:
        a, b = joined(a, load_wide(x, done, W), PRODUCT), joined(b, load_wide(x, done + W, W), PRODUCT)
        c, d = joined(c, load_wide(x, done + 2 * W, W), PRODUCT), joined(d, load_wide(x, done + 3 * W, W), PRODUCT)
        done += 4 * W
    while done < n:
        a = joined(a, some(x, done, n - done, none, W, PRODUCT), PRODUCT)
        done += W
    sums = joined(joined(a, b, PRODUCT), joined(c, d, PRODUCT), PRODUCT)
    sums = prefix(sums, none, S0, S1, S2, S3, PRODUCT)
    return shuffle(sums, sums, LAST)


@helper
def before(totals, flags, tile):  # type: ignore[no-untyped-def]
    """What the part before gives, as soon as it is there: parts are begun in their order."""
    turns = 0
    while load_acquire(flags + 8 * (tile - 1)) == 0:
        relax()
        turns += 1
        if turns % PATIENCE == 0:
            yield_cpu()
    return load_scalar(totals, tile - 1)


@helper
def tell(totals, flags, tile, sums):  # type: ignore[no-untyped-def]
    """What a part and those before it give, to the next one."""
    store_first(totals, tile, 1, sums)
    store_release(flags + 8 * tile, 1)


def shifts(W: int, block: int) -> tuple[str, ...]:
    """The shuffles of `prefix` with zeros for lanes from W on, "" for none; all lanes one later; the last in all.

    `block`: lanes of 128 bits, which one instruction shifts by bytes.
    """
    steps, half = [], 1
    while half < min(W, block):
        steps.append([lane - half if lane % block >= half else W for lane in range(W)])
        half *= 2
    while half < W:
        steps.append([lane // half * half - 1 if lane // half % 2 else W for lane in range(W)])
        half *= 2
    steps += [[]] * (4 - len(steps)) + [[W, *range(W - 1)], [W - 1] * W]
    return tuple(" ".join(map(str, step)) for step in steps)


@functools.cache
def make_rows(way: str, dtype: str, acc: str, exclusive: bool, backwards: bool, product: bool, W: int) -> RangeKernel:
    """ "rows": tiles of whole rows; "clear" and "chunks": of parts, begun in their order, each of which waits for what
    comes before it.

    With W = 1 elements may lie any step apart.
    """
    EXCLUSIVE, REVERSE, WAY, WIDE, PRODUCT, EXACT = exclusive, backwards, way, W > 1, product, acc[0] == "i"
    S0, S1, S2, S3, LATER, LAST = shifts(W, 16 // DTYPES[acc].itemsize)
    types = ROWS.types(out=dtype, x=dtype, totals=acc)

    @range_kernel("scan_" + way, types, spec=(way, dtype, acc, exclusive, backwards, product, W))
    def scan_rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        n, out_row, x_row, out_col, x_col, chunks = args.n, args.out_row, args.x_row, 1, 1, args.chunks
        if not WIDE:
            out_col, x_col = args.out_col, args.x_col
        totals, flags = args.totals, address_of(args.flags)
        none = neutral(acc, W, PRODUCT)
        for tile in range(lo, hi):
            if WAY == "clear":
                for at in range(chunks):
                    store_word(flags, tile * chunks + at, 0)
            else:
                place = tile // chunks
                part = tile - place * chunks
                outer = place // args.blocks
                first = (place - outer * args.blocks) * args.block
                start = args.starts + 16 * outer
                out = advance(args.out, load_word(start, 0) + first * out_row)
                x = advance(args.x, load_word(start, 1) + first * x_row)
                if WAY == "rows":
                    for _ in range(min(args.block, args.rows - first)):
                        scan(
                            out, x, n, none, out_col, x_col, none, W, S0, S1, S2, S3, LATER, LAST, EXCLUSIVE, REVERSE,
                            PRODUCT,
                        )  # fmt: skip
                        out, x = advance(out, out_row), advance(x, x_row)
                else:
                    begin = (chunks - 1 - part if REVERSE else part) * args.chunk
                    count = min(args.chunk, n - begin)
                    out, x = advance(out, begin), advance(x, begin)
                    base, known = none, False
                    if EXACT:  # of floats another order has other bits
                        known = part == 0 or load_acquire(flags + 8 * (tile - 1)) != 0
                    own = none
                    if not known:
                        own = total(x, count, none, W, S0, S1, S2, S3, LAST, PRODUCT)
                    if part > 0:
                        base = joined(none, before(totals, flags, tile), PRODUCT)
                    if not known:
                        tell(totals, flags, tile, joined(base, own, PRODUCT))
                    own = scan(
                        out, x, count, base, 1, 1, none, W, S0, S1, S2, S3, LATER, LAST, EXCLUSIVE, REVERSE, PRODUCT
                    )  # fmt: skip
                    if known:
                        tell(totals, flags, tile, joined(base, own, PRODUCT))

    return scan_rows


@helper
def add_row(out, x, line, columns, W, EXCLUSIVE, PRODUCT):  # type: ignore[no-untyped-def]
    """The next element of each row of a block."""
    for v in range(0, columns - W + 1, W):
        before, own = load(line, v, W), load_wide(x, v, W)
        after = joined(before, own, PRODUCT)
        store(line, v, after)
        store_narrow(out, v, before if EXCLUSIVE else after)
    v = columns - columns % W
    if v < columns:
        before, own = load_first(line, v, columns - v, W), load_wide_first(x, v, columns - v, W)
        after = joined(before, own, PRODUCT)
        store_first(line, v, columns - v, after)
        store_narrow_first(out, v, columns - v, before if EXCLUSIVE else after)


@functools.cache
def make_across(dtype: str, acc: str, exclusive: bool, backwards: bool, product: bool, W: int) -> RangeKernel:
    """Tiles of rows that lie side by side."""
    EXCLUSIVE, REVERSE, PRODUCT = exclusive, backwards, product
    types = ACROSS.types(out=dtype, x=dtype, line=acc)

    @range_kernel("scan_across", types, spec=(dtype, acc, exclusive, backwards, product, W))
    def scan_across(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        n, out_step, x_step = args.n, args.out_step, args.x_step
        line = args.line[worker]
        for tile in range(lo, hi):
            outer = tile // args.blocks
            first = (tile - outer * args.blocks) * args.block
            columns = min(args.block, args.inner - first)
            start = args.starts + 16 * outer
            out = advance(args.out, load_word(start, 0) + first)
            x = advance(args.x, load_word(start, 1) + first)
            for v in range(0, columns, W):
                store(line, v, neutral(acc, W, PRODUCT))
            for i in range(n):
                at = n - 1 - i if REVERSE else i
                add_row(advance(out, at * out_step), advance(x, at * x_step), line, columns, W, EXCLUSIVE, PRODUCT)

    return scan_across
