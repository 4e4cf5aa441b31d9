"""Where a basic block ends: branches, returns, barriers, and instructions that warps execute together."""

import numpy as np

from . import errors
from .dtypes import Array
from .machine import Batch, Step, Terminator
from .operands import Context, Reader
from .parse import Instruction
from .registry import COLLECTIVES

_MEMBER_MASK = ("shfl", "vote", "match", "redux", "elect", "bar.warp")  # their last operand names the lanes


def terminator(context: Context, ins: Instruction, following: int) -> Terminator:
    predicate = context.read(ins.guard, "pred") if ins.guard else None
    if ins.opcode == "bra":
        return _branch(predicate, ins.negated, context.function.labels[ins.operands[0]], following)
    if ins.opcode in ("ret", "exit"):
        return leave(predicate, ins.negated, following)
    if ins.opcode == "brx":
        return _branch_table(context, ins)
    if predicate is not None:
        raise errors.Unsupported(f"a predicated barrier: {ins.text}")
    return _barrier(context, ins, following)


def _branch(predicate: Reader | None, negated: bool, target: int, following: int) -> Terminator:
    if predicate is None:
        return lambda batch: target
    test = predicate

    def branch(batch: Batch) -> int | None:
        taken = test(batch) != negated
        count = int(np.count_nonzero(taken))
        if count == len(taken):
            return target
        if count == 0:
            return following
        lanes = batch.lanes
        batch.enqueue(target, lanes[taken])
        batch.enqueue(following, lanes[~taken])
        return None

    return branch


def _branch_table(context: Context, ins: Instruction) -> Terminator:
    index = context.read(ins.operands[0], "u32")
    targets = np.array([context.function.labels[name] for name in context.function.tables[ins.operands[1]]])

    def branch(batch: Batch) -> None:
        lanes, goal = batch.lanes, targets[batch.row(index(batch))]
        for target in np.unique(goal):
            batch.enqueue(int(target), lanes[goal == target])

    return branch


def leave(predicate: Reader | None, negated: bool, following: int = 0) -> Terminator:
    def go(batch: Batch) -> None:
        lanes = batch.lanes
        if predicate is not None:
            gone = predicate(batch) != negated
            batch.enqueue(following, lanes[~gone])
            lanes = lanes[gone]
        if len(lanes):
            batch.exit(lanes)

    return go


def _barrier(context: Context, ins: Instruction, following: int) -> Terminator:
    words = [word for word in ins.modifiers if word not in ("cta", "aligned")]
    operands = list(ins.operands)
    if words and words[0] == "red":
        operation = {
            "popc": lambda v: np.uint32(np.count_nonzero(v)),
            "and": lambda v: np.bool_(v.all()),
            "or": lambda v: np.bool_(v.any()),
        }[words[1]]
        reduction = (operation, context.write(operands.pop(0)))
        value = context.read(operands.pop(), "pred")
        number, expected = _barrier_operands(context, operands)

        def reduce(batch: Batch) -> None:
            batch.barriers.arrive(
                ins, batch.row(number(batch)), _uniform(expected, batch), following, True, reduction,
                batch.row(value(batch)).copy(),
            )  # fmt: skip

        return reduce
    number, expected = _barrier_operands(context, operands)
    waits = "arrive" not in words
    simple = waits and len(operands) == 1 and context.constant(operands[0]) is not None

    def arrive(batch: Batch) -> int | None:
        if simple and (next_pc := batch.barriers.everybody(ins, following)) is not None:
            return next_pc
        batch.barriers.arrive(ins, batch.row(number(batch)), _uniform(expected, batch), following, waits)
        return None

    return arrive


def _barrier_operands(context: Context, operands: list[str]) -> tuple[Reader, Reader | None]:
    number = context.read(operands[0], "u32")
    return number, context.read(operands[1], "u32") if len(operands) > 1 else None


def _uniform(reader: Reader | None, batch: Batch) -> int | None:
    return None if reader is None else int(np.ravel(reader(batch))[0])


def collective(context: Context, ins: Instruction, step: Step, pc: int, following: int) -> Terminator:
    """Run the instruction for the warps (or warpgroups) of which every thread that it names stands here."""
    size = COLLECTIVES[ins.opcode]
    mask = context.read(ins.operands[-1], "u32") if ins.opcode in _MEMBER_MASK else None
    guard = context.read(ins.guard, "pred") if ins.guard else None

    def arrive(batch: Batch) -> int | None:
        lanes = batch.lanes
        if guard is not None and not (guard(batch) != ins.negated).all():
            # where only some execute it, the others pass by
            executes = guard(batch) != ins.negated
            batch.enqueue(following, lanes[~executes])
            if executes.any():
                batch.activate(lanes[executes])
                result = arrive(batch)
                if result is not None:
                    batch.enqueue(result, batch.lanes)
            return None
        members = None if mask is None else batch.row(mask(batch))
        if members is not None:
            outside = (members >> (lanes & 31).astype(np.uint32)) & np.uint32(1) == 0
            if outside.any():
                batch.fail(errors.Divergence, ins, lanes[outside][0], "a lane that is not in its own member mask")
        if len(lanes) == batch.threads and batch.full and size == 32:
            step(batch)
            return following
        complete = _complete(batch, lanes, members, size)
        if complete.all():
            step(batch)
            return following
        if complete.any():
            batch.activate(lanes[complete])
            step(batch)
            batch.enqueue(following, lanes[complete])
        batch.wait_for_lanes(pc, lanes[~complete])
        return None

    return arrive


def _complete(batch: Batch, lanes: Array, members: Array | None, size: int) -> Array:
    """Which of the lanes have all the threads that they need beside them."""
    if size == 32:
        present = np.zeros(batch.threads >> 5, np.uint32)
        np.bitwise_or.at(present, lanes >> 5, np.uint32(1) << (lanes & 31).astype(np.uint32))
        if members is None:
            members = np.full(len(lanes), 0xFFFFFFFF, np.uint32)
        exists = np.zeros(batch.threads >> 5, np.uint32)  # a block's last warp may be short
        threads = np.flatnonzero(batch.thread < batch.block_threads)
        np.bitwise_or.at(exists, threads >> 5, np.uint32(1) << (threads & 31).astype(np.uint32))
        return members & exists[lanes >> 5] & ~present[lanes >> 5] == 0
    group = batch.warpgroup(lanes)  # a block's last one may be short
    return np.bincount(group)[group] == size
