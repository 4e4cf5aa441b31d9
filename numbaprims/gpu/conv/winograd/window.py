"""Out of the domain of a weight's gradient: g' = G^T M G of one window and piece a thread, and the shared epilogue."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cook_toom import filtering, program, transposed
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import common_types, pointer
from numbaprims.gpu.conv.winograd.transform_in import first_tap, pieces_of, registers, tile_first
from numbaprims.gpu.device.memory import advance, opaque
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.transforms import load_spread, store_spread, transform
from numbaprims.gpu.gemm.epilogue import local_sums, make_finish
from numbaprims.gpu.jit import GpuKernel, block_index, cuda, gpu_kernel, shared_array, thread_index, types

I32, I64, U32 = types.int32, types.int64, types.uint32


@functools.cache
def make_window(
    dtype: str, out_dtype: str, m_h: int, r_h: int, m_w: int, r_w: int, activation: str
) -> GpuKernel:  # fmt: skip
    """Taps of the windows of [group][out][piece, channel]; sums lie the same way."""
    acc = DTYPES[dtype].accumulate
    S = local_sums(acc)
    H, W = m_h + r_h - 1, m_w + r_w - 1
    POSITIONS, TAPS = H * W, r_h * r_w
    # 7 x 7 float64 of 128 threads are more than 48 KB
    THREADS = 128 if TAPS * DTYPES[acc].itemsize <= 384 else 64
    ROOM = TAPS * THREADS
    DOWN, ALONG = program(transposed(filtering(m_h, r_h).g)), program(transposed(filtering(m_w, r_w).g))
    finish = make_finish(dtype, out_dtype, acc, activation, 1)
    signature = types.void(
        *common_types(dtype, dtype, out_dtype), pointer(acc), types.uint32, *(types.int32,) * 9, *(types.int64,) * 15
    )

    @gpu_kernel(
        "winograd_window", signature, spec=(dtype, out_dtype, m_h, r_h, m_w, r_w, activation), threads=THREADS,
        registers=registers(acc, POSITIONS),
    )  # fmt: skip
    def winograd_window(  # type: ignore[no-untyped-def]
        out, y, x, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        m, work, outs, channels, x_channels, gap_h, gap_w, taps_h, taps_w, pieces_h, pieces_w, firsts_h, firsts_w,
        m_p, m_g, m_k, o_k, o_c, o_z, o_r, o_s, c_k, c_c, c_z, c_r, c_s,
    ):  # fmt: skip
        room = shared_array(ROOM, S)
        number = U32(block_index() * U32(THREADS) + thread_index())
        if number < work:
            group, own, channel = tile_first(number, channels, outs)
            sums = load_spread(m, I64(group) * m_g + I64(own) * m_k + I64(channel), m_p, POSITIONS)
            mine = I64(thread_index())
            store_spread(room, mine, I64(THREADS), transform(sums, H, DOWN, ALONG), 1)
            piece = quotient(U32(channel), U32(x_channels))
            of_x = I32(U32(channel) - piece * U32(x_channels))
            z, piece_h, piece_w = pieces_of(piece, pieces_h, pieces_w)
            corner_h, corner_w = first_tap(firsts_h, piece_h), first_tap(firsts_w, piece_w)
            k = I32(group * outs + own)
            at_out = I64(k) * o_k + I64(of_x) * o_c + I64(z) * o_z
            at_c = I64(k) * c_k + I64(of_x) * c_c + I64(z) * c_z
            value = cuda.local.array(1, S)
            tap = opaque(I32(0))
            while tap < TAPS:
                row = I32(tap // r_w)
                r, s = I32(corner_h + row * gap_h), I32(corner_w + (tap - row * r_w) * gap_w)
                if r < taps_h and s < taps_w:
                    value[0] = room[mine + I64(tap) * THREADS]
                    finish(
                        value, k, I32(0), advance(out, at_out + I64(r) * o_r + I64(s) * o_s),
                        advance(c, at_c + I64(r) * c_r + I64(s) * c_s), bias, I32(1), I64(0), I64(0), I64(0), I64(0),
                        bias_step, has_c, 2 if has_bias != 0 else 0, code, I32(0), alpha, beta, p0, p1, p2,
                    )  # fmt: skip
                tap = I32(tap + 1)

    return winograd_window


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_window, ("f32", "f32", 4, 3, 4, 3, "switch"), ("LDG.E.CONSTANT", "FFMA", "STS", "STG.E")),
    (make_window, ("bf16", "bf16", 2, 3, 2, 3, "switch"), ("LDG.E.CONSTANT", "FFMA", "STS", "STG.E.U16")),
    (make_window, ("f64", "f64", 2, 7, 2, 7, "switch"), ("LDG.E.64.CONSTANT", "DFMA", "STS", "STG.E.64")),
]
