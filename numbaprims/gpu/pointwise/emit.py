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


class _Walk:
    """Emits all items of a form."""

    def __init__(self, context: Any, builder: Any, form: Form, formula: Formula, kind: Any, given: Any) -> None:
        self.context, self.b, self.form, self.formula = context, builder, form, formula
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

        def grid(name: str) -> Any:
            number = call_nvvm(b, f"llvm.nvvm.read.ptx.sreg.{name}", I32)
            return number if kind == I32 else b.zext(number, kind)

        first = b.add(b.mul(grid("ctaid.x"), kind(THREADS)), grid("tid.x"))
        step = b.mul(grid("nctaid.x"), kind(THREADS))
        if self.sizes:
            _for_each(b, first, self.total, step, self._item)
            return
        # of a single run all packs go first: no thread asks at each whether it is one
        _for_each(b, first, self.packs, step, lambda pack: self._elements([], b.mul(pack, kind(V)), V, kind(0)))
        if V == 1:
            return
        left = b.add(b.mul(self.packs, kind(V)), first)
        with b.if_then(b.icmp_signed("<", left, self.length)):
            self._elements([], left, 1, kind(0))

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
        b, form, indices = self.b, self.form, [*outer, inner]
        results = len(form.results.split(","))
        operands = []
        for k, (dtype, one) in enumerate(form.arrays[results:], results):
            lanes = 1 if one and form.V > 1 else count
            loaded = _load(self.context, b, self._where(k, indices), lanes, readonly=False)
            values = [as_number(b, x, dtype, form.compute) for x in loaded]
            operands.append(values * (count // lanes))
        place = b.add(before, inner)
        place = Value(b, place if form.wide else b.zext(place, I64))
        found = self.formula.lanes(place, self.words, operands, self.numbers, count)
        for k, values in enumerate(found):
            _store(self.context, b, self._where(k, indices), as_stored(b, values, form.arrays[k][0]))


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
