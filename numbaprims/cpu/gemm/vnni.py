"""int8 and bf16 products with dot instructions: packing in groups of 32 bits, and their register tile.

A group holds the G = 4 bytes (or 2 bf16) of neighbouring k; vpdpbusd multiplies and adds 4 x 16 of them in one
instruction, vdpbf16ps 2 x 16.  Bound: G times the operations of float32 where the instruction runs at its rate.

vpdpbusd takes unsigned times signed bytes: a signed A is packed with 128 added (its bytes XOR 0x80), but where the CPU
takes both as signed (`byte_kind`).  A may have a zero point, too.
Each panel of B ends in its columns' sums, of which the tile takes these two times off again.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.arguments import MULTIPLY, PACK
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    bitcast,
    load,
    load_scalar,
    scalar,
    splat,
    stack_tile,
    store,
    store_rows,
    store_scalar,
    tile_add,
    tile_load,
    tile_prefetch,
    tile_scale,
    tile_store,
    transpose,
    zeros,
)
from numbaprims.cpu.simd.dot import dot_u8s8
from numbaprims.cpu.simd.groups import load_group_columns, load_group_rows, load_words
from numbaprims.cpu.simd.tiles.dot import tile_multiply_dot


@functools.cache
def make_pack_groups(
    dtype: str, WIDTH: int, W: int, GROUP: int, flip: int, sums: bool, feature: str, MULTIPLE: int = 1
) -> RangeKernel:
    """panels[q][g][j] = the group source[(q * WIDTH + j) * width_step + (g * GROUP ...) * k_step], XOR flip.

    With `sums` a panel ends in the sum of each column.  Groups past k, whose number is a multiple of MULTIPLE, hold
    zeros in B and, where nothing is flipped, in A: their products vanish.
    """
    types = PACK.types(panels="i32", source=dtype)
    extra = 1 if sums else 0
    bits = 32 // GROUP
    # neighbouring columns: all panels of so many groups, whose rows the first-level cache and its TLB hold, before the
    # next groups (16 x 1000 x 2048: 330 to 262 us, Zen 4); where stores reach into the next panel they come in order
    FEW = 64 if WIDTH % W == 0 else 1 << 40
    if MULTIPLE > 1:  # for tiles 32 rows, which an Emerald Rapids' prefetchers follow: 1024 x 1024 bf16 265 to 190 us
        FEW = 32 // GROUP

    spec = (dtype, WIDTH, W, GROUP, flip, sums, feature, MULTIPLE)

    @range_kernel("gemm_pack_groups", types, spec=spec)
    def gemm_pack_groups(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k = args.k
        width_step = args.width_step
        k_step = args.k_step
        groups = (k + MULTIPLE * GROUP - 1) // (MULTIPLE * GROUP) * MULTIPLE
        room = stack_tile("i32", W, 1, W)
        signs = splat(scalar(flip, "i32"), W)
        one = bitcast(splat(scalar(0x01010101, "i32"), W), "u8")
        few = FEW if width_step == 1 and k_step != 1 else groups
        for first in range(0, groups, few):
            end = min(first + few, groups)
            whole = min(end, k // GROUP)
            for q in range(lo, hi):
                panel = advance(args.panels, q * WIDTH * (groups + extra))
                source = advance(args.source, q * WIDTH * width_step)
                width = min(WIDTH, args.width - q * WIDTH)
                # from the last vector of columns to the first: its stores may reach into the next group's first columns
                for v in range((width - 1) // W * W, -1, -W):
                    corner = advance(source, v * width_step)
                    target = advance(panel, v)
                    count = min(width - v, W)
                    if k_step == 1:
                        for g in range(0, groups, W):
                            valid = min(k - g * GROUP, W * GROUP)
                            block = transpose(load_group_rows(advance(corner, g * GROUP), width_step, count, valid, W))
                            store_rows(room, W, block)
                            for r in range(min(W, groups - g)):
                                store(target, (g + r) * WIDTH, load_words(room, r * W, W) ^ signs)
                    elif width_step == 1:
                        for g in range(first, whole):
                            value = load_group_columns(advance(corner, g * GROUP * k_step), k_step, GROUP, count, W)
                            store(target, g * WIDTH, value ^ signs)
                        for g in range(whole, end):
                            rest = k - g * GROUP
                            value = load_group_columns(advance(corner, g * GROUP * k_step), k_step, rest, count, W)
                            store(target, g * WIDTH, value ^ signs)
                    else:
                        for g in range(groups):
                            for j in range(count):
                                word = 0
                                for t in range(min(k - g * GROUP, GROUP)):
                                    x = load_scalar(corner, j * width_step + (g * GROUP + t) * k_step)
                                    word |= (x & ((1 << bits) - 1)) << (t * bits)
                                store_scalar(target, g * WIDTH + j, word ^ flip)
                    if sums:
                        total = zeros("i32", W)
                        if first:
                            total = load(target, groups * WIDTH, W)
                        for g in range(first, end):
                            total = dot_u8s8(total, one, bitcast(load_words(target, g * WIDTH, W), "i8"), feature)
                        store(target, groups * WIDTH, total)

    return gemm_pack_groups


@functools.cache
def make_multiply_vnni(kind: str, MR: int, NV: int, W: int, GROUP: int, sums: bool) -> RangeKernel:
    """Multiply panels of groups: the counterpart of `make_multiply`."""
    acc = "f32" if kind == "bf16" else "i32"
    types = MULTIPLY.types(a="i32", b="i32", total=acc)
    NR = NV * W
    extra = 1 if sums else 0

    @range_kernel("gemm_multiply_vnni", types, spec=(kind, MR, NV, W, GROUP, sums))
    def gemm_multiply_vnni(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        groups = (args.k + GROUP - 1) // GROUP
        step = args.total_step
        first = args.first
        room = stack_tile(acc, MR, NV, W)
        for q in range(lo, hi):
            b = advance(args.b, q * NR * (groups + extra))
            columns = min(NR, args.columns - q * NR)
            for i in range(0, args.rows, MR):
                rows = min(MR, args.rows - i)
                total = advance(args.total, i * step + q * NR)
                if rows == MR:
                    tile_prefetch(total, step, MR, NV, W)
                tile = tile_multiply_dot(advance(args.a, i * groups), b, groups, MR, NV, W, kind)
                if sums:
                    # row step 0: the same NR corrections for every row
                    off = tile_load(advance(b, groups * NR), 0, MR, NV, W)
                    tile = tile_add(tile_scale(off, splat(scalar(args.shift, "i32"), W)), tile)
                if rows == MR and columns == NR:
                    if not first:
                        tile = tile_add(tile_load(total, step, MR, NV, W), tile)
                    tile_store(total, step, tile, MR, NV, W)
                else:
                    tile_store(room, NR, tile, MR, NV, W)
                    keep_part(room, total, step, rows, columns, first, NR, W)

    return gemm_multiply_vnni
