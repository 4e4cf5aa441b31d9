"""Stages over planes, a vector being a part of a row.

Lane l of a result's vector j reads elements (j W + l) S + t D - P of what the windows' rows give together: they lie in
a few neighbouring vectors and are shuffled for every tap.  Buffered rows are whole vectors whose last lanes hold what
stands for elements outside of the image, so that only rows of the image itself, and results, have masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbaprims.cpu.simd.convert import load_wide_value, store_narrow_value
from numbaprims.cpu.simd.emit import element_at, first_lanes_value, prefetch_value, splat_value
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.loops import keep_rolled_value, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.stack.emit import Form, Rows
from numbaprims.cpu.stack.stages import LINE
from numbaprims.formulas.value import select


class Planes(Rows):
    """Emits rows of a plane."""

    def __init__(self, builder: Any, form: Form, args: Any) -> None:
        super().__init__(builder, form, args)
        self.span = self.W
        reach = [lane * self.S + t * self.D - self.P for lane in (0, self.W - 1) for t in (0, self.K - 1)]
        self.first, self.last = min(reach) // self.W, max(reach) // self.W
        numbers, step = self.pointer("parameters", form.compute), self.word("parameters_step")
        self.numbers = [
            Value(builder, splat_value(builder, builder.load(element_at(builder, numbers, step * k)), self.W))
            for k in range(self.stage.numbers)
        ]

    def rows(self, r: Value, R: int, begin: Value, seen: list[Any]) -> list[Any]:
        if self.form.far and self.form.source:
            self._ask_ahead(r, R)
        return super().rows(r, R, begin, seen)

    def _ask_ahead(self, r: Value, R: int) -> None:
        """Prefetch the rows that the next R rows of results are the first to read, in the order of memory."""
        stride, extent = self.stage.stride, self.stage.extent
        first = (r + (R - 1)) * stride + (extent - self.stage.before)
        row = self.at(self.word("x") + (first - self.word("fresh")) * self.word("pitch"), "i8")

        def line(state: list[Any]) -> list[Any]:
            keep_rolled_value(self.b)
            prefetch_value(self.b, row, (state[0] * LINE).value, 3, False)
            return [state[0] + 1]

        repeat(self.b, self.word("pitch") * (R * stride) // LINE, [r.like(0)], line, "ask")

    def _mask(self, end: Value, v: Value) -> Any:
        return first_lanes_value(self.b, end - v * self.W, self.W)

    def _read(self, row: Any, v: Value, elem: str, mask: Any) -> Value:
        return Value(self.b, load_wide_value(self.b, row, (v * self.W).value, elem, self.W, mask))

    def load(self, pointer: Any, v: Value, whole: bool) -> Value:
        if whole:
            return self._read(pointer, v, self.source, None)
        mask = self._mask(self.width, v)
        value = self._read(pointer, v, self.source, mask)
        return value if self.stage.window is None else select(Value(self.b, mask), value, self.empty)

    def load_added(self, row: Any, j: Value, name: str, whole: bool) -> Value:
        return self._read(row, j, self.form.added, None if whole else self._mask(self.out_width, j))

    def share_of_column(self, shares: Any, at: Value) -> Value:
        return Value(self.b, load_wide_value(self.b, shares, at.value, self.form.compute, self.W, None))

    def store(self, pointer: Any, j: Value, value: Value, whole: bool) -> None:
        mask = None if whole else self._mask(self.out_width, j)
        if mask is not None and not self.form.result:
            value, mask = select(Value(self.b, mask), value, self.form.pad), None
        store_narrow_value(self.b, pointer, (j * self.W).value, value.value, self.result, mask)

    def tap(self, vectors: Sequence[Value], t: int) -> Value:
        lanes = [lane * self.S + t * self.D - self.P - self.first * self.W for lane in range(self.W)]
        return Value(self.b, self._pick([vector.value for vector in vectors], lanes))

    def _pick(self, vectors: Sequence[Any], lanes: list[int]) -> Any:
        """The lanes of several vectors, counted through."""
        W = self.W
        used = sorted({lane // W for lane in lanes})
        if lanes == list(range(used[0] * W, used[0] * W + W)):
            return vectors[used[0]]
        value, placed = vectors[used[0]], [lane - used[0] * W for lane in lanes]
        for u in used[1:] or used:
            # lanes that are in no vector yet may be any
            chosen = [
                W + lane % W if lane // W == u != used[0] else at if 0 <= at < W else 0
                for lane, at in zip(lanes, placed, strict=True)
            ]
            value = shuffle_value(self.b, value, vectors[u], chosen)
            placed = list(range(W))
        return value
