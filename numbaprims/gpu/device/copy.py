"""Copies from global to shared memory that do not wait: cp.async, bulk copies, tensor maps, and their barriers.

cp.async (compute capability 8.0) copies 4, 8 or 16 bytes for each thread.  Copies are committed in groups; waiting
for all but the newest n groups and then a block barrier makes the older ones visible to the block.  With s stages of
shared memory s - 1 groups are under way while the oldest is computed with.

Bulk copies and tensor copies (9.0) are issued by one thread and signalled by an mbarrier in shared memory: whoever
waits for the barrier's phase sees the data.  A tensor map describes a matrix in global memory; elements past its ends
arrive as zeros, so that ragged tiles need no code.

Addresses of shared memory are uint32, from `shared_address`; those of barriers too (8 bytes each).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.gpu.device.emit import (
    I32,
    asm,
    element_pointer,
    element_type,
    int_literal,
    intrinsic,
    to_global,
    to_shared,
    types,
    unpack,
    void,
)  # fmt: skip


@intrinsic
def shared_address(typingctx, array, index):  # type: ignore[no-untyped-def]
    """The address, a uint32, of an element of an array in shared memory."""
    if element_type(array) is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return to_shared(builder, element_pointer(context, builder, sig.args[0], args[0], sig.args[1], args[1]))

    return types.uint32(array, index), codegen


def _cache_operator(size: int) -> str:
    return "cg" if size == 16 else "ca"  # 16 bytes may bypass the first-level cache, fewer may not


@intrinsic
def copy_async(typingctx, target, source, index, size):  # type: ignore[no-untyped-def]
    """Start to copy `size` bytes (4, 8 or 16, both sides aligned to it) from source[index] to shared memory."""
    n = int_literal(size)
    if n not in (4, 8, 16) or element_type(source) is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = to_global(builder, element_pointer(context, builder, sig.args[1], args[1], sig.args[2], args[2]))
        asm(builder, f"cp.async.{_cache_operator(n)}.shared.global [$0], [$1], {n};", [args[0], start], memory=True)
        return void(context)

    return types.void(types.uint32, source, index, size), codegen


@intrinsic
def copy_async_partial(typingctx, target, source, index, size, valid):  # type: ignore[no-untyped-def]
    """As `copy_async`, but only the first `valid` bytes (0 ... size) are read; the others become zero.

    With `valid` 0 the source is not touched at all, and may be any address.
    """
    n = int_literal(size)
    if n not in (4, 8, 16) or element_type(source) is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = to_global(builder, element_pointer(context, builder, sig.args[1], args[1], sig.args[2], args[2]))
        text = f"cp.async.{_cache_operator(n)}.shared.global [$0], [$1], {n}, $2;"
        asm(builder, text, [args[0], start, args[4]], memory=True)
        return void(context)

    return types.void(types.uint32, source, index, size, types.int32), codegen


def _define_plain(text: str, doc: str, *, collective: bool = False) -> Any:
    def plain(typingctx):  # type: ignore[no-untyped-def]
        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            asm(builder, text, collective=collective, memory=True)
            return void(context)

        return types.void(), codegen

    plain.__doc__ = doc
    return intrinsic(plain)


copy_commit = _define_plain(
    "cp.async.commit_group;", "End a group: the copies that this thread started since the last one."
)
fence_async = _define_plain(
    "fence.proxy.async.shared::cta;",
    "Order this thread's writes to shared memory before what tensor cores and tensor copies do with it (9.0).",
)


@intrinsic
def copy_wait(typingctx, newest):  # type: ignore[no-untyped-def]
    """Wait until all but the `newest` last groups of this thread have arrived; a block barrier must follow."""
    n = int_literal(newest)
    if n is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, f"cp.async.wait_group {n};", memory=True)
        return void(context)

    return types.void(newest), codegen


@intrinsic
def mbarrier_init(typingctx, barrier, arrivals):  # type: ignore[no-untyped-def]
    """Make a barrier whose phases complete after `arrivals` arrivals and all bytes that were announced."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, "mbarrier.init.shared::cta.b64 [$0], $1;", args, memory=True)
        return void(context)

    return types.void(types.uint32, types.uint32), codegen


@intrinsic
def mbarrier_arrive(typingctx, barrier):  # type: ignore[no-untyped-def]
    """Arrive once; what this thread did before is seen by those that wait for the phase."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, "mbarrier.arrive.shared::cta.b64 _, [$0];", args, memory=True)
        return void(context)

    return types.void(types.uint32), codegen


@intrinsic
def mbarrier_expect(typingctx, barrier, nbytes):  # type: ignore[no-untyped-def]
    """Arrive once and announce bytes: the phase completes when they have arrived."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", args, memory=True)
        return void(context)

    return types.void(types.uint32, types.uint32), codegen


@intrinsic
def mbarrier_wait(typingctx, barrier, parity):  # type: ignore[no-untyped-def]
    """Wait for the end of the phase with this parity: 0 for the first, then 1, 0, ...

    A barrier that was just made counts as having ended a phase of parity 1.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        loop, done = builder.append_basic_block("phase.wait"), builder.append_basic_block("phase.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        text = "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }"
        ended = asm(builder, text, args, [I32], memory=True)[0]
        builder.cbranch(builder.icmp_unsigned("!=", ended, ir.Constant(I32, 0)), done, loop)
        builder.position_at_end(done)
        return void(context)

    return types.void(types.uint32, types.uint32), codegen


@intrinsic
def bulk_copy(typingctx, target, source, index, nbytes, barrier):  # type: ignore[no-untyped-def]
    """Start to copy `nbytes` from source[index] to shared memory, all multiples of 16; the barrier counts them."""
    if element_type(source) is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = to_global(builder, element_pointer(context, builder, sig.args[1], args[1], sig.args[2], args[2]))
        text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
        asm(builder, text, [args[0], start, args[3], args[4]], memory=True)
        return void(context)

    return types.void(types.uint32, source, index, types.uint32, types.uint32), codegen


@intrinsic
def tensor_copy(typingctx, target, tensor_map, coordinates, barrier):  # type: ignore[no-untyped-def]
    """Start to copy the box at `coordinates` of a tensor map to shared memory; the barrier counts its bytes.

    `tensor_map` is the address of the map, 64-byte aligned, in a parameter by value; one that was written to global
    memory would need a fence.proxy.tensormap in every block.  `coordinates` are int32, the contiguous dimension first;
    they may lie outside of the tensor.  The shared tile is 128-byte aligned, 1024-byte where the map swizzles 128
    bytes.  All bytes of the box count, those past the tensor's ends too.
    """
    if not isinstance(coordinates, types.UniTuple) or not 1 <= len(coordinates) <= 5:
        return None
    rank = len(coordinates)
    point = types.UniTuple(types.int32, rank)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        places = ", ".join(f"${3 + axis}" for axis in range(rank))
        text = (
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            f"[$0], [$1, {{{places}}}], [$2];"
        )
        asm(builder, text, [args[0], args[1], args[3], *unpack(builder, args[2], sig.args[2])], memory=True)
        return void(context)

    return types.void(types.uint32, types.uint64, point, types.uint32), codegen


@intrinsic
def prefetch_tensor_map(typingctx, tensor_map):  # type: ignore[no-untyped-def]
    """Bring a tensor map's 128 bytes near before the first copy asks for them."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, "prefetch.tensormap [$0];", args, memory=True)
        return void(context)

    return types.void(types.uint64), codegen
