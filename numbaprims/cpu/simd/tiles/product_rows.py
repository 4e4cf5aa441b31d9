"""The register tile of a product whose rows of A begin anywhere, as the windows of a convolution do."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.convert import compute_element, widen_value
from numbaprims.cpu.simd.emit import I64, least, load_value, number, prefetch_value, splat_value
from numbaprims.cpu.simd.loops import keep_order, repeat
from numbaprims.cpu.simd.memory import int_literal
from numbaprims.cpu.simd.types import Pointer, Vec


@intrinsic(prefer_literal=True)
def tile_multiply_rows(typingctx, tile, a, places, i, rows, unit, b, k, ahead, LINES, MR, NV, W):  # type: ignore[no-untyped-def]
    """tile + the sum over p < k of a[place(r) + p] * b[p * NV * W + j], where place(r) is `unit` times word
    i + min(r, rows - 1) of the int64 at address `places`.

    Neighbours along k are neighbours in memory: a row needs one address register, so that tiles of up to 8 rows run
    from unpacked rows as fast as from panels.  The loop over k is unrolled by 4, and each round prefetches LINES lines
    from `ahead` on: what the next tiles will read, and no prefetcher knows of.
    """
    literal = [int_literal(t) for t in (LINES, MR, NV, W)]
    if None in literal or not isinstance(a, Pointer) or not isinstance(b, Pointer):
        return None
    lines, height, vectors, lanes = (int(n) for n in literal if n is not None)
    result = types.UniTuple(Vec(compute_element(a.elem), lanes), height * vectors)
    if tile != result or b.elem != compute_element(a.elem):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        tile_value, a_start, places_at, first, rows_v, unit_v, b_start, k_value, ahead_v = args[:9]

        words = builder.inttoptr(places_at, I64.as_pointer())
        last = builder.sub(rows_v, number(1))
        starts = []
        for r in range(height):
            row = least(builder, number(r), last)
            place = builder.load(builder.gep(words, [builder.add(first, row)]))
            starts.append(builder.gep(a_start, [builder.mul(place, unit_v)]))

        def update(sums: list[Any], a_at: list[Any], b_at: Any, u: int) -> list[Any]:
            at = [number((u * vectors + v) * lanes) for v in range(vectors)]
            bs = [load_value(builder, b_at, each, vector, align=4) for each in at]
            out = []
            for r in range(height):
                scalar = builder.load(builder.gep(a_at[r], [number(u)]))
                av = splat_value(builder, widen_value(builder, scalar, a.elem), lanes)
                row = [multiply_add_value(builder, av, bs[v], sums[r * vectors + v]) for v in range(vectors)]
                out += keep_order(builder, row, (height + 1) * vectors)
            return out

        line = 64 * lanes // context.get_abi_sizeof(vector)

        def loop(count: Any, steps: int, state: list[Any], label: str) -> list[Any]:
            """`count` times `steps` updates of (addresses of rows, address of b, sums)."""

            def step(at: list[Any]) -> list[Any]:
                rows_at, b_at, far, sums = at[:height], at[height], at[height + 1], at[height + 2 :]
                for u in range(steps):
                    sums = update(sums, rows_at, b_at, u)
                    if steps == 4 and u < lines:
                        prefetch_value(builder, far, number(u * line), 2, False)
                rows_next = [builder.gep(row, [number(steps)]) for row in rows_at]
                far = builder.gep(far, [number(lines * line if steps == 4 else 0)])
                return [*rows_next, builder.gep(b_at, [number(steps * vectors * lanes)]), far, *sums]

            return repeat(builder, count, state, step, label)

        sums = [builder.extract_value(tile_value, n) for n in range(height * vectors)]
        state = [*starts, b_start, ahead_v, *sums]
        state = loop(builder.sdiv(k_value, number(4)), 4, state, "rows4")
        state = loop(builder.srem(k_value, number(4)), 1, state, "rows1")
        return context.make_tuple(builder, result, state[height + 2 :])

    i64 = types.int64
    return result(tile, a, i64, i64, i64, i64, b, i64, ahead, LINES, MR, NV, W), codegen


@intrinsic(prefer_literal=True)
def tile_end(typingctx, tile, shifts, low, high, MR):  # type: ignore[no-untyped-def]
    """Row r of a tile plus shifts[r], cut to low ... high, both vectors; NaN stays."""
    rows = int_literal(MR)
    if rows is None or not isinstance(tile, types.UniTuple) or not isinstance(shifts, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        out, across, lanes = [], tile.count // rows, tile.dtype.n
        for i in range(tile.count):
            if i % across == 0:
                at = builder.gep(args[1], [number(i // across)])
                shift = splat_value(builder, builder.load(at), lanes)
            x = builder.fadd(builder.extract_value(args[0], i), shift)
            for limit, beyond in ((args[2], "<"), (args[3], ">")):
                x = builder.select(builder.fcmp_ordered(beyond, x, limit), limit, x)
            out.append(x)
        return context.make_tuple(builder, tile, out)

    return tile(tile, shifts, tile.dtype, tile.dtype, MR), codegen
