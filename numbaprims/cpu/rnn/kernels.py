"""Kernels of recurrent layers: the step of the time loop, packing, biases, and rows from one place to another.

A step's tile is a group of U = NV W hidden units: the sums of all their gates for some rows are made by register tiles
of MR rows x gates NV vectors, kc of the state's width at a time so that the weights' panel stays in the first-level
cache, and end in the new state of these units while they lie there.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.pointwise.form import ARGS as RUN
from numbaprims.cpu.rnn.arguments import BACK, DROPOUT, NUMBERS, PACK, ROWS, STEP
from numbaprims.cpu.rnn.cells import Form, end_rows
from numbaprims.cpu.rnn.cells_backward import end_backward
from numbaprims.cpu.simd import (
    SHORT_SCALE,
    abs_,
    address_of,
    advance,
    call_range,
    float_of,
    load,
    load_first,
    load_wide,
    load_wide_first,
    load_wide_rows,
    load_wide_scalar,
    load_word,
    maximum,
    pack_short,
    pair_halves,
    reduce_max,
    scalar,
    splat,
    stack_record,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_narrow_rows,
    store_narrow_scalar,
    tile_add,
    tile_load,
    tile_multiply,
    tile_multiply_pairs,
    tile_multiply_short,
    tile_scale,
    tile_store,
    transpose,
    zeros,
)

#: Rows of a block: their sums stay in the first- or second-level cache from kc to kc.
BLOCK = 48


@functools.cache
def make_step(form: Form, stored: str, short: bool = False) -> RangeKernel:
    """Groups lo ... hi - 1 of a step, of all directions; `stored`: the type of the packed weights.

    `short`: f16 whose panels say behind the last of them, one number each, whether they are packed as short pairs.
    States are then less than 2 ** 16: times half of what pairs leave out they are finite still, and the sums come
    doubled.
    """
    text, MR, W = form.text, form.MR, form.W
    U, GV = form.NV * W, form.gates * form.NV
    WIDTH = GV * W
    ROWS_ = BLOCK // MR * MR
    c = form.compute
    SHORT, SCALE = short, 2.0 ** (SHORT_SCALE - 1)
    types = STEP.types(a=c, r=stored, numbers=c, g=c, h=c, c=c, y=form.dtype, m=c, saved=c, sums=c, scaled=c)

    @range_kernel("rnn_step", types, spec=(text, stored, short))
    def rnn_step(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k, kc, groups, step = args.k, args.kc, args.groups, args.first + args.step
        parity = step % 2
        sums, scaled, scaled_of = args.sums[worker], args.scaled[worker], -1
        for index in range(lo, hi):
            # every other step goes back through the worker's groups: what the cache holds of the weights is read first
            q = lo + hi - 1 - index if parity == 1 else index
            d = q // groups
            u = q - d * groups
            t = step
            if d + args.reverse > 0:
                t = args.steps - 1 - step
            n, at = args.n, t
            if address_of(args.offsets) != 0:
                at = load_word(address_of(args.offsets), t)
                n = load_word(address_of(args.offsets), t + 1) - at
            r = advance(args.r, d * args.r_d + u * k * WIDTH)
            a = advance(args.a, parity * args.a_flip + d * args.a_d)
            pairs = False
            if SHORT:
                pairs = load_wide_scalar(args.r, d * args.r_d + groups * k * WIDTH + u) > scalar(0.0, c)
            for first in range(0, n, ROWS_):
                rows = min(ROWS_, n - first)
                if SHORT and pairs and scaled_of != 2 * first + d:
                    scaled_of = 2 * first + d  # a group meets those of the group before
                    times, left = splat(scalar(SCALE, c), W), k % W
                    for j in range(rows):
                        row, to = advance(a, (first + j) * args.a_row), advance(scaled, j * k)
                        for v in range(0, k - left, W):
                            store(to, v, load(row, v, W) * times)
                        if left > 0:
                            store_first(to, k - left, left, load_first(row, k - left, left, W) * times)
                for p in range(0, k, kc):
                    kk = min(kc, k - p)
                    for i in range(0, rows, MR):
                        have = min(MR, rows - i)
                        source = advance(a, (first + i) * args.a_row + p)
                        if SHORT and pairs:
                            tile = tile_multiply_short(
                                advance(scaled, i * k + p),
                                k,
                                1,
                                have,
                                advance(r, p * WIDTH),
                                WIDTH,
                                WIDTH,
                                kk,
                                MR,
                                GV,
                                W,
                            )
                            tile = tile_scale(tile, splat(scalar(2.0, c), W))
                        else:
                            tile = tile_multiply_pairs(
                                source, args.a_row, 1, have, advance(r, p * WIDTH), WIDTH, WIDTH, kk, MR, GV, W
                            )
                        total = advance(sums, i * WIDTH)
                        if p > 0:
                            tile = tile_add(tile_load(total, WIDTH, MR, GV, W), tile)
                        tile_store(total, WIDTH, tile, MR, GV, W)
                end_rows(text, args, sums, rows, d, at, parity, first, u * U)

    return rnn_step


@functools.cache
def make_cells(form: Form) -> RangeKernel:
    """Groups lo ... hi - 1 of a step whose sums another kernel has left in `a`."""
    text, U = form.text, form.NV * form.W
    c = form.compute
    types = STEP.types(a=c, r=c, numbers=c, g=c, h=c, c=c, y=form.dtype, m=c, saved=c)

    @range_kernel("rnn_cells", types, spec=(text,))
    def rnn_cells(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        for q in range(lo, hi):
            d = q // args.groups
            t = args.first
            if d + args.reverse > 0:
                t = args.steps - 1 - t
            n, at = args.n, t
            if address_of(args.offsets) != 0:
                at = load_word(address_of(args.offsets), t)
                n = load_word(address_of(args.offsets), t + 1) - at
            end_rows(text, args, advance(args.a, d * args.a_d), n, d, at, 0, 0, (q - d * args.groups) * U)

    return rnn_cells


@functools.cache
def make_back_step(form: Form) -> RangeKernel:
    """Groups lo ... hi - 1 of a step of the gradient, of all directions."""
    text, MR, NV, W, c, dtype = form.text, form.MR, form.NV, form.W, form.compute, form.dtype
    WIDTH = NV * W
    ROWS_ = BLOCK // MR * MR
    names = ("a", "r", "dy", "carry", "dc", "gates", "saved", "dg", "dgh", "dm", "m", "numbers", "dnumbers", "sums")
    types = BACK.types(states=dtype, **dict.fromkeys(names, c))

    @range_kernel("rnn_back_step", types, spec=(text,))
    def rnn_back_step(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k, kc, groups, step, batch, last = args.k, args.kc, args.groups, args.step, args.n, args.steps - 1
        sums = args.sums[worker]
        offsets = address_of(args.offsets)
        for index in range(lo, hi):
            q = lo + hi - 1 - index if step % 2 == 1 else index
            d = q // groups
            u = q - d * groups
            back = d + args.reverse > 0
            t = step if back else last - step
            # the times whose gradients came before, and whose states come before; rows that these have
            later, earlier = (t - 1, t + 1) if back else (t + 1, t - 1)
            n, at, have, a_at, behind, before = batch, t * batch, batch, later * batch, batch, earlier * batch
            if offsets != 0:
                at = load_word(offsets, t)
                n = load_word(offsets, t + 1) - at
                if step > 0:
                    a_at = load_word(offsets, later)
                    have = load_word(offsets, later + 1) - a_at
                if earlier >= 0 and earlier <= last:
                    before = load_word(offsets, earlier)
                    behind = load_word(offsets, earlier + 1) - before
            if step == 0:
                have = 0
            if earlier < 0 or earlier > last:
                behind = 0
            if args.now != 0:
                have, a_at = n, at
            r = advance(args.r, d * args.r_d + u * k * WIDTH)
            a = advance(args.a, d * args.a_d + a_at * args.a_row)
            for first in range(0, n, ROWS_):
                rows = min(ROWS_, n - first)
                for p in range(0, k, kc):
                    kk = min(kc, k - p)
                    for i in range(0, min(rows, have - first), MR):
                        there = min(MR, have - first - i)
                        source = advance(a, (first + i) * args.a_row + p)
                        tile = tile_multiply(
                            source, args.a_row, 1, there, advance(r, p * WIDTH), WIDTH, WIDTH, kk, MR, NV, W
                        )
                        total = advance(sums, i * WIDTH)
                        if p > 0:
                            tile = tile_add(tile_load(total, WIDTH, MR, NV, W), tile)
                        tile_store(total, WIDTH, tile, MR, NV, W)
                end_backward(text, args, sums, rows, d, at, have, before + batch, behind, first, u * WIDTH)

    return rnn_back_step


@functools.cache
def make_pack(
    dtype: str, compute: str, stored: str, gates: int, NV: int, W: int, short: bool = False
) -> RangeKernel:  # fmt: skip
    """Panels lo ... hi - 1 of a recurrent weight, in the type `stored`; units past the last are zeros.

    `short`: as pairs of 15 bits where all numbers of a panel are less than 2; a number for each panel says so.
    """
    U, WIDTH = NV * W, gates * NV * W
    PAIRS, PAIR, SHORT = stored == "bf16", 2 * W, short
    spec = (dtype, compute, stored, gates, NV, W, short)

    @range_kernel("rnn_pack", PACK.types(panels=stored, w=dtype), spec=spec)
    def rnn_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k, hidden = args.k, args.hidden
        none = zeros(compute, W)
        for q in range(lo, hi):
            for gate in range(gates):
                for v in range(0, U, W):
                    unit = q * U + v
                    panel = advance(args.panels, q * k * WIDTH + gate * U + v)
                    count = min(W, hidden - unit)
                    if count <= 0:
                        for p in range(k):
                            store_narrow(panel, p * WIDTH, none)
                    else:
                        rows = advance(args.w, ((args.first + gate) * hidden + unit) * args.w_row)
                        for p in range(0, k - k % W, W):
                            block = transpose(load_wide_rows(advance(rows, p), args.w_row, count, W, W))
                            store_narrow_rows(advance(panel, p * WIDTH), WIDTH, W, W, block)
                        for p in range(k - k % W, k):
                            for lane in range(W):
                                row = min(lane, count - 1) * args.w_row
                                store_narrow_scalar(panel, p * WIDTH + lane, load_wide_scalar(rows, row + p))
            if PAIRS:
                for p in range(k):
                    for v in range(0, WIDTH - PAIR + 1, PAIR):
                        pair_halves(args.panels, (q * k + p) * WIDTH + v, W)
            if SHORT:
                most = none
                for v in range(q * k * WIDTH, (q + 1) * k * WIDTH, W):
                    most = maximum(most, abs_(load_wide(args.panels, v, W)))
                flag = scalar(0.0, compute)
                if reduce_max(most) < scalar(2.0, compute):
                    flag = scalar(1.0, compute)
                    for p in range(k):
                        for v in range(0, WIDTH - PAIR + 1, PAIR):
                            pack_short(args.panels, (q * k + p) * WIDTH + v, W)
                store_narrow_scalar(args.panels, (hidden + U - 1) // U * k * WIDTH + q, flag)

    return rnn_pack


@functools.cache
def make_numbers(dtype: str, compute: str, gates: int, apart: bool, W: int) -> RangeKernel:
    """Biases and peepholes of one part; `apart`: the last gate's recurrent bias is a row of its own."""
    SUMS, PEEPHOLES = gates + apart, 3 if gates == 4 else 0
    types = NUMBERS.types(numbers=compute, b_ih=dtype, b_hh=dtype, peephole=dtype)

    @range_kernel("rnn_numbers", types, spec=(dtype, compute, gates, apart, W))
    def rnn_numbers(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        hidden, row = args.hidden, args.row
        for v in range(0, row, W):
            left = max(0, min(W, hidden - v))
            for gate in range(SUMS):
                x = zeros(compute, W)
                if gate < gates and address_of(args.b_ih) != 0:
                    x = x + load_wide_first(args.b_ih, gate * hidden + v, left, W)
                if address_of(args.b_hh) != 0 and (not apart or gate != gates - 1):
                    at = (gate - (1 if apart and gate == gates else 0)) * hidden + v
                    x = x + load_wide_first(args.b_hh, at, left, W)
                store_first(args.numbers, gate * row + v, W, x)
            for each in range(PEEPHOLES):
                x = zeros(compute, W)
                if address_of(args.peephole) != 0:
                    x = load_wide_first(args.peephole, each * hidden + v, left, W)
                store_first(args.numbers, (SUMS + each) * row + v, W, x)

    return rnn_numbers


@functools.cache
def make_rows(source: str, result: str, W: int) -> RangeKernel:
    """Rows lo ... hi - 1, from one array and element type to another."""
    compute = "f64" if "f64" in (source, result) else "f32"

    @range_kernel("rnn_rows", ROWS.types(out=result, x=source, table="i64"), spec=(source, result, W))
    def rnn_rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        width = args.width
        table = address_of(args.table)
        for j in range(lo, hi):
            o = j // args.out_inner
            out = advance(args.out, o * args.out_outer + (j - o * args.out_inner) * args.out_row)
            s = j
            if table != 0:
                s = load_word(table, j)
            none = args.missing != 0 or s < 0
            if none:
                s = 0
            o = s // args.x_inner
            x = advance(args.x, o * args.x_outer + (s - o * args.x_inner) * args.x_row)
            if (none or args.x_column == 1) and args.out_column == 1:
                for v in range(0, width, W):
                    left = min(W, width - v)
                    value = zeros(compute, W)
                    if not none:
                        value = load_wide_first(x, v, left, W)
                        if args.adds != 0:
                            value = value + load_wide_first(out, v, left, W)
                        if args.second != 0:
                            value = value + load_wide_first(x, args.second + v, left, W)
                    store_narrow_first(out, v, left, value)
                    if args.again != 0:
                        store_narrow_first(out, args.again + v, left, value)
            else:
                for v in range(width):
                    each = scalar(0.0, compute)
                    if not none:
                        each = load_wide_scalar(x, v * args.x_column)
                        if args.second != 0:
                            each = each + load_wide_scalar(x, args.second + v * args.x_column)
                    store_narrow_scalar(out, v * args.out_column, each)

    return rnn_rows


@functools.cache
def make_dropout(source: str, result: str) -> RangeKernel:
    """Rows lo ... hi - 1, by the kernel of the stem random at the argument `compute`."""
    types = DROPOUT.types(out=result, x=source, table="i64", random="i64")

    @range_kernel("rnn_dropout", types, spec=(source, result))
    def rnn_dropout(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        width, table, compute = args.width, address_of(args.table), args.compute
        random = address_of(args.random)
        run = stack_record(RUN)
        run.f0 = args.p
        run.f1 = float_of(load_word(random, 0) + (load_word(random, 1) << 32))
        run.f2 = float_of(load_word(random, 2) + (load_word(random, 3) << 32) + args.layer)
        run.n = width
        run.tile = width
        for j in range(lo, hi):
            run.a0 = address_of(advance(args.out, j * args.out_row))
            run.a1 = address_of(advance(args.x, j * args.x_row))
            run.first = (load_word(table, j) if table != 0 else j) * width
            call_range(compute, run, worker, 0, 1)

    return rnn_dropout
