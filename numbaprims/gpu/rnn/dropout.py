"""The kernel of dropout between layers.  The words of a block decide on four elements, so a thread takes four."""

from __future__ import annotations

import functools
import math
from typing import Any

from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.device.philox import random_block
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, gpu_kernel, grid_size, thread_index, types

THREADS = 256


def blocks_of(width: int) -> int:
    """Blocks of words that a row of so many elements takes at most, wherever it begins."""
    return (width + 6) // 4


def least_and_factor(p: float) -> tuple[int, float]:
    """The least word whose element is kept, and what that one is multiplied by."""
    return math.ceil(p * 2.0**32), 1 / (1 - p) if p < 1 else 0.0


@functools.cache
def make_dropout(source: str, result: str, lengths: bool) -> GpuKernel:
    """Row j of out gets row j of x with elements dropped; with lengths it is row table[j] of the padded array.

    `random` are the halves of the seed and of the stream's number, to which `layer` is added.
    """
    I64, U64, wide = types.int64, types.uint64, REGISTER["f64" if source == "f64" else "f32"]
    pointers = (types.CPointer(STORAGE[result]), types.CPointer(STORAGE[source]), *[types.CPointer(I64)] * 2)
    signature = types.void(*pointers, *[I64] * 6, U64, wide)

    @gpu_kernel("rnn_dropout", signature, spec=(source, result, lengths), threads=THREADS, registers=64)
    def rnn_dropout(  # type: ignore[no-untyped-def]
        out, x, table, random, groups, each, width, out_row, x_row, layer, least, factor
    ):
        seed = U64(random[0]) | U64(random[1]) << U64(32)
        offset = U64((U64(random[2]) | U64(random[3]) << U64(32)) + U64(layer))
        i = I64(block_index()) * THREADS + I64(thread_index())
        while i < groups:
            row = I64(quotient(U64(i), U64(each)))
            start = row * width
            if lengths:
                start = table[row] * width
            block = U64(start >> 2) + U64(i - row * each)
            w0, w1, w2, w3 = random_block(block, seed, offset)
            first = I64(block << U64(2)) - start
            for e in range(first, first + 4):
                if e >= 0 and e < width:
                    kept = factor if U64(w0) >= least else wide(0)
                    out[row * out_row + e] = narrow(wide(kept * widen(x[row * x_row + e], source)), result)
                w0, w1, w2 = w1, w2, w3
            i += I64(grid_size()) * THREADS

    return rnn_dropout


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_dropout, ("f32", "f32", False), ("IMAD.WIDE.U32", "STG.E")),
    (make_dropout, ("f16", "f16", True), ("IMAD.WIDE.U32", "STG.E.U16")),
]
