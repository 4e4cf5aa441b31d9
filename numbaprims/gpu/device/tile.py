"""Integer division by run-time numbers, for kernels that find their tile or their element."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.emit import I32, asm, intrinsic, types
from numbaprims.gpu.jit import device_function


@intrinsic
def quotient(typingctx, x, y):  # type: ignore[no-untyped-def]
    """x / y of two uint32, or of two uint64, rounded down; y is not 0.

    Numba's `//` divides in 64 bits, a subroutine of 100 instructions, and asks whether y is 0.  By a constant power of
    two this is a shift.
    """
    number = types.uint64 if types.unliteral(x) == types.uint64 else types.uint32

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.udiv(*args)

    return number(number, number), codegen


@intrinsic
def remainder(typingctx, x, y):  # type: ignore[no-untyped-def]
    """x - y quotient(x, y)."""
    number = types.uint64 if types.unliteral(x) == types.uint64 else types.uint32

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.urem(*args)

    return number(number, number), codegen


@intrinsic
def divided(typingctx, x, multiplier, shift):  # type: ignore[no-untyped-def]
    """x / d rounded down of an int32 from 0 on, by d's `pointwise.walk.reciprocal`: 3 instructions, where `quotient`
    is 20."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        twice = builder.add(args[0], args[0])
        high = asm(builder, "mul.hi.u32 $0, $1, $2;", [twice, args[1]], [I32])[0]
        return builder.lshr(high, args[2])

    return types.int32(types.int32, types.uint32, types.uint32), codegen


def index_types(wide: bool) -> tuple[Any, Any]:
    """(signed, unsigned) types of places; `wide`: they have 64 bits."""
    return (types.int64, types.uint64) if wide else (types.int32, types.uint32)


def divisor(wide: bool) -> Any:
    """The type of a size that places are divided by, `pointwise.walk.divisor`: with its reciprocal in 32 bits."""
    return types.UniTuple(types.int64, 1) if wide else types.Tuple((types.int32, types.uint32, types.uint32))


@functools.cache
def splitter(wide: bool) -> Any:
    """The device function split(place, size) -> (what is left, the place along an axis)."""
    if wide:

        @device_function
        def split(rest, size):  # type: ignore[no-untyped-def]
            above = types.int64(quotient(types.uint64(rest), types.uint64(size[0])))
            return above, types.int64(rest - above * size[0])

    else:

        @device_function
        def split(rest, size):  # type: ignore[no-untyped-def]
            above = divided(rest, size[1], size[2])
            return above, types.int32(rest - above * size[0])

    return split
