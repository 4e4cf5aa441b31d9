"""Intrinsics of the reduce engine's kernels: they emit the code of a plan's elements, of what they add to
states, and of results.

`plan` is a key of `plans.plan_of`, p a pass; both are literals, as every count is.  A thread's elements are packs of V,
which lie side by side in memory where V > 1.  A pack is whole inside the row or whole outside of it, and one outside
stands for the thread's first one and does not count: there is no branch but round stores, and no thread reads what
another may have written over.

Across rows a thread has R rows side by side; V is 1 then.  Of tuples that have a number for each of them, those of row
r are ``[r::R]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbaprims.formulas.graph import PARTS, Node
from numbaprims.formulas.merging import first_of, larger, merge, moments_of, shares
from numbaprims.formulas.value import mad, select
from numbaprims.gpu.device.elements import NUMBER, as_number, as_stored, offset_of
from numbaprims.gpu.device.emit import (
    F32,
    F64,
    I32,
    I64,
    asm,
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
from numbaprims.gpu.reduce.plans import TABLE, Plan, function_of, plan_of


def _plan(t: Any) -> Plan | None:
    key = string_literal(t)
    return None if key is None else plan_of(key)


def _pack(plan: Plan, count: int) -> Any:
    return types.UniTuple(NUMBER[plan.number], count)


def _values(builder: Any, sig: Any, args: Any, place: int) -> list[Value]:
    return [Value(builder, v) for v in unpack(builder, args[place], sig.args[place])]


# ---------------------------------------------------------------- addresses and elements


def _indices(builder: Any, flat: Any, sizes: Sequence[Any]) -> list[Any]:
    """The indices of an element by its number in nested loops.

    Of 32 bits each size but the first is followed by its `walk.reciprocal`: a division is 20 instructions.
    """
    found, narrow = [], flat.type == I32
    loops = [sizes[at : at + 3] for at in range(1, len(sizes), 3)] if narrow else [[size] for size in sizes[1:]]
    for size, *inverse in reversed(loops):
        if narrow:
            high = asm(builder, "mul.hi.u32 $0, $1, $2;", [builder.add(flat, flat), inverse[0]], [I32])[0]
            rest = builder.lshr(high, inverse[1])
        else:
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
        indices = _indices(builder, args[4], lengths)
        count = len(indices)
        moved = []
        for k, pointer in enumerate(unpack(builder, args[1], sig.args[1])):
            far = offset_of(builder, indices, every[k * count : (k + 1) * count])
            moved.append(builder.gep(pointer, [far]))
        return tuple_of(context, builder, sig.return_type, moved)

    return pointers(plan, pointers, sizes, steps, row), codegen


def _of_row(builder: Any, sig: Any, args: Any, k: int, r: int, steps: Sequence[Any]) -> tuple[Any, ...]:
    """The place of array k's value of row r of a thread."""
    step = steps[(k + 1) * (len(steps) // len(sig.args[1])) - 1]
    far = builder.mul(I64(r), builder.sext(step, I64) if step.type != I64 else step) if r else I64(0)
    return (sig.args[1][k], builder.extract_value(args[1], k), types.int64, far)


@intrinsic
def scalars_of(typingctx, plan, pointers, steps, numbers, n, R):  # type: ignore[no-untyped-def]
    """The values of R rows: their operands of kind "one", the numbers of the call, the rows' length."""
    known, count = _plan(plan), int_literal(R)
    if known is None or count is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        every, given = unpack(builder, args[2], sig.args[2]), _values(builder, sig, args, 3)
        first = known.arrays - known.results
        to = F64 if known.number == "f64" else F32
        found = []
        for operand in known.scalars:
            if operand >= first:
                found += [given[operand - first].value] * count
                continue
            k = known.results + operand
            for r in range(count):
                where = _of_row(builder, sig, args, k, r, every)
                element = _load(context, builder, where, 1, readonly=False)[0]
                found.append(as_number(builder, element, known.dtypes[k], known.number).value)
        length = builder.sitofp(args[4], to)
        return tuple_of(context, builder, sig.return_type, [*found, *[length] * count])

    made = _pack(known, count * (len(known.scalars) + 1))
    return made(plan, pointers, steps, numbers, n, R), codegen


def _accesses(builder: Any, sig: Any, args: Any, k: int, far: Any, lanes: int, near: int) -> list[tuple[Any, ...]]:
    """The places of the accesses to a pack of array k."""
    return [
        (sig.args[6][k], builder.extract_value(args[6], k), types.int64, builder.add(far, I64(lane)))
        for lane in range(0, lanes, near or 1)
    ]


def _pack_of(
    context: Any, builder: Any, sig: Any, args: Any, plan: Plan, operand: int, indices: list[Any], every: Sequence[Any],
    lanes: int, near: int, R: int,
) -> list[Value]:  # fmt: skip
    """The elements of an operand's pack, or one of each of R rows; nothing writes over what rows share."""
    k, count = plan.results + operand, len(indices)
    own = list(every[k * count : (k + 1) * count])
    kind, times = plan.kinds[k], 1
    shared = kind != "row"
    if kind == "run":
        indices, own = indices[:-1], own[:-1]
    elif near and R == 1:
        own[-1] = None
    if kind == "run" or (R > 1 and shared):
        times, lanes, near = lanes, 1, 1
    found = []
    for where in _accesses(builder, sig, args, k, offset_of(builder, indices, own), lanes, near):
        loaded = _load(context, builder, where, near or 1, readonly=shared)
        found += [as_number(builder, v, plan.dtypes[k], plan.number) for v in loaded]
    return found * times


@intrinsic
def elements(typingctx, plan, p, V, K, R, beside, pointers, sizes, steps, first, step, end):  # type: ignore[no-untyped-def]
    """K packs of each operand that `Plan.reads` names for pass p: elements first, first + step, ... of a row.

    The first is inside of the row.  `beside`: where the innermost of the reduced dimensions has step 1 in every array,
    or that of R rows, how many elements are loaded at a time; else 0.
    """
    known, which, lanes, packs = _plan(plan), int_literal(p), int_literal(V), int_literal(K)
    near, apart, rows = int_literal(beside), int_literal(step), int_literal(R)
    if known is None or None in (which, lanes, packs, near, apart, rows):
        return None
    operands, lanes = known.reads(which), lanes * rows

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lengths, every = unpack(builder, args[7], sig.args[7]), unpack(builder, args[8], sig.args[8])
        index = args[9].type
        found: list[Any] = []
        for pack in range(packs):
            flat = builder.add(args[9], index(pack * apart))
            flat = builder.select(builder.icmp_signed("<", flat, args[11]), flat, args[9])
            where = _indices(builder, flat, lengths)
            for operand in operands:
                values = _pack_of(context, builder, sig, args, known, operand, where, every, lanes, near, rows)
                found += [v.value for v in values]
        if not found:
            found = [(F64 if known.number == "f64" else F32)(0.0)] * rows
        return tuple_of(context, builder, sig.return_type, found)

    made = _pack(known, max(rows, packs * lanes * len(operands)))
    return made(plan, p, V, K, R, beside, pointers, sizes, steps, first, step, end), codegen


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


def _add(
    kind: str,
    counts: list[Value],
    parts: list[Value],
    packs: list[list[Value]],
    inside: list[Value],
    places: Sequence[Sequence[Value]] = (),
) -> list[Value]:
    """The parts with the packs' values; those of packs outside of the row do not count.

    `counts` are the elements before each pack, `places` the positions of its own where the reduction wants these.
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
    if kind == "moments":
        # one merge for all packs, of which the first alone are inside: a merge is a division and 25 instructions
        new, count = _moments(packs, inside)
        merged = merge(kind, *shares(counts[0], count, TABLE), parts, new, TABLE)
        return [select(inside[0], a, b) for a, b in zip(merged, parts, strict=True)]
    for values, here in zip(packs, inside, strict=True):
        if kind == "sum":
            total = values[0]
            for v in values[1:]:
                total = total + v
            parts = [parts[0] + select(here, total, 0.0)]
        elif kind == "product":
            for v in values:
                parts = [parts[0] * select(here, v, 1.0)]
        else:
            for v in values:
                parts = [larger(kind, parts[0], select(here, v, float("-inf")))]
    return parts


def _moments(packs: list[list[Value]], inside: list[Value]) -> tuple[list[Value], Value]:
    """The parts of "moments" of the packs that are inside, the first ones, and the number of their elements."""
    anchor, V = packs[0][0], len(packs[0])
    rest, spread, count, inverse = anchor.like(0.0), anchor.like(0.0), anchor.like(float(V)), anchor.like(1.0 / V)
    for number, (values, here) in enumerate(zip(packs, inside, strict=True)):
        for v in values[0 if number else 1 :]:
            d = v - anchor
            if number:
                d = select(here, d, 0.0)
            rest, spread = rest + d, mad(d, d, spread)
        if number:
            among = float(V * (number + 1))
            count, inverse = select(here, count.like(among), count), select(here, count.like(1.0 / among), inverse)
    if V * len(packs) == 1:
        return [anchor, rest, spread], count
    return moments_of(anchor, inverse, rest, spread), count


@intrinsic
def accumulate(typingctx, plan, p, which, V, R, state, before, scalars, loaded, first, step, end):  # type: ignore[no-untyped-def]
    """The states of R rows in pass p with the packs that `elements` gave for pass `which`; `before`: states of earlier
    passes."""
    known, now, read, lanes, count, apart = (
        _plan(plan), int_literal(p), int_literal(which), int_literal(V), int_literal(R), int_literal(step),
    )  # fmt: skip
    if known is None or None in (now, read, lanes, count, apart):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        states, before, scalars, loaded = (_values(builder, sig, args, place) for place in (5, 6, 7, 8))
        found = []
        for r in range(count):
            terms = _Terms(known, builder, before[r::count], scalars[r::count])
            given = (states[r::count], terms, loaded[r::count], *args[9:12:2])
            found.append(_accumulated(known, now, read, lanes, apart, *given))
        return tuple_of(context, builder, sig.return_type, _interleaved(found))

    made = _pack(known, count * known.state(now))
    return made(plan, p, which, V, R, state, before, scalars, loaded, first, step, end), codegen


def _interleaved(rows: Sequence[Sequence[Value]]) -> list[Any]:
    """The numbers of each row as the numbers of all rows, one after another."""
    return [value.value for each in zip(*rows, strict=True) for value in each]


def _accumulated(
    plan: Plan, now: int, read: int, V: int, apart: int, held: list[Value], terms: _Terms, loaded: list[Value],
    first: Any, end: Any,
) -> list[Value]:  # fmt: skip
    """The state of a row with further packs."""
    builder = terms.builder
    rows, inside, counts = [], [], held[-1:]
    for pack in range(_packs(plan, read, V, loaded)):
        at = builder.add(first, first.type(pack * apart))
        inside.append(Value(builder, builder.icmp_signed("<", at, end)))
        rows.append(_lanes(terms, loaded, read, V, pack, at))
        counts.append(counts[-1] + select(inside[-1], held[-1].like(float(V)), 0.0))
    new: list[Value] = []
    for node in plan.graph.passes[now].reductions:
        packs, *places = [[[terms.of(arg, element) for element in row] for row in rows] for arg in node.args]
        new += _add(node.op, counts[:-1], held[len(new) : len(new) + PARTS[node.op]], packs, inside, *places)
    return [*new, counts[-1]]


def _packs(plan: Plan, which: int, V: int, loaded: Sequence[Value]) -> int:
    """How many packs were loaded; where a pass reads nothing, it takes one at a time."""
    return max(1, len(loaded) // max(1, V * len(plan.reads(which))) if plan.reads(which) else 1)


# ---------------------------------------------------------------- results


@intrinsic
def write(  # type: ignore[no-untyped-def]
    typingctx, plan, p, which, V, R, beside, pointers, sizes, steps, before, scalars, loaded, first, step, end
):
    """Write the results of kind "row" of the packs that `elements` gave for pass `which`."""
    known, now, read, lanes, apart, near, rows = (
        _plan(plan), int_literal(p), int_literal(which), int_literal(V), int_literal(step), int_literal(beside),
        int_literal(R),
    )  # fmt: skip
    if known is None or None in (now, read, lanes, apart, near, rows):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lengths, every = unpack(builder, args[7], sig.args[7]), unpack(builder, args[8], sig.args[8])
        before, scalars, numbers = (_values(builder, sig, args, place) for place in (9, 10, 11))
        terms = [_Terms(known, builder, before[r::rows], scalars[r::rows]) for r in range(rows)]
        ready = []
        for pack in range(_packs(known, read, lanes, numbers[::rows])):
            at = builder.add(args[12], args[12].type(pack * apart))
            row = [
                (each, element)
                for r, each in enumerate(terms)
                for element in _lanes(each, numbers[r::rows], read, lanes, pack, at)
            ]
            if read < 0 and known.late and now == known.passes - 1:
                flat = builder.select(builder.icmp_signed("<", at, args[14]), at, at.type(0))
                place = _indices(builder, flat, lengths)
                for operand in known.late:
                    values = _pack_of(context, builder, sig, args, known, operand, place, every, lanes, near, rows)
                    for (_, element), value in zip(row, values, strict=True):
                        element[known.graph.inputs[operand]] = value
            for k in known.graph.passes[now].outputs:
                values = [each.of(known.graph.outputs[k], element) for each, element in row]
                ready.append((at, k, as_stored(builder, values, known.dtypes[k])))
        for at, k, stored in ready:
            with builder.if_then(builder.icmp_signed("<", at, args[14])):
                indices = _indices(builder, at, lengths)
                own = list(every[k * len(indices) : (k + 1) * len(indices)])
                if near and rows == 1:
                    own[-1] = None
                far = offset_of(builder, indices, own)
                for number, where in enumerate(_accesses(builder, sig, args, k, far, lanes * rows, near)):
                    _store(context, builder, where, stored[number * (near or 1) :][: near or 1])
        return void(context)

    given = (plan, p, which, V, R, beside, pointers, sizes, steps, before, scalars, loaded, first, step, end)
    return types.void(*given), codegen


@intrinsic
def write_ones(typingctx, plan, pointers, steps, before, scalars, R):  # type: ignore[no-untyped-def]
    """Write the results of kind "one" of R rows, from the states of all passes."""
    known, count = _plan(plan), int_literal(R)
    if known is None or count is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        every = unpack(builder, args[2], sig.args[2])
        before, scalars = _values(builder, sig, args, 3), _values(builder, sig, args, 4)
        for r in range(count):
            terms = _Terms(known, builder, before[r::count], scalars[r::count])
            for k in known.ones:
                stored = as_stored(builder, [terms.of(known.graph.outputs[k], {})], known.dtypes[k])
                _store(context, builder, _of_row(builder, sig, args, k, r, every), stored)
        return void(context)

    return types.void(plan, pointers, steps, before, scalars, R), codegen
