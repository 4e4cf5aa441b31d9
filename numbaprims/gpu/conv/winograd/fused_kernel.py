"""F(2x2, 3x3) in one kernel, without scratch memory: what is transformed stays in shared memory and registers.

A block of 256 threads computes 32 tiles of 32 channels of the result: 16 products of 32 x 32, two of them a warp, 64
sums a thread.  Of 8 channels at a time each thread transforms one tile and one window into shared memory (prepared
windows are copied there); the next tile is on its way into registers while these are multiplied.  The next window is
not, there are no registers for it: it arrives while the tile is transformed.

Count, for 8 channels, each thread: 512 multiply-adds and 48 loads of 16 bytes for them, two of the tiles and one of the
windows for 32; a tile takes 16 loads with 70 instructions for their addresses, 32 additions and 16 stores, a window 9
loads, 28 operations and 16 stores.  So 0.6 of the instructions multiply, and a product is worth 2.25 of the
definition's.  Bytes: each tile is read again for every 32 channels of the result, 16 numbers for 4; each window for
every 32 tiles.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cook_toom import filtering, program
from numbaprims.gpu.conv.arguments import common_types, pointer
from numbaprims.gpu.conv.winograd.transform_in import FAR, tile_corner
from numbaprims.gpu.device.copy import copy_async_partial, copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, load_vector, opaque, store_vector
from numbaprims.gpu.device.packs import load_apart
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.transforms import load_patch, store_spread, transform
from numbaprims.gpu.gemm.epilogue import make_finish
from numbaprims.gpu.jit import (
    GpuKernel,
    block_index,
    cuda,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)

THREADS, TILES, OUTS, DEPTH = 256, 32, 32, 8
"""Of a block; channels that are multiplied between two barriers."""
M, R, N = 2, 3, 4
LD = 36
"""Elements from row to row in shared memory: rows of 8 channels begin in banks 4 apart."""
ROWS = N * N * DEPTH
I32, I64, U32, F32 = types.int32, types.int64, types.uint32, types.float32


@device_function
def across(t, length):  # type: ignore[no-untyped-def]
    """(channel, tile or window) of a thread: neighbours are tiles (windows)."""
    return I32(t // length), I32(t % length)


@device_function
def along(t, length):  # type: ignore[no-untyped-def]
    """The same where they are channels."""
    return I32(t % DEPTH), I32(t // DEPTH)


@functools.cache
def _make_fetch(dtype: str) -> tuple[Any, Any]:
    """Device functions that load a thread's tile, and its window."""

    @device_function
    def tile(x, at, channel, channels, row, column, x_h, x_w, x_sc, x_sh, x_sw):  # type: ignore[no-untyped-def]
        exists = channel < channels
        at_channel = I32(at + (channel if exists else I32(0)) * x_sc)
        corner = (row if exists else I32(FAR), column)
        return load_patch(x, at_channel, corner, (I32(1), I32(1)), (x_h, x_w), (x_sh, x_sw), N, N, dtype)

    @device_function
    def window(w, at, k, outs, channel, channels, w_sk, w_sc, w_sr, w_ss):  # type: ignore[no-untyped-def]
        inside = k < outs and channel < channels
        at_channel = I32(at + k * w_sk + channel * w_sc) if inside else I32(at)
        corner = (I32(0) if inside else I32(FAR), I32(0))
        return load_patch(w, at_channel, corner, (I32(1), I32(1)), (I32(R), I32(R)), (w_sr, w_ss), R, R, dtype)

    return tile, window


@functools.cache
def _make_windows(dtype: str, kept: bool) -> tuple[Any, Any]:
    """(fetch, put): a thread's window on its way, and the transforms into shared memory.

    With `kept` the windows are transforms already, [position][group][channel][out]; each thread copies 4 vectors.
    """
    _, window = _make_fetch(dtype)
    G = program(filtering(M, R).g)

    @device_function
    def fetch_plain(w, at, k, outs, channel, channels, w_sk, w_sc, w_sr, w_ss):  # type: ignore[no-untyped-def]
        return window(w, at, k, outs, channel, channels, w_sk, w_sc, w_sr, w_ss)

    @device_function
    def put_plain(sm, slot, raw, u, base, t, first, channels, outs_left, u_p, u_c):  # type: ignore[no-untyped-def]
        store_spread(sm, slot, I64(DEPTH * LD), transform(raw, R, G, G), 1)

    @device_function
    def fetch_kept(w, at, k, outs, channel, channels, w_sk, w_sc, w_sr, w_ss):  # type: ignore[no-untyped-def]
        return (F32(0),)

    @device_function
    def put_kept(sm, slot, raw, u, base, t, first, channels, outs_left, u_p, u_c):  # type: ignore[no-untyped-def]
        # 8 vectors a row, 32 rows at a time
        row, column = I32(t // 8), I32((t % 8) * 4)
        for h in range(ROWS // 32):
            position, depth = I32(row // DEPTH + h * (32 // DEPTH)), I32(row % DEPTH)
            left = I32(min(max(I32(outs_left - column), I32(0)), I32(4)) * 4)
            nbytes = left if I32(first + depth) < channels else I32(0)
            at = I64(position) * u_p + I64(I32(first + depth)) * u_c + I64(column)
            copy_async_partial(U32(base + ((row + h * 32) * LD + column) * 4), u, at, 16, nbytes)
        copy_commit()
        copy_wait(0)

    return (fetch_kept, put_kept) if kept else (fetch_plain, put_plain)


@device_function
def multiply(sm, at_tiles, at_outs, vector, sums, first):  # type: ignore[no-untyped-def]
    """8 tiles by 4 channels of one position: 32 sums from number `first` on."""
    a = load_vector(sm, at_tiles, 4)
    b = load_vector(sm, at_tiles + TILES // 2, 4)
    y = load_vector(sm, at_outs, 4)
    vector[0], vector[1], vector[2], vector[3] = a[0], a[1], a[2], a[3]
    vector[4], vector[5], vector[6], vector[7] = b[0], b[1], b[2], b[3]
    for i in range(8):
        sums[first + i * 4] += vector[i] * y[0]
        sums[first + i * 4 + 1] += vector[i] * y[1]
        sums[first + i * 4 + 2] += vector[i] * y[2]
        sums[first + i * 4 + 3] += vector[i] * y[3]


@functools.cache
def make_fused(dtype: str, out_dtype: str, order: str, windows: str, activation: str) -> GpuKernel:
    """A block of tiles and channels.  Neighbouring threads load neighbouring "tiles" or "channels" (`order`), and
    windows of neighbouring "outs" or "channels" (`windows`), unless these are transforms "kept" by a plan."""
    A, B = program(filtering(M, R).a_t), program(filtering(M, R).b_t)
    tile_of, _ = _make_fetch(dtype)
    fetch, put = _make_windows(dtype, windows == "kept")
    spread_x = across if order == "tiles" else along
    spread_w = across if windows == "outs" else along
    V = 2 if order == "tiles" else 1
    finish = make_finish(dtype, out_dtype, "f32", activation, V)
    BOTH, HALF, U_BEGIN, NEXT, POSITIONS = 2 * ROWS * LD, OUTS // 2, ROWS * LD, DEPTH * LD, N * N
    signature = types.void(
        *common_types(dtype, dtype, out_dtype), pointer("f32"), *(types.int32,) * 24, *(types.int64,) * 11
    )

    @device_function
    def item_tiles(number):  # type: ignore[no-untyped-def]
        return I32(number // TILES), I32(number % TILES)

    @device_function
    def item_channels(number):  # type: ignore[no-untyped-def]
        return I32(number % HALF), I32(number // HALF)

    item = item_tiles if order == "tiles" else item_channels

    @gpu_kernel(
        "winograd_fused", signature, spec=(dtype, out_dtype, order, windows, activation), threads=THREADS,
        blocks_per_sm=2, registers=128,
    )  # fmt: skip
    def winograd_fused(  # type: ignore[no-untyped-def]
        out, x, w, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        u, tiles, channels, outs, tile_blocks, out_blocks, tiles_h, tiles_w, pad_h, pad_w, x_h, x_w, out_h, out_w,
        flags, x_sn, x_sc, x_sh, x_sw, w_sk, w_sc, w_sr, w_ss, w_start, w_group, u_p, u_g, u_c,
        o_n, o_k, o_h, o_w, c_n, c_k, c_h, c_w,
    ):  # fmt: skip
        sm = shared_array(BOTH, F32, alignment=16)
        sums, vector = cuda.local.array(64, F32), cuda.local.array(8, F32)
        ending = cuda.local.array(V, F32)
        t = I32(thread_index())
        rest = quotient(block_index(), U32(out_blocks))
        first_out = I32((block_index() - rest * U32(out_blocks)) * U32(OUTS))
        group = I32(quotient(rest, U32(tile_blocks)))
        first_tile = I32((rest - U32(group) * U32(tile_blocks)) * U32(TILES))

        depth, own = spread_x(t, TILES)
        exists = I32(first_tile + own) < tiles
        image, row, column = tile_corner(I32(first_tile + own) if exists else I32(0), tiles_h, tiles_w)
        at_x = I32(image * x_sn + group * channels * x_sc)
        top, left = I32(row * M - pad_h) if exists else I32(FAR), I32(column * M - pad_w)
        windows_at = I32(w_start + group * w_group)
        kept_of = advance(u, I64(group) * u_g + I64(first_out))
        base = U32(shared_address(sm, 0) + U32(U_BEGIN * 4))
        for e in range(64):
            sums[e] = F32(0)

        tile = tile_of(x, at_x, depth, channels, top, left, x_h, x_w, x_sc, x_sh, x_sw)
        first = I32(0)
        while first < channels:
            # whatever follows from the thread's number is computed again: beside 64 sums and the numbers on their way
            # no registers are left to keep it in
            t = opaque(t)
            depth_w, own_w = spread_w(t, OUTS)
            window = fetch(
                w, windows_at, I32(first_out + own_w), outs, I32(first + depth_w), channels, w_sk, w_sc, w_sr, w_ss
            )  # fmt: skip
            cuda.syncthreads()
            depth, own = spread_x(t, TILES)
            store_spread(sm, I64(depth * LD + own), I64(NEXT), transform(tile, N, B, B), 1)
            to_u = I64(U_BEGIN + depth_w * LD + own_w)
            put(sm, to_u, window, kept_of, base, t, first, channels, I32(outs - first_out), u_p, u_c)
            cuda.syncthreads()
            first = I32(first + DEPTH)
            tile = tile_of(
                x, at_x, I32(first + depth), channels, opaque(top), opaque(left), x_h, x_w, x_sc, x_sh, x_sw
            )  # fmt: skip
            t = opaque(t)
            warp_at, lane = I32((t // 32) * (2 * NEXT)), I32(t % 32)
            at_tiles, at_outs = I64(warp_at + (lane // 8) * 4), I64(warp_at + ((lane % 8) * 4 + U_BEGIN))
            left_over = I32(DEPTH)
            while left_over > 0:
                multiply(sm, at_tiles, at_outs, vector, sums, 0)
                multiply(sm, at_tiles + NEXT, at_outs + NEXT, vector, sums, 32)
                at_tiles, at_outs, left_over = at_tiles + LD, at_outs + LD, I32(left_over - 1)

        # through shared memory again, half of the channels at a time: [position][channel][tile]
        t = opaque(t)
        warp, lane_m, lane_n = I32(t // 32), I32((t % 32) // 8), I32(t % 8)
        half = opaque(I32(0))
        while half < 2:
            cuda.syncthreads()
            if I32(lane_n // 4) == half:
                at = I64((warp * (2 * HALF) + (lane_n % 4) * 4) * LD + lane_m * 4)
                for h in range(2):
                    for j in range(4):
                        for g in range(2):
                            e = h * 32 + g * 16 + j
                            store_vector(
                                sm, at + ((h * HALF + j) * LD + g * (TILES // 2)),
                                (sums[e], sums[e + 4], sums[e + 8], sums[e + 12]),
                            )  # fmt: skip
            cuda.syncthreads()
            number = opaque(t)
            while number < HALF * TILES:
                in_half, own = item(number)
                k, tile_number = I32(first_out + half * HALF + in_half), I32(first_tile + own)
                if k < outs and tile_number < tiles:
                    # this thread alone reads these 16 sums; its outputs take the places of the first four, for a loop
                    mine = I64(in_half * LD + own)
                    tile = transform(load_apart(sm, mine, I64(HALF * LD), POSITIONS, "f32"), N, A, A)
                    store_spread(sm, mine, I64(HALF * LD), tile, 1)
                    image, row, column = tile_corner(tile_number, tiles_h, tiles_w)
                    channel = I32(group * outs + k)
                    at_out = I64(image) * o_n + I64(channel) * o_k
                    at_c = I64(image) * c_n + I64(channel) * c_k
                    e = opaque(I32(0))
                    while e < M * M:
                        p, q = I32(row * M + e // M), I32(column * M + e % M)
                        if p < out_h and q < out_w:
                            for v in range(V):
                                ending[v] = sm[mine + I64(e + v) * (HALF * LD)]
                            finish(
                                ending, channel, I32(0), advance(out, at_out + I64(p) * o_h + I64(q) * o_w),
                                advance(c, at_c + I64(p) * c_h + I64(q) * c_w), bias, I32(out_w - q), I64(0), o_w,
                                I64(0), c_w, bias_step, has_c, 2 if has_bias != 0 else 0, code, flags, alpha, beta,
                                p0, p1, p2,
                            )  # fmt: skip
                        e = I32(e + V)
                number = I32(number + THREADS)
            half = I32(half + 1)

    return winograd_fused


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_fused, ("f32", "f32", "tiles", "channels", "switch"), ("FFMA", "LDS.128", "STS", "STG.E.64")),
    (make_fused, ("f32", "f32", "channels", "kept", "switch"), ("FFMA", "LDS.128", "LDGSTS.E", "STG.E")),
    (make_fused, ("bf16", "bf16", "tiles", "outs", "gelu"), ("FFMA", "LDG.E.U16", "STG.E")),
    (make_fused, ("f32", "f32", "channels", "channels", "tanh"), ("FFMA", "LDS.128", "STS", "STG.E")),
    (make_fused, ("f32", "f32", "tiles", "outs", "switch"), ("FFMA", "LDS.128", "STS", "STG.E.64")),
    (make_fused, ("f16", "f16", "channels", "outs", "switch"), ("FFMA", "LDS.128", "STS", "STG.E.U16")),
    (make_fused, ("f16", "f16", "tiles", "kept", "switch"), ("FFMA", "LDGSTS.E", "STS", "STG.E")),
]
