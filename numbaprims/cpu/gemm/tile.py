"""The register tile: MR x NR sums in registers over the whole of a k block, and what becomes of them."""

from __future__ import annotations

from numbaprims.cpu.gemm.finish import add_row, finish_row
from numbaprims.cpu.gemm.pack import pack_panel
from numbaprims.cpu.jit import helper
from numbaprims.cpu.simd import (
    advance,
    stack_tile,
    tile_add,
    tile_fma,
    tile_load,
    tile_store,
    tile_zeros,
)


@helper
def multiply_panels(a, b, k, MR, NV, W, acc):  # type: ignore[no-untyped-def]
    """The tile of a panel of A (k x MR) times a panel of B (k x NV * W)."""
    tile = tile_zeros(acc, MR, NV, W)
    # Unrolled by 4: MR * NV independent chains already hide the latency; this saves the loop's own instructions.
    for _ in range(k // 4):
        tile = tile_fma(tile, a, 1, b, MR, NV, W)
        tile = tile_fma(tile, advance(a, MR), 1, advance(b, NV * W), MR, NV, W)
        tile = tile_fma(tile, advance(a, 2 * MR), 1, advance(b, 2 * NV * W), MR, NV, W)
        tile = tile_fma(tile, advance(a, 3 * MR), 1, advance(b, 3 * NV * W), MR, NV, W)
        a = advance(a, 4 * MR)
        b = advance(b, 4 * NV * W)
    for _ in range(k % 4):
        tile = tile_fma(tile, a, 1, b, MR, NV, W)
        a = advance(a, MR)
        b = advance(b, NV * W)
    return tile


@helper
def keep_tile(args, tile, total, total_rs, c, rows, columns, first, MR, NV, W, acc):  # type: ignore[no-untyped-def]
    """total (+)= alpha tile (+ beta c), for the rows and columns of the tile that are there."""
    if rows == MR and columns == NV * W and args.alpha == 1.0 and not (first and args.has_c):
        if not first:
            tile = tile_add(tile_load(total, total_rs, MR, NV, W), tile)
        tile_store(total, total_rs, tile, MR, NV, W)
    else:
        room = stack_tile(acc, MR, NV, W)
        tile_store(room, NV * W, tile, MR, NV, W)
        for r in range(rows):
            row = advance(room, r * NV * W)
            add_row(
                args, row, advance(total, r * total_rs), advance(c, r * args.c_rs), columns, first, W, acc
            )


@helper
def pack_a(args, packed, a, rows, k, MR, W, acc):  # type: ignore[no-untyped-def]
    """`rows` rows of A from `a` on, k columns, as panels of MR rows."""
    for i in range(0, rows, MR):
        source = advance(a, i * args.a_rs)
        pack_panel(advance(packed, i * k), source, args.a_rs, args.a_cs, k, min(MR, rows - i), MR, W, acc)


@helper
def multiply_block(args, packed_a, packed_b, total, total_rs, c, rows, columns, k, first, MR, NV, W, acc):  # type: ignore[no-untyped-def]
    """total[rows, columns] (+)= packed A times packed B.

    Assumes panels of B of a size that the first-level cache holds while the panels of A stream past it from the
    second.
    """
    for j in range(0, columns, NV * W):
        for i in range(0, rows, MR):
            tile = multiply_panels(advance(packed_a, i * k), advance(packed_b, j * k), k, MR, NV, W, acc)
            corner = advance(total, i * total_rs + j)
            keep_tile(
                args, tile, corner, total_rs, advance(c, i * args.c_rs + j * args.c_cs), min(MR, rows - i),
                min(NV * W, columns - j), first, MR, NV, W, acc,
            )  # fmt: skip


@helper
def finish_block(args, total, total_rs, out, i0, j0, rows, columns, W, acc):  # type: ignore[no-untyped-def]
    """Bias, activation and conversion of a block whose sums are complete."""
    for r in range(rows):
        finish_row(
            args, advance(total, r * total_rs), advance(out, r * args.out_rs), i0 + r, j0, columns, W, acc
        )
