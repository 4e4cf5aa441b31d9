"""Contiguous runs of elements.

A tile is a run of `tile` elements; [lo, hi) is one longer run.  Streaming is for results beyond the caches.  A plain
store reads the line that it will overwrite, a third of the traffic of y = f(x); a streaming store does not, but needs
whole lines.  So a run begins with the elements up to a line of the result, or where a step is shorter than a line (f16
with AVX2) to a multiple of the step.  The stores stand in the loop that computes, because there the arithmetic of some
steps runs while memory moves the others: a kernel that first computes 8 KiB into the first-level cache and then writes
them past it reached 60 to 75 % of a copy, this one 94 to 99 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.pointwise.form import ARGS, Form, Formula, Operand
from numbaprims.cpu.simd.arguments import FLOAT_SLOT
from numbaprims.cpu.simd.convert import narrow_value, widen_value
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.memory import (
    first_lanes_value,
    masked_load_value,
    masked_store_value,
    prefetch_value,
    splat_value,
    vector_at,
)
from numbaprims.cpu.simd.types import ELEMENTS, llvm_element

I64, I32 = ir.IntType(64), ir.IntType(32)
# Bytes of a cache line, and how far ahead of a step streaming kernels ask for theirs: the processor's own prefetching
# ends at each page.  Without this the costlier kinds reach 76 % of a copy instead of 96 % (Zen 5), the cheapest take 5
# to 12 % longer (Zen 4).
LINE, FAR = 64, 4096


def _number(n: int) -> Any:
    return ir.Constant(I64, n)


class _Run:
    """Emits a run of a form's elements."""

    def __init__(self, builder: Any, form: Form, formula: Formula, args: Any) -> None:
        self.b, self.form, self.formula, self.args = builder, form, formula, args
        self.element = llvm_element(form.compute)
        self.pointers = {
            array.slot: self._word(array.slot, llvm_element(array.dtype).as_pointer())
            for array in (*form.results, *form.operands)
        }
        self.ones = {
            array.slot: self._splat(widen_value(builder, builder.load(self.pointers[array.slot]), array.dtype))
            for array in form.operands
            if array.kind == "one"
        }
        self.numbers = [self._float(FLOAT_SLOT + k) for k in range(self.formula.numbers)]

    def _word(self, slot: int, kind: Any = I64) -> Any:
        """An argument."""
        b = self.b
        loaded = b.load(b.gep(b.inttoptr(self.args, kind.as_pointer()), [_number(slot)]))
        loaded.set_metadata("invariant.load", b.module.add_metadata([]))
        return loaded

    def _float(self, slot: int) -> Value:
        given = self._word(slot, ir.DoubleType())
        return self._splat(given if self.form.compute == "f64" else self.b.fptrunc(given, self.element))

    def _splat(self, scalar: Any) -> Value:
        return Value(self.b, splat_value(self.b, scalar, self.form.W))

    # ---------------------------------------------------------------- steps

    def _load(self, array: Operand, i: Any, mask: Any) -> Value:
        if array.kind == "one":
            return self.ones[array.slot]
        b, vector = self.b, ir.VectorType(llvm_element(array.dtype), self.form.W)
        if mask is not None:
            loaded = masked_load_value(b, self.pointers[array.slot], i, mask, vector)
        else:
            loaded = b.load(vector_at(b, self.pointers[array.slot], i, vector))
            loaded.align = 1
        return Value(b, widen_value(b, loaded, array.dtype))

    def _store(self, array: Operand, i: Any, mask: Any, value: Value) -> None:
        b, pointer = self.b, self.pointers[array.slot]
        stored = narrow_value(b, value.value, array.dtype)
        if mask is not None:
            masked_store_value(b, pointer, i, mask, stored)
            return
        written = b.store(stored, vector_at(b, pointer, i, stored.type))
        written.align = 1
        if self.form.stream:
            # several registers are written one by one, and no register is larger than a line
            written.align = min(self.form.W * _size(array), LINE)
            written.set_metadata("nontemporal", b.module.add_metadata([_i32(1)]))

    def _ask(self, array: Operand, i: Any) -> None:
        """For the lines of a later step."""
        if self.form.stream and array.kind == "row":
            size = _size(array)
            for at in range(0, self.form.W, LINE // size):
                far = self.b.add(i, _number(FAR // size + at))
                prefetch_value(self.b, self.pointers[array.slot], far, 3, False)

    def _step(self, i: Any, mask: Any = None) -> None:
        """Elements from i on."""
        form = self.form
        if mask is None:
            for array in form.operands:
                self._ask(array, i)
        found = self.formula.function(*(self._load(array, i, mask) for array in form.operands), *self.numbers)
        for array, value in zip(form.results, found if isinstance(found, tuple) else (found,), strict=True):
            self._store(array, i, mask, value)

    # ---------------------------------------------------------------- runs

    def run(self, lo: Any, hi: Any) -> None:
        """The tiles lo ... hi - 1."""
        b, W = self.b, self.form.W
        n, tile = (self._word(ARGS.slot(name)) for name in ("n", "tile"))
        i, end = b.mul(lo, tile), b.mul(hi, tile)
        end = b.select(b.icmp_signed("<", end, n), end, n)

        def whole(state: list[Any]) -> list[Any]:
            self._step(state[0])
            return [b.add(state[0], _number(W))]

        def part(count: Any) -> Callable[[list[Any]], list[Any]]:
            def emit(state: list[Any]) -> list[Any]:
                self._step(state[0], first_lanes_value(b, count, W))
                return [b.add(state[0], count)]

            return emit

        # what comes before the first line and after the last is one text
        def both(state: list[Any]) -> list[Any]:
            i, count = state
            (i,) = repeat(b, b.zext(b.icmp_signed(">", count, _number(0)), I64), [i], part(count), "part")
            (i,) = repeat(b, b.sdiv(b.sub(end, i), _number(W)), [i], whole, "steps")
            return [i, b.sub(end, i)]

        rounds = b.select(b.icmp_signed("<", i, end), _number(2), _number(0))
        before = self._to_line(i, b.sub(end, i)) if self.form.stream else _number(0)
        repeat(b, rounds, [i, before], both, "round")

    def _to_line(self, i: Any, most: Any) -> Any:
        """How many elements, at most `most` and fewer than a step, come before streaming stores can begin."""
        b, array = self.b, self.form.results[0]
        size = _size(array)
        at = b.add(b.lshr(b.ptrtoint(self.pointers[array.slot], I64), _number(size.bit_length() - 1)), i)
        before = b.and_(b.neg(at), _number(min(LINE // size, self.form.W) - 1))
        return b.select(b.icmp_signed("<", before, most), before, most)


def _i32(n: int) -> Any:
    return ir.Constant(I32, n)


def _size(array: Operand) -> int:
    return int(ELEMENTS[array.dtype][0]) // 8


def emitter(formulas: Mapping[str, Formula]) -> Any:
    """The intrinsic ``emit(text of a form, args, lo, hi)``: the tiles lo ... hi - 1, by the formulas of a table.

    A kernel that calls it stands in the module that has the table: a stored kernel is known by the sources that its
    own file imports.
    """

    @intrinsic(prefer_literal=True)
    def emit(typingctx: Any, form: Any, args: Any, lo: Any, hi: Any) -> Any:
        if not isinstance(form, types.StringLiteral):
            return None
        chosen = Form.parse(form.literal_value)

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _Run(builder, chosen, formulas[chosen.formula], values[1]).run(values[2], values[3])
            return context.get_dummy_value()

        return types.void(form, args, types.int64, types.int64), codegen

    return emit
