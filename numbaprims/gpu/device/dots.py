"""Dot products of a warp over shared memory: a tile of rows of weights and of states, a sum a lane."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.formulas.value import mad
from numbaprims.gpu.device.emit import (
    I32,
    I64,
    call_nvvm,
    element_type,
    int_literal,
    intrinsic,
    string_literal,
    tuple_of,
    unpack,
)  # fmt: skip
from numbaprims.gpu.device.memory import REGISTER, _load, _widen
from numbaprims.gpu.device.packs import lanes
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.device.warp import _shuffle
from numbaprims.gpu.jit import types

#: Rows of weights of a tile.
ROWS = 4


@intrinsic
def pointer_to(typingctx, array, index):  # type: ignore[no-untyped-def]
    """The address of an element of an array in shared memory."""
    element = element_type(array)
    if element is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])

    return types.CPointer(element)(array, types.int64), codegen


@intrinsic
def add_products(typingctx, sums, room, k, row, last_row, states, column, last_column, width, columns, dtype):  # type: ignore[no-untyped-def]
    """sums[i * columns + j] + the products of 16 bytes, from element k on, of row `row` + i of the weights with row
    `column` + j of the states; rows of both have `width` elements, and none is behind the last.

    Weights lie at the beginning of `room`, states at its element `states`.
    """
    count, name = int_literal(columns), string_literal(dtype)
    if count is None or name is None:
        return None
    far = types.int64
    made = types.UniTuple(REGISTER[name], ROWS * count)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        found = unpack(builder, args[0], made)
        k, row, last_row, states, column, last_column, width = args[2:9]

        def packs(start: Any, first: Any, last: Any, number: int) -> list[list[Value]]:
            read = []
            for i in range(number):
                at = builder.add(first, I64(i))
                at = builder.select(builder.icmp_signed("<", at, last), at, last)
                at = builder.add(builder.add(start, builder.mul(at, width)), k)
                stored = _load(context, builder, (sig.args[1], args[1], far, at), lanes(name), readonly=False)
                read.append([Value(builder, _widen(builder, value, name)) for value in stored])
            return read

        weights = packs(I64(0), row, last_row, ROWS)
        for j in range(count):
            (state,) = packs(states, builder.add(column, I64(j)), last_column, 1)
            for i in range(ROWS):
                total = Value(builder, found[i * count + j])
                for x, y in zip(weights[i], state, strict=True):
                    total = mad(x, y, total)
                found[i * count + j] = total.value
        return tuple_of(context, builder, made, found)

    return made(made, room, *[far] * 7, columns, dtype), codegen


@intrinsic
def sum_apart(typingctx, values):  # type: ignore[no-untyped-def]
    """Sums over the warp of each of 4 to 32 values: lane l gets that of value l * count // 32.

    Halves are exchanged, then quarters, so that all of count values take about count shuffles.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        found, step = unpack(builder, args[0], values), 16
        lane = call_nvvm(builder, "llvm.nvvm.read.ptx.sreg.tid.x", I32)
        while step:
            half, bit = len(found) // 2, ir.Constant(I32, step)
            upper = builder.icmp_signed("!=", builder.and_(lane, bit), ir.Constant(I32, 0))
            kept, given = found, found
            if half:
                kept = [builder.select(upper, found[half + i], found[i]) for i in range(half)]
                given = [builder.select(upper, found[i], found[half + i]) for i in range(half)]
            found = [builder.fadd(x, _shuffle(builder, "bfly", y, bit)) for x, y in zip(kept, given, strict=True)]
            step //= 2
        return found[0]

    return values.dtype(values), codegen
