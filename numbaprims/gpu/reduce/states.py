"""Intrinsics of the reduce engine's kernels: the states of rows, how they are merged, and where they are kept.

Of tuples that have a number for each of R rows, those of row r are ``[r::R]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbaprims.formulas.graph import PARTS
from numbaprims.formulas.merging import identity, merge, shares
from numbaprims.formulas.value import select
from numbaprims.gpu.device.emit import (
    F32,
    F64,
    I32,
    I64,
    call_nvvm,
    element_pointer,
    int_literal,
    intrinsic,
    tuple_of,
    types,
    unpack,
    void,
)
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.device.warp import _shuffle
from numbaprims.gpu.reduce.emit import _interleaved, _pack, _plan, _values
from numbaprims.gpu.reduce.plans import TABLE, Plan

_LOWEST = {32: -3.4028234663852886e38, 64: -1.7976931348623157e308}


def _merge_states(plan: Plan, p: int, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """The state of two runs of elements, either of which may have none."""
    share, both = shares(a[-1], b[-1], TABLE)
    found: list[Value] = []
    for node in plan.graph.passes[p].reductions:
        run = slice(len(found), len(found) + PARTS[node.op])
        new = merge(node.op, share, both, a[run], b[run], TABLE)
        if node.op == "moments":
            new = [select(b[-1] > 0.0, x, y) for x, y in zip(new, a[run], strict=True)]
        found += new
    return [*found, a[-1] + b[-1]]


@intrinsic
def begin(typingctx, plan, p, R):  # type: ignore[no-untyped-def]
    """The states of R rows in pass p before their first element."""
    known, which, count = _plan(plan), int_literal(p), int_literal(R)
    if known is None or which is None or count is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        kind = F64 if known.number == "f64" else F32
        lowest = _LOWEST[64 if kind == F64 else 32]
        found = [x for node in known.graph.passes[which].reductions for x in identity(node.op, lowest)]
        return tuple_of(context, builder, sig.return_type, [kind(x) for x in (*found, 0.0) for _ in range(count)])

    return _pack(known, count * known.state(which))(plan, p, R), codegen


@intrinsic
def merge_lanes(typingctx, plan, p, state, width):  # type: ignore[no-untyped-def]
    """The state of each group of `width` lanes (a power of two), in all of them: the same bits, since the lower lane's
    is the first of each two."""
    known, which, lanes = _plan(plan), int_literal(p), int_literal(width)
    if known is None or which is None or lanes is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        held = _values(builder, sig, args, 2)
        thread = call_nvvm(builder, "llvm.nvvm.read.ptx.sreg.tid.x", I32)
        step = lanes // 2
        while step:
            other = [Value(builder, _shuffle(builder, "bfly", v.value, I32(step))) for v in held]
            upper = Value(builder, builder.icmp_signed("!=", builder.and_(thread, I32(step)), I32(0)))
            a = [select(upper, y, x) for x, y in zip(held, other, strict=True)]
            b = [select(upper, x, y) for x, y in zip(held, other, strict=True)]
            held = _merge_states(known, which, a, b)
            step //= 2
        return tuple_of(context, builder, sig.return_type, [v.value for v in held])

    return state(plan, p, state, width), codegen


@intrinsic
def merge_two(typingctx, plan, p, a, b, R):  # type: ignore[no-untyped-def]
    """The states of two runs of elements of R rows."""
    known, which, count = _plan(plan), int_literal(p), int_literal(R)
    if known is None or which is None or count is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        a, b = _values(builder, sig, args, 2), _values(builder, sig, args, 3)
        merged = [_merge_states(known, which, a[r::count], b[r::count]) for r in range(count)]
        return tuple_of(context, builder, sig.return_type, _interleaved(merged))

    return a(plan, p, a, b, R), codegen


def _kept_at(builder: Any, count: int, R: int, index: Any, step: Any) -> list[Any]:
    """Where the numbers of R states are kept: those of a number side by side, `step` from one number to the next."""
    return [
        builder.add(builder.add(index, I64(r)), builder.mul(I64(k), step)) for k in range(count) for r in range(R)
    ]  # fmt: skip


@intrinsic
def save(typingctx, place, index, step, state, R):  # type: ignore[no-untyped-def]
    """Write the states of R rows to a pointer or an array in shared memory: number k of row r at index + k step + r."""
    count = int_literal(R)
    if count is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        values = unpack(builder, args[3], sig.args[3])
        every = _kept_at(builder, len(values) // count, count, args[1], args[2])
        for value, where in zip(values, every, strict=True):
            builder.store(value, element_pointer(context, builder, sig.args[0], args[0], types.int64, where))
        return void(context)

    return types.void(place, types.int64, types.int64, state, R), codegen


@intrinsic
def restore(typingctx, plan, p, place, index, step, R):  # type: ignore[no-untyped-def]
    """The states of pass p that `save` wrote."""
    known, which, count = _plan(plan), int_literal(p), int_literal(R)
    if known is None or which is None or count is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        every = _kept_at(builder, known.state(which), count, args[3], args[4])
        pointers = [element_pointer(context, builder, sig.args[2], args[2], types.int64, where) for where in every]
        return tuple_of(context, builder, sig.return_type, [builder.load(pointer) for pointer in pointers])

    return _pack(known, count * known.state(which))(plan, p, place, types.int64, types.int64, R), codegen


@intrinsic
def restore_before(typingctx, plan, p, place, row, rows, R):  # type: ignore[no-untyped-def]
    """The states of R rows in the passes before p, each number of them for all rows, one after another; a 0 precedes
    them."""
    known, which, count = _plan(plan), int_literal(p), int_literal(R)
    if known is None or which is None or count is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        found = [(F64 if known.number == "f64" else F32)(0.0)] * count
        for where in _kept_at(builder, known.place(which) - 1, count, args[3], args[4]):
            found.append(builder.load(element_pointer(context, builder, sig.args[2], args[2], types.int64, where)))
        return tuple_of(context, builder, sig.return_type, found)

    return _pack(known, count * known.place(which))(plan, p, place, types.int64, types.int64, R), codegen
