"""The gather: a zero-padded copy of the part of the input that a tile of results meets, and panels of patches from it.

The copy holds plain elements of the type that is summed: the padding, strides, 16-bit types and the layout of the
input end there.  Columns (rows, planes) that lie `stride` apart become neighbours, one slot for each remainder that a
tap meets, so that every tap of neighbouring results reads neighbours, whatever the stride.  It costs each element of
the input one load and one store for a tile; each element of a panel costs the same again, without any bounds.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    advance,
    first_lanes,
    gather,
    load,
    load_masked,
    load_wide,
    load_wide_scalar,
    load_wide_strided,
    load_word,
    select,
    shuffle,
    stack_array,
    stack_words,
    store,
    store_scalar,
    store_word,
    widen,
    zeros,
)

# staged[channel][slot z][slot r][slot s][image][plane][row][column]; planes, rows, columns: sizes of a slot.
# first_*: the input's index where the first slot begins (it may lie in the padding), step_*: from plane to plane ...,
# apart_*: from slot to slot.  images_there of `images` are filled.  *_step: steps of source.  pitch: elements from
# pixel to pixel of a copy with channels last.
STAGE = Arguments(
    arrays=("staged", "source"),
    ints=(
        "channels", "images", "images_there", "planes", "rows", "columns", "slots_z", "slots_r", "slots_s",
        "first_d", "first_h", "first_w", "step_d", "step_h", "step_w", "apart_d", "apart_h", "apart_w",
        "size_d", "size_h", "size_w", "n_step", "c_step", "d_step", "h_step", "w_step",
        "pitch",
    ),
)  # fmt: skip

# panel[channel][tap][lane] = staged[channel * channel_step + taps[tap] + place of pixel first + lane]; pixels are
# numbered through block_q columns, block_p rows, block_o planes of each image; taps: address of int64 words.
GATHER = Arguments(
    arrays=("panel", "staged"),
    ints=(
        "channels", "channel_step", "taps", "window", "first", "pixels", "block_q", "block_p", "block_o",
        "columns", "rows", "planes",
    ),
)  # fmt: skip


@helper
def stage_row(target, at, source, start, step, low, high, columns, W, EVENS, acc):  # type: ignore[no-untyped-def]
    """target[at + i] = source[start + i * step] for low <= i < high, else 0; written up to W - 1 past `columns`."""
    for i in range(0, columns, W):
        begin = low - i
        end = high - i
        if begin >= W or end <= 0 or end <= begin:
            store(target, at + i, zeros(acc, W))
        elif step == 1:
            if begin <= 0 and end >= W:
                store(target, at + i, load_wide(source, start + i, W))
            else:
                there = first_lanes(end, W) & ~first_lanes(begin, W)
                store(target, at + i, widen(load_masked(source, start + i, there)))
        elif step == 2:
            # the element behind the last may lie outside the array
            there = first_lanes(2 * end - 1, W) & ~first_lanes(2 * begin, W)
            one = load_masked(source, start + 2 * i, there)
            there = first_lanes(2 * end - 1 - W, W) & ~first_lanes(2 * begin - W, W)
            two = load_masked(source, start + 2 * i + W, there)
            store(target, at + i, widen(shuffle(one, two, EVENS)))
        elif begin <= 0 and end >= W:
            store(target, at + i, load_wide_strided(source, start + i * step, step, W))
        else:
            store(target, at + i, zeros(acc, W))
            for lane in range(max(begin, 0), min(end, W)):
                store_scalar(target, at + i + lane, load_wide_scalar(source, start + (i + lane) * step))


@functools.cache
def make_stage(dtype: str, acc: str, W: int) -> RangeKernel:
    """Fill the copy; its rows may be written up to W - 1 elements past the last one's end."""
    types = STAGE.types(staged=acc, source=dtype)
    EVENS = " ".join(str(lane) for lane in range(0, 2 * W, 2))

    @range_kernel("conv_stage", types, spec=(dtype, acc, W))
    def conv_stage(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        columns = args.columns
        at = 0
        for c in range(args.channels):
            for z in range(args.slots_z):
                for r in range(args.slots_r):
                    for s in range(args.slots_s):
                        first = args.first_w + s * args.apart_w
                        low = 0
                        if first < 0:
                            low = (args.step_w - 1 - first) // args.step_w
                        high = min(columns, (args.size_w - 1 - first) // args.step_w + 1)
                        for n in range(args.images_there):
                            for plane in range(args.planes):
                                d = args.first_d + z * args.apart_d + plane * args.step_d
                                for row in range(args.rows):
                                    h = args.first_h + r * args.apart_h + row * args.step_h
                                    end = high
                                    if d < 0 or d >= args.size_d or h < 0 or h >= args.size_h:
                                        end = 0
                                    start = (
                                        n * args.n_step
                                        + c * args.c_step
                                        + d * args.d_step
                                        + h * args.h_step
                                        + first * args.w_step
                                    )
                                    stage_row(
                                        args.staged, at, args.source, start, args.step_w * args.w_step, low, end,
                                        columns, W, EVENS, acc,
                                    )  # fmt: skip
                                    at += columns
                        at += (args.images - args.images_there) * args.planes * args.rows * columns

    return conv_stage


@functools.cache
def make_gather(acc: str, NV: int, W: int) -> RangeKernel:
    """Fill the panel of NV vectors of pixels from pixel `first` on; the lanes past `pixels` hold anything."""
    types = GATHER.types(panel=acc, staged=acc)
    NR = NV * W
    MOST = W + 4  # runs: one a lane, and what `runs <= 4` adds

    @range_kernel("conv_gather", types, spec=(acc, NV, W))
    def conv_gather(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        # runs of neighbours: lane where one begins, and its place less that lane
        lane_of = stack_words(MOST)
        place_of = stack_words(MOST)
        index = stack_array("i32", W)
        taps = args.taps
        window = args.window
        rest, q = divmod(args.first, args.block_q)
        rest, p = divmod(rest, args.block_p)
        n, o = divmod(rest, args.block_o)
        for v in range(0, min(args.pixels, NR), W):
            runs = 0
            lane = 0
            live = min(W, args.pixels - v)
            while lane < live:
                place = ((n * args.planes + o) * args.rows + p) * args.columns + q
                store_word(lane_of, runs, lane)
                store_word(place_of, runs, place - lane)
                runs += 1
                count = min(args.block_q - q, live - lane)
                for i in range(lane, lane + count):
                    store_scalar(index, i, place + i - lane)
                lane += count
                q += count
                if q == args.block_q:
                    q = 0
                    p += 1
                    if p == args.block_p:
                        p = 0
                        o += 1
                        if o == args.block_o:
                            o = 0
                            n += 1
            target = advance(args.panel, v)
            first = load_word(place_of, 0)
            for i in range(live, W):  # what lies where further pixels would is not there
                store_scalar(index, i, first)
            if runs == 1:
                for c in range(args.channels):
                    source = advance(args.staged, c * args.channel_step + first)
                    for t in range(window):
                        store(target, (c * window + t) * NR, load(source, load_word(taps, t), W))
            elif runs == 2:
                more = load_word(place_of, 1) - first
                keep = first_lanes(load_word(lane_of, 1), W)
                for c in range(args.channels):
                    source = advance(args.staged, c * args.channel_step + first)
                    for t in range(window):
                        at = load_word(taps, t)
                        value = select(keep, load(source, at, W), load(source, at + more, W))
                        store(target, (c * window + t) * NR, value)
            elif runs <= 4:
                if runs == 3:
                    store_word(lane_of, runs, W)
                    store_word(place_of, runs, first)
                one = load_word(place_of, 1) - first
                two = load_word(place_of, 2) - first
                three = load_word(place_of, 3) - first
                keep = first_lanes(load_word(lane_of, 1), W)
                keep_one = first_lanes(load_word(lane_of, 2), W)
                keep_two = first_lanes(load_word(lane_of, 3), W)
                for c in range(args.channels):
                    source = advance(args.staged, c * args.channel_step + first)
                    for t in range(window):
                        at = load_word(taps, t)
                        value = select(keep_two, load(source, at + two, W), load(source, at + three, W))
                        value = select(keep_one, load(source, at + one, W), value)
                        value = select(keep, load(source, at, W), value)
                        store(target, (c * window + t) * NR, value)
            else:
                places = load(index, 0, W)
                for c in range(args.channels):
                    source = advance(args.staged, c * args.channel_step)
                    for t in range(window):
                        value = gather(advance(source, load_word(taps, t)), places)
                        store(target, (c * window + t) * NR, value)

    return conv_gather
