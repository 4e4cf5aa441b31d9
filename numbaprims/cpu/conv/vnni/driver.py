"""The loops of convolutions by dot instructions: what is copied, multiplied and ended, tile by tile.

These kernels compute addresses and call others by pointer; they are compiled once for all types.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import ARGS, GEOMETRY
from numbaprims.cpu.conv.vnni.kernels import MULTIPLY, REQUANTIZE, STAGE, TRANSPOSE, WEIGHTS
from numbaprims.cpu.gemm.arguments import FINISH
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    call_range,
    copy_fields,
    pointer_from_address,
    record,
    scalar,
    splat,
    stack_record,
    store_first,
    store_word,
)

# A tile is a box of box_n images, box_o planes and box_p lines of y, a group, and k_panels panels of its filters.
# words: groups of channels of a place of the copy; step_*: by how many places two neighbours in y are apart; box_d,
# box_h, box_w: places of the copy; merge_x: 1 where rows of x follow one another without a gap in source and copy;
# merge: how many of (lines, planes) of y (and c) follow one another without a gap.
# panels: of one group; panel_words: of one panel; last: 1 where filters are neighbours in y.
# w_group: elements from the weights of a group to those of the next.
# gather: 0, or the kernel that writes the groups of all pixels' windows, for tiles of rows.
# there: tiles take their rows from the copy: 1 where a plane of it is one, 2 for one for each line of y, 0 for neither.
# x_there: 1 where x itself is what would be copied; wide: panels whose sums are ended together.
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
        "transposed_step", "gather", "there", "x_there", "wide",
    ),
    shared=("weights_packed",),
    own=("copy", "places", "sums", "transposed", "gathered"),
)  # fmt: skip

R_INTS, T_INTS, F_INTS = REQUANTIZE.slot("columns"), TRANSPOSE.slot("rows"), FINISH.slot("columns")


@functools.cache
def make_pack_drive() -> RangeKernel:
    """Panels (of all groups) of the weights."""

    @range_kernel("conv_vnni_pack", DOT.types(), spec=())
    def conv_vnni_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        target = address_of(args.packed)
        if target == 0:
            target = address_of(args.weights_packed)
        block = stack_record(WEIGHTS)
        block.channels = g.group_c
        block.words = args.words
        block.taps = args.taps
        block.places = args.weights
        block.plain = args.plain
        block.k_step = g.ws_k
        block.c_step = g.ws_c
        for panel in range(lo, hi):
            group, q = divmod(panel, args.panels)
            first = group * args.w_group + q * args.nr * g.ws_k
            block.panels = target + 4 * args.panel_words * panel
            block.source = address_of(args.second) + args.in_size * first
            block.filters = min(args.nr, g.group_k - q * args.nr)
            call_range(args.pack, block, 0, 0, 1)

    return conv_vnni_pack


@helper
def fill_words(address, count, word):  # type: ignore[no-untyped-def]
    """`count` words of 32 bits."""
    target = pointer_from_address(address, "i32")
    for i in range(0, count, 8):
        store_first(target, i, min(8, count - i), splat(scalar(word, "i32"), 8))


@helper
def copy_x(args, copy, first_c, n0, o0, p0, nn, on, pn):  # type: ignore[no-untyped-def]
    """x under the windows of a box: for each place of the padded input, its channels in groups."""
    block = stack_record(STAGE)
    g = record(GEOMETRY, args.geometry)
    place = 4 * args.words  # bytes
    src_d, src_h = g.stride_d // args.step_d, g.stride_h // args.step_h
    src_w = g.stride_w // args.step_w
    x_h, x_w = g.x_h, g.x_w
    pad = g.pad_w
    d0 = o0 * g.stride_d - g.pad_d
    h0 = p0 * g.stride_h - g.pad_h
    begin = max(min((pad + src_w - 1) // src_w, args.box_w), 0)
    end = max(min((x_w - 1 + pad) // src_w + 1, args.box_w), begin)
    depth = (on - args.box_o) * args.step_d + args.box_d
    height = (pn - args.box_p) * args.step_h + args.box_h
    top = min((max(-h0, 0) + src_h - 1) // src_h, height)
    bottom = max(min((x_h - 1 - h0 + src_h) // src_h, height), top)
    zero = (int(args.x_zero) + args.offset) & 255
    word = zero * 0x01010101
    block.channels = g.group_c
    block.words = args.words
    block.c_step = g.xs_c
    block.w_step = g.xs_w * src_w
    for n in range(nn):
        for d in range(depth):
            at = copy + place * args.box_w * args.box_h * (n * args.box_d + d)
            from_d = d0 + d * src_d
            if from_d < 0 or from_d >= g.x_d or bottom == top or end == begin:
                fill_words(at, args.words * args.box_w * height, word)
            else:
                start = (n0 + n) * g.xs_n + first_c * g.xs_c + from_d * g.xs_d
                start += (h0 + top * src_h) * g.xs_h + (begin * src_w - pad) * g.xs_w
                source = address_of(args.first) + args.in_size * start
                fill_words(at, args.words * args.box_w * top, word)
                fill_words(
                    at + place * args.box_w * bottom, args.words * args.box_w * (height - bottom), word
                )  # fmt: skip
                at += place * args.box_w * top
                if args.merge_x:
                    block.out = at
                    block.source = source
                    block.columns = (bottom - top) * args.box_w
                    call_range(args.stage, block, 0, 0, 1)
                else:
                    block.columns = end - begin
                    for h in range(bottom - top):
                        fill_words(at, args.words * begin, word)
                        block.out = at + place * begin
                        block.source = source + args.in_size * h * src_h * g.xs_h
                        call_range(args.stage, block, 0, 0, 1)
                        fill_words(at + place * end, args.words * (args.box_w - end), word)
                        at += place * args.box_w


@helper
def fill_places(args, places, nn, on, pn):  # type: ignore[no-untyped-def]
    """Where each pixel's window begins in the copy, in words."""
    columns = record(GEOMETRY, args.geometry).y_w
    at = 0
    for n in range(nn):
        for o in range(on):
            for p in range(pn):
                row = (n * args.box_d + o * args.step_d) * args.box_h + p * args.step_h
                for q in range(columns):
                    store_word(places, at + q, (row * args.box_w + q * args.step_w) * args.words)
                at += columns


@helper
def sums_before(first, columns, pn, line, plane):  # type: ignore[no-untyped-def]
    """Pixels of the sums before pixel `first`, which begins a line of y."""
    planes, p = divmod(first // columns, pn)
    return planes * plane + p * line


@helper
def end_panel(args, sums, transposed, k, filters, n0, o0, p0, nn, on, pn, line, plane):  # type: ignore[no-untyped-def]
    """The end of the sums [pixel][filter] of one panel, in runs of pixels that lie a constant step apart.

    Lines of y begin `line` pixels of the sums apart, planes `plane`.
    """
    g = record(GEOMETRY, args.geometry)
    columns = g.y_w
    run = columns
    dense = line == columns and plane == pn * columns
    turns = args.channels_last == 0
    if args.merge >= 1 and (dense or turns):
        run *= pn
    if args.merge >= 2 and (dense or turns):
        run *= on
    pixels = nn * on * pn * columns
    across = args.nr * args.wide
    total, step, along = sums, across, across
    if turns:
        turned = stack_record(TRANSPOSE)
        turned.columns = filters
        turned.transposed_step = args.transposed_step
        turned.source_step = across
        # squares reach beyond a line's end, into what the next one writes
        turned.rows = pixels if dense else columns
        for first in range(0, pixels, turned.rows):
            turned.transposed = transposed + 4 * first
            turned.source = sums + 4 * across * sums_before(first, columns, pn, line, plane)
            call_range(args.transpose, turned, 0, 0, 1)
        total, step, along = transposed, args.transposed_step, 1
    for first in range(0, pixels, run):
        rest, p = divmod(first // columns, pn)
        n, o = divmod(rest, on)
        at = (n0 + n) * g.ys_n + k * g.ys_k + (o0 + o) * g.ys_d + (p0 + p) * g.ys_h
        out = address_of(args.out) + args.out_size * at
        total_here = total + 4 * along * (first if turns else sums_before(first, columns, pn, line, plane))
        rows = run if args.channels_last else filters
        if args.requantize:
            block = stack_record(REQUANTIZE)
            block.out = out
            block.total = total_here
            block.factor = address_of(args.extra)
            block.zero = address_of(args.extra) + 8 * g.k
            block.columns = filters if args.channels_last else run
            block.total_step = step
            block.out_rs = g.ys_w if args.channels_last else g.ys_k
            block.out_cs = g.ys_k if args.channels_last else g.ys_w
            block.axis = 1 if args.channels_last else 2
            block.first = k
            block.relu = args.activation
            copy_fields(block, args, "bias bias_step has_bias")
            call_range(args.requantize, block, 0, 0, rows)
        else:
            at = (n0 + n) * g.cs_n + k * g.cs_k + (o0 + o) * g.cs_d + (p0 + p) * g.cs_h
            end = stack_record(FINISH)
            end.out = out
            end.total = total_here
            end.c = address_of(args.c) + args.out_size * at
            end.columns = filters if args.channels_last else run
            end.total_step = step
            end.out_rs = g.ys_w if args.channels_last else g.ys_k
            end.out_cs = g.ys_k if args.channels_last else g.ys_w
            end.c_rs = g.cs_w if args.channels_last else g.cs_k
            end.c_cs = g.cs_k if args.channels_last else g.cs_w
            end.bias_axis = (1 if args.channels_last else 2) if args.has_bias else 0
            end.i = 0 if args.channels_last else k
            end.j = k if args.channels_last else 0
            end.in_place = 0
            copy_fields(end, args, "bias alpha beta p0 p1 p2 has_c bias_step activation")
            call_range(args.finish, end, 0, 0, rows)


@functools.cache
def make_drive() -> RangeKernel:
    """Tiles (box, group, block of panels) of the result."""

    @range_kernel("conv_vnni_drive", DOT.types(), spec=())
    def conv_vnni_drive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        weights = address_of(args.packed)
        if weights == 0:
            weights = address_of(args.weights_packed)
        copy, places = address_of(args.copy[worker]), address_of(args.places[worker])
        sums, transposed = address_of(args.sums[worker]), address_of(args.transposed[worker])
        group_c, group_k = g.group_c, g.group_k
        words = stack_record(MULTIPLY)
        words.places = places
        words.segments = 0
        words.total_step = args.nr * args.wide
        copy_fields(words, args, "shifts runs run")
        words.shift = -(int(args.x_zero) + args.offset)
        for tile in range(lo, hi):
            rest, kb = divmod(tile, args.k_blocks)
            rest, group = divmod(rest, g.groups)
            rest, p0 = divmod(rest, args.chunks_p)
            n0, o0 = divmod(rest, args.chunks_o)
            n0, o0, p0 = n0 * args.box_n, o0 * args.box_o, p0 * args.box_p
            nn = min(args.box_n, g.n - n0)
            on = min(args.box_o, g.y_d - o0)
            pn = min(args.box_p, g.y_h - p0)
            fill_places(args, places, nn, on, pn)
            words.pixels = nn * on * pn * g.y_w
            line = g.y_w
            plane = pn * line
            words.a = copy
            copies = True
            if args.x_there:
                start = n0 * g.xs_n + o0 * g.xs_d + p0 * g.xs_h
                source = address_of(args.first) + args.in_size * start
                # tiles take 32 rows, of which some may lie behind the last pixel
                within = start // g.xs_w + (words.pixels + 31) // 32 * 32 <= g.n * g.x_d * g.x_h * g.x_w
                if within and source & 63 == 0:
                    words.a = source
                    copies = False
            if copies:
                copy_x(args, copy, group * group_c, n0, o0, p0, nn, on, pn)
            if args.there:
                line = args.box_w if args.there == 1 else (line + 15) // 16 * 16
                plane = pn * line
                words.segment = pn * g.y_w
                words.rows = plane - args.box_w + g.y_w
                words.segments = nn * on
                if args.there == 1:
                    plane = (plane + 15) // 16 * 16
                    words.pitch = plane
                else:
                    words.segment = words.rows = g.y_w
                    words.segments *= pn
                    words.pitch = line
                words.row_step = args.step_w * args.words
            elif args.gather:
                words.total = address_of(args.gathered[worker])
                call_range(args.gather, words, 0, 0, 1)
                words.a = address_of(args.gathered[worker])
            last = min((kb + 1) * args.k_panels, args.panels)
            for q in range(kb * args.k_panels, last, args.wide):
                for beside in range(min(args.wide, last - q)):
                    words.b = weights + 4 * args.panel_words * (group * args.panels + q + beside)
                    words.total = sums + 4 * args.nr * beside
                    call_range(args.multiply, words, 0, 0, 1)
                filters = min(args.nr * min(args.wide, last - q), group_k - q * args.nr)
                k = group * group_k + q * args.nr
                end_panel(args, sums, transposed, k, filters, n0, o0, p0, nn, on, pn, line, plane)

    return conv_vnni_drive
