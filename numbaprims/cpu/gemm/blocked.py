"""Blocked product with packed panels (Goto and van de Geijn 2008): the loops around pack, multiply and finish.

Bound: 2 m n k operations at the peak of fused multiply-adds.  Packing moves the k n elements of B once and the k m
elements of A once for each block of n; every block of sums is written once for each block of k.

These kernels compute addresses and call others by pointer; they are compiled once for all types.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.arguments import ARGS, COMMON, FINISH, MULTIPLY, OFFSETS, PACK, PRIVATE, SHARED
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import address_of, call_range, copy_fields, record_at, stack_record


@helper
def pack(kernel, panels, source, k, width, width_step, k_step, lo, hi):  # type: ignore[no-untyped-def]
    """Run a pack kernel on panels lo ... hi - 1."""
    block = stack_record(PACK)
    block.panels = panels
    block.source = source
    block.k = k
    block.width = width
    block.width_step = width_step
    block.k_step = k_step
    call_range(kernel, block, 0, lo, hi)


@helper
def begins(args, product):  # type: ignore[no-untyped-def]
    """The elements at which a product's matrices begin."""
    return record_at(OFFSETS, args.offsets, product)


@helper
def shift_of(args):  # type: ignore[no-untyped-def]
    """What the sums of B's columns are multiplied by and added: a is packed with `flip` added, its zero point p0."""
    return -(args.flip + int(args.p0))


@helper
def multiply(args, a, a_step, b, total, step, rows, columns, k, first, out=0, out_step=0):  # type: ignore[no-untyped-def]
    """Run the multiply kernel on a packed block of B and one of A, which is packed if `a_step` is 0.

    With an `out_step` that is not 0 the sums are whole, and written to `out`.
    """
    block = stack_record(MULTIPLY)
    block.a = a
    block.a_step = a_step
    block.b = b
    block.total = total
    block.rows = rows
    block.columns = columns
    block.k = k
    block.first = first
    block.total_step = step
    block.out = out
    block.out_step = out_step
    if args.k_group >= 4:
        block.shift = shift_of(args)
    call_range(args.multiply, block, 0, 0, (columns + args.nr - 1) // args.nr)


@helper
def finish(args, out, total, step, c, i, j, rows, columns):  # type: ignore[no-untyped-def]
    """Run the finish kernel on a block of complete sums."""
    block = stack_record(FINISH)
    block.out = out
    block.total = total
    block.c = c
    copy_fields(block, args, "bias factors alpha beta p0 p1 p2 out_rs out_cs c_rs c_cs has_c bias_step bias_axis")
    block.columns = columns
    block.total_step = step
    block.i = i
    block.j = j
    block.activation = args.activation
    block.in_place = args.sums_in_out
    call_range(args.finish, block, 0, 0, rows)


@functools.cache
def make_pack_b() -> RangeKernel:
    """Phase 1 of a step: panels of its block of B, into the shared workspace."""

    @range_kernel("gemm_pack_b", SHARED.types(), spec=())
    def gemm_pack_b(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        product, block = divmod(args.step, args.n_blocks * args.k_blocks)
        jb, pb = divmod(block, args.k_blocks)
        p0 = pb * args.kc
        j0 = jb * args.nc
        start = begins(args, product).b + p0 * args.b_rs + j0 * args.b_cs
        width = min(args.nc, args.n - j0)
        panels = (width + args.nr - 1) // args.nr
        source = address_of(args.b) + args.b_size * start
        k = min(args.kc, args.k - p0)
        pack(args.pack_b, address_of(args.packed_b), source, k, width, args.b_cs, args.b_rs, lo, min(hi, panels))

    return gemm_pack_b


@functools.cache
def make_shared() -> RangeKernel:
    """Phase 2 of a step: blocks of rows times groups of columns of the step's packed B."""

    @range_kernel("gemm_shared", SHARED.types(), spec=())
    def gemm_shared(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        product, block = divmod(args.step, args.n_blocks * args.k_blocks)
        jb, pb = divmod(block, args.k_blocks)
        p0 = pb * args.kc
        k = min(args.kc, args.k - p0)
        padded = (k + args.k_group - 1) // args.k_group * args.k_group + args.k_extra
        packed_a = address_of(args.packed_a[worker])
        packed_block = -1
        for tile in range(lo, hi):
            ib, group = divmod(tile, args.groups)
            i0 = ib * args.mc
            rows = min(args.mc, args.m - i0)
            j0 = jb * args.nc + group * args.group
            columns = min(min(args.group, (jb + 1) * args.nc - j0), args.n - j0)
            if columns > 0:
                if ib != packed_block:
                    start = begins(args, product).a + i0 * args.a_rs + p0 * args.a_cs
                    source = address_of(args.a) + args.a_size * start
                    panels = (rows + args.mr - 1) // args.mr
                    pack(args.pack_a, packed_a, source, k, rows, args.a_rs, args.a_cs, 0, panels)
                    packed_block = ib
                start = begins(args, product).out + i0 * args.out_rs + j0 * args.out_cs
                out = address_of(args.out) + args.out_size * start
                if args.sums_in_out:
                    total = out
                    step = args.out_rs
                else:
                    step = args.n
                    total = address_of(args.sums) + args.sum_size * ((product * args.m + i0) * step + j0)
                right = address_of(args.packed_b) + group * args.group * padded * args.panel_size
                multiply(args, packed_a, 0, right, total, step, rows, columns, k, 1 if pb == 0 else 0)
                if pb == args.k_blocks - 1 and args.finish:
                    start = begins(args, product).c + i0 * args.c_rs + j0 * args.c_cs
                    c = address_of(args.c) + args.c_size * start
                    finish(args, out, total, step, c, i0, j0, rows, columns)

    return gemm_shared


@helper
def open_block(args, tile):  # type: ignore[no-untyped-def]
    """Tile -> product, first row and column, rows and columns there are, and where a, b and out begin."""
    product, block = divmod(tile, args.m_blocks * args.n_blocks)
    jb, ib = divmod(block, args.m_blocks)
    i0 = ib * args.mc
    j0 = jb * args.nc
    rows = min(args.mc, args.m - i0)
    columns = min(args.nc, args.n - j0)
    a = address_of(args.a) + args.a_size * (begins(args, product).a + i0 * args.a_rs)
    b = address_of(args.b) + args.b_size * (begins(args, product).b + j0 * args.b_cs)
    start = begins(args, product).out + i0 * args.out_rs + j0 * args.out_cs
    out = address_of(args.out) + args.out_size * start
    return product, i0, j0, rows, columns, a, b, out


@helper
def place_of(args, p0, k, j0):  # type: ignore[no-untyped-def]
    """Bytes before column j0 of a block of k where the whole of B is packed."""
    padded = (k + args.k_group - 1) // args.k_group * args.k_group + args.k_extra
    all_n = (args.n + args.nr - 1) // args.nr * args.nr
    before = p0 + p0 // args.kc * args.k_extra
    return args.panel_size * (before * all_n + j0 * padded)


@functools.cache
def make_private(common: bool = False) -> RangeKernel:
    """Blocks (product, rows, columns) of out, each with the whole of k; every worker packs for itself.

    `common`: A alone, as B was packed before (`make_prepare`); a step is then a product.
    """

    @range_kernel("gemm_private", (COMMON if common else PRIVATE).types(), spec=(common,))
    def gemm_private(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        packed_a = address_of(args.packed_a[worker])
        if common:
            before_step = args.step * args.m_blocks * args.n_blocks
            lo, hi = lo + before_step, hi + before_step
        for tile in range(lo, hi):
            product, i0, j0, rows, columns, a, b, out = open_block(args, tile)
            if args.sums_in_out:
                total = out
                step = args.out_rs
            else:
                total = address_of(args.sums[worker])
                step = args.nc
            for p0 in range(0, args.k, args.kc):
                k = min(args.kc, args.k - p0)
                if common:
                    right = address_of(args.packed_b) + place_of(args, p0, k, j0)
                elif address_of(args.packed) != 0:
                    right = address_of(args.packed) + place_of(args, p0, k, j0)
                else:
                    right = address_of(args.packed_b[worker])
                    panels = (columns + args.nr - 1) // args.nr
                    source = b + args.b_size * p0 * args.b_rs
                    pack(args.pack_b, right, source, k, columns, args.b_cs, args.b_rs, 0, panels)
                first = 1 if p0 == 0 else 0
                out_step = args.out_rs if args.ends_there and p0 + k == args.k else 0
                source = a + args.a_size * p0 * args.a_cs
                # rows that share lines take 2.7 times as long (an Emerald Rapids)
                aligned = (source | args.a_rs * args.a_size) & 63 == 0
                there = rows - rows % args.mr if args.a_there and k % args.k_group == 0 and aligned else 0
                if there:
                    multiply(args, source, args.a_rs, right, total, step, there, columns, k, first, out, out_step)
                left = rows - there
                if left:
                    source += args.a_size * there * args.a_rs
                    panels = (left + args.mr - 1) // args.mr
                    pack(args.pack_a, packed_a, source, k, left, args.a_rs, args.a_cs, 0, panels)
                    multiply(
                        args, packed_a, 0, right, total + args.sum_size * there * step, step, left, columns, k, first,
                        out + args.out_size * there * args.out_rs, out_step,
                    )  # fmt: skip
            if args.finish:
                start = begins(args, product).c + i0 * args.c_rs + j0 * args.c_cs
                finish(args, out, total, step, address_of(args.c) + args.c_size * start, i0, j0, rows, columns)

    return gemm_private


@functools.cache
def make_direct_driver() -> RangeKernel:
    """Blocks (product, rows, columns) of out, B read where it lies (or one panel of it packed), kc of k at a time.

    kc rows of B are read side by side, so kc is no more than the streams that prefetchers and the first TLB follow.
    """

    @range_kernel("gemm_direct_driver", PRIVATE.types(), spec=())
    def gemm_direct_driver(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        packed_a = address_of(args.packed_a[worker])
        packed_b = address_of(args.packed_b[worker])
        block = stack_record(MULTIPLY)
        for tile in range(lo, hi):
            product, i0, j0, rows, columns, a, b, out = open_block(args, tile)
            if args.sums_in_out:
                total = out
                step = args.out_rs
            else:
                total = address_of(args.sums[worker])
                step = args.nc
            block.total = total
            block.rows = rows
            block.columns = columns
            block.total_step = step
            block.a_step = args.a_rs
            block.a_k_step = args.a_cs
            block.b_step = args.nr if args.pack_b else args.b_rs
            if args.k_group >= 4:
                block.shift = shift_of(args)
            for p0 in range(0, args.k, args.kc):
                k = min(args.kc, args.k - p0)
                source = a + args.a_size * p0 * args.a_cs
                if args.pack_a:
                    panels = (rows + args.mr - 1) // args.mr
                    pack(args.pack_a, packed_a, source, k, rows, args.a_rs, args.a_cs, 0, panels)
                    source = packed_a
                right = b + args.b_size * p0 * args.b_rs
                if args.pack_b:
                    pack(args.pack_b, packed_b, right, k, columns, args.b_cs, args.b_rs, 0, 1)
                    right = packed_b
                block.a = source
                block.b = right
                block.k = k
                block.first = 1 if p0 == 0 else 0
                call_range(args.multiply, block, 0, 0, 1)
            if args.finish:
                start = begins(args, product).c + i0 * args.c_rs + j0 * args.c_cs
                finish(args, out, total, step, address_of(args.c) + args.c_size * start, i0, j0, rows, columns)

    return gemm_direct_driver


@functools.cache
def make_prepare(common: bool = False) -> RangeKernel:
    """The whole of a product's B into `packed`, or into what the workers share (`common`); tile = some panels of a
    block of k."""

    @range_kernel("gemm_prepare", (COMMON if common else ARGS).types(), spec=(common,))
    def gemm_prepare(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        panels = (args.n + args.nr - 1) // args.nr
        each = (panels + args.groups - 1) // args.groups
        start = address_of(args.b)
        if common:
            start += args.b_size * begins(args, args.step).b
        for tile in range(lo, hi):
            block, group = divmod(tile, args.groups)
            p0 = block * args.kc
            k = min(args.kc, args.k - p0)
            target = address_of(args.packed_b if common else args.packed) + place_of(args, p0, k, 0)
            source = start + args.b_size * p0 * args.b_rs
            first, end = group * each, min((group + 1) * each, panels)
            pack(args.pack_b, target, source, k, args.n, args.b_cs, args.b_rs, first, end)

    return gemm_prepare
