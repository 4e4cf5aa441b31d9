"""Integer division by run-time numbers, for kernels that find their tile."""

from __future__ import annotations

from numbaprims.gpu.device.emit import intrinsic, types


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
