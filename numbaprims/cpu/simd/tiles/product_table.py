"""The register tile whose second operand is read at places that a table lists: convolutions, whose pixels lie in
rows with gaps between them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.emit import load_value, number, splat_value
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.types import Pointer, Vec

_UNROLL = 4


@intrinsic(prefer_literal=True)
def tile_multiply_table(typingctx, a, b, table, k, MR, NV, W):  # type: ignore[no-untyped-def]
    """The tile sum over p < k of a[p * MR + i] * b[table[p] + j], in the type of a and b, for j < NV * W.

    `table` holds int64.  Beside `tile_multiply` on packed panels a step costs one scalar load more, which is no
    bottleneck: 12 x 2 vectors read 15 values in the time of 24 multiply-adds, 12 cycles.
    """
    literals = (MR, NV, W)
    if not all(isinstance(t, types.Literal) for t in literals):
        return None
    if not (isinstance(a, Pointer) and a == b and isinstance(table, Pointer) and table.elem == "i64"):
        return None
    height, vectors, lanes = (t.literal_value for t in literals)
    result = types.UniTuple(Vec(a.elem, lanes), height * vectors)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        a_start, b_start, table_start, k_value = args[:4]

        def update(sums: list[Any], a_at: Any, table_at: Any, u: int) -> list[Any]:
            row = builder.gep(b_start, [builder.load(builder.gep(table_at, [number(u)]))])
            bs = [load_value(builder, row, number(v * lanes), vector, align=4) for v in range(vectors)]
            out = []
            for i in range(height):
                av = splat_value(builder, builder.load(builder.gep(a_at, [number(u * height + i)])), lanes)
                out += [multiply_add_value(builder, av, bs[v], sums[i * vectors + v]) for v in range(vectors)]
            return out

        def loop(count: Any, steps: int, state: list[Any], label: str) -> list[Any]:
            """`count` times `steps` pixels of (address of a, place in the table, sums)."""

            def step(at: list[Any]) -> list[Any]:
                a_at, table_at, *sums = at
                for u in range(steps):
                    sums = update(sums, a_at, table_at, u)
                a_next = builder.gep(a_at, [number(steps * height)])
                return [a_next, builder.gep(table_at, [number(steps)]), *sums]

            return repeat(builder, count, state, step, label)

        sums = [ir.Constant(vector, None)] * (height * vectors)
        state = loop(builder.sdiv(k_value, number(_UNROLL)), _UNROLL, [a_start, table_start, *sums], "pixels")
        _, _, *sums = loop(builder.srem(k_value, number(_UNROLL)), 1, state, "pixel")
        return context.make_tuple(builder, result, sums)

    return result(a, b, table, types.int64, MR, NV, W), codegen
