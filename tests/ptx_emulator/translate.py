"""PTX instructions -> Python closures over NumPy arrays, once for each kernel.

An instruction class registers a builder: `@instruction("add", "sub")` on `build(context, ins) -> step`. The builder
reads types and operands once; the step that it returns runs for the active threads of a `Batch`, whichever those are:
operands are read as arrays with one entry for each of them, or as scalars where all have the same.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from . import errors
from .dtypes import FLOATS, NUMPY, SIGNED, UNSIGNED, Array, immediate, register_type, width
from .inline import EXTERNAL, call_parameters, inline_calls, parameter_slot
from .machine import BasicBlock, Batch, Program, SharedLayout, Step, Terminator
from .parse import Function, Instruction, Module, elements

Reader = Callable[[Batch], Any]
Writer = Callable[[Batch, Any], None]
Builder = Callable[["Context", Instruction], Step]

BUILDERS: dict[str, Builder] = {}
COLLECTIVES: dict[str, int] = {}  # opcode -> threads that run it together
SPACES = ("global", "shared", "local", "const", "param")
_WIDE_SPECIAL = ("%clock64", "%globaltimer", "%gridid")
_SHARED_GAP = 16  # bytes left unallocated after each shared variable


def instruction(*opcodes: str) -> Callable[[Builder], Builder]:
    """Register the builder of these opcodes."""

    def register(builder: Builder) -> Builder:
        for opcode in opcodes:
            if opcode in BUILDERS:
                raise ValueError(f"{opcode} has two builders")
            BUILDERS[opcode] = builder
        return builder

    return register


def collective(threads: int, *opcodes: str) -> Callable[[Builder], Builder]:
    """As `instruction`, for what whole warps or warpgroups execute together: the scheduler waits for all of them."""
    COLLECTIVES.update(dict.fromkeys(opcodes, threads))
    return instruction(*opcodes)


def space_of(ins: Instruction) -> str:
    """The state space among the modifiers: shared::cta counts as shared; "" is generic."""
    for word in ins.modifiers:
        if word.partition("::")[0] in SPACES:
            return word.partition("::")[0]
    return ""


class Context:
    """What a builder may ask: readers, writers and addresses of operands."""

    def __init__(self, function: Function, module: Module) -> None:
        self.function, self.module = function, module
        self.registers: list[str] = []
        self.number: dict[str, int] = {}
        self.special: dict[str, int] = {}
        self.slots: list[tuple[int, type[np.generic]]] = []
        self.slot_of: dict[tuple[int, type[np.generic]], int] = {}
        self.local_addresses, self.local_bytes = _local_layout(module)
        self.used: set[str] = set()
        self.constants = {n for n, v in module.variables.items() if v.space in ("global", "const")}
        self.shared_fixed = shared_layout(module, 0).addresses
        self.parameters = _parameter_layout(function)
        self.call_slots = call_parameters(function)
        for name, kind in function.registers.items():
            self._register(name, kind)
        for name, kind in self.call_slots.items():
            self._register(name, kind)

    def _register(self, name: str, kind: str) -> int:
        self.number[name] = len(self.registers)
        self.registers.append(kind)
        return self.number[name]

    def is_register(self, name: str) -> bool:
        return name in self.number

    def slot(self, name: str, kind: type[np.generic]) -> int:
        """The view of a register as a NumPy type of its own width."""
        key = (self.number[name], kind)
        if key not in self.slot_of:
            self.slot_of[key] = len(self.slots)
            self.slots.append(key)
        return self.slot_of[key]

    def raw(self, name: str) -> int:
        return self.slot(name, register_type(self.registers[self.number[name]]))

    # ------------------------------------------------------------------ operands
    def read(self, operand: str, kind: str) -> Reader:
        """A reader of the operand as PTX type `kind`; a wider register gives its low bits."""
        if operand.startswith("!"):
            inner = self.read(operand[1:], kind)
            return lambda batch: ~inner(batch)
        if operand.startswith("-") and self.is_register(operand[1:]):
            inner = self.read(operand[1:], kind)
            return lambda batch: -inner(batch)
        if operand.startswith("%") and operand not in self.number:
            self._special(operand)
        if operand in self.number:
            return self._read_register(operand, kind)
        constant = immediate(operand, kind)
        if constant is not None:
            return lambda batch: constant
        if operand == "WARP_SZ":
            warp = NUMPY[kind](32)  # type: ignore[call-arg]
            return lambda batch: warp
        return self._read_address(operand, kind)

    def _special(self, operand: str) -> None:
        self.special[operand] = self._register(operand, "u64" if operand in _WIDE_SPECIAL else "u32")

    def _read_register(self, name: str, kind: str) -> Reader:
        own = self.registers[self.number[name]]
        target = NUMPY[kind]
        if own == "pred" or kind == "pred":
            if own != kind:
                raise errors.Unsupported(f"{name} of type {own} read as {kind}")
            slot = self.slot(name, np.bool_)
            return lambda batch: batch.values[slot][batch.active]
        if width(own) == width(kind):
            slot = self.slot(name, target)
            return lambda batch: batch.values[slot][batch.active]
        slot = self.raw(name)
        bits = UNSIGNED[width(kind)]
        return lambda batch: batch.values[slot][batch.active].astype(bits).view(target)

    def _read_address(self, operand: str, kind: str) -> Reader:
        name, _, offset = operand.replace(" ", "").partition("+")
        add, numpy_type = int(offset or 0), NUMPY[kind]
        for table in (self.local_addresses, self.shared_fixed):
            if name in table:
                constant = numpy_type(table[name] + add)  # type: ignore[call-arg]
                return lambda batch: constant
        if name in self.constants:
            self.used.add(name)
            return lambda batch: numpy_type(batch.launch.variables[name] + add)  # type: ignore[call-arg]
        raise errors.Unsupported(f"operand {operand}")

    def write(self, operand: str, signed: bool = False) -> Writer:
        """A writer of a register. A narrower integer is extended as its NumPy type says, a wider one is cut."""
        if operand == "_":
            return lambda batch, value: None
        if operand not in self.number:
            raise errors.Unsupported(f"destination {operand}")
        own = self.registers[self.number[operand]]
        if own == "pred":
            slot = self.slot(operand, np.bool_)
        else:
            slot = self.raw(operand)
            views = {}
            for kind in {NUMPY[own], SIGNED.get(width(own)), *(NUMPY[f] for f in FLOATS if width(f) == width(own))}:
                if kind is not None:
                    views[np.dtype(kind)] = self.slot(operand, kind)
            return _register_writer(slot, views, np.dtype(register_type(own)))

        def put(batch: Batch, value: Any) -> None:
            batch.values[slot][batch.active] = value

        return put

    def address(self, operand: str) -> Reader:
        """The byte address of "[%rd1+16]" for each active thread, as int64."""
        text = operand[1:-1].replace(" ", "")
        match = re.fullmatch(r"(.*?)\+?(-?\d+)", text) if "+" in text else None
        base, offset = (match.group(1), int(match.group(2))) if match else (text, 0)
        if self.is_register(base):
            kind = "s64" if width(self.registers[self.number[base]]) == 8 else "u32"
            inner = self.read(base, kind)
            if kind == "s64":
                return lambda batch: inner(batch) + offset if offset else inner(batch)
            return lambda batch: inner(batch).astype(np.int64) + offset
        value = self.read(base, "s64")
        return lambda batch: np.full(len(batch.lanes), int(value(batch)) + offset, np.int64)

    def constant(self, operand: str) -> int | None:
        value = immediate(operand, "s64")
        return None if value is None else int(value)


def _register_writer(slot: int, views: dict[Any, int], bits: Any) -> Writer:
    def put(batch: Batch, value: Any) -> None:
        kind = value.dtype if isinstance(value, (np.ndarray, np.generic)) else None
        view = views.get(kind)
        if view is None:
            # another width: signed values extend their sign, the others zeros; floats must match
            view = views.get(np.dtype(f"i{bits.itemsize}"), slot) if kind is not None and kind.kind == "i" else slot
            if kind is not None and kind.kind == "f":
                raise TypeError(f"a {kind} result for a register of {bits.itemsize} bytes")
        batch.values[view][batch.active] = value

    return put


# ---------------------------------------------------------------------- layouts
def _local_layout(module: Module) -> tuple[dict[str, int], int]:
    addresses, top = {}, 0
    for variable in module.variables.values():
        if variable.space == "local":
            top = -(-top // max(variable.align, 16)) * max(variable.align, 16)
            addresses[variable.name] = top
            top += variable.nbytes
    return addresses, top


def shared_layout(module: Module, dynamic: int) -> SharedLayout:
    """Static variables in order, each followed by a gap, then the dynamic one."""
    addresses, top, spans = {}, 0, []
    variables = [v for v in module.variables.values() if v.space == "shared"]
    for variable in variables:
        if variable.nbytes:
            top = -(-top // variable.align) * variable.align
            addresses[variable.name] = top
            spans.append((top, variable.nbytes))
            top += variable.nbytes + _SHARED_GAP
    open_ended = [v for v in variables if not v.nbytes]
    if open_ended:
        align = max(16, *(v.align for v in open_ended))
        top = -(-top // align) * align
        addresses |= {v.name: top for v in open_ended}
        spans.append((top, dynamic))
        top += dynamic
    valid = np.zeros(-(-top // 16) * 16, np.bool_)
    for start, nbytes in spans:
        valid[start : start + nbytes] = True
    return SharedLayout(addresses, len(valid), valid)


def _parameter_layout(function: Function) -> dict[str, int]:
    """Offsets in the parameter block."""
    offsets, top = {}, 0
    for parameter in function.parameters:
        top = -(-top // parameter.align) * parameter.align
        offsets[parameter.name] = top
        top += parameter.nbytes
    return offsets


def _granule(function: Function, spaces: tuple[str, ...]) -> int:
    """The widest unit of memory that every access covers whole."""
    least = 16
    for ins in function.instructions:
        if ins.opcode in ("ld", "st", "atom", "red", "ldu") and space_of(ins) in spaces:
            count = max(len(elements(operand)) for operand in ins.operands if operand.startswith(("{", "%", "["))) or 1
            least = min(least, width([m for m in ins.modifiers if m in NUMPY][-1]) * count)
        elif (
            ins.opcode == "cp" and ins.modifiers[0] == "async" and len(ins.operands) > 2 and "bulk" not in ins.modifiers
        ):
            least = min(least, int(ins.operands[2]))
        elif ins.opcode == "mbarrier":
            least = min(least, 8)
    return least


# ---------------------------------------------------------------------- control flow
def translate(module: Module, entry: str | None = None) -> Program:
    """Translate one kernel of a module."""
    from . import instructions  # noqa: F401  registers every builder

    inline_calls(module)
    function = module.entry(entry)
    context = Context(function, module)
    body = function.instructions
    leaders = {0, *function.labels.values()}
    for index, ins in enumerate(body):
        if _ends_block(ins):
            leaders.add(index + 1)
        if ins.opcode in COLLECTIVES and not _plain(ins):
            leaders |= {index, index + 1}
    starts = sorted(leader for leader in leaders if leader < len(body))
    blocks = {}
    for start, stop in zip(starts, [*starts[1:], len(body)], strict=True):
        blocks[start] = _basic_block(context, body, start, stop)
    blocks[len(body)] = BasicBlock([], _return(None, False))  # falling off the end returns
    return Program(
        name=function.name,
        blocks=blocks,
        registers=context.registers,
        slots=context.slots,
        special=context.special,
        shared_layout=lambda dynamic: shared_layout(module, dynamic),
        variables=frozenset(context.used),
        local_bytes=context.local_bytes,
        granule=_granule(function, ("shared", "")),
        global_granule=min(4, _granule(function, ("global", ""))),
        instructions=body,
    )


def _plain(ins: Instruction) -> bool:
    """Forms of collective opcodes that a thread executes by itself."""
    return ins.opcode == "wgmma" and ins.modifiers[0] != "mma_async"


def _ends_block(ins: Instruction) -> bool:
    return ins.opcode in ("bra", "brx", "ret", "exit", "bar", "barrier")


def _basic_block(context: Context, body: list[Instruction], start: int, stop: int) -> BasicBlock:
    last = body[stop - 1]
    following = stop

    def go_on(batch: Batch) -> int:
        return following

    terminator: Terminator = go_on
    straight = body[start:stop]
    if _ends_block(last):
        straight = body[start : stop - 1]
        terminator = _terminator(context, last, stop)
    elif last.opcode in COLLECTIVES and not _plain(last):
        straight = []
        terminator = _collective(context, last, start, stop)
    return BasicBlock([_step(context, ins) for ins in straight], terminator)


def _step(context: Context, ins: Instruction) -> Step:
    """The closure of one instruction, under its predicate."""
    try:
        builder = BUILDERS.get(ins.opcode)
        if builder is None:
            raise errors.Unsupported(f"instruction {ins.opcode}")
        step = builder(context, ins)
    except errors.Unsupported as error:
        reason = str(error)

        def refuse(batch: Batch) -> None:  # only if it is ever executed
            batch.fail(errors.Unsupported, ins, int(batch.lanes[0]), f"not modelled: {reason}")

        step = refuse
    if ins.guard is None:
        return step
    predicate, negated = context.read(ins.guard, "pred"), ins.negated

    def guarded(batch: Batch) -> None:
        chosen = predicate(batch) != negated
        if chosen.all():
            step(batch)
        elif chosen.any():
            saved = batch.active
            batch.active = batch.lanes[chosen]
            step(batch)
            batch.active = saved

    return guarded


def _terminator(context: Context, ins: Instruction, following: int) -> Terminator:
    predicate = context.read(ins.guard, "pred") if ins.guard else None
    if ins.opcode == "bra":
        return _branch(predicate, ins.negated, context.function.labels[ins.operands[0]], following)
    if ins.opcode in ("ret", "exit"):
        return _return(predicate, ins.negated, following)
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


def _return(predicate: Reader | None, negated: bool, following: int = 0) -> Terminator:
    def leave(batch: Batch) -> None:
        lanes = batch.lanes
        if predicate is not None:
            gone = predicate(batch) != negated
            batch.enqueue(following, lanes[~gone])
            lanes = lanes[gone]
        if len(lanes):
            batch.exit(lanes)

    return leave


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


# ---------------------------------------------------------------------- collectives
_MEMBER_MASK = {"shfl": -1, "vote": -1, "match": -1, "redux": -1, "elect": -1, "bar.warp": -1}


def _collective(context: Context, ins: Instruction, pc: int, following: int) -> Terminator:
    """Run the instruction for the warps (or warpgroups) of which every thread that it names stands here."""
    step = _step(context, ins)
    size = COLLECTIVES[ins.opcode]
    mask = context.read(ins.operands[_MEMBER_MASK[ins.opcode]], "u32") if ins.opcode in _MEMBER_MASK else None
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
    if batch.padded % size:
        return np.zeros(len(lanes), np.bool_)
    return np.bincount(lanes // size, minlength=batch.threads // size)[lanes // size] == size


@instruction(EXTERNAL)
def _external(context: Context, ins: Instruction) -> Step:
    name = ins.operands[0]

    def call(batch: Batch) -> None:
        if name not in ("vprintf", "printf"):
            batch.fail(errors.Unsupported, ins, int(batch.lanes[0]), f"call of {name}, which the PTX does not define")

    return call


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
