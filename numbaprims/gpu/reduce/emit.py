"""Intrinsics of the reduce engine's kernels: they emit the code of a plan's elements, states and results.

`plan` is a key of `plans.plan_of`, p a pass; both are literals, as every count is.  A thread's elements are packs of V,
which lie side by side in memory where V > 1.  A pack is whole inside the row or whole outside of it, and one outside
stands for the thread's first one and does not count: there is no branch but round stores, and no thread reads what
another may have written over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbaprims.formulas.graph import PARTS, Node
from numbaprims.formulas.merging import first_of, identity, larger, merge, moments_of, shares
from numbaprims.formulas.value import mad, select
from numbaprims.gpu.device.elements import NUMBER, as_number, as_stored, offset_of
from numbaprims.gpu.device.emit import (
    F32,
    F64,
    I32,
    I64,
    call_nvvm,
    element_pointer,
    int_literal,
    intrinsic,
    string_literal,
    tuple_of,
    types,
    unpack,
    void,
)
from numbaprims.gpu.device.memory import _load, _store
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.device.warp import _shuffle
from numbaprims.gpu.reduce.plans import TABLE, Plan, function_of, plan_of

_LOWEST = {32: -3.4028234663852886e38, 64: -1.7976931348623157e308}


def _plan(t: Any) -> Plan | None:
    key = string_literal(t)
    return None if key is None else plan_of(key)


def _pack(plan: Plan, count: int) -> Any:
    return types.UniTuple(NUMBER[plan.number], count)


def _values(builder: Any, sig: Any, args: Any, place: int) -> list[Value]:
    return [Value(builder, v) for v in unpack(builder, args[place], sig.args[place])]


# ---------------------------------------------------------------- addresses and elements


def _indices(builder: Any, flat: Any, sizes: Sequence[Any]) -> list[Any]:
    """The indices of an element by its number in nested loops."""
    found = []
    for size in reversed(sizes[1:]):
        rest = builder.udiv(flat, size)
        found.append(builder.sub(flat, builder.mul(rest, size)))
        flat = rest
    return [flat, *reversed(found)]


@intrinsic
def at_row(typingctx, plan, pointers, sizes, steps, row):  # type: ignore[no-untyped-def]
    """The arrays' pointers at the beginning of a row; `steps` are those of the first array, of the second, ..."""
    if _plan(plan) is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lengths, every = unpack(builder, args[2], sig.args[2]), unpack(builder, args[3], sig.args[3])
        indices, count = _indices(builder, args[4], lengths), len(lengths)
        moved = []
        for k, pointer in enumerate(unpack(builder, args[1], sig.args[1])):
            far = offset_of(builder, indices, every[k * count : (k + 1) * count])
            moved.append(builder.gep(pointer, [far]))
        return tuple_of(context, builder, sig.return_type, moved)

    return pointers(plan, pointers, sizes, steps, row), codegen


@intrinsic
def scalars_of(typingctx, plan, pointers, numbers, n):  # type: ignore[no-untyped-def]
    """A row's values: its operands of kind "one", the numbers of the call, the row's length."""
    known = _plan(plan)
    if known is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        given = _values(builder, sig, args, 2)
        first = known.arrays - known.results
        to = F64 if known.number == "f64" else F32
        found = []
        for operand in known.scalars:
            if operand >= first:
                found.append(given[operand - first].value)
                continue
            k = known.results + operand
            where = (sig.args[1][k], builder.extract_value(args[1], k), types.int64, I64(0))
            element = _load(context, builder, where, 1, readonly=False)[0]
            found.append(as_number(builder, element, known.dtypes[k], known.number).value)
        return tuple_of(context, builder, sig.return_type, [*found, builder.sitofp(args[3], to)])

    return _pack(known, len(known.scalars) + 1)(plan, pointers, numbers, n), codegen


def _accesses(builder: Any, sig: Any, args: Any, k: int, far: Any, lanes: int, near: int) -> list[tuple[Any, ...]]:
    """The places of the accesses to a pack of array k."""
    return [
        (sig.args[5][k], builder.extract_value(args[5], k), types.int64, builder.add(far, I64(lane)))
        for lane in range(0, lanes, near or 1)
    ]


@intrinsic
def elements(typingctx, plan, p, V, K, beside, pointers, sizes, steps, first, step, end):  # type: ignore[no-untyped-def]
    """K packs of each operand that pass p reads (of all passes if p is -1): elements first, first + step, ... of a row.

    The first is inside of the row.  `beside`: where the innermost of the reduced dimensions has step 1 in every array,
    how many elements are loaded at a time; else 0.
    """
    known, which, lanes, packs = _plan(plan), int_literal(p), int_literal(V), int_literal(K)
    near, apart = int_literal(beside), int_literal(step)
    if known is None or None in (which, lanes, packs, near, apart):
        return None
    operands = known.reads(which)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lengths, every = unpack(builder, args[6], sig.args[6]), unpack(builder, args[7], sig.args[7])
        count, index = len(lengths), args[8].type
        found: list[Any] = []
        for pack in range(packs):
            flat = builder.add(args[8], index(pack * apart))
            flat = builder.select(builder.icmp_signed("<", flat, args[10]), flat, args[8])
            indices = _indices(builder, flat, lengths)
            for operand in operands:
                k = known.results + operand
                own = list(every[k * count : (k + 1) * count])
                if near:
                    own[-1] = None
                for where in _accesses(builder, sig, args, k, offset_of(builder, indices, own), lanes, near):
                    loaded = _load(context, builder, where, near or 1, readonly=False)
                    found += [as_number(builder, v, known.dtypes[k], known.number).value for v in loaded]
        if not found:
            found = [(F64 if known.number == "f64" else F32)(0.0)]
        return tuple_of(context, builder, sig.return_type, found)

    made = _pack(known, max(1, packs * lanes * len(operands)))
    return made(plan, p, V, K, beside, pointers, sizes, steps, first, step, end), codegen


class _Terms:
    """Values of a graph's nodes at one place of a kernel."""

    def __init__(self, plan: Plan, builder: Any, before: Sequence[Value], scalars: Sequence[Value]) -> None:
        self.plan, self.builder, self.before, self.scalars = plan, builder, before, scalars
        self.uniform: dict[Node, Any] = {}

    def of(self, node: Any, element: dict[Node, Any]) -> Any:
        """Of an element, whose dictionary holds what it was loaded from."""
        if not isinstance(node, Node):
            return node
        memo = self.uniform if node.uniform else element
        if node not in memo:
            memo[node] = self._compute(node, element)
        return memo[node]

    def _compute(self, node: Node, element: dict[Node, Any]) -> Any:
        if node.op == "input":
            return self.scalars[self.plan.scalars[node.args[0]]]
        if node.op == "constant":
            return self.scalars[-1].like(node.args[0])
        if node.op == "length":
            return self.scalars[-1]
        if node.op == "part":
            return self.before[self.plan.part(*node.args)]
        return function_of(node.op)(*(self.of(arg, element) for arg in node.args))


def _lanes(terms: _Terms, loaded: Sequence[Value], which: int, V: int, pack: int, first: Any) -> list[dict[Node, Any]]:
    """What the elements of a pack were loaded from."""
    plan, builder = terms.plan, terms.builder
    operands = plan.reads(which)
    found = []
    for lane in range(V):
        at = pack * len(operands) * V + lane
        element = {plan.graph.inputs[operand]: loaded[at + k * V] for k, operand in enumerate(operands)}
        for node in plan.graph.nodes:
            if node.op == "position":
                place = builder.add(first, first.type(lane))
                element[node] = Value(builder, builder.sitofp(place, terms.scalars[-1].value.type))
        found.append(element)
    return found


# ---------------------------------------------------------------- states


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


def _add(
    kind: str,
    counts: list[Value],
    parts: list[Value],
    packs: list[list[Value]],
    inside: list[Value],
    places: Sequence[Sequence[Value]] = (),
) -> list[Value]:
    """The parts with the packs' values; those of packs outside of the row do not count.

    `counts` are the elements before each pack, `places` their positions where the reduction wants these.
    """
    if kind == "first":
        for values, own, here in zip(packs, places, inside, strict=True):
            for v, place in zip(values, own, strict=True):
                parts = first_of(parts, (select(here, v, float("-inf")), place))
        return parts
    if kind == "exp_sum":
        # one correction of the sum for all packs
        top, total = parts
        masked = [select(here, v, float("-inf")) for pack, here in zip(packs, inside, strict=True) for v in pack]
        both = top
        for v in masked:
            both = larger("top", both, v)
        total = total * TABLE["exp"](top - both)
        for v in masked:
            total = total + TABLE["exp"](v - both)
        return [both, total]
    for count, values, here in zip(counts, packs, inside, strict=True):
        if kind == "sum":
            total = values[0]
            for v in values[1:]:
                total = total + v
            parts = [parts[0] + select(here, total, 0.0)]
        elif kind == "product":
            for v in values:
                parts = [parts[0] * select(here, v, 1.0)]
        elif kind == "moments":
            new = merge(kind, *shares(count, count.like(float(len(values))), TABLE), parts, _moments(values), TABLE)
            parts = [select(here, a, b) for a, b in zip(new, parts, strict=True)]
        else:
            for v in values:
                parts = [larger(kind, parts[0], select(here, v, float("-inf")))]
    return parts


def _moments(values: list[Value]) -> list[Value]:
    """The parts of "moments" of a pack; 1 / V is exact."""
    anchor, rest, spread = values[0], values[0].like(0.0), values[0].like(0.0)
    for v in values[1:]:
        d = v - anchor
        rest, spread = rest + d, mad(d, d, spread)
    return moments_of(anchor, 1.0 / len(values), rest, spread) if len(values) > 1 else [anchor, rest, spread]


@intrinsic
def begin(typingctx, plan, p):  # type: ignore[no-untyped-def]
    """The state of pass p before its first element."""
    known, which = _plan(plan), int_literal(p)
    if known is None or which is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        kind = F64 if known.number == "f64" else F32
        lowest = _LOWEST[64 if kind == F64 else 32]
        found = [x for node in known.graph.passes[which].reductions for x in identity(node.op, lowest)]
        return tuple_of(context, builder, sig.return_type, [kind(x) for x in (*found, 0.0)])

    return _pack(known, known.state(which))(plan, p), codegen


@intrinsic
def accumulate(typingctx, plan, p, which, V, state, before, scalars, loaded, first, step, end):  # type: ignore[no-untyped-def]
    """The state of pass p with the packs that `elements` gave for pass `which`; `before`: states of earlier passes."""
    known, now, read, lanes, apart = (
        _plan(plan), int_literal(p), int_literal(which), int_literal(V), int_literal(step),
    )  # fmt: skip
    if known is None or None in (now, read, lanes, apart):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        held = _values(builder, sig, args, 4)
        terms = _Terms(known, builder, _values(builder, sig, args, 5), _values(builder, sig, args, 6))
        numbers = _values(builder, sig, args, 7)
        rows, inside, counts = [], [], held[-1:]
        for pack in range(_packs(known, read, lanes, numbers)):
            at = builder.add(args[8], args[8].type(pack * apart))
            inside.append(Value(builder, builder.icmp_signed("<", at, args[10])))
            rows.append(_lanes(terms, numbers, read, lanes, pack, at))
            counts.append(counts[-1] + select(inside[-1], held[-1].like(float(lanes)), 0.0))
        new: list[Value] = []
        for node in known.graph.passes[now].reductions:
            packs, *places = [[[terms.of(arg, element) for element in row] for row in rows] for arg in node.args]
            new += _add(node.op, counts[:-1], held[len(new) : len(new) + PARTS[node.op]], packs, inside, *places)
        held = [*new, counts[-1]]
        return tuple_of(context, builder, sig.return_type, [v.value for v in held])

    made = _pack(known, known.state(now))
    return made(plan, p, which, V, state, before, scalars, loaded, first, step, end), codegen


def _packs(plan: Plan, which: int, V: int, loaded: Sequence[Value]) -> int:
    """How many packs were loaded; where a pass reads nothing, it takes one at a time."""
    return max(1, len(loaded) // max(1, V * len(plan.reads(which))) if plan.reads(which) else 1)


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
def merge_two(typingctx, plan, p, a, b):  # type: ignore[no-untyped-def]
    """The state of two runs of elements."""
    known, which = _plan(plan), int_literal(p)
    if known is None or which is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        held = _merge_states(known, which, _values(builder, sig, args, 2), _values(builder, sig, args, 3))
        return tuple_of(context, builder, sig.return_type, [v.value for v in held])

    return a(plan, p, a, b), codegen


@intrinsic
def save(typingctx, place, index, step, state):  # type: ignore[no-untyped-def]
    """Write the numbers of a state to index, index + step, ... of a pointer or an array in shared memory."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        for k, value in enumerate(unpack(builder, args[3], sig.args[3])):
            where = builder.add(args[1], builder.mul(I64(k), args[2]))
            builder.store(value, element_pointer(context, builder, sig.args[0], args[0], types.int64, where))
        return void(context)

    return types.void(place, types.int64, types.int64, state), codegen


@intrinsic
def restore(typingctx, plan, p, place, index, step):  # type: ignore[no-untyped-def]
    """The state of pass p that `save` wrote."""
    known, which = _plan(plan), int_literal(p)
    if known is None or which is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        where = [builder.add(args[3], builder.mul(I64(k), args[4])) for k in range(known.state(which))]
        pointers = [element_pointer(context, builder, sig.args[2], args[2], types.int64, each) for each in where]
        return tuple_of(context, builder, sig.return_type, [builder.load(pointer) for pointer in pointers])

    return _pack(known, known.state(which))(plan, p, place, types.int64, types.int64), codegen


@intrinsic
def restore_before(typingctx, plan, p, place, row, rows):  # type: ignore[no-untyped-def]
    """The states of the passes before p, each number of them for all rows, one after another; a 0 precedes them."""
    known, which = _plan(plan), int_literal(p)
    if known is None or which is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        found = [(F64 if known.number == "f64" else F32)(0.0)]
        for k in range(known.place(which) - 1):
            where = builder.add(args[3], builder.mul(I64(k), args[4]))
            found.append(builder.load(element_pointer(context, builder, sig.args[2], args[2], types.int64, where)))
        return tuple_of(context, builder, sig.return_type, found)

    return _pack(known, known.place(which))(plan, p, place, types.int64, types.int64), codegen


# ---------------------------------------------------------------- results


@intrinsic
def write(typingctx, plan, p, which, V, beside, pointers, sizes, steps, before, scalars, loaded, first, step, end):  # type: ignore[no-untyped-def]
    """Write the results of kind "row" of the packs that `elements` gave for pass `which`."""
    known, now, read, lanes, apart, near = (
        _plan(plan), int_literal(p), int_literal(which), int_literal(V), int_literal(step), int_literal(beside),
    )  # fmt: skip
    if known is None or None in (now, read, lanes, apart, near):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lengths, every = unpack(builder, args[6], sig.args[6]), unpack(builder, args[7], sig.args[7])
        terms = _Terms(known, builder, _values(builder, sig, args, 8), _values(builder, sig, args, 9))
        numbers = _values(builder, sig, args, 10)
        count = len(lengths)
        ready = []
        for pack in range(_packs(known, read, lanes, numbers)):
            at = builder.add(args[11], args[11].type(pack * apart))
            row = _lanes(terms, numbers, read, lanes, pack, at)
            for k in known.graph.passes[now].outputs:
                values = [terms.of(known.graph.outputs[k], element) for element in row]
                ready.append((at, k, as_stored(builder, values, known.dtypes[k])))
        for at, k, stored in ready:
            with builder.if_then(builder.icmp_signed("<", at, args[13])):
                own = list(every[k * count : (k + 1) * count])
                if near:
                    own[-1] = None
                far = offset_of(builder, _indices(builder, at, lengths), own)
                for number, where in enumerate(_accesses(builder, sig, args, k, far, lanes, near)):
                    _store(context, builder, where, stored[number * (near or 1) :][: near or 1])
        return void(context)

    given = (plan, p, which, V, beside, pointers, sizes, steps, before, scalars, loaded, first, step, end)
    return types.void(*given), codegen


@intrinsic
def write_ones(typingctx, plan, pointers, before, scalars):  # type: ignore[no-untyped-def]
    """Write the results of kind "one" of a row, from the states of all passes."""
    known = _plan(plan)
    if known is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        terms = _Terms(known, builder, _values(builder, sig, args, 2), _values(builder, sig, args, 3))
        for k in known.ones:
            stored = as_stored(builder, [terms.of(known.graph.outputs[k], {})], known.dtypes[k])
            where = (sig.args[1][k], builder.extract_value(args[1], k), types.int64, I64(0))
            _store(context, builder, where, stored)
        return void(context)

    return types.void(plan, pointers, before, scalars), codegen
