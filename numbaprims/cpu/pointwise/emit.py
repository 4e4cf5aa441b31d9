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

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.pointwise.bytes import VALUES
from numbaprims.cpu.pointwise.form import ARGS, Form, Formula, Operand
from numbaprims.cpu.simd.arguments import FLOAT_SLOT
from numbaprims.cpu.simd.convert import floats_value, stored_value, widen_value
from numbaprims.cpu.simd.emit import (
    argument,
    elements_ahead,
    first_lanes_value,
    llvm_vector,
    load_value,
    prefetch_lines,
    splat_value,
    store_value,
)
from numbaprims.cpu.simd.loops import once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import lanes, llvm_element
from numbaprims.formulas.value import at_most, select

# How many bytes ahead of a step streaming kernels prefetch lines: the processor's own prefetching ends at each page.
# Without this the costlier kinds reach 76 % of a copy instead of 96 % (Zen 5), the cheapest take 5 to 12 % longer
# (Zen 4).
FAR = 4096


class _Run:
    """Emits a run of a form's elements."""

    def __init__(self, builder: Any, form: Form, formula: Formula, args: Any) -> None:
        self.b, self.form, self.formula, self.args = builder, form, formula, args
        self.kind = VALUES.get(form.compute, Value)
        self.pointers = {
            array.slot: argument(builder, args, array.slot, llvm_element(array.dtype).as_pointer())
            for array in (*form.results, *form.operands)
        }
        self.ones = {
            array.slot: self._splat(self._computed(builder.load(self.pointers[array.slot]), array.dtype))
            for array in form.operands
            if array.kind == "one"
        }
        element, double = llvm_element(form.compute), llvm_element("f64")
        self.given = [Value(builder, argument(builder, args, FLOAT_SLOT + k, double)) for k in range(formula.numbers)]
        self.first = Value(builder, argument(builder, args, ARGS.slot("first"))) if formula.groups else None
        self.numbers = [self._splat(floats_value(builder, each.value, element)) for each in self.given]

    def _computed(self, value: Any, dtype: str) -> Any:
        """A loaded value in the type that is computed in."""
        if self.kind is not Value:
            return value
        return floats_value(self.b, widen_value(self.b, value, dtype), llvm_element(self.form.compute))

    def _splat(self, scalar: Any) -> Value:
        return self.kind(self.b, splat_value(self.b, scalar, self.form.W))

    # ---------------------------------------------------------------- steps

    def _load(self, array: Operand, i: Any, mask: Any) -> Value:
        if array.kind == "one":
            return self.ones[array.slot]
        b = self.b
        loaded = load_value(b, self.pointers[array.slot], i, llvm_vector(array.dtype, self.form.W), mask)
        return self.kind(b, self._computed(loaded, array.dtype))

    def _store(self, array: Operand, i: Any, mask: Any, value: Value) -> None:
        stored = stored_value(self.b, value.value, array.dtype)
        store_value(self.b, self.pointers[array.slot], i, stored, mask, stream=self.form.stream)

    def _prefetch(self, array: Operand, i: Any) -> None:
        """For the lines of a later step."""
        if self.form.stream and array.kind == "row":
            far = i + lanes(array.dtype, FAR)
            prefetch_lines(self.b, self.pointers[array.slot], far, llvm_vector(array.dtype, self.form.W), False)

    def _step(self, i: Any, mask: Any = None) -> None:
        """Elements from i on."""
        form = self.form
        if mask is None:
            for array in form.operands:
                self._prefetch(array, i)
        loaded = [self._load(array, i, mask) for array in form.operands]
        if self.first is None:
            found = self.formula.function(*loaded, *self.numbers)
        else:
            found = self.formula.function(form, self.first + i, self.given, *loaded)
        for array, value in zip(form.results, found if isinstance(found, tuple) else (found,), strict=True):
            self._store(array, i, mask, value)

    # ---------------------------------------------------------------- runs

    def run(self, lo: Value, hi: Value) -> None:
        """The tiles lo ... hi - 1."""
        b, W = self.b, self.form.W
        n, tile = (Value(b, argument(b, self.args, ARGS.slot(name))) for name in ("n", "tile"))
        i, end = lo * tile, at_most(hi * tile, n)

        def whole(state: list[Any]) -> list[Any]:
            self._step(state[0])
            return [state[0] + W]

        def part(count: Any) -> Callable[[list[Any]], list[Any]]:
            def emit(state: list[Any]) -> list[Any]:
                begun = self._begun(state[0])
                mask = first_lanes_value(b, begun + count, W)
                if self.first is not None:
                    mask = b.and_(mask, b.not_(first_lanes_value(b, begun, W)))
                self._step(state[0] - begun, mask)
                return [state[0] + count]

            return emit

        # what comes before the first line and after the last is one text
        def both(state: list[Any]) -> list[Any]:
            i, count = state
            (i,) = once(b, count > 0, [i], part(count), "part")
            (i,) = repeat(b, (end - i) // W, [i], whole, "steps")
            return [i, end - i]

        before = i.like(0)
        rounds = select(i < end, i.like(2), 0)
        if self.form.stream:
            first = self.form.results[0]
            vector = llvm_vector(first.dtype, W)
            before = elements_ahead(b, self.pointers[first.slot], i, vector, end - i)
        if self.first is not None:
            # to the end of the step of the group that was begun
            begun = self._begun(i)
            before = select(begun > 0, at_most(W - begun, end - i), before)
        repeat(b, rounds, [i, before], both, "round")

    def _begun(self, i: Any) -> Value:
        """Elements of element i's group before it."""
        return i.like(0) if self.first is None else (self.first + i) & (self.formula.groups - 1)


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
            lo, hi = (Value(builder, value) for value in values[2:])
            _Run(builder, chosen, formulas[chosen.formula], values[1]).run(lo, hi)
            return context.get_dummy_value()

        return types.void(form, args, types.int64, types.int64), codegen

    return emit
