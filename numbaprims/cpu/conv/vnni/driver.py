"""The loops of convolutions by dot instructions: what is copied, multiplied and ended, tile by tile.

These kernels compute addresses and call others by pointer; they are compiled once for all types.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import ARGS, WORD
from numbaprims.cpu.conv.vnni.kernels import MULTIPLY, REQUANTIZE, STAGE, TRANSPOSE, WEIGHTS
from numbaprims.cpu.gemm.arguments import FINISH
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    FLOAT_SLOT,
    Arguments,
    address_of,
    call_range,
    float_bits,
    load_word,
    pointer_from_address,
    scalar,
    splat,
    stack_words,
    store_first,
    store_word,
)

# A tile is a box of box_n images, box_o planes and box_p lines of y, a group, and k_panels panels of its filters.
# words: groups of channels of a place of the copy; step_*: by how many places two neighbours in y are apart; box_d,
# box_h, box_w: places of the copy; merge_x: 1 where rows of x follow one another without a gap in source and copy;
# merge: how many of (lines, planes) of y (and c) follow one another without a gap.
# panels: of one group; panel_words: of one panel; last: 1 where filters are neighbours in y.
# w_group: elements from the weights of a group to those of the next.
# gather: 0, or the kernel that writes the groups of all pixels' windows to gathered_at, for tiles of rows.
# offset: what the copy adds to its bytes; weights: where taps lie in a filter.
DOT = Arguments(
    arrays=ARGS.arrays,
    floats=ARGS.floats,
    ints=(
        "geometry", "weights", "plain", "shifts", "runs", "run", "taps", "words",
        "stage", "pack", "multiply", "finish", "transpose", "requantize", "activation", "has_c", "has_bias",
        "bias_step", "in_size", "out_size", "mr", "nr", "panels", "panel_words", "w_group",
        "box_n", "box_o", "box_p", "chunks_o", "chunks_p", "k_panels", "k_blocks",
        "step_d", "step_h", "step_w", "box_d", "box_h", "box_w", "merge_x", "merge", "channels_last", "offset",
        "shared_bytes", "worker_bytes", "places_at", "sums_at", "transposed_at", "transposed_step",
        "gather", "gathered_at",
    ),
)  # fmt: skip

N, K, GROUPS, GROUP_C, GROUP_K = (WORD[name] for name in ("n", "k", "groups", "group_c", "group_k"))
X_SIZE, Y_SIZE, STRIDE, PAD = WORD["x_d"], WORD["y_d"], WORD["stride_d"], WORD["pad_d"]
XS, WS, YS, CS = WORD["xs_n"], WORD["ws_k"], WORD["ys_n"], WORD["cs_n"]
S_INTS, W_INTS, M_INTS = STAGE.slot("columns"), WEIGHTS.slot("filters"), MULTIPLY.slot("pixels")
R_INTS, T_INTS, F_INTS = REQUANTIZE.slot("columns"), TRANSPOSE.slot("rows"), FINISH.slot("columns")


@functools.cache
def make_pack_drive() -> RangeKernel:
    """Panels (of all groups) of the weights."""

    @range_kernel("conv_vnni_pack", DOT.types(), spec=())
    def conv_vnni_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.geometry
        target = address_of(args.packed)
        if target == 0:
            target = address_of(args.workspace)
        block = stack_words(80)
        store_word(block, W_INTS + 1, load_word(g, GROUP_C))
        store_word(block, W_INTS + 2, args.words)
        store_word(block, W_INTS + 3, args.taps)
        store_word(block, W_INTS + 4, args.weights)
        store_word(block, W_INTS + 5, args.plain)
        store_word(block, W_INTS + 6, load_word(g, WS))
        store_word(block, W_INTS + 7, load_word(g, WS + 1))
        for panel in range(lo, hi):
            group, q = divmod(panel, args.panels)
            first = group * args.w_group + q * args.nr * load_word(g, WS)
            store_word(block, 0, target + 4 * args.panel_words * panel)
            store_word(block, 1, address_of(args.second) + args.in_size * first)
            store_word(block, W_INTS, min(args.nr, load_word(g, GROUP_K) - q * args.nr))
            call_range(args.pack, block, 0, 0, 1)

    return conv_vnni_pack


@helper
def fill_words(address, count, word):  # type: ignore[no-untyped-def]
    """`count` words of 32 bits."""
    target = pointer_from_address(address, "i32")
    for i in range(0, count, 8):
        store_first(target, i, min(8, count - i), splat(scalar(word, "i32"), 8))


@helper
def copy_x(args, block, copy, first_c, n0, o0, p0, nn, on, pn):  # type: ignore[no-untyped-def]
    """x under the windows of a box: for each place of the padded input, its channels in groups."""
    g = args.geometry
    place = 4 * args.words  # bytes
    src_d, src_h = load_word(g, STRIDE) // args.step_d, load_word(g, STRIDE + 1) // args.step_h
    src_w = load_word(g, STRIDE + 2) // args.step_w
    x_h, x_w = load_word(g, X_SIZE + 1), load_word(g, X_SIZE + 2)
    pad = load_word(g, PAD + 2)
    d0 = o0 * load_word(g, STRIDE) - load_word(g, PAD)
    h0 = p0 * load_word(g, STRIDE + 1) - load_word(g, PAD + 1)
    begin = max(min((pad + src_w - 1) // src_w, args.box_w), 0)
    end = max(min((x_w - 1 + pad) // src_w + 1, args.box_w), begin)
    depth = (on - args.box_o) * args.step_d + args.box_d
    height = (pn - args.box_p) * args.step_h + args.box_h
    top = min((max(-h0, 0) + src_h - 1) // src_h, height)
    bottom = max(min((x_h - 1 - h0 + src_h) // src_h, height), top)
    zero = (int(args.x_zero) + args.offset) & 255
    word = zero * 0x01010101
    store_word(block, S_INTS + 1, load_word(g, GROUP_C))
    store_word(block, S_INTS + 2, args.words)
    store_word(block, S_INTS + 3, load_word(g, XS + 1))
    store_word(block, S_INTS + 4, load_word(g, XS + 4) * src_w)
    for n in range(nn):
        for d in range(depth):
            at = copy + place * args.box_w * args.box_h * (n * args.box_d + d)
            from_d = d0 + d * src_d
            if from_d < 0 or from_d >= load_word(g, X_SIZE) or bottom == top or end == begin:
                fill_words(at, args.words * args.box_w * height, word)
            else:
                start = (n0 + n) * load_word(g, XS) + first_c * load_word(g, XS + 1) + from_d * load_word(g, XS + 2)
                start += (h0 + top * src_h) * load_word(g, XS + 3) + (begin * src_w - pad) * load_word(g, XS + 4)
                source = address_of(args.first) + args.in_size * start
                fill_words(at, args.words * args.box_w * top, word)
                fill_words(
                    at + place * args.box_w * bottom, args.words * args.box_w * (height - bottom), word
                )  # fmt: skip
                at += place * args.box_w * top
                if args.merge_x:
                    store_word(block, 0, at)
                    store_word(block, 1, source)
                    store_word(block, S_INTS, (bottom - top) * args.box_w)
                    call_range(args.stage, block, 0, 0, 1)
                else:
                    store_word(block, S_INTS, end - begin)
                    for h in range(bottom - top):
                        fill_words(at, args.words * begin, word)
                        store_word(block, 0, at + place * begin)
                        store_word(block, 1, source + args.in_size * h * src_h * load_word(g, XS + 3))
                        call_range(args.stage, block, 0, 0, 1)
                        fill_words(at + place * end, args.words * (args.box_w - end), word)
                        at += place * args.box_w


@helper
def fill_places(args, places, nn, on, pn):  # type: ignore[no-untyped-def]
    """Where each pixel's window begins in the copy, in words."""
    columns = load_word(args.geometry, Y_SIZE + 2)
    at = 0
    for n in range(nn):
        for o in range(on):
            for p in range(pn):
                row = (n * args.box_d + o * args.step_d) * args.box_h + p * args.step_h
                for q in range(columns):
                    store_word(places, at + q, (row * args.box_w + q * args.step_w) * args.words)
                at += columns


@helper
def end_panel(args, block, sums, transposed, k, filters, n0, o0, p0, nn, on, pn):  # type: ignore[no-untyped-def]
    """The end of the sums [pixel][filter] of one panel, in runs of pixels that lie a constant step apart."""
    g = args.geometry
    columns = load_word(g, Y_SIZE + 2)
    run = columns
    if args.merge >= 1:
        run *= pn
    if args.merge >= 2:
        run *= on
    pixels = nn * on * pn * columns
    total, step, along = sums, args.nr, args.nr
    if args.channels_last == 0:
        store_word(block, 0, transposed)
        store_word(block, 1, sums)
        store_word(block, T_INTS, pixels)
        store_word(block, T_INTS + 1, filters)
        store_word(block, T_INTS + 2, args.transposed_step)
        store_word(block, T_INTS + 3, args.nr)
        call_range(args.transpose, block, 0, 0, 1)
        total, step, along = transposed, args.transposed_step, 1
    for first in range(0, pixels, run):
        rest, p = divmod(first // columns, pn)
        n, o = divmod(rest, on)
        at = (n0 + n) * load_word(g, YS) + k * load_word(g, YS + 1) + (o0 + o) * load_word(g, YS + 2)
        at += (p0 + p) * load_word(g, YS + 3)
        store_word(block, 0, address_of(args.out) + args.out_size * at)
        store_word(block, 1, total + 4 * first * along)
        y_k, y_q = load_word(g, YS + 1), load_word(g, YS + 4)
        if args.requantize:
            store_word(block, 2, address_of(args.bias))
            store_word(block, 3, address_of(args.extra))
            store_word(block, 4, address_of(args.extra) + 8 * load_word(g, K))
            store_word(block, R_INTS, filters if args.channels_last else run)
            store_word(block, R_INTS + 1, step)
            store_word(block, R_INTS + 2, y_q if args.channels_last else y_k)
            store_word(block, R_INTS + 3, y_k if args.channels_last else y_q)
            store_word(block, R_INTS + 4, args.bias_step)
            store_word(block, R_INTS + 5, args.has_bias)
            store_word(block, R_INTS + 6, 1 if args.channels_last else 2)
            store_word(block, R_INTS + 7, k)
            store_word(block, R_INTS + 8, args.activation)
            call_range(args.requantize, block, 0, 0, run if args.channels_last else filters)
        else:
            at = (n0 + n) * load_word(g, CS) + k * load_word(g, CS + 1) + (o0 + o) * load_word(g, CS + 2)
            at += (p0 + p) * load_word(g, CS + 3)
            c_k, c_q = load_word(g, CS + 1), load_word(g, CS + 4)
            store_word(block, 2, address_of(args.c) + args.out_size * at)
            store_word(block, 3, address_of(args.bias))
            store_word(block, FLOAT_SLOT, float_bits(args.alpha))
            store_word(block, FLOAT_SLOT + 1, float_bits(args.beta))
            store_word(block, FLOAT_SLOT + 2, float_bits(args.p0))
            store_word(block, FLOAT_SLOT + 3, float_bits(args.p1))
            store_word(block, FLOAT_SLOT + 4, float_bits(args.p2))
            store_word(block, F_INTS, filters if args.channels_last else run)
            store_word(block, F_INTS + 1, step)
            store_word(block, F_INTS + 2, y_q if args.channels_last else y_k)
            store_word(block, F_INTS + 3, y_k if args.channels_last else y_q)
            store_word(block, F_INTS + 4, c_q if args.channels_last else c_k)
            store_word(block, F_INTS + 5, c_k if args.channels_last else c_q)
            store_word(block, F_INTS + 6, args.has_c)
            store_word(block, F_INTS + 7, args.bias_step)
            store_word(block, F_INTS + 8, (1 if args.channels_last else 2) if args.has_bias else 0)
            store_word(block, F_INTS + 9, 0 if args.channels_last else k)
            store_word(block, F_INTS + 10, k if args.channels_last else 0)
            store_word(block, F_INTS + 11, args.activation)
            store_word(block, F_INTS + 12, 0)
            call_range(args.finish, block, 0, 0, run if args.channels_last else filters)


@functools.cache
def make_drive() -> RangeKernel:
    """Tiles (box, group, block of panels) of the result."""

    @range_kernel("conv_vnni_drive", DOT.types(), spec=())
    def conv_vnni_drive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.geometry
        weights = address_of(args.packed)
        if weights == 0:
            weights = address_of(args.workspace)
        copy = address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes
        places, sums, transposed = copy + args.places_at, copy + args.sums_at, copy + args.transposed_at
        group_c, group_k = load_word(g, GROUP_C), load_word(g, GROUP_K)
        stage_words = stack_words(80)
        words = stack_words(80)
        end_words = stack_words(80)
        store_word(words, 0, copy)
        store_word(words, 2, sums)
        store_word(words, M_INTS + 1, places)
        store_word(words, M_INTS + 2, args.shifts)
        store_word(words, M_INTS + 3, args.runs)
        store_word(words, M_INTS + 4, args.run)
        store_word(words, M_INTS + 5, -(int(args.x_zero) + args.offset))
        for tile in range(lo, hi):
            rest, kb = divmod(tile, args.k_blocks)
            rest, group = divmod(rest, load_word(g, GROUPS))
            rest, p0 = divmod(rest, args.chunks_p)
            n0, o0 = divmod(rest, args.chunks_o)
            n0, o0, p0 = n0 * args.box_n, o0 * args.box_o, p0 * args.box_p
            nn = min(args.box_n, load_word(g, N) - n0)
            on = min(args.box_o, load_word(g, Y_SIZE) - o0)
            pn = min(args.box_p, load_word(g, Y_SIZE + 1) - p0)
            fill_places(args, places, nn, on, pn)
            copy_x(args, stage_words, copy, group * group_c, n0, o0, p0, nn, on, pn)
            store_word(words, M_INTS, nn * on * pn * load_word(g, Y_SIZE + 2))
            if args.gather:
                store_word(words, 0, copy)
                store_word(words, 2, copy + args.gathered_at)
                call_range(args.gather, words, 0, 0, 1)
                store_word(words, 0, copy + args.gathered_at)
                store_word(words, 2, sums)
            for q in range(kb * args.k_panels, min((kb + 1) * args.k_panels, args.panels)):
                store_word(words, 1, weights + 4 * args.panel_words * (group * args.panels + q))
                call_range(args.multiply, words, 0, 0, 1)
                filters = min(args.nr, group_k - q * args.nr)
                k = group * group_k + q * args.nr
                end_panel(args, end_words, sums, transposed, k, filters, n0, o0, p0, nn, on, pn)

    return conv_vnni_drive
