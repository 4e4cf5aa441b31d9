"""Out of the domain: y = A^T M A of one tile a thread, and the epilogue that all products share.

The outputs of a tile pass through shared memory, each thread's own, so that the epilogue stands in the code once: it
runs over them in a loop, and registers have no run-time index.  Where rows of the result allow it, up to four outputs
are one vector store.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cook_toom import filtering, program
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import common_types, pointer
from numbaprims.gpu.conv.winograd.transform_in import SPLIT, THREADS, registers, tile_corner
from numbaprims.gpu.device.memory import advance, load_vector, opaque
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.transforms import load_spread, store_spread, transform
from numbaprims.gpu.gemm.arguments import vector_length
from numbaprims.gpu.gemm.epilogue import local_sums, make_finish
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.jit import GpuKernel, block_index, cuda, gpu_kernel, shared_array, thread_index, types

I32, I64, U32 = types.int32, types.int64, types.uint32


def vector_of(acc: str, m_w: int) -> int:
    """How many outputs of a tile's row are stored at a time."""
    return next(count for count in (4, 2, 1) if m_w % count == 0 and count <= vector_length(acc))


@functools.cache
def make_output(
    dtype: str, out_dtype: str, m_h: int, r_h: int, m_w: int, r_w: int, order: str, activation: str
) -> GpuKernel:
    """The result of one slice of tiles."""
    acc = DTYPES[dtype].accumulate
    S = local_sums(acc)
    H, W = m_h + r_h - 1, m_w + r_w - 1
    POSITIONS = H * W
    DOWN, ALONG = program(filtering(m_h, r_h).a_t), program(filtering(m_w, r_w).a_t)
    V = vector_of(acc, m_w) if order == "tiles" else 1
    IN_ROW = m_w // V
    VECTORS = m_h * IN_ROW
    ROOM, STEP = VECTORS * THREADS * V, THREADS * V
    split = SPLIT[order]
    finish = make_finish(dtype, out_dtype, acc, activation, V)
    _, fill = TUPLES[V]
    signature = types.void(
        *common_types(dtype, dtype, out_dtype), pointer(acc), types.uint32, *(types.int32,) * 9, *(types.int64,) * 14
    )

    @gpu_kernel(
        "winograd_output", signature, spec=(dtype, out_dtype, m_h, r_h, m_w, r_w, order, activation), threads=THREADS,
        registers=registers(acc, POSITIONS),
    )  # fmt: skip
    def winograd_output(  # type: ignore[no-untyped-def]
        out, x, w, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        m, work, first, tiles, outs, tiles_h, tiles_w, out_d, out_h, out_w, flags, m_p, m_g, m_k, m_t,
        o_d, o_n, o_k, o_h, o_w, c_d, c_n, c_k, c_h, c_w,
    ):  # fmt: skip
        room = shared_array(ROOM, S, alignment=16)
        number = U32(block_index() * U32(THREADS) + thread_index())
        if number < work:
            group, own, tile = split(number, tiles, outs)
            sums = load_spread(m, I64(group) * m_g + I64(own) * m_k + I64(tile) * m_t, m_p, POSITIONS)
            mine = I64(thread_index() * U32(V))
            store_spread(room, mine, I64(STEP), transform(sums, H, DOWN, ALONG), V)
            image, row, column = tile_corner(I32(first + tile), tiles_h, tiles_w)
            channel = I32(group * outs + own)
            volume = quotient(U32(image), U32(out_d))
            plane = I32(image - I32(volume) * out_d)
            at_out = I64(volume) * o_n + I64(plane) * o_d + I64(channel) * o_k
            at_c = I64(volume) * c_n + I64(plane) * c_d + I64(channel) * c_k
            values = cuda.local.array(V, S)
            vector = opaque(I32(0))
            while vector < VECTORS:
                in_tile = I32(vector // IN_ROW)
                p = I32(row * m_h + in_tile)
                q = I32(column * m_w + (vector - in_tile * IN_ROW) * V)
                if p < out_h and q < out_w:
                    fill(values, load_vector(room, mine + I64(vector) * STEP, V))
                    finish(
                        values, channel, I32(0), advance(out, at_out + I64(p) * o_h + I64(q) * o_w),
                        advance(c, at_c + I64(p) * c_h + I64(q) * c_w), bias, I32(out_w - q), I64(0), o_w, I64(0), c_w,
                        bias_step, has_c, 2 if has_bias != 0 else 0, code, flags, alpha, beta, p0, p1, p2,
                    )  # fmt: skip
                vector = I32(vector + 1)

    return winograd_output


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_output, ("f32", "f32", 4, 3, 4, 3, "tiles", "switch"), ("LDG.E.CONSTANT", "STS.128", "STG.E.128")),
    (make_output, ("bf16", "bf16", 6, 3, 6, 3, "channels", "switch"), ("LDG.E.CONSTANT", "STG.E.U16")),
    (make_output, ("f64", "f64", 2, 3, 2, 3, "tiles", "gelu"), ("LDG.E.64.CONSTANT", "STG.E.128")),
]
