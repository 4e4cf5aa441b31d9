"""Register tiles of dot products: the inner loop of int8 and bf16 matrix products."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.dot import dot_feature, dot_value
from numbaprims.cpu.simd.emit import I32, load_value, number, splat_value
from numbaprims.cpu.simd.loops import keep_order, repeat
from numbaprims.cpu.simd.types import Pointer, Vec

_UNROLL = 4  # the loop's own four instructions beside 28 multiplications; more does not show


@intrinsic(prefer_literal=True)
def tile_multiply_dot(typingctx, a, b, k_groups, MR, NV, W, kind):  # type: ignore[no-untyped-def]
    """The tile of sums over g < k_groups of row i's group g times column j's, from packed panels.

    A group is 32 bits: two bf16 (kind "bf16", f32 sums) or four bytes (i32 sums; A's are unsigned in "u8s8", signed in
    "s8s8", and B's are signed).  Row i's group g is 32-bit word g * MR + i at a, column j's word g * NV * W + j at b;
    both may point to elements of any type.  The result is a UniTuple of MR * NV vectors, row by row.

    A that is signed where the CPU takes unsigned bytes (`byte_kind`): give it with 128 added (bytes XOR 0x80), take
    128 * (the column's sum of B) off.
    """
    literals = (MR, NV, W, kind)
    if not all(isinstance(t, types.Literal) for t in literals):
        return None
    height, vectors, lanes, name = (t.literal_value for t in literals)
    if not (isinstance(a, Pointer) and isinstance(b, Pointer)) or name not in ("bf16", "u8s8", "s8s8"):
        return None
    result = types.UniTuple(Vec("f32" if name == "bf16" else "i32", lanes), height * vectors)
    feature = dot_feature(name, lanes)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        group = ir.VectorType(ir.IntType(16), 2 * lanes) if name == "bf16" else ir.VectorType(ir.IntType(8), 4 * lanes)
        dot = dot_value(name)
        a_start, b_start = (builder.bitcast(pointer, I32.as_pointer()) for pointer in args[:2])

        def update(sums: list[Any], a_at: Any, b_at: Any, u: int) -> list[Any]:
            at = [number((u * vectors + v) * lanes) for v in range(vectors)]
            bs = [load_value(builder, b_at, each, group, align=4) for each in at]
            out = []
            for i in range(height):
                word = builder.load(builder.gep(a_at, [number(u * height + i)]))
                word.align = 4
                av = builder.bitcast(splat_value(builder, word, lanes), group)
                row = [dot(builder, sums[i * vectors + v], av, bs[v], feature) for v in range(vectors)]
                out += keep_order(builder, row, (height + 1) * vectors)
            return out

        def loop(count: Any, steps: int, state: list[Any], label: str) -> list[Any]:
            """`count` times `steps` groups of (address of a, address of b, sums)."""

            def step(at: list[Any]) -> list[Any]:
                a_at, b_at, *sums = at
                for u in range(steps):
                    sums = update(sums, a_at, b_at, u)
                a_next = builder.gep(a_at, [number(steps * height)])
                return [a_next, builder.gep(b_at, [number(steps * vectors * lanes)]), *sums]

            return repeat(builder, count, state, step, label)

        sums = [ir.Constant(vector, None)] * (height * vectors)
        state = loop(builder.sdiv(args[2], number(_UNROLL)), _UNROLL, [a_start, b_start, *sums], "groups")
        _, _, *sums = loop(builder.srem(args[2], number(_UNROLL)), 1, state, "group")
        return context.make_tuple(builder, result, sums)

    return result(a, b, types.int64, MR, NV, W, kind), codegen
