"""Blocked product with packed panels (Goto and van de Geijn 2008), for products with work enough to pay for packing.

Bound: 2 m n k operations at the peak of fused multiply-adds.  Packing moves k n elements of B once and k m elements of
A once for each block of n; the panel of B a tile reads comes from the first-level cache, that of A from the second.

Two kernels over the same register tile:
- `shared`: for each (nc, kc) block of B, all workers pack it, then take blocks of rows; B is packed once.
- `private`: each worker takes an (mc, nc) block of out and packs for itself, the whole of k inside; no worker ever
  waits for another.  For few rows, and for batches.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.gemm.tile import finish_block, multiply_block, pack_a
from numbaprims.cpu.gemm.pack import pack_panel
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import address_of, advance, load_word, pointer_from_address


@functools.cache
def make_pack_b(types: Any, NR: int, W: int, acc: str, size: int) -> RangeKernel:
    """Panels of the step's block of B, into the shared workspace."""

    @range_kernel("gemm_pack_b", types, spec=(NR, W, acc, size))
    def gemm_pack_b(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        product, block = divmod(args.step, args.n_blocks * args.k_blocks)
        jb, pb = divmod(block, args.k_blocks)
        p0 = pb * args.kc
        k = min(args.kc, args.k - p0)
        j0 = jb * args.nc
        b = advance(args.b, load_word(args.offsets, 4 * product + 1) + p0 * args.b_rs)
        packed = pointer_from_address(address_of(args.workspace), acc)
        for panel in range(lo, hi):
            j = j0 + panel * NR
            width = min(NR, args.n - j)
            if width > 0:
                target = advance(packed, panel * NR * k)
                pack_panel(target, advance(b, j * args.b_cs), args.b_cs, args.b_rs, k, width, NR, W, acc)

    return gemm_pack_b


@functools.cache
def make_multiply(types: Any, MR: int, NV: int, W: int, acc: str, size: int) -> RangeKernel:
    """Row blocks times column groups of the step's packed B."""

    @range_kernel("gemm_multiply", types, spec=(MR, NV, W, acc, size))
    def gemm_multiply(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        product, block = divmod(args.step, args.n_blocks * args.k_blocks)
        jb, pb = divmod(block, args.k_blocks)
        p0 = pb * args.kc
        k = min(args.kc, args.k - p0)
        packed_b = pointer_from_address(address_of(args.workspace), acc)
        packed_a = pointer_from_address(
            address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes, acc
        )
        a0 = load_word(args.offsets, 4 * product)
        out0 = load_word(args.offsets, 4 * product + 2)
        c0 = load_word(args.offsets, 4 * product + 3)
        packed_block = -1
        for tile in range(lo, hi):
            ib, group = divmod(tile, args.groups)
            i0 = ib * args.mc
            rows = min(args.mc, args.m - i0)
            j0 = jb * args.nc + group * args.group
            columns = min(min(args.group, (jb + 1) * args.nc - j0), args.n - j0)
            if columns <= 0:
                continue
            if ib != packed_block:
                pack_a(
                    args, packed_a, advance(args.a, a0 + i0 * args.a_rs + p0 * args.a_cs), rows, k, MR, W, acc
                )
                packed_block = ib
            if args.sums_in_out:
                address = address_of(args.out) + size * (out0 + i0 * args.out_rs + j0)
                total_rs = args.out_rs
            else:
                address = (
                    address_of(args.workspace) + args.sums_at + size * ((product * args.m + i0) * args.n + j0)
                )
                total_rs = args.n
            total = pointer_from_address(address, acc)
            c = advance(args.c, c0 + i0 * args.c_rs + j0 * args.c_cs)
            right = advance(packed_b, group * args.group * k)
            multiply_block(
                args, packed_a, right, total, total_rs, c, rows, columns, k, pb == 0, MR, NV, W, acc
            )
            if pb == args.k_blocks - 1 and args.finish:
                out = advance(args.out, out0 + i0 * args.out_rs + j0 * args.out_cs)
                finish_block(args, total, total_rs, out, i0, j0, rows, columns, W, acc)

    return gemm_multiply


@functools.cache
def make_private(types: Any, MR: int, NV: int, W: int, acc: str, size: int) -> RangeKernel:
    """Blocks (product, rows, columns) of out, each with the whole of k."""

    @range_kernel("gemm_private", types, spec=(MR, NV, W, acc, size))
    def gemm_private(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        scratch = address_of(args.workspace) + worker * args.worker_bytes
        packed_a = pointer_from_address(scratch, acc)
        packed_b = pointer_from_address(scratch + args.a_bytes, acc)
        sums = scratch + args.a_bytes + args.b_bytes
        for tile in range(lo, hi):
            product, block = divmod(tile, args.m_blocks * args.n_blocks)
            ib, jb = divmod(block, args.n_blocks)
            i0 = ib * args.mc
            j0 = jb * args.nc
            rows = min(args.mc, args.m - i0)
            columns = min(args.nc, args.n - j0)
            a = advance(args.a, load_word(args.offsets, 4 * product) + i0 * args.a_rs)
            b = advance(args.b, load_word(args.offsets, 4 * product + 1) + j0 * args.b_cs)
            out0 = load_word(args.offsets, 4 * product + 2) + i0 * args.out_rs
            c = advance(args.c, load_word(args.offsets, 4 * product + 3) + i0 * args.c_rs + j0 * args.c_cs)
            if args.sums_in_out:
                total = pointer_from_address(address_of(args.out) + size * (out0 + j0), acc)
                total_rs = args.out_rs
            else:
                total = pointer_from_address(sums, acc)
                total_rs = args.nc
            for p0 in range(0, args.k, args.kc):
                k = min(args.kc, args.k - p0)
                pack_a(args, packed_a, advance(a, p0 * args.a_cs), rows, k, MR, W, acc)
                for j in range(0, columns, NV * W):
                    source = advance(b, j * args.b_cs + p0 * args.b_rs)
                    width = min(NV * W, columns - j)
                    pack_panel(
                        advance(packed_b, j * k), source, args.b_cs, args.b_rs, k, width, NV * W, W, acc
                    )
                multiply_block(
                    args, packed_a, packed_b, total, total_rs, c, rows, columns, k, p0 == 0, MR, NV, W, acc
                )  # fmt: skip
            if args.finish:
                out = advance(args.out, out0 + j0 * args.out_cs)
                finish_block(args, total, total_rs, out, i0, j0, rows, columns, W, acc)

    return gemm_private
