"""atom and red on global and shared memory. Lanes that meet at one address take turns in the order of their numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import access, errors
from ..dtypes import NUMPY, Array, types_of, width
from ..machine import Batch, Step
from ..memory import READY, SHARED_WINDOW
from ..operands import Context, space_of
from ..parse import Instruction
from ..registry import instruction
from .memory import acquire, release

_UFUNCS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
_ONE_BY_ONE: dict[str, Callable[..., Any]] = {
    "exch": lambda old, value: value,
    "inc": lambda old, limit: 0 if old >= limit else old + 1,
    "dec": lambda old, limit: limit if old == 0 or old > limit else old - 1,
    "cas": lambda old, expected, new: new if old == expected else old,
}


@instruction("atom", "red")
def _atomic(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    operation = next(word for word in ins.modifiers if word in _UFUNCS or word in _ONE_BY_ONE)
    if kind in ("f16x2", "bf16", "bf16x2", "b128"):
        raise errors.Unsupported(f"atomics of {kind}")
    operands = list(ins.operands)
    put = context.write(operands.pop(0)) if ins.opcode == "atom" else None
    address = context.address(operands.pop(0))
    gets = [context.read(operand, kind) for operand in operands if not operand.startswith("%policy")]
    space, nbytes, dtype = space_of(ins), width(kind), NUMPY[kind]

    def run(batch: Batch) -> None:
        lanes, where = batch.lanes, address(batch)
        view, index = _locate(batch, ins, space, lanes, where, nbytes, dtype)
        values = [batch.row(get(batch)) for get in gets]
        old = _apply(operation, view, index, values)
        if put is not None:
            put(batch, old)

    return run


def _locate(
    batch: Batch, ins: Instruction, space: str, lanes: Array, address: Array, nbytes: int, dtype: Any
) -> tuple[Array, Array]:
    """The typed memory and the index of each lane in it, after the checks."""
    if space == "" and int(address[0]) < SHARED_WINDOW * 2 and int(address[0]) >= SHARED_WINDOW:
        space, address = "shared", address - SHARED_WINDOW
    if space == "shared":
        offsets = access.shared_offsets(batch, ins, lanes, address, nbytes, "atomic")
        granules = access.shared_granules(batch, offsets, nbytes)
        access.check_shared_state(batch, ins, lanes, granules, True, "atomic")
        if batch.shared_races is not None:
            conflict = batch.shared_races.write(granules, lanes, atomic=True)
            if conflict is not None:
                access.report_race(batch, ins, lanes, conflict, "atomic", "shared")
        return batch.shared.bytes.view(dtype), offsets // nbytes
    offsets, ready = access.global_offsets(batch, ins, lanes, address, nbytes, "atomic")
    if not ready and batch.checks.uninitialised and (batch.memory.state[offsets] != READY).any():
        at = int(np.flatnonzero(batch.memory.state[offsets] != READY)[0])
        batch.fail(errors.UninitialisedRead, ins, lanes[at], "atomic on uninitialised global memory")
    release(batch, lanes)
    if ins.opcode == "atom":  # red sees nothing
        acquire(batch, lanes)
    batch.idle_yields = 0
    return batch.memory.bytes.view(dtype), offsets // nbytes


def _apply(operation: str, view: Array, index: Array, values: list[Array]) -> Array:
    """Change memory; give what each lane found there."""
    alone = len(np.unique(index)) == len(index)
    if operation in _UFUNCS and alone:
        old: Array = view[index]
        view[index] = _UFUNCS[operation](old, values[0])
        return old
    old = np.empty(len(index), view.dtype)
    function = _UFUNCS.get(operation) or _ONE_BY_ONE[operation]
    for lane, place in enumerate(index):
        old[lane] = view[place]
        view[place] = function(view[place], *(value[lane] for value in values))
    return old
