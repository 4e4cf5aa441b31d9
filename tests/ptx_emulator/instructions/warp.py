"""What the lanes of a warp do together: shfl, vote, match, redux, elect, activemask, syncwarp."""

from typing import Any

import numpy as np

from .. import errors
from ..dtypes import NUMPY, Array, types_of
from ..machine import Batch, Step
from ..operands import Context
from ..parse import Instruction
from ..registry import collective, instruction

_REDUCE: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def lane_mask(batch: Batch, lanes: Array) -> Array:
    """For each warp of the batch, the bits of those of the given lanes that lie in it."""
    masks = np.zeros(batch.threads >> 5, np.uint32)
    np.bitwise_or.at(masks, lanes >> 5, np.uint32(1) << (lanes & 31).astype(np.uint32))
    return masks


@collective(32, "shfl")
def _shuffle(context: Context, ins: Instruction) -> Step:
    mode = ins.modifiers[1]
    targets = ins.operands[0].split("|")
    put = context.write(targets[0])
    put_valid = context.write(targets[1]) if len(targets) > 1 else None
    get = context.read(ins.operands[1], "b32")
    offset, clamp = (context.read(operand, "u32") for operand in ins.operands[2:4])

    def shuffle(batch: Batch) -> None:
        lanes = batch.lanes
        lane = lanes & 31
        b = batch.row(offset(batch)).astype(np.int64) & 31
        c = batch.row(clamp(batch)).astype(np.int64)
        segment, limit = (c >> 8) & 31, c & 31
        last = (lane & segment) | (limit & ~segment)
        source = {
            "up": lane - b,
            "down": lane + b,
            "bfly": lane ^ b,
            "idx": (lane & segment) | (b & ~segment),
        }[mode]
        valid = source >= last if mode == "up" else source <= last
        source = (lanes & ~31) + np.where(valid, source, lane)
        values = np.zeros(batch.threads, np.uint32)
        values[lanes] = get(batch)
        absent = np.ones(batch.threads, np.bool_)
        absent[lanes] = False
        if absent[source].any():
            at = int(np.flatnonzero(absent[source])[0])
            batch.fail(
                errors.Divergence, ins, lanes[at],
                f"shfl reads lane {int(source[at]) & 31}, which does not take part",
            )  # fmt: skip
        put(batch, values[source])
        if put_valid is not None:
            put_valid(batch, valid)

    return shuffle


@collective(32, "vote")
def _vote(context: Context, ins: Instruction) -> Step:
    mode = ins.modifiers[1]
    get, mask = context.read(ins.operands[1], "pred"), context.read(ins.operands[2], "u32")
    put = context.write(ins.operands[0])

    def vote(batch: Batch) -> None:
        lanes = batch.lanes
        members = batch.row(mask(batch))
        ballot = lane_mask(batch, lanes[batch.row(get(batch))])[lanes >> 5] & members
        present = lane_mask(batch, lanes)[lanes >> 5] & members
        results = {
            "ballot": lambda: ballot,
            "all": lambda: ballot == present,
            "any": lambda: ballot != 0,
            "uni": lambda: (ballot == 0) | (ballot == present),
        }
        put(batch, results[mode]())

    return vote


@instruction("activemask")
def _active_mask(context: Context, ins: Instruction) -> Step:
    put = context.write(ins.operands[0])
    return lambda batch: put(batch, lane_mask(batch, batch.lanes)[batch.lanes >> 5])


@collective(32, "match")
def _match(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    targets = ins.operands[0].split("|")
    put, get = context.write(targets[0]), context.read(ins.operands[1], kind)
    put_all = context.write(targets[1]) if len(targets) > 1 else None

    def match(batch: Batch) -> None:
        lanes = batch.lanes
        values = batch.row(get(batch))
        result = np.zeros(len(lanes), np.uint32)
        for warp in np.unique(lanes >> 5):
            mine = np.flatnonzero(lanes >> 5 == warp)
            equal = values[mine][:, None] == values[mine]
            result[mine] = (equal * (np.uint64(1) << (lanes[mine] & 31).astype(np.uint64))).sum(1).astype(np.uint32)
        if ins.has("all"):
            everyone = result == lane_mask(batch, lanes)[lanes >> 5]
            put(batch, np.where(everyone, result, np.uint32(0)))
            if put_all is not None:
                put_all(batch, everyone)
        else:
            put(batch, result)

    return match


@collective(32, "redux")
def _reduce(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    ufunc = _REDUCE[next(word for word in ins.modifiers if word in _REDUCE)]
    put, get = context.write(ins.operands[0]), context.read(ins.operands[1], kind)

    def reduce(batch: Batch) -> None:
        lanes = batch.lanes
        values = batch.row(get(batch))
        result = np.zeros(len(lanes), NUMPY[kind])
        for warp in np.unique(lanes >> 5):
            mine = lanes >> 5 == warp
            result[mine] = ufunc.reduce(values[mine], dtype=NUMPY[kind])
        put(batch, result)

    return reduce


@collective(32, "elect")
def _elect(context: Context, ins: Instruction) -> Step:
    """The lowest lane wins."""
    targets = ins.operands[0].split("|")
    put_lane, put = context.write(targets[0]), context.write(targets[1])

    def elect(batch: Batch) -> None:
        lanes = batch.lanes
        _, first, inverse = np.unique(lanes >> 5, return_index=True, return_inverse=True)
        leader = lanes[first][inverse]
        put_lane(batch, (leader & 31).astype(np.uint32))
        put(batch, leader == lanes)

    return elect


@collective(32, "bar.warp")
def _sync_warp(context: Context, ins: Instruction) -> Step:
    def synchronise(batch: Batch) -> None:
        warps = np.unique(batch.lanes >> 5)
        batch.clocks.step(warps // batch.clocks.warps, warps % batch.clocks.warps)

    return synchronise
