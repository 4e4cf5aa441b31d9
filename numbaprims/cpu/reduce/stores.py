"""How results leave: by plain stores, past the caches, or past them by way of a buffer.

Streaming stores need whole lines of the cache.  Rows that are no multiple of a line are written into a buffer whose
offset in a line is the result's; whole lines leave it, and what is left of the last one waits for the next row.  With
rows of 197 floats that took 12 ms, plain stores 20, and streaming what lies between the ends of each row 22.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from numbaprims.cpu.reduce.variant import INNER, STAGED
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.memory import first_lanes_value, masked_store_value, vector_at
from numbaprims.cpu.simd.types import ELEMENTS, llvm_element, stack_block
from numbaprims.formulas.value import Value

if TYPE_CHECKING:
    from numbaprims.cpu.reduce.emit import Emitter
    from numbaprims.cpu.reduce.memory import Place, Region

I64, I32 = ir.IntType(64), ir.IntType(32)


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
        index = place.i if e.along else b.mul(place.i, e.inner_stride(array))
        if not (e.along or e.across):
            b.store(b.extract_element(stored, ir.Constant(I32, 0)), b.gep(pointer, [index]))
        elif (mask := place.mask if e.along else e.lane_mask) is not None:
            masked_store_value(b, pointer, index, mask, stored)
        else:
            written = b.store(stored, vector_at(b, pointer, index, stored.type))
            written.align = 1
            if self.streams and k == self.first:
                written.align = self._alignment()
                written.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))

    def put_uniform(self, k: int, value: Value) -> None:
        """A value of the row."""
        e, b = self.e, self.e.b
        pointer, dtype = e.pointers[k], e.arrays[k].dtype
        if not e.across:
            b.store(e.stored(b.extract_element(value.value, ir.Constant(I32, 0)), dtype), pointer)
            return
        stored = e.stored(value.value, dtype)
        if e.lane_mask is not None:
            masked_store_value(b, pointer, ir.Constant(I64, 0), e.lane_mask, stored)
        else:
            b.store(stored, vector_at(b, pointer, ir.Constant(I64, 0), stored.type)).align = 1

    # ---------------------------------------------------------------- past the caches

    @property
    def first(self) -> int:
        """The result of elements."""
        return next(k for k, (_, kind) in enumerate(self.e.graph.results) if kind == "row")

    def _size(self) -> int:
        return ELEMENTS[self.e.arrays[self.first].dtype][0] // 8

    def _alignment(self) -> int:
        """Of a vector of the result, or of the registers that it is written from."""
        return min(64, self.e.v.W * self._size())

    def around(self, p: int, emit: Callable[[], list[Any]]) -> list[Any]:
        """A pass over a region: where lanes are rows, streamed if all its vectors are aligned, which the call says."""
        e, b = self.e, self.e.b
        self.streams = e.v.stores == "stream" and bool(e.graph.passes[p].outputs)
        if not self.streams or e.along or e.lane_mask is not None or e.graph.passes[p].reductions:
            for each in e.team:
                each.stores.streams = self.streams and e.along
            return emit()
        array = e.arrays[self.first]
        low = b.ptrtoint(e.pointers[self.first], I64)
        for dim in range(e.v.reduced):
            low = b.or_(low, b.mul(e.stride(array, e.v.kept + dim), ir.Constant(I64, self._size())))
        aligned = b.icmp_signed("==", b.and_(low, ir.Constant(I64, self._alignment() - 1)), ir.Constant(I64, 0))
        with b.if_else(aligned) as (streamed, plain):
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
        pointer = b.gep(e.segment[self.first], [region.inner])
        at = b.lshr(b.ptrtoint(pointer, I64), ir.Constant(I64, self._size().bit_length() - 1))
        lanes = self._alignment() // self._size()
        head = b.and_(b.sub(ir.Constant(I64, 0), at), ir.Constant(I64, lanes - 1))
        return b.select(b.icmp_signed("<", head, region.count), head, region.count)

    # ---------------------------------------------------------------- by way of a buffer

    def open(self, context: Any) -> None:
        """Take the buffer, if there is one, on the stack."""
        if self.e.v.stores == "stage":
            element = llvm_element(self.e.arrays[self.first].dtype)
            block = stack_block(context, self.e.b, element, STAGED // self._size() + 2 * self._line())
            self.buffer = self.e.b.bitcast(block, element.as_pointer())

    def _line(self) -> int:
        return 64 // self._size()

    def begin_row(self) -> None:
        """The row is written to the buffer."""
        if self.buffer is not None:
            e, k = self.e, self.first
            self.row = e.pointers[k]
            e.pointers[k] = e.b.gep(self.buffer, [self._before()])

    def _before(self) -> Any:
        """Elements between the row's first and the line that holds it."""
        b = self.e.b
        at = b.lshr(b.ptrtoint(self.row, I64), ir.Constant(I64, self._size().bit_length() - 1))
        return b.and_(at, ir.Constant(I64, self._line() - 1))

    def end_row(self) -> None:
        """Whole lines leave; a row has a line's elements at least."""
        if self.buffer is None:
            return
        e, b, lanes = self.e, self.e.b, self._line()
        first, last = self.ends
        zero, line = ir.Constant(I64, 0), ir.Constant(I64, lanes)
        vector = ir.VectorType(llvm_element(e.arrays[self.first].dtype), lanes)
        before = self._before()
        out, end = b.gep(self.row, [b.neg(before)]), b.add(before, e.plan(INNER))

        def held(at: Any) -> Any:
            loaded = b.load(vector_at(b, self.buffer, at, vector))
            loaded.align = 64
            return loaded

        def whole(state: list[Any]) -> list[Any]:
            written = b.store(held(state[0]), vector_at(b, out, state[0], vector))
            written.align = 64
            written.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))
            return [b.add(state[0], line)]

        # what lies in front of the first row is another's
        apart = b.and_(first, b.icmp_signed(">", before, zero))
        with b.if_then(apart):
            masked_store_value(b, out, zero, b.not_(first_lanes_value(b, before, lanes)), held(zero))
        start = b.select(apart, line, zero)
        (at,) = repeat(b, b.sdiv(b.sub(end, start), line), [start], whole, "line")
        with b.if_then(b.and_(last, b.icmp_signed("<", at, end))):
            masked_store_value(b, out, at, first_lanes_value(b, b.sub(end, at), lanes), held(at))
        b.store(held(at), vector_at(b, self.buffer, zero, vector)).align = 64
