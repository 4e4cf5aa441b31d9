"""ld, st, fences. Every load and store goes through the checks of access.py."""

import numpy as np

from .. import access
from ..dtypes import NUMPY, UNSIGNED, Array, types_of, width
from ..machine import Batch, Step
from ..parse import Instruction, elements
from ..translate import Context, instruction, load_parameter, space_of, store_parameter


def memory_operand(ins: Instruction, index: int) -> str:
    """The address operand, without a cache policy or multicast mask after it."""
    return ins.operands[index]


@instruction("ld", "ldu")
def _load(context: Context, ins: Instruction) -> Step:
    space = space_of(ins)
    if space == "param":
        return load_parameter(context, ins)
    kind = types_of(ins.modifiers)[-1]
    names = elements(ins.operands[0])
    puts = [context.write(name) for name in names]
    address = context.address(memory_operand(ins, 1))
    item, dtype = width(kind), NUMPY[kind]
    nbytes = item * len(names)
    acquires = ins.has("acquire", "volatile", "relaxed")

    def load(batch: Batch) -> None:
        lanes = batch.lanes
        if acquires:
            acquire(batch, lanes)
        bits = access.load(batch, ins, space, lanes, address(batch), nbytes, item)
        values = bits.view(dtype)
        if len(puts) == 1:
            puts[0](batch, values)
            return
        values = values.reshape(-1, len(puts))
        for index, put in enumerate(puts):
            put(batch, values[:, index])

    return load


@instruction("st")
def _store(context: Context, ins: Instruction) -> Step:
    space = space_of(ins)
    if space == "param":
        return store_parameter(context, ins)
    kind = types_of(ins.modifiers)[-1]
    bits = f"b{8 * width(kind)}"
    gets = [context.read(name, bits) for name in elements(ins.operands[1])]
    address = context.address(memory_operand(ins, 0))
    whole = UNSIGNED[width(kind) * len(gets)]

    def store(batch: Batch) -> None:
        lanes = batch.lanes
        if len(gets) == 1:
            values: Array = batch.row(gets[0](batch))
        else:
            parts = np.empty((len(lanes), len(gets)), NUMPY[bits])
            for index, get in enumerate(gets):
                parts[:, index] = get(batch)
            values = parts.view(whole)[:, 0]
        access.store(batch, ins, space, lanes, address(batch), values)

    return store


def acquire(batch: Batch, lanes: Array) -> None:
    """The blocks of these lanes may from now on read what other blocks wrote."""
    if batch.global_races is not None:
        batch.global_races.acquired[np.unique(batch.block_of[lanes]) + batch.first] = True


@instruction("fence", "membar")
def _fence(context: Context, ins: Instruction) -> Step:
    """Memory is sequentially consistent here; only the proxy fence has something to check (see mbarrier.py)."""
    if ins.has("proxy"):

        def proxy(batch: Batch) -> None:
            batch.proxy_fences[batch.lanes] += 1

        return proxy
    return lambda batch: None
