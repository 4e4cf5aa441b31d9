"""How results leave: by plain stores, past the caches, or past them by way of a buffer.

Streaming stores need whole lines of the cache.  Rows that are no multiple of a line are written into a buffer whose
offset in a line is the result's; whole lines leave it, and what is left of the last one waits for the next row.  With
rows of 197 floats that took 12 ms, plain stores 20, and streaming what lies between the ends of each row 22.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numbaprims.cpu.reduce.variant import INNER, STAGED
from numbaprims.cpu.simd.emit import (
    I64,
    LINE,
    alignment,
    element_at,
    elements_ahead,
    elements_behind,
    first_lane,
    first_lanes_value,
    llvm_vector,
    load_value,
    masked_store_value,
    store_value,
)
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import ELEMENTS, lanes, llvm_element, stack_block
from numbaprims.formulas.value import select

if TYPE_CHECKING:
    from numbaprims.cpu.reduce.emit import Emitter
    from numbaprims.cpu.reduce.memory import Place, Region


class Stores:
    """Writes the results of an emitter's rows."""

    def __init__(self, emitter: Emitter) -> None:
        self.e = emitter
        self.streams = False
        self.buffer: Any = None
        #: Whether the row is the first and the last of the range.
        self.ends: tuple[Any, Any] = (None, None)

    def put(self, k: int, place: Place, value: Value) -> None:
        """Elements of a result."""
        e, b = self.e, self.e.b
        array, pointer = e.arrays[k], e.segment[k]
        stored = e.stored(value.value, array.dtype)
        index = place.i if e.along else place.i * e.inner_stride(array)
        if not (e.along or e.across):
            b.store(first_lane(b, stored), element_at(b, pointer, index))
        else:
            mask = place.mask if e.along else e.lane_mask
            store_value(b, pointer, index, stored, mask, stream=self.streams and k == self.first)

    def put_uniform(self, k: int, value: Value) -> None:
        """A value of the row; integers become as wide as the result's."""
        e, b = self.e, self.e.b
        pointer, dtype = e.pointers[k], e.arrays[k].dtype
        if not value.is_float and value.width < ELEMENTS[dtype][0]:
            value = value.new(b.sext(value.value, value.integers_of(ELEMENTS[dtype][0])))
        if e.across:
            store_value(b, pointer, 0, e.stored(value.value, dtype), e.lane_mask)
        else:
            b.store(e.stored(e.first(value), dtype), pointer)

    # ---------------------------------------------------------------- past the caches

    @property
    def first(self) -> int:
        """The result of elements."""
        return next(k for k, (_, kind) in enumerate(self.e.graph.results) if kind == "row")

    def _vector(self, lanes: int) -> Any:
        """The LLVM type of so many of its elements."""
        return llvm_vector(self.e.arrays[self.first].dtype, lanes)

    def _line(self) -> int:
        """Its elements in a line of the caches."""
        return lanes(self.e.arrays[self.first].dtype, LINE)

    def around(self, p: int, emit: Callable[[], list[Any]]) -> list[Any]:
        """A pass over a region: where lanes are rows, streamed if all its vectors are aligned, which the call says."""
        e, b = self.e, self.e.b
        self.streams = e.v.stores == "stream" and bool(e.graph.passes[p].outputs)
        if not self.streams or e.along or e.lane_mask is not None or e.graph.passes[p].reductions:
            for each in e.team:
                each.stores.streams = self.streams and e.along
            return emit()
        array = e.arrays[self.first]
        low = Value(b, b.ptrtoint(e.pointers[self.first], I64))
        for dim in range(e.v.reduced):
            low = low | e.stride(array, e.v.kept + dim) * (LINE // self._line())
        aligned = (low & (alignment(self._vector(e.v.W)) - 1)).equals(0)
        with b.if_else(aligned.value) as (streamed, plain):
            with streamed:
                emit()
            with plain:
                self.streams = False
                emit()
        return []

    def head(self, p: int, region: Region) -> Any:
        """Elements in front of the first aligned vector of the result; None where all stores are plain."""
        e, b = self.e, self.e.b
        if not self.streams:
            return None
        return elements_ahead(b, e.segment[self.first], region.inner, self._vector(e.v.W), region.count)

    # ---------------------------------------------------------------- by way of a buffer

    def open(self, context: Any) -> None:
        """Take the buffer, if there is one, on the stack."""
        if self.e.v.stores == "stage":
            element = llvm_element(self.e.arrays[self.first].dtype)
            block = stack_block(context, self.e.b, element, (STAGED // LINE + 2) * self._line())
            # A line is read again from a store across two pages 100 ns later: rows of 400 bytes took 1.8 ms instead of
            # 1.1 in each ninth process, those of 384 whose lines all begin alike 5.8 instead of 0.9 (Zen 4).
            block.align = 4096
            self.buffer = self.e.b.bitcast(block, element.as_pointer())

    def begin_row(self) -> None:
        """The row is written to the buffer."""
        if self.buffer is not None:
            e, k = self.e, self.first
            self.row = e.pointers[k]
            e.pointers[k] = element_at(e.b, self.buffer, self._before())

    def _before(self) -> Value:
        """Elements between the row's first and the line that holds it."""
        return Value(self.e.b, elements_behind(self.e.b, self.row, self._vector(self._line())))

    def end_row(self) -> None:
        """Whole lines leave; a row has a line's elements at least."""
        if self.buffer is None:
            return
        e, b, width = self.e, self.e.b, self._line()
        first, last = self.ends
        before = self._before()
        out, end = element_at(b, self.row, 0 - before), before + e.plan(INNER)

        def held(at: Any) -> Any:
            return load_value(b, self.buffer, at, self._vector(width), align=LINE)

        def whole(state: list[Any]) -> list[Any]:
            store_value(b, out, state[0], held(state[0]), stream=True)
            return [state[0] + width]

        # what lies in front of the first row is another's
        apart = first & (before > 0)
        with b.if_then(apart.value):
            masked_store_value(b, out, 0, b.not_(first_lanes_value(b, before, width)), held(0))
        start = select(apart, e.number(width), 0)
        (at,) = repeat(b, (end - start) // width, [start], whole, "line")
        with b.if_then((last & (at < end)).value):
            masked_store_value(b, out, at, first_lanes_value(b, end - at, width), held(at))
        store_value(b, self.buffer, 0, held(at), align=LINE)
