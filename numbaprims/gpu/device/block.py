"""Within a block: barriers, sums and maxima over all threads.

A reduction takes a butterfly in each warp, one element of shared memory a warp, one barrier, and a butterfly over the
warps' values; a second barrier lets the memory be used again.  The order is fixed: the same bits each time.
"""

from __future__ import annotations

from typing import Any

from numbaprims.gpu.device.emit import asm, intrinsic, types, void
from numbaprims.gpu.device.warp import group_reduce, lane_index, warp_index, warp_max, warp_min, warp_sum
from numbaprims.gpu.jit import device_function


@intrinsic
def barrier(typingctx):  # type: ignore[no-untyped-def]
    """Wait for all threads of the block; what they wrote to memory before is seen after."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, "bar.sync 0;", collective=True, memory=True)
        return void(context)

    return types.void(), codegen


@device_function
def _over_warps(value: Any, scratch: Any, warps: Any, operation: Any) -> Any:
    if lane_index() == 0:
        scratch[warp_index()] = value
    barrier()
    value = group_reduce(scratch[lane_index() & types.uint32(warps - 1)], warps, operation)
    barrier()
    return value


@device_function
def block_sum(value: Any, scratch: Any, warps: Any) -> Any:
    """The sum over the block's `warps` whole warps (a power of two), in every thread.

    `scratch` is an array in shared memory of at least `warps` elements of the value's type.
    """
    return _over_warps(warp_sum(value), scratch, warps, "sum")


@device_function
def block_max(value: Any, scratch: Any, warps: Any) -> Any:
    """The maximum over the block, in every thread; NaN if a thread has NaN.  Arguments as `block_sum`."""
    return _over_warps(warp_max(value), scratch, warps, "max")


@device_function
def block_min(value: Any, scratch: Any, warps: Any) -> Any:
    """The minimum over the block, in every thread; NaN if a thread has NaN.  Arguments as `block_sum`."""
    return _over_warps(warp_min(value), scratch, warps, "min")
