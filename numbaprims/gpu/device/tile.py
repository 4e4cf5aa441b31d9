"""Integer division by run-time numbers, for kernels that find their tile."""

from __future__ import annotations

from numbaprims.gpu.device.emit import intrinsic, types


@intrinsic
def quotient(typingctx, x, y):  # type: ignore[no-untyped-def]
    """x / y of two uint32, rounded down; y is not 0.

    Numba's `//` divides in 64 bits, a subroutine of 100 instructions, and asks whether y is 0.  By a constant power of
    two this is a shift.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.udiv(*args)

    return types.uint32(types.uint32, types.uint32), codegen


@intrinsic
def remainder(typingctx, x, y):  # type: ignore[no-untyped-def]
    """x - y quotient(x, y)."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.urem(*args)

    return types.uint32(types.uint32, types.uint32), codegen
