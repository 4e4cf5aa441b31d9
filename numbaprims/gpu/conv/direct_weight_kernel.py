"""The kernel of `direct_weight`: taps of the weight's gradient in registers, rows of x and of dy in shared memory.

A block sums some channels of y times some planes of x (channels times taps of the depth), with all taps of the other
dimensions, over one chunk of the pixels.  Eight lanes take 32 neighbouring pixels of a row, four each; the 16 groups of
eight lanes, here slots, take channels of y, planes, rows of taps, and what is left over takes other rows of pixels.  A
thread keeps the sums of 8 or 4 channels times the taps of one row, or of all where they are nine at most.

Count, 3 x 3, 4 channels: 144 multiply-adds for 10 vectors of shared memory (four accesses each), 40 of 36 clocks; 7 x 7
with stride 2 and 8 channels: 224 for 12, 48 of 56 clocks.  A word that is copied is multiplied taps times channels of
the other operand times.

Ending, the sums of all threads go to shared memory, and are added lane by lane and slot by slot, in one order.  The
chunks are another kernel's (ending.py).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import pointer
from numbaprims.gpu.conv.depthwise_kernels import next_digit
from numbaprims.gpu.conv.direct_kernel import THREADS, WARPS, Window, make_line, plane_deep, plane_flat
from numbaprims.gpu.device.copy import copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, load_vector, opaque, repeat
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.window import store_apart, window_gradient
from numbaprims.gpu.gemm.arguments import round_up
from numbaprims.gpu.gemm.epilogue import local_sums
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, cuda, gpu_kernel, shared_array, thread_index, types

LANES = 8
SLOTS = THREADS // LANES
PIXELS = 4
COLUMNS = LANES * PIXELS
"""Pixels of a row that are multiplied at a time."""
MOST_SHARED = 53 * 1024
"""Bytes of shared memory of a block, three of which an A100's multiprocessor is to hold."""
HELD = 9
"""Taps that a thread keeps in all of their rows."""
I32, I64, U32 = types.int32, types.int64, types.uint32


class Slots(NamedTuple):
    """What a block computes."""

    channels: int
    """Of y, a thread."""
    across: int
    """Slots with channels of their own."""
    planes: int
    """Slots with planes of their own."""
    rows: int
    """Slots with rows of taps of their own, all of them or one."""

    @property
    def bk(self) -> int:
        return self.channels * self.across

    @property
    def used(self) -> int:
        """Slots that differ in what they compute."""
        return self.across * self.planes * self.rows

    @property
    def slices(self) -> int:
        """Slots that compute the same of different rows of pixels."""
        return SLOTS // self.used

    @property
    def lines(self) -> int:
        """Rows of pixels in shared memory."""
        return max(4, 2 * self.slices)


class Room(NamedTuple):
    """Shared memory, in words."""

    lines: int
    """Rows of a plane of x."""
    phase: int
    plane: int
    x: int
    dy: int
    words: int
    sums: int
    """Of a thread."""


def room_of(slots: Slots, window: Window) -> Room:
    """Sizes of what a block computes."""
    lines = (slots.lines - 1) * window.gain_h + (window.taps_h - 1) * window.gap_h + 1
    phase = COLUMNS + round_up((window.taps_w - 1) * window.gap_w // window.gain_w, 4)
    plane = lines * window.gain_w * phase
    x, dy = slots.planes * plane, slots.bk * slots.lines * COLUMNS
    sums = slots.channels * window.taps_w * (window.taps_h // slots.rows)
    return Room(lines, phase, plane, x, dy, max(x + dy, sums * THREADS), sums)


def instructions(slots: Slots, window: Window, wide: bool) -> tuple[float, float, float]:
    """Of all warps of a block for one turn (`lines` rows of 32 pixels): multiply-adds, all, and accesses of shared
    memory.  `wide`: elements of 4 bytes."""
    room = room_of(slots, window)
    taps_h, taps_w, _, gain, _, gap = window
    rows = slots.lines / slots.slices * WARPS
    products = rows * PIXELS * room.sums
    loads = rows * (slots.channels + taps_h // slots.rows * (gain + (taps_w - 1) * gap // PIXELS))
    each = 8 if wide else 11
    copies = slots.planes * room.lines * (20 + each * -(-gain * room.phase // 32)) + slots.bk * slots.lines * (
        30 + each
    )
    return products, products + loads + copies + 12 * rows + 100 * WARPS, 4 * loads


def slots_of(group_k: int, planes: int, window: Window, wide: bool = True) -> Slots | None:
    """The cut that issues the fewest instructions; None where none fits into shared memory."""
    rows = 1 if window.taps_h * window.taps_w <= HELD else window.taps_h
    channels = 4 if group_k <= 4 or window.taps_w > 8 else 8
    best, least = None, 0.0
    for across in range(1, SLOTS // rows + 1):
        for side_by_side in range(1, SLOTS // (rows * across) + 1):
            found = Slots(channels, across, side_by_side, rows)
            tiles = -(-group_k // found.bk) * -(-planes // side_by_side)
            issued = tiles * max(instructions(found, window, wide)[1:]) / found.lines
            if 4 * room_of(found, window).words <= MOST_SHARED and (best is None or issued < least):
                best, least = found, issued
    return best


@functools.cache
def make_direct_weight(dtype: str, slots: Slots, window: Window, flat: bool) -> GpuKernel:
    """The sums of one chunk of pixels; workspace is [group][chunk][k][room], a row of it [plane][tap].  `flat`: the
    kernel has no depth."""
    acc = DTYPES[dtype].accumulate
    S = local_sums(acc)
    room_words = room_of(slots, window)
    LINES, PHASE, PLANE, DY_AT = room_words.lines, room_words.phase, room_words.plane, room_words.x
    TAPS_H, TAPS_W, GAIN_H, GAIN_W, GAP_H, GAP_W = window
    KT, ACROSS, PLANES, ROWS = slots
    BK, USED, SLICES, PIXEL_LINES = slots.bk, slots.used, slots.slices, slots.lines
    HELD_ROWS = TAPS_H // ROWS
    SUMS, TAPS = room_words.sums, TAPS_H * TAPS_W
    PITCH, DY_STEP = GAIN_W * PHASE, PIXEL_LINES * COLUMNS
    ROW_STEP = GAP_H * PITCH
    ELEMENTS = USED * SUMS
    line_x, line_dy = make_line(dtype, GAIN_W, PHASE), make_line(dtype, 1, COLUMNS)
    TURNS, place_x, copy_x, place_dy, copy_dy = line_x.turns, line_x.place, line_x.copy, line_dy.place, line_dy.copy
    split = plane_flat if flat else plane_deep
    signature = types.void(types.CPointer(STORAGE[acc]), pointer(dtype), pointer(dtype), *(types.int32,) * 36)

    @gpu_kernel(
        "conv_direct_weight", signature, spec=(dtype, *slots, *window, int(flat)), threads=THREADS, blocks_per_sm=3,
        shared=4 * room_words.words, registers=168,
    )  # fmt: skip
    def conv_direct_weight(  # type: ignore[no-untyped-def]
        workspace, source, plain, group_k, planes, room, chunks, chunk, units, tiles_k, tiles_p, tiles_h, tiles_w,
        k_d, y_d, y_h, y_w, step_d, step_h, step_w, gap_d, pad_d, pad_h, pad_w, size_d, size_h, size_w,
        s_c, s_d, s_h, s_w, p_k, p_d, p_h, p_w, s_group, s_n, p_group, p_n,
    ):  # fmt: skip
        sm = shared_array(0, S, alignment=16)
        base = U32(opaque(I32(shared_address(sm, 0))))
        t = I32(thread_index())
        warp, lane = I32(t // 32), U32(t % 32)
        rest, tile_k = next_digit(block_index(), tiles_k)
        rest, tile_p = next_digit(rest, tiles_p)
        group, part = next_digit(rest, chunks)
        k0, plane0 = I32(tile_k * BK), I32(tile_p * PLANES)
        # ---- what this thread's slot computes
        slot = I32(t // LANES)
        run = I32(t % LANES * PIXELS)
        own_slice = I32(slot // USED)
        own = I32(slot % USED)
        own_row, own_plane = I32(own % ROWS), I32(own // ROWS % PLANES)
        own_k = I32(own // (ROWS * PLANES))
        at_x = I32(own_plane * PLANE + own_row * ROW_STEP + run)
        at_dy = I32(DY_AT + own_k * (KT * DY_STEP) + run)
        words, offsets = cuda.local.array(TURNS, I32), cuda.local.array(TURNS, I32)
        sizes = cuda.local.array(TURNS, I32)
        dy_word, dy_offset = cuda.local.array(1, I32), cuda.local.array(1, I32)
        dy_size = cuda.local.array(1, I32)
        sums = repeat(S(0), SUMS)
        unit = I32(part * chunk)
        end = I32(min(units, unit + chunk))
        while unit < end:
            rest, tile_w = next_digit(unit, tiles_w)
            rest, tile_h = next_digit(rest, tiles_h)
            n, d = next_digit(rest, y_d)
            h0, w0 = I32(tile_h * PIXEL_LINES), I32(tile_w * COLUMNS)
            at_d, at_h, at_w = I32(d * step_d - pad_d), I32(h0 * step_h - pad_h), I32(w0 * step_w - pad_w)
            # 32 bits are enough for every offset, and what overflows is outside
            begin = opaque(I32(I32(group) * s_group + I32(n) * s_n))
            begin_dy = opaque(I32(I32(group) * p_group + I32(n) * p_n + I32(d) * p_d))
            place_x(words, offsets, sizes, lane, at_w, size_w, s_w)
            place_dy(dy_word, dy_offset, dy_size, lane, w0, y_w, p_w)
            number = warp
            while number < PLANES * LINES:
                plane = quotient(U32(number), U32(LINES))
                below = I32(U32(number) - plane * U32(LINES))
                channel, z = split(U32(U32(plane0) + plane), k_d)
                place_d, place_h = I32(at_d + z * gap_d), I32(at_h + below)
                inside = U32(place_d) < U32(size_d) and U32(place_h) < U32(size_h)
                offset = I32(begin + I32(channel) * s_c + place_d * s_d + place_h * s_h)
                copy_x(
                    sm, base, I32(I32(plane) * PLANE + below * PITCH), source, offset,
                    inside and I32(plane0 + I32(plane)) < planes, words, offsets, sizes,
                )  # fmt: skip
                number = I32(number + WARPS)
            number = warp
            while number < BK * PIXEL_LINES:
                k, h = I32(k0 + number // PIXEL_LINES), I32(h0 + number % PIXEL_LINES)
                offset = I32(begin_dy + k * p_k + h * p_h)
                copy_dy(
                    sm, base, I32(DY_AT + number * COLUMNS), plain, offset, k < group_k and h < y_h, dy_word,
                    dy_offset, dy_size,
                )  # fmt: skip
                number = I32(number + WARPS)
            copy_commit()
            copy_wait(0)
            cuda.syncthreads()
            if own_slice < SLICES:
                # past the last pixel of a row nothing is multiplied: 0 times what x has there could be no number
                left = I32(y_w - w0 - run)
                row = own_slice
                rows_left = I32(min(I32(y_h - h0), I32(PIXEL_LINES)))
                while row < rows_left:
                    x_at, dy_at = I32(at_x + row * (GAIN_H * PITCH)), I32(at_dy + row * COLUMNS)
                    if left >= PIXELS:
                        sums = window_gradient(
                            sums, sm, I64(x_at), I64(dy_at), HELD_ROWS, TAPS_W, ROW_STEP, GAP_W, GAIN_W, PIXELS,
                            PHASE, DY_STEP,
                        )  # fmt: skip
                    else:
                        for e in range(left):
                            sums = window_gradient(
                                sums, sm, I64(x_at) + e, I64(dy_at) + e, HELD_ROWS, TAPS_W, ROW_STEP, GAP_W,
                                GAIN_W, 1, PHASE, DY_STEP,
                            )  # fmt: skip
                    row = I32(row + SLICES)
            cuda.syncthreads()
            unit = I32(unit + 1)

        # ---- lanes and slices are added up
        store_apart(sums, sm, I64(t), THREADS)
        cuda.syncthreads()
        workspace = advance(workspace, (I64(group) * chunks + I64(part)) * group_k * I64(room))
        number = t
        while number < ELEMENTS:
            of = I32(number % USED)
            kept = I32(number // USED)
            total = S(0)
            at = I32(kept * THREADS + of * LANES)
            for _ in range(SLICES):
                for half in range(LANES // 4):
                    values = load_vector(sm, I64(at + half * 4), 4)
                    for e in range(4):
                        total = S(total + values[e])
                at = I32(at + USED * LANES)
            tap = I32(kept % (HELD_ROWS * TAPS_W))
            k = I32(k0 + of // (ROWS * PLANES) * KT + kept // (HELD_ROWS * TAPS_W))
            plane = I32(plane0 + of // ROWS % PLANES)
            if k < group_k and plane < planes:
                workspace[I64(k) * room + plane * TAPS + of % ROWS * TAPS_W + tap] = total
            number = I32(number + THREADS)

    return conv_direct_weight


_RESNEXT, _FIRST = Window(3, 3, 1, 1, 1, 1), Window(7, 7, 2, 2, 1, 1)
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_direct_weight, ("f32", slots_of(4, 4, _RESNEXT), _RESNEXT, True), ("FFMA", "LDGSTS.E", "LDS.128")),
    (make_direct_weight, ("bf16", slots_of(64, 3, _FIRST), _FIRST, True), ("FFMA", "LDG.E.U16", "LDS.128")),
    (make_direct_weight, ("f32", slots_of(16, 8, _RESNEXT), _RESNEXT, False), ("FFMA", "LDGSTS.E", "LDS.128")),
]
