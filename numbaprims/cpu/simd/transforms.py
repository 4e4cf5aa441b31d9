"""What transforms need: straight-line programs over vectors, and products of what they leave in blocks of lanes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.convert import narrow_value
from numbaprims.cpu.simd.emit import (
    alignment,
    first_lanes_value,
    load_value,
    masked_store_value,
    number,
    prefetch_value,
    splat_value,
    store_value,
)
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.types import ELEMENTS, Pointer, Vec


def _run(builder: Any, code: str, inputs: list[Any]) -> list[Any]:
    """Emit a program of numbaprims.cook_toom: a value for each of its outputs."""
    vector = inputs[0].type
    values = list(inputs)

    def constant(text: str) -> Any:
        return ir.Constant(vector, [float(Fraction(text))] * vector.count)

    for line in code.split(";"):
        name, *words = line.split()
        if name == "out":
            return [values[int(word)] for word in words]
        if name == "zero":
            values.append(ir.Constant(vector, None))
            continue
        a = values[int(words[0])]
        if name == "add":
            values.append(builder.fadd(a, values[int(words[1])]))
        elif name == "sub":
            values.append(builder.fsub(a, values[int(words[1])]))
        elif name == "neg":
            values.append(builder.fneg(a))
        elif name == "mul":
            values.append(builder.fmul(a, constant(words[1])))
        else:
            values.append(multiply_add_value(builder, a, constant(words[1]), values[int(words[2])]))
    raise ValueError(f"a program ends with 'out': {code!r}")


@intrinsic(prefer_literal=True)
def straight_line(typingctx, vectors, code):  # type: ignore[no-untyped-def]
    """A tuple of vectors by a literal program of numbaprims.cook_toom over a tuple of float vectors."""
    if not isinstance(vectors, types.UniTuple) or not isinstance(vectors.dtype, Vec):
        return None
    if ELEMENTS[vectors.dtype.elem][1] != "f" or not isinstance(code, types.StringLiteral):
        return None
    text = code.literal_value
    result = types.UniTuple(vectors.dtype, len(text.rpartition("out ")[2].split()))

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        inputs = [builder.extract_value(args[0], i) for i in range(vectors.count)]
        return context.make_tuple(builder, result, _run(builder, text, inputs))

    return result(vectors, code), codegen


def _multiply_blocks(builder: Any, start: list[Any], places: Any, shape: tuple[int, int], ahead: int) -> list[Any]:
    """Emit the loop of `tile_multiply_blocks` over (a, a_block, b, blocks), from given sums on."""
    height, width = shape
    vector = start[0].type
    lanes = vector.count
    a_start, a_block_v, b_start, count = places

    unroll = min(4, lanes)
    count = builder.mul(count, number(lanes // unroll))
    jump = builder.add(a_block_v, number(unroll - lanes))

    def step(state: list[Any]) -> list[Any]:
        left, a_at, b_at, *sums = state
        for p in range(unroll):
            row = []
            for v in range(width):
                row.append(load_value(builder, b_at, number((p * width + v) * lanes), vector))
                if ahead:
                    prefetch_value(builder, b_at, number((p * width + v) * lanes + ahead), 3, False)
            for i in range(height):
                one = splat_value(builder, builder.load(builder.gep(a_at, [number(i * lanes + p)])), lanes)
                for v in range(width):
                    sums[i * width + v] = multiply_add_value(builder, one, row[v], sums[i * width + v])
        left = builder.sub(left, number(1))
        ends = builder.icmp_signed("==", builder.and_(left, number(lanes // unroll - 1)), number(0))
        a_next = builder.gep(a_at, [builder.select(ends, jump, number(unroll))])
        return [left, a_next, builder.gep(b_at, [number(unroll * width * lanes)]), *sums]

    return repeat(builder, count, [count, a_start, b_start, *start], step, "blocks")[3:]


@intrinsic(prefer_literal=True)
def tile_multiply_blocks(typingctx, a, a_block, b, blocks, MR, NV, W, AHEAD):  # type: ignore[no-untyped-def]
    """The tile sum over p < blocks * W of A[i, p] * b[p * NV * W + j], where A[i, p] is
    a[p // W * a_block + i * W + p % W]: W neighbours in p lie in one vector, rows of A beside one another.

    Rows of A with run-time steps would need a register each for their address.  Four products are emitted, and the loop
    steps from block to block by a select: with all W of a block LLVM loads the rows of b early and spills sums
    (12 x 2 ran at 90 GFLOP/s instead of 220).  What lies AHEAD elements behind a row of b is asked for; 0 asks for
    nothing.
    """
    if not all(isinstance(t, types.IntegerLiteral) for t in (MR, NV, W, AHEAD)):
        return None
    if not isinstance(a, Pointer) or a != b or ELEMENTS[a.elem][1] != "f":
        return None
    shape = MR.literal_value, NV.literal_value
    result = types.UniTuple(Vec(a.elem, W.literal_value), shape[0] * shape[1])

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        start = [ir.Constant(context.get_value_type(result.dtype), None)] * result.count
        sums = _multiply_blocks(builder, start, args[:4], shape, AHEAD.literal_value)
        return context.make_tuple(builder, result, sums)

    return result(a, types.int64, b, types.int64, MR, NV, W, AHEAD), codegen


@intrinsic(prefer_literal=True)
def tile_multiply_more(typingctx, tile, a, a_block, b, blocks, MR, NV, AHEAD):  # type: ignore[no-untyped-def]
    """`tile_multiply_blocks` that goes on from the sums in `tile`: the bits of one sum over all blocks."""
    if not all(isinstance(t, types.IntegerLiteral) for t in (MR, NV, AHEAD)) or not isinstance(tile, types.UniTuple):
        return None
    if not isinstance(a, Pointer) or a != b or tile.dtype.elem != a.elem:
        return None
    shape = MR.literal_value, NV.literal_value

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        start = [builder.extract_value(args[0], i) for i in range(tile.count)]
        sums = _multiply_blocks(builder, start, args[1:5], shape, AHEAD.literal_value)
        return context.make_tuple(builder, tile, sums)

    return tile(tile, a, types.int64, b, types.int64, MR, NV, AHEAD), codegen


@intrinsic
def stream_rows(typingctx, p, row_stride, vectors):  # type: ignore[no-untyped-def]
    """`store_stream` of a tuple of vectors, `row_stride` elements apart, in p's type."""
    if not (isinstance(p, Pointer) and isinstance(vectors, types.UniTuple)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        for row in range(vectors.count):
            at = builder.mul(args[1], number(row))
            value = narrow_value(builder, builder.extract_value(args[2], row), p.elem)
            store_value(builder, args[0], at, value, align=alignment(value.type), stream=True)
        return context.get_dummy_value()

    return types.void(p, types.int64, vectors), codegen


@intrinsic
def store_narrow_rows(typingctx, p, row_stride, rows, columns, vectors):  # type: ignore[no-untyped-def]
    """The first `columns` lanes of the first `rows` vectors of a tuple, `row_stride` elements apart, in p's type."""
    if not isinstance(p, Pointer) or not isinstance(vectors, types.UniTuple):
        return None
    lanes = vectors.dtype.n

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        mask = first_lanes_value(builder, args[3], lanes)
        none = ir.Constant(mask.type, None)
        for i in range(vectors.count):
            row = number(i)
            given = builder.select(builder.icmp_signed("<", row, args[2]), mask, none)
            value = narrow_value(builder, builder.extract_value(args[4], i), p.elem)
            masked_store_value(builder, args[0], builder.mul(row, args[1]), given, value)
        return context.get_dummy_value()

    return types.void(p, types.int64, types.int64, types.int64, vectors), codegen


@intrinsic(prefer_literal=True)
def some_vectors(typingctx, vectors, start, count):  # type: ignore[no-untyped-def]
    """Vectors start ... start + count - 1 of a tuple, both literals."""
    if not isinstance(vectors, types.UniTuple) or not isinstance(vectors.dtype, Vec):
        return None
    if not isinstance(start, types.IntegerLiteral) or not isinstance(count, types.IntegerLiteral):
        return None
    first, size = start.literal_value, count.literal_value
    if not 0 <= first <= first + size <= vectors.count:
        return None
    result = types.UniTuple(vectors.dtype, size)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return context.make_tuple(
            builder, result, [builder.extract_value(args[0], i) for i in range(first, first + size)]
        )

    return result(vectors, start, count), codegen
