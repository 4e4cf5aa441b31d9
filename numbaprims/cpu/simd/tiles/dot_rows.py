"""The register tile of dot products whose rows of A begin anywhere, as the windows of a convolution do."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.dot import dot_bf16_value, dot_feature, dot_u8s8_value
from numbaprims.cpu.simd.emit import I64, least, load_value, number, splat_value
from numbaprims.cpu.simd.loops import keep_order, repeat
from numbaprims.cpu.simd.types import Pointer, Vec

_UNROLL = 4


@intrinsic(prefer_literal=True)
def tile_dot_rows(typingctx, tile, a, places, rows, b, groups, MR, NV, W, kind):  # type: ignore[no-untyped-def]
    """tile + the sums over g < groups of row r's group g times column j's, as `tile_multiply_dot`.

    Row r's group g is 32-bit word places[min(r, rows - 1)] + g at a, `places` being the address of int64; column j's
    is word g * NV * W + j at b.  A row needs one register for its address: up to 8 rows keep theirs.
    """
    literals = (MR, NV, W, kind)
    if not all(isinstance(t, types.Literal) for t in literals):
        return None
    height, vectors, lanes, name = (t.literal_value for t in literals)
    if not all(isinstance(p, Pointer) and p.elem == "i32" for p in (a, b)) or name not in ("bf16", "u8s8"):
        return None
    result = types.UniTuple(Vec("f32" if name == "bf16" else "i32", lanes), height * vectors)
    if tile != result:
        return None
    feature = dot_feature(name, lanes)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        group = ir.VectorType(ir.IntType(16), 2 * lanes) if name == "bf16" else ir.VectorType(ir.IntType(8), 4 * lanes)
        dot = dot_bf16_value if name == "bf16" else dot_u8s8_value
        tile_value, a_start, places_at, rows_v, b_start, count = args[:6]

        table = builder.inttoptr(places_at, I64.as_pointer())
        last = builder.sub(rows_v, number(1))
        starts = []
        for r in range(height):
            row = least(builder, number(r), last)
            starts.append(builder.gep(a_start, [builder.load(builder.gep(table, [row]))]))

        def update(sums: list[Any], a_at: list[Any], b_at: Any, u: int) -> list[Any]:
            at = [number((u * vectors + v) * lanes) for v in range(vectors)]
            bs = [load_value(builder, b_at, each, group, align=4) for each in at]
            out = []
            for r in range(height):
                word = builder.load(builder.gep(a_at[r], [number(u)]))
                av = builder.bitcast(splat_value(builder, word, lanes), group)
                row = [dot(builder, sums[r * vectors + v], av, bs[v], feature) for v in range(vectors)]
                out += keep_order(builder, row, (height + 1) * vectors)
            return out

        def loop(count: Any, steps: int, state: list[Any], label: str) -> list[Any]:
            """`count` times `steps` groups of (addresses of rows, address of b, sums)."""

            def step(at: list[Any]) -> list[Any]:
                rows_at, b_at, sums = at[:height], at[height], at[height + 1 :]
                for u in range(steps):
                    sums = update(sums, rows_at, b_at, u)
                rows_next = [builder.gep(row, [number(steps)]) for row in rows_at]
                return [*rows_next, builder.gep(b_at, [number(steps * vectors * lanes)]), *sums]

            return repeat(builder, count, state, step, label)

        sums = [builder.extract_value(tile_value, n) for n in range(height * vectors)]
        state = [*starts, b_start, *sums]
        state = loop(builder.sdiv(count, number(_UNROLL)), _UNROLL, state, "groups")
        state = loop(builder.srem(count, number(_UNROLL)), 1, state, "group")
        return context.make_tuple(builder, result, state[height + 1 :])

    i64 = types.int64
    return result(tile, a, i64, i64, b, i64, MR, NV, W, kind), codegen
