"""The kernels of `direct`: neighbouring pixels of a row for some channels a thread, the input and the weights in shared
memory, sums in registers.

A block of four warps computes a tile of channels x rows x columns of one image.  For some planes of the input (channels
times taps of the depth) it brings the rows that the tile's windows see into shared memory, the columns of a stride side
by side, and the weights, which were packed [plane][tap][channel]; then each thread adds up 4 pixels of 16, 8 or 4
channels.  A thread's elements of a row are one or two vectors for all taps of one remainder by the stride, and the
weights are the same for all lanes of a warp, one access.  The sums go through shared memory, so that the end stands in
the code once.

Count, 3 x 3 with stride 1 and 8 channels a thread, for one row of taps: 96 multiply-adds, 2 vectors of the row (four
accesses of shared memory each), 6 of weights (one each): 14 of the 24 clocks that the multiplications take.  7 x 7 with
stride 2: 224, 4 and 14, 30 of 56 clocks.  An element that is copied, by about 7 instructions, is multiplied 180 times
for 32 channels of 3 x 3 and 220 times for 7 x 7 with stride 2.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import common_types, pointer
from numbaprims.gpu.conv.depthwise_kernels import next_digit
from numbaprims.gpu.device.copy import copy_async_partial, copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, load_vector, opaque, repeat, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.window import store_sums, window_row
from numbaprims.gpu.gemm.arguments import round_up
from numbaprims.gpu.gemm.epilogue import local_sums, make_finish
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    cuda,
    device_function,
    gpu_kernel,
    grid_size,
    shared_array,
    thread_index,
    types,
)

WARPS = 4
THREADS = 32 * WARPS
PIXELS = 4
"""Neighbours of a row that a thread computes, one vector."""
BUDGET = 32 * 1024
"""Bytes of shared memory for the planes of a turn, unless one alone takes more."""
MOST_PLANES = 8
I32, I64, U32 = types.int32, types.int64, types.uint32


class Tile(NamedTuple):
    """What a block computes."""

    channels: int
    """Of a thread."""
    runs: int
    """Of 4 pixels, that lanes of a warp take side by side; the other lanes take rows."""
    across: int
    """Warps with channels of their own; the others take rows."""

    @property
    def bk(self) -> int:
        return self.channels * self.across

    @property
    def registers(self) -> int:
        """Of a thread: for 4 blocks a multiprocessor, or 3 where 64 sums leave no room."""
        return 168 if self.channels == 16 else 128

    @property
    def bh(self) -> int:
        return 32 // self.runs * (WARPS // self.across)

    @property
    def bw(self) -> int:
        return PIXELS * self.runs


TILES = {
    f"{tile.bk}x{tile.bh}x{tile.bw}": tile
    for tile in (
        Tile(16, 8, 4), Tile(8, 8, 4), Tile(8, 8, 2), Tile(8, 8, 1), Tile(4, 8, 1),
        Tile(16, 4, 4), Tile(8, 4, 4), Tile(8, 4, 2), Tile(8, 4, 1), Tile(4, 4, 1),
    )
}  # fmt: skip


class Window(NamedTuple):
    """What of a convolution is written into the code: taps, steps from pixel to pixel (gain) and from tap to tap
    (gap)."""

    taps_h: int
    taps_w: int
    gain_h: int
    gain_w: int
    gap_h: int
    gap_w: int


class Room(NamedTuple):
    """Shared memory of a tile, in words."""

    lines: int
    """Rows of a plane that the tile's windows see."""
    phase: int
    """Columns with one remainder by the stride."""
    pitch: int
    plane: int
    weights: int
    """Of one plane."""
    planes: int
    """In shared memory at a time."""
    words: int
    residents: int
    """Blocks that a multiprocessor, also an A100's with 164 KiB, is to hold: while some copy, others multiply."""


def room_of(tile: Tile, window: Window, last: bool) -> Room:
    """Sizes by tile and window."""
    lines = (tile.bh - 1) * window.gain_h + (window.taps_h - 1) * window.gap_h + 1
    phase = tile.bw + round_up((window.taps_w - 1) * window.gap_w // window.gain_w, 4)
    pitch = window.gain_w * phase
    if tile.runs < 8:
        # eight lanes that load at a time have rows of two pixels: 16 banks apart
        wanted = [pitch + pad for pad in range(0, 32, 4) if (pitch + pad) * window.gain_h % 32 == 16]
        pitch = wanted[0] if wanted else pitch
    plane, weights = lines * pitch, window.taps_h * window.taps_w * tile.bk
    planes = max(1, min(MOST_PLANES, BUDGET // 4 // (plane + weights)))
    sums = tile.bh * tile.bw * (tile.bk + 4 if last else tile.bk)
    words = max(planes * (plane + weights), sums)
    residents = max(1, min(65536 // (tile.registers * THREADS), 164 * 1024 // (4 * words + 1024)))
    return Room(lines, phase, pitch, plane, weights, planes, words, residents)


@device_function
def plane_flat(plane, k_d):  # type: ignore[no-untyped-def]
    """Channel and tap of the depth of a plane where the kernel has no depth: a division less for each row."""
    return plane, I32(0)


@device_function
def plane_deep(plane, k_d):  # type: ignore[no-untyped-def]
    return next_digit(plane, k_d)


class Line(NamedTuple):
    """The device functions by which a warp brings rows into shared memory."""

    turns: int
    """Columns of a lane; three local arrays of so many int32 hold where they lie and where they go."""
    place: Any
    """place(words, offsets, sizes, lane, at_w, size_w, s_w): fills them, for all rows that begin at column at_w"""
    copy: Any
    """copy(sm, base, target, source, offset, inside, words, offsets, sizes): starts to bring one row to the word
    `target`; all of it becomes 0 unless `inside`"""


@functools.cache
def make_line(dtype: str, gain: int, phase: int) -> Line:
    """Rows of `gain` times `phase` columns; the elements of a stride `gain` come to lie side by side, and what lies
    outside becomes 0.  Words of 4 bytes come by cp.async, halves through registers, as float32."""
    S = local_sums(DTYPES[dtype].accumulate)
    COLUMNS = gain * phase
    TURNS = -(-COLUMNS // 32)

    @device_function
    def place(words, offsets, sizes, lane, at_w, size_w, s_w):  # type: ignore[no-untyped-def]
        for j in range(TURNS):
            x = U32(lane + U32(32 * j))
            part = quotient(x, U32(gain))
            at = I32(at_w + I32(x))
            # past the last column of shared memory there is no word
            words[j] = I32((x - part * U32(gain)) * U32(phase) + part) if x < U32(COLUMNS) else I32(-1)
            offsets[j] = I32(at * s_w)
            sizes[j] = I32(4) if U32(at) < U32(size_w) else I32(0)

    @device_function
    def copy_words(sm, base, target, source, offset, inside, words, offsets, sizes):  # type: ignore[no-untyped-def]
        for j in range(TURNS):
            if words[j] >= 0:
                nbytes = sizes[j] if inside else I32(0)
                copy_async_partial(
                    U32(base + U32(target + words[j]) * U32(4)), source, I64(I32(offset + offsets[j])), 4, nbytes
                )  # fmt: skip

    @device_function
    def copy_halves(sm, base, target, source, offset, inside, words, offsets, sizes):  # type: ignore[no-untyped-def]
        values = cuda.local.array(TURNS, S)
        for j in range(TURNS):
            values[j] = S(0)
            if inside and sizes[j] > 0:
                values[j] = widen(source[I64(I32(offset + offsets[j]))], dtype)
        for j in range(TURNS):
            if words[j] >= 0:
                sm[I64(I32(target + words[j]))] = values[j]

    return Line(TURNS, place, copy_words if DTYPES[dtype].itemsize == 4 else copy_halves)


@functools.cache
def make_direct(
    dtype: str, out_dtype: str, tile_name: str, window: Window, flat: bool, last: bool, activation: str
) -> GpuKernel:  # fmt: skip
    """A tile of the result of one product (products.py) with positive gaps; `flat`: the kernel has no depth; `last`:
    channels of the result are neighbours."""
    tile, acc = TILES[tile_name], DTYPES[dtype].accumulate
    S = local_sums(acc)
    room_words = room_of(tile, window, last)
    LINES, PHASE, PITCH, PLANE = room_words.lines, room_words.phase, room_words.pitch, room_words.plane
    PLANES, WEIGHTS = room_words.planes, room_words.weights
    WEIGHTS_AT = PLANES * PLANE
    TAPS_H, TAPS_W, GAIN_H, GAIN_W, GAP_H, GAP_W = window
    BK, BH, BW, KT, RUNS, ACROSS = tile.bk, tile.bh, tile.bw, tile.channels, tile.runs, tile.across
    ROWS, SUMS = 32 // RUNS, KT * PIXELS
    V = 4
    # sums on their way out: [channel][row][column] or [row][column][channel]
    K_STEP, PIXEL_STEP = (1, BK + 4) if last else (BH * BW, 1)
    PER_ROW = BK // V if last else BW // V
    VECTORS = BK * BH * BW // V
    finish = make_finish(dtype, out_dtype, acc, activation, V)
    _, fill = TUPLES[V]
    signature = types.void(
        *common_types(dtype, dtype, out_dtype), types.CPointer(STORAGE[acc]), *(types.int32,) * 27, *(types.int64,) * 14
    )

    line = make_line(dtype, GAIN_W, PHASE)
    TURNS, place_line, copy_line = line.turns, line.place, line.copy
    split = plane_flat if flat else plane_deep

    @device_function
    def end_planes(x, v, out, c, bias, k0, h0, w0, group_k, v_h, v_w, o_u, o_h, o_w, c_u, c_h, c_w, bias_step, has_c,
                   bias_axis, code, flags, alpha, beta, p0, p1, p2):  # type: ignore[no-untyped-def]  # fmt: skip
        channel, h = I32(k0 + v // (BH * PER_ROW)), I32(h0 + v // PER_ROW % BH)
        w = I32(w0 + v % PER_ROW * V)
        if channel < group_k and h < v_h and w < v_w:
            finish(
                x, I32(0), w, advance(out, I64(channel) * o_u + I64(h) * o_h),
                advance(c, I64(channel) * c_u + I64(h) * c_h), advance(bias, I64(channel) * bias_step), v_w, I64(0),
                o_w, I64(0), c_w, I64(0), has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
            )  # fmt: skip

    @device_function
    def end_channels_last(x, v, out, c, bias, k0, h0, w0, group_k, v_h, v_w, o_u, o_h, o_w, c_u, c_h, c_w, bias_step,
                          has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2):  # type: ignore[no-untyped-def]  # fmt: skip
        channel, pixel = I32(k0 + v % PER_ROW * V), I32(v // PER_ROW)
        h, w = I32(h0 + pixel // BW), I32(w0 + pixel % BW)
        if channel < group_k and h < v_h and w < v_w:
            finish(
                x, I32(0), channel, advance(out, I64(h) * o_h + I64(w) * o_w), advance(c, I64(h) * c_h + I64(w) * c_w),
                bias, group_k, I64(0), o_u, I64(0), c_u, bias_step, has_c, bias_axis, code, flags, alpha, beta, p0, p1,
                p2,
            )  # fmt: skip

    @device_function
    def word_planes(v):  # type: ignore[no-untyped-def]
        return I64(v) * V

    @device_function
    def word_channels_last(v):  # type: ignore[no-untyped-def]
        return I64(I32(v // PER_ROW * PIXEL_STEP + v % PER_ROW * V))

    end, word_of = (end_channels_last, word_channels_last) if last else (end_planes, word_planes)

    @gpu_kernel(
        "conv_direct", signature, spec=(dtype, out_dtype, tile_name, *window, int(flat), int(last), activation),
        threads=THREADS, blocks_per_sm=room_words.residents, shared=4 * room_words.words, registers=tile.registers,
    )  # fmt: skip
    def conv_direct(  # type: ignore[no-untyped-def]
        out, source, second, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        packed, group_k, images, v_d, v_h, v_w, vg_d, vb_d, vb_h, vb_w, k_d, kg_d, planes, size_d, size_h, size_w, room,
        tiles_k, tiles_h, tiles_w, bias_axis, flags, k_step, s_d, s_h, s_w, v_step, s_group,
        o_u, o_n, o_d, o_h, o_w, o_base, o_group,
        c_u, c_n, c_d, c_h, c_w, c_base, c_group,
    ):  # fmt: skip
        sm = shared_array(0, S, alignment=16)
        base = shared_address(sm, 0)
        t = I32(thread_index())
        warp, lane = I32(t // 32), I32(t % 32)
        rest, tile_k = next_digit(block_index(), tiles_k)
        rest, tile_w = next_digit(rest, tiles_w)
        rest, tile_h = next_digit(rest, tiles_h)
        rest, d = next_digit(rest, v_d)
        group, n = next_digit(rest, images)
        k0, h0, w0 = I32(tile_k * BK), I32(tile_h * BH), I32(tile_w * BW)
        at_d, at_h, at_w = I32(d * vg_d + vb_d), I32(h0 * GAIN_H + vb_h), I32(w0 * GAIN_W + vb_w)
        # 32 bits are enough for every offset, and what overflows is outside; kept in registers, with the address of
        # shared memory, instead of being computed anew for every element that is copied
        base, begin = U32(opaque(I32(base))), opaque(I32(I32(group) * s_group + n * v_step))
        packed = advance(packed, I64(group) * I64(planes) * (TAPS_H * TAPS_W) * I64(room) + I64(k0))
        row = I32(warp // ACROSS * ROWS + lane // RUNS)
        at_row = I32(row * (GAIN_H * PITCH) + lane % RUNS * PIXELS)
        at_weights = I32(WEIGHTS_AT + warp % ACROSS * KT)
        words, offsets = cuda.local.array(TURNS, I32), cuda.local.array(TURNS, I32)
        sizes = cuda.local.array(TURNS, I32)
        place_line(words, offsets, sizes, U32(lane), at_w, size_w, s_w)
        sums = repeat(S(0), SUMS)
        first = I32(0)
        while first < planes:
            here = I32(min(I32(planes - first), I32(PLANES)))
            # ---- the rows of these planes, a warp each
            number = warp
            while number < I32(here * LINES):
                plane = quotient(U32(number), U32(LINES))
                below = I32(U32(number) - plane * U32(LINES))
                channel, z = split(U32(U32(first) + plane), k_d)
                place_d, place_h = I32(at_d + z * kg_d), I32(at_h + below)
                inside = U32(place_d) < U32(size_d) and U32(place_h) < U32(size_h)
                offset = I32(begin + I32(channel) * k_step + place_d * s_d + place_h * s_h)
                copy_line(
                    sm, base, I32(I32(plane) * PLANE + below * PITCH), source, offset, inside, words, offsets, sizes
                )  # fmt: skip
                number = I32(number + WARPS)
            # ---- and their weights
            number = t
            while number < I32(here * (WEIGHTS // V)):
                tap = I32(number // (BK // V))
                k = I32(number % (BK // V) * V)
                copy_async_partial(
                    U32(base + U32(WEIGHTS_AT + number * V) * U32(4)), packed,
                    (I64(first) * (TAPS_H * TAPS_W) + I64(tap)) * I64(room) + I64(k), 16, I32(16),
                )  # fmt: skip
                number = I32(number + THREADS)
            copy_commit()
            copy_wait(0)
            cuda.syncthreads()
            plane_at, weights_at, left = at_row, at_weights, here
            while left > 0:
                at = plane_at
                for _ in range(TAPS_H):
                    sums = window_row(
                        sums, sm, I64(at), I64(weights_at), TAPS_W, GAP_W, GAIN_W, PIXELS, PHASE, BK
                    )  # fmt: skip
                    at, weights_at = I32(at + GAP_H * PITCH), I32(weights_at + TAPS_W * BK)
                plane_at, left = I32(plane_at + PLANE), I32(left - 1)
            cuda.syncthreads()
            first = I32(first + PLANES)

        # ---- the sums go through shared memory
        column = I32(lane % RUNS * PIXELS)
        at_sums = I32(warp % ACROSS * (KT * K_STEP) + (row * BW + column) * PIXEL_STEP)
        store_sums(sums, sm, I64(at_sums), PIXELS, K_STEP, PIXEL_STEP)
        cuda.syncthreads()
        out = advance(out, I64(group) * o_group + I64(n) * o_n + I64(d) * o_d + o_base)
        c = advance(c, I64(group) * c_group + I64(n) * c_n + I64(d) * c_d + c_base)
        bias = advance(bias, I64(group) * I64(group_k) * bias_step)
        x = cuda.local.array(V, S)
        v = t
        while v < VECTORS:
            fill(x, load_vector(sm, word_of(v), V))
            end(
                x, v, out, c, bias, k0, h0, w0, group_k, v_h, v_w, o_u, o_h, o_w, c_u, c_h, c_w, bias_step, has_c,
                bias_axis, code, flags, alpha, beta, p0, p1, p2,
            )  # fmt: skip
            v = I32(v + THREADS)

    return conv_direct


PACK_THREADS = 256


@functools.cache
def make_direct_pack(dtype: str) -> GpuKernel:
    """The weights as `direct` takes them: [group][plane][tap][room] in the type of the sums, zeros behind the last
    channel."""
    acc = DTYPES[dtype].accumulate
    S = local_sums(acc)
    signature = types.void(
        types.CPointer(STORAGE[acc]), pointer(dtype), *(types.int32,) * 7, *(types.int64,) * 7
    )  # fmt: skip

    @gpu_kernel("conv_direct_pack", signature, spec=(dtype,), threads=PACK_THREADS, registers=64)
    def conv_direct_pack(  # type: ignore[no-untyped-def]
        packed, plain, elements, room, group_k, k_c, k_d, k_h, k_w, p_u, p_c, p_d, p_h, p_w, p_base, p_group
    ):
        number = U32(block_index() * U32(PACK_THREADS) + thread_index())
        while number < U32(elements):
            rest, u = next_digit(number, room)
            rest, s = next_digit(rest, k_w)
            rest, r = next_digit(rest, k_h)
            rest, z = next_digit(rest, k_d)
            group, channel = next_digit(rest, k_c)
            value = S(0)
            if u < group_k:
                at = p_base + I64(group) * p_group + I64(u) * p_u + I64(channel) * p_c
                value = widen(plain[at + I64(z) * p_d + I64(r) * p_h + I64(s) * p_w], dtype)
            packed[I64(number)] = value
            number = U32(number + U32(PACK_THREADS) * grid_size())

    return conv_direct_pack


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_direct, ("f32", "f32", "32x4x32", Window(7, 7, 2, 2, 1, 1), True, False, "switch"),
     ("FFMA", "LDGSTS.E", "LDS.128", "STG.E.128")),
    (make_direct_pack, ("bf16",), ("LDG.E.U16", "STG.E")),
    (make_direct, ("f32", "f32", "64x8x16", Window(7, 7, 2, 2, 1, 1), True, False, "switch"),
     ("FFMA", "LDGSTS.E", "LDS.128", "STG.E.128")),
    (make_direct, ("f16", "f16", "4x16x32", Window(3, 3, 1, 1, 1, 1), True, True, "gelu"),
     ("FFMA", "LDG.E.U16", "LDS.128", "STG.E.64")),
    (make_direct, ("f32", "f32", "8x32x16", Window(11, 11, 4, 4, 1, 1), True, True, "switch"),
     ("FFMA", "LDGSTS.E", "LDS.128", "STG.E.128")),
]  # fmt: skip
