"""Convolution as a product without its column matrix, results along pixels: weights (rows of A) times patches (B).

For every tile of results: the padded copy of the input that it meets, a block of channels at a time; panels of patches
from the copy; each panel times all rows of the tile while it lies in the caches; then the end.  Bound: the operations
of the product at the peak of multiply-adds; a panel's gather costs 3 to 4 cycles for each vector of it, its product
one cycle for each two rows.  A kernel of one tap, stride 1 and no padding reads its patches where they lie.

These kernels compute addresses and call others by pointer, as gemm's drivers do.
"""

from __future__ import annotations

import functools
import math

from numbaprims.cpu.conv.implicit.gather import GATHER
from numbaprims.cpu.conv.implicit.tiles import (
    BYTES,
    c_start,
    finish_tile,
    input_start,
    open_pass,
    open_tile,
    panels_of,
    stage_block,
    y_start,
)
from numbaprims.cpu.gemm.arguments import MULTIPLY_ENDED
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import address_of, call_range, stack_record


@functools.cache
def make_planes() -> RangeKernel:
    """Tiles (pass, block of pixels, group, block of rows) of the result."""

    @range_kernel("conv_implicit_planes", BYTES, spec=())
    def implicit_planes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        panel = address_of(args.panel[worker])
        staged = address_of(args.staged[worker])
        gather = stack_record(GATHER)
        product = stack_record(MULTIPLY_ENDED)
        product.bias = 0
        product.low = -math.inf
        product.high = math.inf
        if args.ended > 1:
            product.low = 0.0
        if args.ended > 2:
            product.high = args.p0
        nr = args.nr
        for number in range(lo, hi):
            t, tile = open_pass(args, number)
            tile, mb = divmod(tile, args.m_blocks)
            group, n0, o0, p0, q0, images, planes, lines, columns = open_tile(t, tile)
            pixels = images * planes * lines * columns
            m0 = mb * args.mc
            rows = min(args.mc, t.rows - m0)
            row0 = group * t.rows + m0
            out = y_start(t, n0, row0, o0, p0, q0)
            if args.y_moved:
                out = address_of(args.matrix) + args.acc_size * out
            else:
                out = address_of(args.out) + args.out_size * out
            if t.sums_in_out:
                total = out
                step = t.y_k
            else:
                total = address_of(args.sums[worker])
                step = t.sums_step
            window = t.window
            depth = t.depth
            block = t.channels
            direct = t.direct
            gather.panel = panel
            gather.staged = staged
            gather.channel_step = t.channel_step
            gather.taps = t.taps
            gather.window = window
            gather.block_q = columns
            gather.block_p = lines
            gather.block_o = planes
            gather.columns = t.columns
            gather.rows = t.rows_staged
            gather.planes = t.planes
            product.b = panel
            product.rows = rows
            product.total_step = step
            if args.ended and args.has_bias:
                product.bias = address_of(args.bias) + args.acc_size * row0
            for c0 in range(0, depth, block):
                channels = min(block, depth - c0)
                k = channels * window
                a = panels_of(args, t, worker, group, m0, rows, c0, channels)
                product.a = a
                product.k = k
                product.first = 1 if c0 == 0 else 0
                product.last = 1 if args.ended and c0 + channels == depth else 0
                if direct != 1 and k > 0:
                    stage_block(args, t, staged, images, n0, o0, p0, q0, group * depth + c0, channels)
                if direct:
                    b = staged
                    if direct == 1:
                        b = input_start(args, t, n0, group * depth + c0, o0, p0, q0)
                    product.b = b
                    product.total = total
                    product.columns = pixels
                    product.b_step = t.channel_step
                    call_range(args.multiply, product, 0, 0, 1)
                    continue
                gather.channels = channels
                for first in range(0, pixels, nr):
                    there = min(nr, pixels - first)
                    gather.first = first
                    gather.pixels = there
                    if k > 0:
                        call_range(args.gather, gather, 0, 0, 1)
                    product.total = total + args.acc_size * first
                    product.columns = there
                    call_range(args.multiply, product, 0, 0, 1)
            if args.finish and args.y_moved == 0:
                c = address_of(args.c) + args.out_size * c_start(t, n0, row0, o0, p0, q0)
                finish_tile(
                    args, t, True, out, total, step, c, row0, rows, images, planes, lines, columns
                )  # fmt: skip

    return implicit_planes
