"""Packing: blocks of A and B into panels that the register tile reads from front to back.

A panel holds, for each k, WIDTH neighbouring rows of A or columns of B.  Either operand may lie by rows or by
columns: the unfavourable one goes through in-register transposes, because scalar packing costs more than the product
itself on skinny shapes.  f16 and bf16 become f32 on the way.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.arguments import PACK
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_wide,
    load_wide_first,
    load_wide_rows,
    load_wide_scalar,
    stack_tile,
    store,
    store_rows,
    store_scalar,
    transpose,
)


@functools.cache
def make_pack(dtype: str, acc: str, WIDTH: int, W: int) -> RangeKernel:
    """panels[q][p * WIDTH + j] = source[(q * WIDTH + j) * width_step + p * k_step], for p < k.

    What a panel holds past the last of the `width` columns is never used.  Panels may be written up to W - 1 elements
    past their end: they are written in ascending order, with room behind the last.
    """
    types = PACK.types(panels=acc, source=dtype)

    @range_kernel("gemm_pack", types, spec=(dtype, acc, WIDTH, W))
    def gemm_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k = args.k
        width_step = args.width_step
        k_step = args.k_step
        room = stack_tile(acc, W, 1, W)
        begin = lo
        if width_step == 1 and WIDTH % W == 0:
            # Whole panels row by row: a source row is read from end to end, which prefetchers follow; panel by panel
            # each row would give two cache lines and then a jump to another page.
            full = min(hi, args.width // WIDTH)
            for p in range(k):
                for q in range(lo, full):
                    for v in range(0, WIDTH, W):
                        value = load_wide(args.source, p * k_step + q * WIDTH + v, W)
                        store(args.panels, (q * k + p) * WIDTH + v, value)
            begin = max(lo, full)
        for q in range(begin, hi):
            panel = advance(args.panels, q * WIDTH * k)
            source = advance(args.source, q * WIDTH * width_step)
            width = min(WIDTH, args.width - q * WIDTH)
            if width_step == 1:
                # Where W does not divide WIDTH (14 rows of A), whole vectors overlap the next k's place; in ascending
                # order the next k puts its own values over them.
                for p in range(k):
                    for v in range(0, WIDTH, W):
                        left = max(min(width - v, W), 0)
                        store(panel, p * WIDTH + v, load_wide_first(source, p * k_step + v, left, W))
            elif k_step == 1:
                whole = k - k % W
                # Groups from the last to the first: the last one's vectors may reach into the next k's first rows,
                # which their own group then writes.
                for v in range((width - 1) // W * W, -1, -W):
                    group = advance(source, v * width_step)
                    target = advance(panel, v)
                    count = min(width - v, W)
                    for p in range(0, whole, W):
                        block = transpose(load_wide_rows(advance(group, p), width_step, count, W, W))
                        store_rows(advance(target, p * WIDTH), WIDTH, block)
                    if whole < k:
                        block = transpose(load_wide_rows(advance(group, whole), width_step, count, k - whole, W))
                        store_rows(room, W, block)
                        for p in range(whole, k):
                            store(target, p * WIDTH, load(room, (p - whole) * W, W))
            else:
                for p in range(k):
                    for j in range(width):
                        store_scalar(panel, p * WIDTH + j, load_wide_scalar(source, j * width_step + p * k_step))

    return gemm_pack
