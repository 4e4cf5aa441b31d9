"""ld, st, fences. Every load and store goes through the checks of access.py."""

import numpy as np

from .. import access, errors
from ..dtypes import NUMPY, UNSIGNED, Array, types_of, width
from ..inline import EXTERNAL, parameter_slot
from ..machine import Batch, Step
from ..operands import Context, space_of
from ..parse import Instruction, elements
from ..registry import instruction


def memory_operand(ins: Instruction, index: int) -> str:
    """The address operand, without a cache policy after it."""
    return ins.operands[index]


@instruction("ld", "ldu")
def _load(context: Context, ins: Instruction) -> Step:
    space = space_of(ins)
    if space == "param" and not ins.operands[1].startswith("[%"):
        return load_parameter(context, ins)
    kind = types_of(ins.modifiers)[-1]
    names = elements(ins.operands[0])
    puts = [context.write(name) for name in names]
    address = context.address(memory_operand(ins, 1))
    item, dtype = width(kind), NUMPY[kind]
    nbytes = item * len(names)
    acquires, polls = ins.has("acquire", "volatile", "relaxed"), ins.has("acquire")

    def load(batch: Batch) -> None:
        lanes = batch.lanes
        if acquires:
            acquire(batch, lanes)
            # what it waits for may be another's to do: let those run
            batch.wants_yield |= polls
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
    whole, releases = UNSIGNED[width(kind) * len(gets)], ins.has("release")

    def store(batch: Batch) -> None:
        lanes = batch.lanes
        if releases:
            release(batch, lanes)
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
    """The blocks of these lanes may from now on read what other blocks have released."""
    if batch.global_races is not None:
        batch.global_races.acquire(access.launch_threads(batch, lanes))


def release(batch: Batch, lanes: Array) -> None:
    """What the warps of these lanes know to be written is for blocks that acquire after this."""
    if batch.global_races is not None:
        batch.global_races.release(batch.clocks, access.launch_threads(batch, lanes), batch.first)


@instruction("fence", "membar")
def _fence(context: Context, ins: Instruction) -> Step:
    """Memory is sequentially consistent here; a fence is a release, the proxy fence is for mbarrier.py."""
    if ins.has("proxy"):

        def proxy(batch: Batch) -> None:
            batch.proxy_fences[batch.lanes] += 1

        return proxy
    return lambda batch: None if ins.has("cta") else release(batch, batch.lanes)


def load_parameter(context: Context, ins: Instruction) -> Step:
    """ld.param: of the kernel's parameter block, or of an inlined call."""
    kind = [m for m in ins.modifiers if m in NUMPY][-1]
    name, offset = parameter_slot(ins.operands[1])
    targets = [context.write(register) for register in elements(ins.operands[0])]
    item = width(kind)
    if name in context.parameters:
        start = context.parameters[name] + offset

        def load(batch: Batch) -> None:
            for index, put in enumerate(targets):
                at = start + index * item
                put(batch, batch.launch.parameters[at : at + item].view(NUMPY[kind])[0])

        return load
    readers = []
    for index in range(len(targets)):
        key = f"{name}+{offset + index * item}"
        readers.append(context.read(key if key in context.call_slots else name, kind))

    def move(batch: Batch) -> None:
        for put, get in zip(targets, readers, strict=True):
            put(batch, get(batch))

    return move


def store_parameter(context: Context, ins: Instruction) -> Step:
    """st.param: an argument or the result of an inlined call."""
    kind = [m for m in ins.modifiers if m in NUMPY][-1]
    name, offset = parameter_slot(ins.operands[0])
    moves = []
    for index, register in enumerate(elements(ins.operands[1])):
        moves.append((context.write(f"{name}+{offset + index * width(kind)}"), context.read(register, kind)))

    def store(batch: Batch) -> None:
        for put, get in moves:
            put(batch, get(batch))

    return store


@instruction(EXTERNAL)
def _external(context: Context, ins: Instruction) -> Step:
    name = ins.operands[0]

    def call(batch: Batch) -> None:
        if name not in ("vprintf", "printf"):
            batch.fail(errors.Unsupported, ins, int(batch.lanes[0]), f"call of {name}, which the PTX does not define")

    return call
