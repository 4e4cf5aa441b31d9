"""PTX instructions -> Python closures over NumPy arrays, once for each kernel.

An instruction class registers a builder: `@instruction("add", "sub")` on `build(context, ins) -> step`. The builder
reads types and operands once; the step that it returns runs for the active threads of a `Batch`, whichever those are:
operands are read as arrays with one entry for each of them, or as scalars where all have the same.
"""

from . import control, errors
from .dtypes import NUMPY, width
from .inline import inline_calls
from .machine import BasicBlock, Batch, Program, Step, Terminator
from .operands import Context, shared_layout, space_of
from .parse import Function, Instruction, Module, elements
from .registry import BUILDERS, COLLECTIVES


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
    blocks[len(body)] = BasicBlock([], control.leave(None, False))  # falling off the end returns
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
        terminator = control.terminator(context, last, stop)
    elif last.opcode in COLLECTIVES and not _plain(last):
        straight = []
        terminator = control.collective(context, last, _step(context, last), start, stop)
    lines = tuple(ins.line for ins in body[start:stop])
    return BasicBlock([_step(context, ins) for ins in straight], terminator, lines)


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
