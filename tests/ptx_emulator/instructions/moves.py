"""Moves, selections, comparisons, predicates, and what has no effect here."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import errors
from ..dtypes import FLOATS, NUMPY, UNSIGNED, bf16_to_f32, types_of, width
from ..machine import Batch, Step
from ..memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ..operands import Context, space_of
from ..parse import Instruction, elements
from ..registry import instruction

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BOOLEAN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def compare(name: str, a: Any, b: Any, is_float: bool) -> Any:
    """`lt` is false for a NaN, `ltu` true; `ne` of floats is false for a NaN too, unlike C's."""
    if not is_float:
        return _COMPARE[name](a, b)
    if name in ("num", "nan"):
        unordered = np.isnan(a) | np.isnan(b)
        return unordered if name == "nan" else ~unordered
    if name == "ne":
        return np.not_equal(a, b) & ~(np.isnan(a) | np.isnan(b))
    if name in _COMPARE:
        return _COMPARE[name](a, b)
    return _COMPARE[name[:-1]](a, b) | np.isnan(a) | np.isnan(b)


@instruction("mov")
def _move(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    target, source = ins.operands
    if target.startswith("{"):
        return _unpack(context, kind, target, source)
    if source.startswith("{"):
        return _pack(context, kind, target, source)
    get, put = context.read(source, kind), context.write(target)
    return lambda batch: put(batch, get(batch))


def _unpack(context: Context, kind: str, target: str, source: str) -> Step:
    names = elements(target)
    part = UNSIGNED[width(kind) // len(names)]
    puts = [context.write(name) for name in names]
    get = context.read(source, f"b{8 * width(kind)}")

    def unpack(batch: Batch) -> None:
        whole = np.ascontiguousarray(batch.row(get(batch))).copy()
        pieces = whole.view(part).reshape(-1, len(puts))
        for index, put in enumerate(puts):
            put(batch, pieces[:, index])

    return unpack


def _pack(context: Context, kind: str, target: str, source: str) -> Step:
    names = elements(source)
    bits = 8 * width(kind) // len(names)
    whole, part = UNSIGNED[width(kind)], UNSIGNED[bits // 8]
    gets = [context.read(name, f"b{bits}") for name in names]
    put = context.write(target)

    def pack(batch: Batch) -> None:
        pieces = np.empty((len(batch.lanes), len(gets)), part)
        for index, get in enumerate(gets):
            pieces[:, index] = get(batch)
        put(batch, pieces.view(whole)[:, 0])

    return pack


_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}


@instruction("cvta")
def _to_generic(context: Context, ins: Instruction) -> Step:
    base = np.uint64(_WINDOWS.get(space_of(ins), 0))
    kind = types_of(ins.modifiers)[-1]
    get, put = context.read(ins.operands[1], "u64" if kind == "u64" else "u32"), context.write(ins.operands[0])
    if ins.has("to"):
        return lambda batch: put(batch, np.asarray(get(batch)).astype(np.uint64) - base)
    return lambda batch: put(batch, np.asarray(get(batch)).astype(np.uint64) + base)


@instruction("isspacep")
def _is_space(context: Context, ins: Instruction) -> Step:
    get, put = context.read(ins.operands[1], "u64"), context.write(ins.operands[0])
    window = _WINDOWS.get(space_of(ins))

    def test(batch: Batch) -> None:
        address = get(batch)
        if window is None:
            put(batch, address >= np.uint64(PARAM_WINDOW + WINDOW_BYTES))
        else:
            put(batch, (address >= np.uint64(window)) & (address < np.uint64(window + WINDOW_BYTES)))

    return test


@instruction("setp", "set")
def _set_predicate(context: Context, ins: Instruction) -> Step:
    kinds = types_of(ins.modifiers)
    kind, test = kinds[-1], ins.modifiers[0]
    if kind in ("f16x2", "bf16x2"):
        raise errors.Unsupported(f"comparison of {kind}")
    is_float = kind in FLOATS or kind == "bf16"
    first, second = (context.read(operand, kind) for operand in ins.operands[1:3])
    combine = _BOOLEAN[ins.modifiers[1]] if len(ins.operands) > 3 else None
    third = context.read(ins.operands[3], "pred") if combine else None
    targets = ins.operands[0].split("|")
    put = context.write(targets[0])
    put_not = context.write(targets[1]) if len(targets) > 1 else None

    def compute(batch: Batch) -> Any:
        a, b = first(batch), second(batch)
        if kind == "bf16":
            a, b = bf16_to_f32(a), bf16_to_f32(b)
        return compare(test, a, b, is_float)

    if ins.opcode == "set":
        yes = NUMPY[kinds[0]](1.0) if kinds[0] in FLOATS else np.array(-1).astype(NUMPY[kinds[0]])[()]
        no = NUMPY[kinds[0]](0)

        def store(batch: Batch) -> None:
            result = compute(batch)
            put(batch, np.where(combine(result, third(batch)) if combine and third else result, yes, no))

        return store

    def decide(batch: Batch) -> None:
        result = compute(batch)
        if combine and third:
            other = third(batch)
            if put_not:
                put_not(batch, combine(~np.asarray(result), other))
            put(batch, combine(result, other))
            return
        if put_not:
            put_not(batch, ~np.asarray(result))
        put(batch, result)

    return decide


@instruction("selp")
def _select(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    yes, no = context.read(ins.operands[1], kind), context.read(ins.operands[2], kind)
    test, put = context.read(ins.operands[3], "pred"), context.write(ins.operands[0])
    return lambda batch: put(batch, np.where(test(batch), yes(batch), no(batch)))


@instruction("slct")
def _select_by_sign(context: Context, ins: Instruction) -> Step:
    kind, tested = types_of(ins.modifiers)
    yes, no = context.read(ins.operands[1], kind), context.read(ins.operands[2], kind)
    test, put = context.read(ins.operands[3], tested), context.write(ins.operands[0])
    return lambda batch: put(batch, np.where(np.greater_equal(test(batch), 0), yes(batch), no(batch)))


@instruction("trap", "brkpt")
def _trap(context: Context, ins: Instruction) -> Step:
    def stop(batch: Batch) -> None:
        batch.fail(errors.Trap, ins, int(batch.lanes[0]), "the kernel stopped itself")

    return stop


@instruction(
    "prefetch", "prefetchu", "discard", "applypriority", "setmaxnreg", "griddepcontrol", "pmevent", "createpolicy"
)
def _nothing(context: Context, ins: Instruction) -> Step:
    """Hints, and what concerns time or registers only."""
    return lambda batch: None


@instruction("nanosleep")
def _sleep(context: Context, ins: Instruction) -> Step:
    def sleep(batch: Batch) -> None:
        batch.wants_yield = True

    return sleep
