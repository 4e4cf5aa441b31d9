"""Between the blocks of a launch that all run at a time (`gpu_kernel(..., together=True)`)."""

from __future__ import annotations

from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.emit import I32, asm, intrinsic, to_global, types, void
from numbaprims.gpu.jit import device_function, thread_index


@intrinsic
def _arrive(typingctx, counter):  # type: ignore[no-untyped-def]
    """Add 1 to *counter, behind what this thread has written or knows to be written."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, "red.release.gpu.global.add.u32 [$0], 1;", [to_global(builder, args[0])], memory=True)
        return void(context)

    return types.void(types.CPointer(types.uint32)), codegen


@intrinsic
def _look(typingctx, counter):  # type: ignore[no-untyped-def]
    """*counter, before whatever this thread reads next."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        place = to_global(builder, args[0])
        return asm(builder, "ld.acquire.gpu.global.u32 $0, [$1];", [place], [I32], memory=True)[0]

    return types.uint32(types.CPointer(types.uint32)), codegen


@device_function
def grid_arrive(counter):  # type: ignore[no-untyped-def]
    """Say that this block has come to a barrier; *counter is a uint32 in global memory.

    One thread stands for the block, by a block barrier here and in `grid_wait`.  What does not depend on other blocks
    may be done between the two.
    """
    barrier()
    if thread_index() == 0:
        _arrive(counter)


@device_function
def grid_wait(counter, awaited):  # type: ignore[no-untyped-def]
    """Wait until `awaited` blocks have arrived since *counter was 0: at barrier i of b blocks i b.  What they wrote
    before is seen after."""
    if thread_index() == 0:
        while _look(counter) < awaited:
            pass
    barrier()
