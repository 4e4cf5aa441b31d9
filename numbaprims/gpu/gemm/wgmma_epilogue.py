"""How a warp of a wgmma kernel ends its 16 rows of sums: through 2 KiB of shared memory of its own, piece by piece.

The sums stay in registers, of which none has a run-time number.  A warp waits for nobody but its own lanes, so while it
ends its rows, other warps multiply, and the copies for the next tile arrive.

Two ways.  `short` is out = relu(alpha sums + bias) or less, in 16 bits, rows of whole 16-byte vectors: 64 columns are
ended in registers, lie in shared memory as stmatrix puts them, and go out as 128 bytes a row: 150 instructions.
Everything else (c, other activations and types, any strides) takes the sums in full precision through shared memory to
`epilogue.make_finish`, 32 columns at a time, to which `part_of` jumps: its code is there once.

Places in shared memory are turned by the row so that the lanes of one access lie in different banks.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.activation.formulas import CHEAP
from numbaprims.gpu.device.fragments import load_pairs, pack_ended, pack_scaled, part_of, store_from_shared
from numbaprims.gpu.device.memory import load_vector, repeat, store_vector
from numbaprims.gpu.device.mma import stmatrix
from numbaprims.gpu.device.warp import warp_barrier
from numbaprims.gpu.gemm.arguments import vector_length
from numbaprims.gpu.gemm.epilogue import local_sums, make_finish
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.jit import cuda, device_function, types

ROWS = 16
"""Rows of a warp: of each 8 x 8 square of them a lane holds two neighbours in a row."""
I32, I64, U32, F32 = types.int32, types.int64, types.uint32, types.float32


PLAIN, RELU, BIASED = 1, 2, 3
"""Short ends: of alpha sums, of a relu of them, with a bias and perhaps a relu.  0 is the other way."""
ROOM = ROWS * 128
"""Bytes of shared memory for one warp: 32 columns of sums, or 64 of halves."""


@functools.cache
def make_short(a_dtype: str, out_dtype: str, columns: int) -> Any:
    """short(way, total, at, lane, i0, j0, m, n, out, out_rs, alpha, bias, code), for rows i0 ... of out.

    `at` is the address of the room; bias has one element for each column and begins at a multiple of 4 bytes.
    """
    PIECE = min(columns, 64)
    CHUNKS = PIECE // 8  # of 16 bytes, in a row
    TURN = 8 // CHUNKS  # rows that share 128 bytes
    PART, PIECES, STEPS = PIECE // 2, columns // PIECE, ROWS * CHUNKS // 32
    RELU_CODE, LEAST = CHEAP.index("relu"), float("-inf")

    @device_function
    def place(at, row, chunk):  # type: ignore[no-untyped-def]
        turned = U32(chunk ^ (U32(row // U32(TURN)) & U32(CHUNKS - 1)))
        return U32(at + (row * U32(CHUNKS) + turned) * U32(16))

    @device_function
    def end(piece, way, total, at, lane, i0, j0, m, n, out, out_rs, alpha, bias, floor):  # type: ignore[no-untyped-def]
        part = part_of(total, piece, PART)
        if way == PLAIN:
            words = pack_scaled(part, alpha, out_dtype)
        else:
            pairs = repeat(U32(0x80008000), CHUNKS)  # minus zero changes nothing
            if way == BIASED:
                pairs = load_pairs(bias, I32(j0 + I32(PIECE * piece) + I32((lane & U32(3)) << U32(1))), n, CHUNKS)
            words = pack_ended(part, alpha, pairs, floor, a_dtype, out_dtype)
        warp_barrier()
        # lanes 0 to 15 give the rows of one column of chunks, the others those of the next
        for pair in range(CHUNKS // 2):
            stmatrix(place(at, U32(lane & U32(15)), U32(U32(2 * pair) + (lane >> U32(4)))), part_of(words, pair, 4))
        warp_barrier()
        for step in range(STEPS):
            number = U32(U32(32 * step) + lane)
            r, chunk = U32(number // U32(CHUNKS)), U32(number & U32(CHUNKS - 1))
            i, j = I32(i0 + I32(r)), I32(j0 + I32(PIECE * piece) + I32(chunk) * I32(8))
            if i < m and j < n:
                store_from_shared(out, I64(i) * out_rs + I64(j), place(at, r, chunk))

    @device_function
    def short(way, total, at, lane, i0, j0, m, n, out, out_rs, alpha, bias, code):  # type: ignore[no-untyped-def]
        floor = F32(0) if code == RELU_CODE else F32(LEAST)
        end(0, way, total, at, lane, i0, j0, m, n, out, out_rs, alpha, bias, floor)
        if PIECES > 1:
            end(1, way, total, at, lane, i0, j0, m, n, out, out_rs, alpha, bias, floor)
        if PIECES > 2:
            end(2, way, total, at, lane, i0, j0, m, n, out, out_rs, alpha, bias, floor)
        if PIECES > 3:
            end(3, way, total, at, lane, i0, j0, m, n, out, out_rs, alpha, bias, floor)

    @device_function
    def never(way, total, at, lane, i0, j0, m, n, out, out_rs, alpha, bias, code):  # type: ignore[no-untyped-def]
        pass

    return short if a_dtype in ("f16", "bf16") and out_dtype in ("f16", "bf16") else never


@functools.cache
def make_rows(a_dtype: str, out_dtype: str, acc: str, activation: str, columns: int) -> Any:
    """A device function that ends a warp's sums as `epilogue.make_finish` does::

        rows(
            total, sums, at, lane, i0, j0, m, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis,
            code, flags, alpha, beta, p0, p1, p2,
        )

    `at` is the first element of the warp's room in the shared array `sums`.
    """
    V, S = vector_length(acc), local_sums(acc)
    PIECE = 32
    PART, PER_ROW = PIECE // 2, PIECE // V
    finish = make_finish(a_dtype, out_dtype, acc, activation, V)
    _, fill = TUPLES[V]

    @device_function
    def rows(
        total, sums, at, lane, i0, j0, m, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis,
        code, flags, alpha, beta, p0, p1, p2,
    ):  # type: ignore[no-untyped-def]  # fmt: skip
        x = cuda.local.array(V, S)
        row, column = U32(lane >> U32(2)), U32((lane & U32(3)) << U32(1))
        turn = U32((row & U32(3)) << U32(3))
        for piece in range(columns // PIECE):
            part = part_of(total, piece, PART)
            warp_barrier()
            for j in range(PIECE // 8):
                four = part_of(part, j, 4)
                place = U32(at + row * U32(PIECE) + ((U32(8 * j) + column) ^ turn))
                store_vector(sums, place, (four[0], four[1]))
                store_vector(sums, U32(place + U32(8 * PIECE)), (four[2], four[3]))
            warp_barrier()
            v = I32(lane)
            while v < I32(ROWS * PER_ROW):
                r, q = I32(v // PER_ROW), I32((v % PER_ROW) * V)
                i, j = I32(i0 + r), I32(j0 + I32(PIECE * piece) + q)
                if i < m and j < n:
                    fill(
                        x,
                        load_vector(sums, U32(at + U32(r) * U32(PIECE) + (U32(q) ^ ((U32(r) & U32(3)) << U32(3)))), V),
                    )
                    finish(
                        x, i, j, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code, flags,
                        alpha, beta, p0, p1, p2,
                    )  # fmt: skip
                v = I32(v + 32)

    return rows
