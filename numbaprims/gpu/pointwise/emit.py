"""The code of a pointwise kernel: a thread takes an item, a pack or a single element, then the one a grid further.

What is left behind the packs of a run are items of their own, an element each, so that no thread walks over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numbaprims.gpu.device.elements import as_number, as_stored, offset_of
from numbaprims.gpu.device.emit import I32, I64, asm, call_nvvm, intrinsic, string_literal, types, unpack, void
from numbaprims.gpu.device.memory import _load, _store
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.pointwise.form import THREADS, Form, Formula
from numbaprims.gpu.pointwise.turned import emit_tile


class _Walk:
    """Emits all items of a form."""

    def __init__(self, context: Any, builder: Any, form: Form, formula: Formula, kind: Any, given: Any) -> None:
        self.context, self.b, self.form, self.formula = context, builder, form, formula
        self.results = len(form.results.split(","))
        members = iter(zip(unpack(builder, given, kind), kind, strict=True))

        def take(count: int) -> list[Any]:
            return [next(members)[0] for _ in range(count)]

        self.pointers = [next(members) for _ in form.arrays]
        self.numbers = [Value(builder, x) for x in take(formula.numbers)]
        self.words = [Value(builder, x) for x in take(formula.words)]
        self.sizes = [take(1 if form.wide else 3) for _ in range(form.loops - 1)]
        self.steps = [take(form.steps) for _ in form.arrays]
        self.length, self.total = take(2)
        # computed, not given: a number of all threads alone keeps no register of each
        self.packs = builder.lshr(self.length, self.length.type(form.V.bit_length() - 1))

    def run(self) -> None:
        """Items of all threads."""
        b, V, kind = self.b, self.form.V, self.total.type
        if self.form.turned:
            emit_tile(self)
            return

        def grid(name: str) -> Any:
            number = call_nvvm(b, f"llvm.nvvm.read.ptx.sreg.{name}", I32)
            return number if kind == I32 else b.zext(number, kind)

        if self.sizes:
            first = b.add(b.mul(grid("ctaid.x"), kind(THREADS)), grid("tid.x"))
            _for_each(b, first, self.total, b.mul(grid("nctaid.x"), kind(THREADS)), self._item)
            return
        # of a single run all packs go first: no thread asks at each whether it is one
        turn = kind(THREADS * self.form.U)
        first = b.add(b.mul(grid("ctaid.x"), turn), grid("tid.x"))
        _for_each(b, first, self.packs, b.mul(grid("nctaid.x"), turn), self._packs)
        if V == 1:
            return
        left = b.add(b.mul(self.packs, kind(V)), b.add(b.mul(grid("ctaid.x"), kind(THREADS)), grid("tid.x")))
        with b.if_then(b.icmp_signed("<", left, self.length)):
            self._elements([], left, 1, kind(0))

    def _packs(self, pack: Any) -> None:
        """A pack of a run and those that lie a block further: all are loaded before one is stored."""
        b, form, kind = self.b, self.form, pack.type
        last = b.sub(self.packs, kind(1))
        numbers = [b.add(pack, kind(u * THREADS)) for u in range(form.U)]
        inside = [b.icmp_signed("<=", number, last) for number in numbers]
        # the last one again in the place of those behind it, whose results are not stored
        firsts = [b.mul(b.select(*each, last), kind(form.V)) for each in zip(inside, numbers, strict=True)]
        loaded = [self._operands([first], form.V) for first in firsts]
        for u, (first, operands) in enumerate(zip(firsts, loaded, strict=True)):
            if not u:
                self._results([first], operands, form.V, kind(0))
                continue
            with b.if_then(inside[u]):
                self._results([first], operands, form.V, kind(0))

    def _item(self, item: Any) -> None:
        b, V, kind = self.b, self.form.V, item.type
        rests: list[Any] = [item]
        indices: list[Any] = []
        for size in reversed(self.sizes):
            rest, index = self._divided(rests[-1], size)
            rests.append(rest)
            indices.insert(0, index)
        outer, inner = [rests[-1], *indices[:-1]], indices[-1]
        if V == 1:
            self._elements(outer, inner, 1, b.sub(item, inner))
            return
        before = b.mul(rests[1], self.length)
        with b.if_else(b.icmp_signed("<", inner, self.packs)) as (whole, single):
            with whole:
                self._elements(outer, b.mul(inner, kind(V)), V, before)
            with single:
                self._elements(outer, b.add(inner, b.mul(self.packs, kind(V - 1))), 1, before)

    def _divided(self, x: Any, size: Sequence[Any]) -> tuple[Any, Any]:
        """Quotient and remainder by a size, to which its `walk.reciprocal` belongs in 32 bits: a division is 20
        instructions."""
        b, divisor = self.b, size[0]
        if self.form.wide:
            quotient = b.udiv(x, divisor)
        else:
            quotient = b.lshr(asm(b, "mul.hi.u32 $0, $1, $2;", [b.add(x, x), size[1]], [I32])[0], size[2])
        return quotient, b.sub(x, b.mul(quotient, divisor))

    def _where(self, k: int, indices: Sequence[Any]) -> tuple[Any, ...]:
        """The place of an array's element."""
        pointer, kind = self.pointers[k]
        steps = list(self.steps[k])
        if self.form.V > 1:
            indices, steps = (indices[:-1], steps) if self.form.arrays[k][1] else (indices, [*steps, None])
        return (kind, pointer, types.int64, offset_of(self.b, indices, steps))

    def _elements(self, outer: Sequence[Any], inner: Any, count: int, before: Any) -> None:
        """`count` elements side by side, the first of which is element `inner` of a run with `before` before it."""
        indices = [*outer, inner]
        self._results(indices, self._operands(indices, count), count, before)

    def _operands(self, indices: Sequence[Any], count: int) -> list[list[Any]]:
        """The elements of each operand, as they are stored."""
        form, found = self.form, []
        for k, (_, one) in enumerate(form.arrays[self.results :], self.results):
            lanes = 1 if one == "one" and form.V > 1 else count
            found.append(_load(self.context, self.b, self._where(k, indices), lanes, readonly=False) * (count // lanes))
        return found

    def _results(self, indices: Sequence[Any], loaded: Sequence[list[Any]], count: int, before: Any) -> None:
        b = self.b
        place = b.add(before, indices[-1])
        place = Value(b, place if self.form.wide else b.zext(place, I64))
        self.results_of(lambda k: self._where(k, indices), loaded, count, place)

    def results_of(
        self, where: Callable[[int], tuple[Any, ...]], loaded: Sequence[list[Any]], count: int, place: Any
    ) -> None:
        """Compute and store."""
        b, form = self.b, self.form
        operands = [
            [as_number(b, x, dtype, form.compute) for x in values]
            for (dtype, _), values in zip(form.arrays[self.results :], loaded, strict=True)
        ]
        found = self.formula.lanes(place, self.words, operands, self.numbers, count)
        for k, values in enumerate(found):
            _store(self.context, b, where(k), as_stored(b, values, form.arrays[k][0]))


def _for_each(builder: Any, first: Any, end: Any, step: Any, emit: Callable[[Any], None]) -> None:
    """A loop over first, first + step, ... below the end."""
    before = builder.basic_block
    head, body, after = (builder.append_basic_block(name) for name in ("items", "item", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    i = builder.phi(first.type)
    i.add_incoming(first, before)
    builder.cbranch(builder.icmp_signed("<", i, end), body, after)
    builder.position_at_end(body)
    emit(i)
    i.add_incoming(builder.add(i, step), builder.basic_block)
    builder.branch(head)
    builder.position_at_end(after)


def emitter(formulas: Mapping[str, Formula]) -> Any:
    """``emit(text, given)``: all items of the form `text`, whose formula is one of the table, with the parameters of
    `Form.parameters`.

    The kernel's factory stands where the table does: what a kernel depends on is what the factory's module imports.
    """

    @intrinsic
    def emit(typingctx, text, given):  # type: ignore[no-untyped-def]
        known = string_literal(text)
        if known is None:
            return None
        form = Form.parse(known)

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            _Walk(context, builder, form, formulas[form.formula], sig.args[1], args[1]).run()
            return void(context)

        return types.void(text, given), codegen

    return emit
