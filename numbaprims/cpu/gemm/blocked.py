"""Blocked product with packed panels (Goto and van de Geijn 2008): the loops around pack, multiply and finish.

Bound: 2 m n k operations at the peak of fused multiply-adds.  Packing moves the k n elements of B once and the k m
elements of A once for each block of n; every block of sums is written once for each block of k.

These kernels compute addresses and call others by pointer; they are compiled once for all types.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.arguments import BYTES, FINISH, MULTIPLY, PACK
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    call_range,
    float_bits,
    load_word,
    stack_words,
    store_word,
)

P_K, P_WIDTH, P_WIDTH_STEP, P_K_STEP = (PACK.slot(name) for name in PACK.ints)
M_ROWS, M_COLUMNS, M_K, M_FIRST, M_STEP, M_A, M_A_K, M_B, M_SHIFT = (MULTIPLY.slot(name) for name in MULTIPLY.ints)
F_ALPHA = FINISH.slot("alpha")
F_INTS = FINISH.slot("columns")


@helper
def pack(kernel, panels, source, k, width, width_step, k_step, lo, hi):  # type: ignore[no-untyped-def]
    """Run a pack kernel on panels lo ... hi - 1."""
    block = stack_words(80)
    store_word(block, 0, panels)
    store_word(block, 1, source)
    store_word(block, P_K, k)
    store_word(block, P_WIDTH, width)
    store_word(block, P_WIDTH_STEP, width_step)
    store_word(block, P_K_STEP, k_step)
    call_range(kernel, block, 0, lo, hi)


@helper
def shift_of(args):  # type: ignore[no-untyped-def]
    """What the sums of B's columns are multiplied by and added: a is packed with `flip` added, its zero point p0."""
    return -(args.flip + int(args.p0))


@helper
def multiply(args, a, b, total, step, rows, columns, k, first):  # type: ignore[no-untyped-def]
    """Run the multiply kernel on a packed block of A and one of B."""
    block = stack_words(80)
    store_word(block, 0, a)
    store_word(block, 1, b)
    store_word(block, 2, total)
    store_word(block, M_ROWS, rows)
    store_word(block, M_COLUMNS, columns)
    store_word(block, M_K, k)
    store_word(block, M_FIRST, first)
    store_word(block, M_STEP, step)
    if args.k_group >= 4:
        store_word(block, M_SHIFT, shift_of(args))
    call_range(args.multiply, block, 0, 0, (columns + args.nr - 1) // args.nr)


@helper
def finish(args, out, total, step, c, i, j, rows, columns):  # type: ignore[no-untyped-def]
    """Run the finish kernel on a block of complete sums."""
    block = stack_words(80)
    store_word(block, 0, out)
    store_word(block, 1, total)
    store_word(block, 2, c)
    store_word(block, 3, address_of(args.bias))
    store_word(block, 4, address_of(args.factors))
    store_word(block, F_ALPHA, float_bits(args.alpha))
    store_word(block, F_ALPHA + 1, float_bits(args.beta))
    store_word(block, F_ALPHA + 2, float_bits(args.p0))
    store_word(block, F_ALPHA + 3, float_bits(args.p1))
    store_word(block, F_ALPHA + 4, float_bits(args.p2))
    store_word(block, F_INTS, columns)
    store_word(block, F_INTS + 1, step)
    store_word(block, F_INTS + 2, args.out_rs)
    store_word(block, F_INTS + 3, args.out_cs)
    store_word(block, F_INTS + 4, args.c_rs)
    store_word(block, F_INTS + 5, args.c_cs)
    store_word(block, F_INTS + 6, args.has_c)
    store_word(block, F_INTS + 7, args.bias_step)
    store_word(block, F_INTS + 8, args.bias_axis)
    store_word(block, F_INTS + 9, i)
    store_word(block, F_INTS + 10, j)
    store_word(block, F_INTS + 11, args.activation)
    store_word(block, F_INTS + 12, args.sums_in_out)
    call_range(args.finish, block, 0, 0, rows)


@functools.cache
def make_pack_b() -> RangeKernel:
    """Phase 1 of a step: panels of its block of B, into the shared workspace."""

    @range_kernel("gemm_pack_b", BYTES, spec=())
    def gemm_pack_b(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        product, block = divmod(args.step, args.n_blocks * args.k_blocks)
        jb, pb = divmod(block, args.k_blocks)
        p0 = pb * args.kc
        j0 = jb * args.nc
        start = load_word(args.offsets, 4 * product + 1) + p0 * args.b_rs + j0 * args.b_cs
        width = min(args.nc, args.n - j0)
        panels = (width + args.nr - 1) // args.nr
        source = address_of(args.b) + args.b_size * start
        k = min(args.kc, args.k - p0)
        pack(
            args.pack_b,
            address_of(args.workspace),
            source,
            k,
            width,
            args.b_cs,
            args.b_rs,
            lo,
            min(hi, panels),
        )

    return gemm_pack_b


@functools.cache
def make_shared() -> RangeKernel:
    """Phase 2 of a step: blocks of rows times groups of columns of the step's packed B."""

    @range_kernel("gemm_shared", BYTES, spec=())
    def gemm_shared(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        product, block = divmod(args.step, args.n_blocks * args.k_blocks)
        jb, pb = divmod(block, args.k_blocks)
        p0 = pb * args.kc
        k = min(args.kc, args.k - p0)
        padded = (k + args.k_group - 1) // args.k_group * args.k_group + args.k_extra
        workspace = address_of(args.workspace)
        packed_a = workspace + args.shared_bytes + worker * args.worker_bytes
        packed_block = -1
        for tile in range(lo, hi):
            ib, group = divmod(tile, args.groups)
            i0 = ib * args.mc
            rows = min(args.mc, args.m - i0)
            j0 = jb * args.nc + group * args.group
            columns = min(min(args.group, (jb + 1) * args.nc - j0), args.n - j0)
            if columns > 0:
                if ib != packed_block:
                    start = load_word(args.offsets, 4 * product) + i0 * args.a_rs + p0 * args.a_cs
                    source = address_of(args.a) + args.a_size * start
                    panels = (rows + args.mr - 1) // args.mr
                    pack(args.pack_a, packed_a, source, k, rows, args.a_rs, args.a_cs, 0, panels)
                    packed_block = ib
                start = load_word(args.offsets, 4 * product + 2) + i0 * args.out_rs + j0 * args.out_cs
                out = address_of(args.out) + args.out_size * start
                if args.sums_in_out:
                    total = out
                    step = args.out_rs
                else:
                    step = args.n
                    total = workspace + args.sums_at + args.sum_size * ((product * args.m + i0) * step + j0)
                right = workspace + group * args.group * padded * args.panel_size
                multiply(args, packed_a, right, total, step, rows, columns, k, 1 if pb == 0 else 0)
                if pb == args.k_blocks - 1 and args.finish:
                    start = load_word(args.offsets, 4 * product + 3) + i0 * args.c_rs + j0 * args.c_cs
                    finish(
                        args,
                        out,
                        total,
                        step,
                        address_of(args.c) + args.c_size * start,
                        i0,
                        j0,
                        rows,
                        columns,
                    )

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
    a = address_of(args.a) + args.a_size * (load_word(args.offsets, 4 * product) + i0 * args.a_rs)
    b = address_of(args.b) + args.b_size * (load_word(args.offsets, 4 * product + 1) + j0 * args.b_cs)
    start = load_word(args.offsets, 4 * product + 2) + i0 * args.out_rs + j0 * args.out_cs
    out = address_of(args.out) + args.out_size * start
    return product, i0, j0, rows, columns, a, b, out


@functools.cache
def make_private() -> RangeKernel:
    """Blocks (product, rows, columns) of out, each with the whole of k; every worker packs for itself."""

    @range_kernel("gemm_private", BYTES, spec=())
    def gemm_private(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        packed_a = address_of(args.workspace) + worker * args.worker_bytes
        packed_b = packed_a + args.a_bytes
        for tile in range(lo, hi):
            product, i0, j0, rows, columns, a, b, out = open_block(args, tile)
            if args.sums_in_out:
                total = out
                step = args.out_rs
            else:
                total = packed_b + args.b_bytes
                step = args.nc
            for p0 in range(0, args.k, args.kc):
                k = min(args.kc, args.k - p0)
                panels = (rows + args.mr - 1) // args.mr
                pack(
                    args.pack_a, packed_a, a + args.a_size * p0 * args.a_cs, k, rows, args.a_rs, args.a_cs, 0, panels
                )  # fmt: skip
                right = packed_b
                if address_of(args.packed) != 0:
                    padded = (k + args.k_group - 1) // args.k_group * args.k_group + args.k_extra
                    all_n = (args.n + args.nr - 1) // args.nr * args.nr
                    before = p0 + p0 // args.kc * args.k_extra
                    right = address_of(args.packed) + args.panel_size * (before * all_n + j0 * padded)
                else:
                    panels = (columns + args.nr - 1) // args.nr
                    source = b + args.b_size * p0 * args.b_rs
                    pack(args.pack_b, packed_b, source, k, columns, args.b_cs, args.b_rs, 0, panels)
                multiply(args, packed_a, right, total, step, rows, columns, k, 1 if p0 == 0 else 0)
            if args.finish:
                start = load_word(args.offsets, 4 * product + 3) + i0 * args.c_rs + j0 * args.c_cs
                finish(args, out, total, step, address_of(args.c) + args.c_size * start, i0, j0, rows, columns)

    return gemm_private


@functools.cache
def make_direct_driver() -> RangeKernel:
    """Blocks (product, rows, columns) of out, B read where it lies (or one panel of it packed), kc of k at a time.

    kc rows of B are read side by side, so kc is no more than the streams that prefetchers and the first TLB follow.
    """

    @range_kernel("gemm_direct_driver", BYTES, spec=())
    def gemm_direct_driver(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        packed_a = address_of(args.workspace) + worker * args.worker_bytes
        block_args = stack_words(80)
        for tile in range(lo, hi):
            product, i0, j0, rows, columns, a, b, out = open_block(args, tile)
            if args.sums_in_out:
                total = out
                step = args.out_rs
            else:
                total = packed_a + args.a_bytes + args.b_bytes
                step = args.nc
            store_word(block_args, 2, total)
            store_word(block_args, M_ROWS, rows)
            store_word(block_args, M_COLUMNS, columns)
            store_word(block_args, M_STEP, step)
            store_word(block_args, M_A, args.a_rs)
            store_word(block_args, M_A_K, args.a_cs)
            store_word(block_args, M_B, args.nr if args.pack_b else args.b_rs)
            if args.k_group >= 4:
                store_word(block_args, M_SHIFT, shift_of(args))
            for p0 in range(0, args.k, args.kc):
                k = min(args.kc, args.k - p0)
                source = a + args.a_size * p0 * args.a_cs
                if args.pack_a:
                    panels = (rows + args.mr - 1) // args.mr
                    pack(args.pack_a, packed_a, source, k, rows, args.a_rs, args.a_cs, 0, panels)
                    source = packed_a
                right = b + args.b_size * p0 * args.b_rs
                if args.pack_b:
                    pack(args.pack_b, packed_a + args.a_bytes, right, k, columns, args.b_cs, args.b_rs, 0, 1)
                    right = packed_a + args.a_bytes
                store_word(block_args, 0, source)
                store_word(block_args, 1, right)
                store_word(block_args, M_K, k)
                store_word(block_args, M_FIRST, 1 if p0 == 0 else 0)
                call_range(args.multiply, block_args, 0, 0, 1)
            if args.finish:
                start = load_word(args.offsets, 4 * product + 3) + i0 * args.c_rs + j0 * args.c_cs
                finish(args, out, total, step, address_of(args.c) + args.c_size * start, i0, j0, rows, columns)

    return gemm_direct_driver


@functools.cache
def make_prepare() -> RangeKernel:
    """The whole of B into `packed`; tile = one block of k."""

    @range_kernel("gemm_prepare", BYTES, spec=())
    def gemm_prepare(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        panels = (args.n + args.nr - 1) // args.nr
        for block in range(lo, hi):
            p0 = block * args.kc
            k = min(args.kc, args.k - p0)
            before = p0 + block * args.k_extra
            target = address_of(args.packed) + args.panel_size * before * panels * args.nr
            source = address_of(args.b) + args.b_size * p0 * args.b_rs
            pack(args.pack_b, target, source, k, args.n, args.b_cs, args.b_rs, 0, panels)

    return gemm_prepare
