"""Register tiles of weight gradients: inner products over pixels, whose lanes are added up at the end."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.convert import compute_element, widen_value
from numbaprims.cpu.simd.emit import I64, masked_load_value, number, vector_at
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.types import Pointer, Vec

PIXELS = 5  # words of a vector of pixels: its place in the copy, row, column, bits of lanes there, in the next row


def _mask(builder: Any, word: Any, lanes: int) -> Any:
    return builder.bitcast(builder.trunc(word, ir.IntType(lanes)), ir.VectorType(ir.IntType(1), lanes))


@intrinsic(prefer_literal=True)
def load_wide_bits(typingctx, p, i, bits, W):  # type: ignore[no-untyped-def]
    """Elements i + l, computed, in the lanes l whose bits are set, zeros elsewhere; their memory is not touched."""
    if not (isinstance(p, Pointer) and isinstance(W, types.Literal)):
        return None
    lanes = W.literal_value
    result = Vec(compute_element(p.elem), lanes)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        stored = context.get_value_type(Vec(p.elem, lanes))
        value = masked_load_value(builder, args[0], args[1], _mask(builder, args[2], lanes), stored)
        return widen_value(builder, value, p.elem)

    return result(p, types.int64, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def tile_inner_taps(  # type: ignore[no-untyped-def]
    typingctx, y, y_step, v_step, x, pixels, whole, count, offsets, gap, MR, NT, W
):
    """Vectors of partial sums over v, filter i by tap t: y[i * y_step + v * v_step + lane] * x[at + lane].

    at = the place of v + offsets[t].
    `pixels` is the address of PIXELS words for each of `count` vectors v.  The lanes of the first `whole` are all in
    one row; of the others those of the fourth word's bits are, those of the fifth's are read `gap` elements further,
    and the rest are not read at all: they count as 0.
    """
    literals = (MR, NT, W)
    if not all(isinstance(t, types.Literal) for t in literals):
        return None
    if not (isinstance(x, Pointer) and x == y):
        return None
    height, taps, lanes = (t.literal_value for t in literals)
    result = types.UniTuple(Vec(x.elem, lanes), height * taps)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        y_at, y_step_v, v_step_v, x_at, pixels_v, whole_v, count_v, offsets_v, gap_v = args[:9]
        table = builder.inttoptr(offsets_v, I64.as_pointer())
        begins = [builder.gep(x_at, [builder.load(builder.gep(table, [number(t)]))]) for t in range(taps)]

        def read(pointer: Any, at: Any) -> Any:
            value = builder.load(vector_at(builder, pointer, at, vector))
            value.align = 4
            return value

        def word(where: Any, index: int) -> Any:
            return builder.load(builder.gep(where, [number(index)]))

        def products(where: Any, y_now: Any, sums: list[Any], edge: bool) -> list[Any]:
            place = word(where, 0)
            ys = [read(y_now, builder.mul(y_step_v, number(i))) for i in range(height)]
            if edge:
                here, behind = (_mask(builder, word(where, index), lanes) for index in (3, 4))
                # one more index, not one more address for each tap: there are 16 registers
                further = builder.add(place, gap_v)
            out: list[Any] = list(sums)
            for t in range(taps):
                if edge:
                    value = masked_load_value(builder, begins[t], place, here, vector)
                    value = masked_load_value(builder, begins[t], further, behind, vector, value)
                else:
                    value = read(begins[t], place)
                for i in range(height):
                    out[i * taps + t] = multiply_add_value(builder, ys[i], value, out[i * taps + t])
                # all taps' loads at once would need more registers than there are: sums went to the stack
                builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)
            return out

        def loop(many: Any, state: list[Any], edge: bool) -> list[Any]:
            def step(now: list[Any]) -> list[Any]:
                where, y_now, *sums = now
                sums = products(where, y_now, sums, edge)
                return [builder.gep(where, [number(PIXELS)]), builder.gep(y_now, [v_step_v]), *sums]

            return repeat(builder, many, state, step, "edges" if edge else "pixels")

        zero = [ir.Constant(vector, None)] * (height * taps)
        state = loop(whole_v, [builder.inttoptr(pixels_v, I64.as_pointer()), y_at, *zero], False)
        state = loop(builder.sub(count_v, whole_v), state, True)
        return context.make_tuple(builder, result, state[2:])

    i64 = types.int64
    return result(y, i64, i64, x, *[i64] * 5, MR, NT, W), codegen


@intrinsic
def tile_sums(typingctx, tile):  # type: ignore[no-untyped-def]
    """The sums of the lanes of each of a tile's vectors, in order, as vectors; lanes behind the last are 0.

    Two vectors are folded into one at a time, half of it for each: 3 operations a fold, and W - 1 folds for W sums.
    """
    if not isinstance(tile, types.UniTuple) or not isinstance(tile.dtype, Vec):
        return None
    lanes = tile.dtype.n
    result = types.UniTuple(tile.dtype, -(-tile.count // lanes))

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        zero = ir.Constant(context.get_value_type(tile.dtype), None)
        values = [builder.extract_value(args[0], i) for i in range(tile.count)]
        values += [zero] * (result.count * lanes - tile.count)
        return context.make_tuple(
            builder, result, [_fold(builder, values[i : i + lanes], lanes) for i in range(0, len(values), lanes)]
        )

    return result(tile), codegen


def _fold(builder: Any, values: list[Any], lanes: int) -> Any:
    """Sums of the lanes of as many vectors as each has lanes, in order."""
    size = lanes  # lanes that belong to one sum
    while len(values) > 1:
        half, few = size // 2, len(values) // 2
        # of each sum's lanes the first half, of both vectors in turn; then the second
        low = [vec * lanes + begin + i for begin in range(0, lanes, size) for vec in (0, 1) for i in range(half)]
        high = [i + half for i in low]
        values = [
            builder.fadd(
                shuffle_value(builder, values[i], values[i + few], low),
                shuffle_value(builder, values[i], values[i + few], high),
            )
            for i in range(few)
        ]
        size = half
    return values[0]
