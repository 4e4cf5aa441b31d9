"""cp.async and its groups; the bulk forms are handed to bulk.py."""

import numpy as np

from .. import errors
from ..machine import Batch, Step
from ..operands import Context
from ..parse import Instruction
from ..registry import instruction
from . import bulk


@instruction("cp")
def _copy(context: Context, ins: Instruction) -> Step:
    words = ins.modifiers
    if words[0] != "async":
        raise errors.Unsupported(f"{ins.text}")
    if "bulk" in words:
        return bulk.build(context, ins)
    if "commit_group" in words:
        return lambda batch: batch.copies.commit(batch.lanes)
    if "wait_group" in words:
        keep = int(ins.operands[0])
        return lambda batch: batch.copies.wait(ins, batch.lanes, keep, False)
    if "wait_all" in words:
        return lambda batch: batch.copies.wait(ins, batch.lanes, 0, True)
    if "mbarrier" in words:
        raise errors.Unsupported("cp.async.mbarrier.arrive")
    nbytes = int(ins.operands[2])
    if nbytes not in (4, 8, 16) or ("cg" in words and nbytes != 16):
        raise errors.Unsupported(f"cp.async of {nbytes} bytes: {ins.text}")
    target, source = context.address(ins.operands[0]), context.address(ins.operands[1])
    valid = context.read(ins.operands[3], "u32") if len(ins.operands) > 3 and "L2::cache_hint" not in words else None

    def copy(batch: Batch) -> None:
        size = None if valid is None else np.minimum(batch.row(valid(batch)), nbytes).astype(np.int64)
        batch.copies.start(ins, batch.lanes, target(batch), source(batch), nbytes, size)

    return copy
