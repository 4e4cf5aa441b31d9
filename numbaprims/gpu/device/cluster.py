"""Clusters (9.0): blocks on neighbouring multiprocessors that reach one another's shared memory and barriers.

A copy that all of them need is read once from the second-level cache and written into each one's shared memory
(multicast).  An address of shared memory means the same place in each block; what is done in another one's is said by
its rank.
"""

from __future__ import annotations

from numbaprims.gpu.device.emit import I16, I32, asm, intrinsic, types, unpack, void


@intrinsic
def cluster_rank(typingctx):  # type: ignore[no-untyped-def]
    """The number of this block in its cluster, uint32."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return asm(builder, "mov.u32 $0, %cluster_ctarank;", [], [I32])[0]

    return types.uint32(), codegen


@intrinsic
def cluster_barrier(typingctx):  # type: ignore[no-untyped-def]
    """Wait for all threads of the cluster.

    Once after the barriers are made, before another block uses them, and once at the end: shared memory that others
    still write or arrive at must not go.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, "fence.mbarrier_init.release.cluster;", memory=True)
        asm(builder, "barrier.cluster.arrive;", collective=True, memory=True)
        asm(builder, "barrier.cluster.wait;", collective=True, memory=True)
        return void(context)

    return types.void(), codegen


@intrinsic
def mbarrier_arrive_at(typingctx, barrier, rank):  # type: ignore[no-untyped-def]
    """Arrive once at the barrier of another block of the cluster (or of this one), at the same address."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        text = (
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
            "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        )
        asm(builder, text, args, memory=True)
        return void(context)

    return types.void(types.uint32, types.uint32), codegen


@intrinsic
def tensor_multicast(typingctx, target, tensor_map, coordinates, barrier, blocks):  # type: ignore[no-untyped-def]
    """As `copy.tensor_copy`, into the same place of several blocks, and to the barrier of each: one bit for a rank."""
    if not isinstance(coordinates, types.UniTuple) or not 1 <= len(coordinates) <= 5:
        return None
    rank = len(coordinates)
    point = types.UniTuple(types.int32, rank)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        places = ", ".join(f"${4 + axis}" for axis in range(rank))
        text = (
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            f".multicast::cluster [$0], [$1, {{{places}}}], [$2], $3;"
        )
        mask = builder.trunc(args[4], I16)
        inputs = [args[0], args[1], args[3], mask, *unpack(builder, args[2], sig.args[2])]
        asm(builder, text, inputs, memory=True)
        return void(context)

    return types.void(types.uint32, types.uint64, point, types.uint32, types.uint32), codegen
