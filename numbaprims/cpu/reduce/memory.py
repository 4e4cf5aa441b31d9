"""Where the elements of a row lie, and how they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numbaprims.cpu.pointwise.bytes import VALUES
from numbaprims.cpu.reduce.variant import (
    ARGS,
    BEHIND,
    CHUNK,
    CHUNK_SEGMENTS,
    CUTS,
    FLAT,
    FURTHER,
    INNER,
    LANES,
    NEXT_ROW,
    NEXT_ROWS,
    SEGMENTS,
    SIZES,
    WRITTEN_TOO,
    Variant,
)
from numbaprims.cpu.simd.arguments import EACH, SCRATCH
from numbaprims.cpu.simd.convert import floats_value, stored_value, widen_value
from numbaprims.cpu.simd.emit import (
    I64,
    argument,
    constant,
    element_at,
    first_lane,
    llvm_vector,
    load_value,
    number,
    prefetch_lines,
    splat_value,
)
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import ELEMENTS, lanes, llvm_element
from numbaprims.formulas.graph import Node
from numbaprims.formulas.value import at_most, select


class Place(NamedTuple):
    """A vector of elements: from the index i of a segment on, lanes of a mask only, and what is known of them."""

    i: Any
    mask: Any
    known: dict[Node, Value]
    lead: Place | None = None
    """A place of the same segment, `ahead` elements before."""
    ahead: int = 0


class Region(NamedTuple):
    """A part of a row: segments, and elements of each."""

    segment: Any
    segments: Any
    inner: Any
    count: Any


class Array(NamedTuple):
    """An array of a launch: its kind, how it is stored, the word of its strides in the plan."""

    kind: str
    dtype: str
    strides: int


class Memory:
    """The rows of one variant: their places in the arrays, loads, and vectors of the type that is computed in."""

    def __init__(self, builder: Any, variant: Variant, args: Any, worker: Any) -> None:
        self.b, self.v, self.args, self.worker = builder, variant, args, Value(builder, worker)
        self.graph = graph = variant.graph
        self.element = llvm_element(variant.compute)
        #: What its vectors are.
        self.kind = VALUES.get(variant.compute, Value)
        self.along, self.across = variant.lanes == "along", variant.lanes == "across"
        self.vector = llvm_vector(variant.compute, variant.W)
        #: Of numbers that are the same for all rows, and of uniform values.
        self.narrow = llvm_vector(variant.compute, 128 // ELEMENTS[variant.compute][0])
        self.row_vector = self.narrow if self.along else self.vector
        kinds = [kind for _, kind in (*graph.results, *graph.operands) if kind != "number"]
        dims = variant.kept + variant.reduced
        self.arrays = [
            Array("flat" if dtype[-1] == FLAT else kind, dtype.removesuffix(FLAT), SIZES + dims * (1 + at))
            for at, (kind, dtype) in enumerate(zip(kinds, variant.dtypes.split(","), strict=True))
        ]
        self.outs = len(graph.results)
        self.kept, self.waits_in = variant.keeps, variant.waits_in
        #: Lanes that are rows; where a row's operands begin, and those of a segment.
        self.lane_mask: Any = None
        self.pointers: list[Any] = []
        self.segment: list[Any] = []
        self.segment_index: Any = self.number(0)
        #: Where the sums of a block's columns lie, by array.
        self.columns: dict[int, Any] = {}
        #: Of operands of kind "run": their value for the segment.
        self.of_segment: dict[int, Value] = {}

    # ---------------------------------------------------------------- words

    def number(self, n: int) -> Value:
        return Value(self.b, number(n))

    def word(self, slot: int, kind: Any = I64) -> Any:
        """A word of the arguments."""
        return argument(self.b, self.args, slot, kind)

    def plan(self, index: int) -> Value:
        """A word of the plan."""
        return Value(self.b, argument(self.b, self.word(ARGS.slot("plan")), index))

    def elements(self) -> Value:
        """Elements of a row."""
        return self.plan(INNER) * self.plan(SEGMENTS)

    def stride(self, array: Array, dim: int) -> Value:
        """Along a kept dimension, or behind those a reduced one."""
        return self.plan(array.strides + dim)

    def inner_stride(self, array: Array) -> Value:
        """From an element to the next."""
        return self.stride(array, self.v.kept + self.v.reduced - 1)

    def region(self, name: str, at: Value | int = 0) -> Any:
        """A pointer to computed numbers so many bytes into a region."""
        words = [SCRATCH, name, EACH] if name in ARGS.own else [SCRATCH, name]
        start, place, *each = (Value(self.b, self.word(ARGS.slot(word))) for word in words)
        own = self.worker * each[0] if each else 0
        return self.b.inttoptr((start + place + own + at).value, self.element.as_pointer())

    # ---------------------------------------------------------------- where a row lies

    def enter_row(self, tile: Value, block: Value | None = None, index: Sequence[Value] = ()) -> None:
        """Set the row, or the W neighbouring rows from the tile's first on: those of a block, where it is given.

        `index`: along each kept dimension, where it is known.
        """
        first, dims = None, self.v.kept
        if self.across:
            if block is None:
                blocks = self.blocks()
                block, tile = tile % blocks, tile // blocks
            first = block * self.v.W
            dims -= 1
        index = index or self._indices(tile, dims, SIZES)
        self.pointers = []
        for slot, array in enumerate(self.arrays):
            pointer = self.word(ARGS.slot(f"a{slot}"), llvm_element(array.dtype).as_pointer())
            if array.kind == "column":
                pointer = self.columns[slot]
            elif array.kind != "along":
                pointer = self._advanced(pointer, array, index, 0)
                if first is not None and array.kind != "flat":
                    pointer = element_at(self.b, pointer, first)
            elif self.along and self.v.kept > 1:  # rows may be walked a part at a time
                pointer = element_at(self.b, pointer, index[0] * self.stride(array, 0))
            self.pointers.append(pointer)
        self.segment, self.segment_index = self.pointers, self.number(0)
        self._load_runs()

    def enter_block(self, tile: Value) -> None:
        """Set where the sums of a block's columns lie."""
        for k in self.graph.columns:
            start = self.word(ARGS.slot(f"a{k}"), llvm_element(self.arrays[k].dtype).as_pointer())
            self.columns[k] = element_at(self.b, start, tile * self.plan(INNER))

    def blocks(self) -> Value:
        """Blocks of W rows side by side."""
        return (self.plan(LANES) + (self.v.W - 1)) // self.v.W

    def row_blocks(self) -> Value:
        """The same of all rows."""
        return math.prod((self.plan(SIZES + dim) for dim in range(self.v.kept - 1)), start=self.blocks())

    def lanes_left(self, tile: Value) -> Value:
        """Rows from a tile's first on."""
        return self.plan(LANES) - tile % self.blocks() * self.v.W

    def _indices(self, at: Value, dims: int, sizes: int) -> list[Value]:
        """The index along each dimension of what a number counts."""
        found: list[Value] = []
        for dim in range(dims - 1, 0, -1):
            size = self.plan(sizes + dim)
            found.insert(0, at % size)
            at = at // size
        return [at, *found] if dims else []

    def index(self, tile: Value) -> list[Value]:
        """Of a row along each kept dimension."""
        return self._indices(tile, self.v.kept, SIZES)

    def next_index(self, index: Sequence[Value]) -> list[Value]:
        """Of the next row, without divisions, which took 3 of 37 us for 8192 rows of 49 floats (Zen 5)."""
        found: list[Value] = []
        carry = self.number(1)
        for dim in range(self.v.kept - 1, 0, -1):
            at = index[dim] + carry
            ends = at.equals(self.plan(SIZES + dim))
            found.insert(0, select(ends, self.number(0), at))
            carry = select(ends, self.number(1), 0)
        return [index[0] + carry, *found]

    def _advanced(self, pointer: Any, array: Array, index: Sequence[Value], dim: int) -> Any:
        offset = sum(i * self.stride(array, dim + at) for at, i in enumerate(index))
        return element_at(self.b, pointer, offset) if index else pointer

    def enter_segment(self, at: Value) -> None:
        """Set the run of elements along the innermost reduced dimension."""
        if self.v.reduced == 1:
            return
        self.segment_index = at
        index = self._indices(at, self.v.reduced - 1, SIZES + self.v.kept)
        self.segment = [
            pointer if array.kind in ("one", "flat") else self._advanced(pointer, array, index, self.v.kept)
            for pointer, array in zip(self.pointers, self.arrays, strict=True)
        ]
        self._load_runs()

    def _load_runs(self) -> None:
        """What is the same for all of a segment: no store may lie between it and what uses it, for the compiler."""
        for slot, array in enumerate(self.arrays):
            if array.kind == "run":
                value = self.load_scalar(self.segment[slot], 0, array.dtype)
                self.of_segment[slot] = self.splat(value, self.vector)

    def whole(self) -> Region:
        return Region(self.number(0), self.plan(SEGMENTS), self.number(0), self.plan(INNER))

    def chunk(self, at: Value) -> tuple[Region, Value]:
        """A chunk of the row, and how many elements it has."""
        cuts = self.plan(CUTS)
        inner, segment = at % cuts * self.plan(CHUNK), at // cuts * self.plan(CHUNK_SEGMENTS)
        count = at_most(self.plan(CHUNK), self.plan(INNER) - inner)
        segments = at_most(self.plan(CHUNK_SEGMENTS), self.plan(SEGMENTS) - segment)
        return Region(segment, segments, inner, count), self.count(segments * count)

    # ---------------------------------------------------------------- memory

    def computed(self, value: Any, dtype: str) -> Any:
        """Loaded scalars or vectors in the type that is computed in."""
        if self.kind is not Value:
            return value
        return floats_value(self.b, widen_value(self.b, value, dtype), self.element)

    def stored(self, value: Any, dtype: str) -> Any:
        """Computed scalars or vectors as an array holds them."""
        return stored_value(self.b, value, dtype)

    def load_vector(self, pointer: Any, i: Any, mask: Any, dtype: str) -> Value:
        loaded = load_value(self.b, pointer, i, llvm_vector(dtype, self.v.W), mask)
        return self.kind(self.b, self.computed(loaded, dtype))

    def load_scalar(self, pointer: Any, i: Any, dtype: str) -> Any:
        return self.computed(self.b.load(element_at(self.b, pointer, i)), dtype)

    def splat(self, scalar: Any, vector: Any) -> Value:
        return self.kind(self.b, splat_value(self.b, scalar, vector.count))

    def fixed(self, value: float, vector: Any) -> Value:
        return self.kind(self.b, constant(vector, value if self.kind is Value else int(value)))

    def count(self, n: Value) -> Value:
        """An integer as a number that is the same for all rows."""
        if self.kind is not Value:
            return self.fixed(0, self.narrow)  # bytes are never counted
        return self.splat(floats_value(self.b, n.value, self.element), self.narrow)

    def to_rows(self, value: Value) -> Value:
        """A number that is the same for all rows, as a uniform value."""
        return value if self.narrow == self.row_vector else self.splat(self.first(value), self.row_vector)

    def first(self, value: Value) -> Any:
        """The first lane."""
        return first_lane(self.b, value.value)

    def _kept_at(self, node: Node, place: Place) -> tuple[Any, Any]:
        """(pointer, index) of a kept value: in a row of a result, or in the worker's scratch memory."""
        which = list(self.kept).index(node)
        if self.waits_in >= 0:
            if which == 0:
                return self.segment[self.waits_in], place.i
            which -= 1
        width = self.v.W if self.across else 1
        start = (self.elements() * width + self.v.W) * which
        index = (self.segment_index * self.plan(INNER) + place.i) * width
        return self.region("kept"), start + index

    def _element(self, slot: int, place: Place, p: int | None) -> Value:
        """An element of an input, of each lane; pass p is the first that reads it."""
        array, pointer = self.arrays[slot], self.segment[slot]
        if array.kind == "run":
            return self.of_segment[slot]
        if p is not None and array.kind == "row" and self.v.lanes != "one":
            self._prefetch(slot, place, p)
        if self.along:
            return self.load_vector(pointer, place.i, place.mask, array.dtype)
        index = place.i * self.inner_stride(array)
        if array.kind == "row" and self.across:
            return self.load_vector(pointer, index, self.lane_mask, array.dtype)
        return self.splat(self.load_scalar(pointer, index, array.dtype), self.vector)

    def _prefetch(self, slot: int, place: Place, p: int) -> None:
        """For the lines that a later step of pass p reads, and in the first one those of results that later ones write.

        What only a later pass reads is asked for there: the gradient of log-softmax of 64 x 32000 took 540 us, 400 so,
        of 256 x 32000 2.55 ms and 1.97 (Zen 5).
        """
        if self.v.ahead in (0, NEXT_ROWS, BEHIND) or place.mask is not None:
            return
        asked, next_row = [(slot, False)], self.v.ahead in (NEXT_ROW, WRITTEN_TOO)
        later = self.v.role == "rows" and p == 0 and len(self.graph.passes) > 1
        if later and not next_row and self.v.stores == "plain":
            asked += [(k, True) for k, array in enumerate(self.arrays[: self.outs]) if array.kind == "row"]
        for which, write in asked:
            array = self.arrays[which]
            elements = lanes(array.dtype, max(self.v.ahead, 0))
            if next_row and self.along:
                far = place.i + self.stride(array, self.v.kept - 1) * self.v.together
            elif next_row:
                far = place.i * self.inner_stride(array) + self.v.W
            elif self.along:
                far = place.i + elements
            else:
                far = (place.i + max(1, elements // self.v.W)) * self.inner_stride(array)
            level = 2 if next_row else 3  # two rows are more than the first-level cache holds
            prefetch_lines(self.b, self.segment[which], far, llvm_vector(array.dtype, self.v.W), write, level)

    def ask_for_results(self, p: int, place: Place) -> None:
        """In the first pass for the lines of results that a later one writes, so that its stores need not wait."""
        begun = any(node.op == "input" for node in place.known)
        if self.v.ahead != WRITTEN_TOO or self.v.stores != "plain" or p or begun or place.mask is not None:
            return
        for k, array in enumerate(self.arrays[: self.outs]):
            if array.kind == "row":
                prefetch_lines(self.b, self.segment[k], place.i, llvm_vector(array.dtype, self.v.W), True)

    def prefetch_rows(self, first: Value, block: Value, blocks: Value, count: int) -> None:
        """For the elements from `first` on of all rows side by side, `count` of each, while as many are walked block by
        block: as many lines at each block, in the order of memory."""
        i, at = first + block * count // blocks, block * count % blocks
        for slot, array in enumerate(self.arrays[self.outs :], self.outs):
            if array.kind == "row":
                far = i * self.inner_stride(array) + (at - block) * self.v.W
                vector = llvm_vector(array.dtype, self.v.W * count)
                prefetch_lines(self.b, self.segment[slot], far, vector, False, 2)

    def prefetch_behind(self, i: Value) -> None:
        """For what lies behind the element i of these rows."""
        for slot, array in enumerate(self.arrays[self.outs :], self.outs):
            if array.kind == "row":
                far = i * self.inner_stride(array) + lanes(array.dtype, FURTHER)
                prefetch_lines(self.b, self.segment[slot], far, llvm_vector(array.dtype, self.v.W), False)
