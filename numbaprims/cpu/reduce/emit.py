"""A traced formula as vector code: its values, what is summed up, and its passes over a row.

Uniform values (one a row) are vectors of 16 bytes where lanes lie along the row, all alike: a division of 16 lanes
takes 16 cycles, and there is one for each row.  They stand in front of a pass's loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numbaprims.cpu.reduce.memory import Memory, Place, Region
from numbaprims.cpu.reduce.stores import Stores
from numbaprims.cpu.reduce.sums import LOWEST, TABLE, Sums, function_of
from numbaprims.cpu.reduce.variant import CHUNKS, INNER, NEXT_ROW, WRITTEN_TOO, Variant
from numbaprims.cpu.simd.arguments import FLOAT_SLOT
from numbaprims.cpu.simd.convert import floats_value
from numbaprims.cpu.simd.emit import (
    I64,
    copy_string_value,
    counting,
    element_at,
    first_lanes_value,
    splat_value,
    store_value,
)
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.loops import once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import ELEMENTS, llvm_element
from numbaprims.formulas.graph import COSTS, PARTS, Node
from numbaprims.formulas.merging import identity, merge, shares
from numbaprims.formulas.value import at_most, bits, from_bits, to_float

#: What a value costs, at least, to be computed of several rows at once.
LOGARITHM = COSTS["log"]
#: Where one element at a time is taken, chunks have 64: so many are merged by themselves, or errors would grow with a
#: 64th of the row's length.
GROUP = 512


class Walk(NamedTuple):
    """A pass over a region: its first state, what a step makes of one and of places, the parts of reductions."""

    start: list[Value]
    step: Callable[[list[Value], Sequence[Place]], list[Value]]
    finish: Callable[[list[Value]], list[list[Value]]]


class Emitter(Memory):
    """Emits rows of one variant."""

    def __init__(self, builder: Any, variant: Variant, args: Any, worker: Any) -> None:
        super().__init__(builder, variant, args, worker)
        self.stores, self.sums = Stores(self), Sums(self)
        #: Of the row: uniform values, parts of reductions among them; the same in all lanes; what is in registers.
        self.uniforms: dict[Node, Value] = {}
        #: Parts that are places, as integers.
        self.places: dict[Node, Value] = {}
        self.wide: dict[Node, Value] = {}
        self.resident: list[Place] = []
        #: The emitters of rows side by side, of which this one emits the loops.
        self.team: list[Emitter] = [self]

    def enter_row(self, tile: Any, block: Any = None, index: Any = ()) -> None:
        super().enter_row(tile, block, index)
        self.uniforms, self.places, self.wide, self.resident = {}, {}, {}, []

    # ---------------------------------------------------------------- values

    def uniform(self, node: Node) -> Value:
        """A value of the row; where it is first asked for must come before all its uses."""
        if node not in self.uniforms:
            self.uniforms[node] = self._uniform(node)
        return self.uniforms[node]

    def _uniform(self, node: Node) -> Value:
        vector = self.row_vector
        if node.op == "constant":
            return self.fixed(node.args[0], vector)
        if node.op == "length":
            return self.to_rows(self.count(self.elements()))
        if node.op == "input":
            i = node.args[0]
            kinds = [kind for _, kind in self.graph.operands]
            before = [kind == "number" for kind in kinds[:i]]
            if kinds[i] == "number":
                given = self.word(FLOAT_SLOT + sum(before), llvm_element("f64"))
                return self.splat(self.computed(given, "f64"), vector)
            slot = self.outs + i - sum(before)
            dtype = self.arrays[slot].dtype
            if self.across and self.arrays[slot].kind != "flat":
                return self.load_vector(self.pointers[slot], 0, self.lane_mask, dtype)
            return self.splat(self.load_scalar(self.pointers[slot], 0, dtype), vector)
        return function_of(node.op, self.kind)(
            *(self.uniform(arg) if isinstance(arg, Node) else arg for arg in node.args)
        )

    def share(self, wanted: Sequence[Node]) -> None:
        """Dear values of the team's rows, which some nodes are computed from, a row a lane.

        A logarithm for each of 2,048 rows of 49 took 11 us of 14.5, three quarters of what torch's took in all (Zen 5).
        """
        if len(self.team) == 1 or not self.along:
            return
        needed, left = set[Node](), list(wanted)
        while left:
            node = left.pop()
            if node not in needed and node.uniform:
                needed.add(node)
                left += node.operands
        lanes = self.narrow.count
        for node in self.graph.nodes:
            if node not in needed or node in self.uniforms or COSTS.get(node.op, 0) < LOGARITHM:
                continue
            for k in range(0, len(self.team), lanes):
                rows = self.team[k : k + lanes]
                args = [self._by_row(rows, arg) if isinstance(arg, Node) else arg for arg in node.args]
                found = function_of(node.op, self.kind)(*args)
                for lane, each in enumerate(rows):
                    own = shuffle_value(self.b, found.value, found.value, [lane] * lanes)
                    each.uniforms[node] = found.new(own)

    def _by_row(self, rows: Sequence[Emitter], node: Node) -> Value:
        """A uniform value of some rows, each in a lane of its own."""
        first, *more = (each.uniform(node) for each in rows)
        found, lanes = first.value, self.narrow.count
        for k, value in enumerate(more, 1):
            found = shuffle_value(self.b, found, value.value, [lane + lanes * (lane == k) for lane in range(lanes)])
        return first.new(found)

    def prepare(self, p: int) -> None:
        """What pass p takes of the row, in front of its loops."""
        for node in self.graph.reads(p, self.kept):
            if node.uniform and node not in self.wide:
                value = self.uniform(node)
                if self.along:
                    value = value.new(shuffle_value(self.b, value.value, value.value, [0] * self.v.W))
                self.wide[node] = value

    def value(self, node: Node, p: int, place: Place) -> Value:
        """A node at a place, in pass p."""
        if node.uniform:
            return self.wide[node]
        if node not in place.known:
            place.known[node] = self._value(node, p, place)
        return place.known[node]

    def _value(self, node: Node, p: int, place: Place) -> Value:
        if node.op == "input":
            self.ask_for_results(p, place)
            return self._element(self._slot(node), place, p if p == self._asking(node, p) else None)
        if node.op == "position":
            if place.lead is not None:
                return self.value(node, p, place.lead) + float(place.ahead)
            start = self.splat(floats_value(self.b, self.flat(place).value, self.element), self.vector)
            return start + Value(self.b, counting(self.vector)) if self.along else start
        if self.kept.get(node, p) < p:
            pointer, index = self._kept_at(node, place)
            return self.load_vector(pointer, index, place.mask, self.v.compute)
        return function_of(node.op, self.kind)(
            *(self.value(arg, p, place) if isinstance(arg, Node) else arg for arg in node.args)
        )

    def _asking(self, node: Node, p: int) -> int:
        """The pass that asks ahead for an input which pass p reads: the first to read it; the last one for the next
        row, whose lines then come while results leave."""
        if self.v.role != "rows":
            return p
        passes = range(len(self.graph.passes))
        reading = [q for q in passes if self.across or node in self.graph.reads(q, self.kept)]
        return reading[-1 if self.along and self.v.ahead in (NEXT_ROW, WRITTEN_TOO) else 0]

    def integers(self, n: Value, vector: Any) -> Value:
        """An integer in all lanes, of the size of the numbers that are computed."""
        kind = llvm_element(f"i{ELEMENTS[self.v.compute][0]}")
        return Value(self.b, splat_value(self.b, n.value if kind == I64 else self.b.trunc(n.value, kind), vector.count))

    def flat(self, place: Place | Region) -> Value:
        """The index along the reduced axes of a place's first element, or a region's."""
        if isinstance(place, Region):
            return place.segment * self.plan(INNER) + place.inner
        return self.segment_index * self.plan(INNER) + place.i

    def place_bits(self, n: Value) -> Value:
        """An index as the part of a reduction "first": a float of the bits, since float32 ends at 2**24."""
        return from_bits(self.integers(n, self.row_vector))

    def _slot(self, node: Node) -> int:
        """The array of an input that is no number; numbers come last."""
        return self.outs + int(node.args[0])

    # ---------------------------------------------------------------- passes

    def run_pass(self, p: int) -> None:
        """A pass over the whole row."""
        reductions = self.graph.passes[p].reductions
        self.share(self.graph.reads(p, self.kept))
        length = self.count(self.elements())
        moments = any(node.op == "moments" for node in reductions)
        if self.v.registers or not reductions or (self.along and not (moments or self.v.chunked)):
            for each, found in zip(self.team, self.run_regions(p, self.whole(), length), strict=True):
                each.set_parts(reductions, each.unfolded(reductions, found))
            return

        # Of chunks, in their order: they stay in a cache, and one lane does not add up all of a long row.
        def one(state: list[Any]) -> list[Any]:
            region, count = self.chunk(state[0])
            found, size = [state[0] + 1], (len(state) - 1) // len(self.team)
            for k, (each, parts) in enumerate(zip(self.team, self.run_regions(p, region, count), strict=True)):
                own = state[1 + k * size : 1 + (k + 1) * size]
                found += each.merged(reductions, own, count, [part for of_node in parts for part in of_node])
            return found

        start = [self.number(0)]
        for each in self.team:
            each.prepare(p)
            start += each.nothing(reductions)

        def group(state: list[Any]) -> list[Any]:
            left = at_most(self.plan(CHUNKS) - state[0], GROUP)
            at, count, *parts = repeat(self.b, left, [state[0], *start[1:]], one, "chunk")
            return [at, *self.merged(reductions, state[1:], count, parts)]

        if self.v.lanes == "one":
            groups = (self.plan(CHUNKS) + (GROUP - 1)) // GROUP
            _, *values = repeat(self.b, groups, start, group, "group")
        else:
            _, *values = repeat(self.b, self.plan(CHUNKS), start, one, "chunk")
        size = len(values) // len(self.team)
        for k, each in enumerate(self.team):
            found = self.by_node(reductions, values[k * size + 1 : (k + 1) * size])
            each.set_parts(reductions, each.unfolded(reductions, found))

    def unfolded(self, reductions: Sequence[Node], parts: Sequence[Sequence[Value]]) -> Sequence[Sequence[Value]]:
        """Parts of rows in all their lanes, of those of their elements in each lane."""
        if not self.v.folded:
            return parts
        W, rows, found = self.v.W, self.v.folded, []

        def moved(values: Sequence[Value], lanes: list[int]) -> list[Value]:
            return [each.new(shuffle_value(self.b, each.value, each.value, lanes)) for each in values]

        for node, values in zip(reductions, parts, strict=True):
            for step in range((W // rows).bit_length() - 2, -1, -1):
                others = moved(values, [(lane + (rows << step)) % W for lane in range(W)])
                values = merge(node.op, None, None, values, others, TABLE)
            found.append(moved(values, [lane % rows for lane in range(W)]))
        return found

    def nothing(self, reductions: Sequence[Node]) -> list[Value]:
        """(count, parts) of no chunk."""
        parts = [x for node in reductions for x in identity(node.op, LOWEST[self.v.compute])]
        return [self.fixed(0.0, self.narrow), *(self.fixed(x, self.row_vector) for x in parts)]

    def merged(
        self, reductions: Sequence[Node], state: Sequence[Value], count: Value, parts: Sequence[Value]
    ) -> list[Value]:
        """(count, parts) with those of the next chunk."""
        before, *values = state
        share, both = (self.to_rows(value) for value in shares(before, count, TABLE))
        found = [before + count]
        pairs = zip(self.by_node(reductions, values), self.by_node(reductions, parts), strict=True)
        for node, (a, c) in zip(reductions, pairs, strict=True):
            found += merge(node.op, share, both, a, c, TABLE)
        return found

    @staticmethod
    def by_node(reductions: Sequence[Node], parts: Sequence[Value]) -> list[list[Value]]:
        values = iter(parts)
        return [[next(values) for _ in range(PARTS[node.op])] for node in reductions]

    def set_parts(self, reductions: Sequence[Node], parts: Sequence[Sequence[Value]]) -> None:
        """Results of reductions, for what is computed from now on."""
        for node in self.graph.nodes:
            if node.op == "part" and node.args[0] in reductions:
                value = parts[reductions.index(node.args[0])][node.args[1]]
                if node.args == (node.args[0], 1) and node.args[0].op == "first":
                    self.places[node] = bits(value)
                    value = to_float(bits(value))
                self.uniforms[node] = value

    def run_region(self, p: int, region: Region, count: Value) -> list[list[Value]]:
        """Pass p over a region: the parts of each of its reductions."""
        return self.run_regions(p, region, count)[0]

    def run_regions(self, p: int, region: Region, count: Value) -> list[list[list[Value]]]:
        """The same of each row of the team."""
        walks = [each.walk(p, region, count) for each in self.team]

        def split(state: list[Any]) -> list[list[Any]]:
            left = iter(state)
            return [[next(left) for _ in walk.start] for walk in walks]

        def step(state: list[Any], places: Sequence[Place]) -> list[Any]:
            found = []
            for each, walk, own in zip(self.team, walks, split(state), strict=True):
                found += walk.step(own, places if each is self else each._beside(self, places))
            return found

        start = [value for walk in walks for value in walk.start]
        found = self.stores.around(p, lambda: self.segments(p, region, start, step))
        return [walk.finish(own) for walk, own in zip(walks, split(found), strict=True)]

    def _beside(self, lead: Emitter, places: Sequence[Place]) -> list[Place]:
        """The places of another row as those of this one, with what the rows have in common."""
        if self.v.registers and self.resident:
            return self.resident
        common = self.graph.common
        found = [
            Place(i, mask, {node: value for node, value in known.items() if node in common})
            for i, mask, known, *_ in places
        ]
        if self.v.registers:
            self.resident = found
        return found

    def anchors(self, p: int, region: Region) -> list[Value | None]:
        """Of each reduction of pass p that takes one."""
        reductions = self.graph.passes[p].reductions
        return [self.sums.anchor(node, p, region) if node.op == "moments" else None for node in reductions]

    def walk(self, p: int, region: Region, count: Value, anchors: Sequence[Value | None] | None = None) -> Walk:
        """What pass p does with the places of a region."""
        reductions = self.graph.passes[p].reductions
        self.prepare(p)
        anchors = self.anchors(p, region) if anchors is None else anchors
        wide = [
            self.splat(self.first(anchor), self.vector) if anchor is not None and self.along else anchor
            for anchor in anchors
        ]
        start = self.sums.empty(reductions, p, region)
        lengths = [len(acc) for acc in start]

        def step(state: list[Value], places: Sequence[Place]) -> list[Value]:
            """Accumulators after some places."""
            values, found = iter(state), []
            for node, length, anchor in zip(reductions, lengths, wide, strict=True):
                acc = [next(values) for _ in range(length)]
                self.sums.accumulate(node, p, acc, places, anchor)
                found += acc
            for place in places:
                for node in self.kept:
                    if self.kept[node] == p:
                        pointer, index = self._kept_at(node, place)
                        store_value(self.b, pointer, index, self.value(node, p, place).value, place.mask)
                for k in self.graph.passes[p].outputs:
                    self.stores.put(k, place, self.value(self.graph.outputs[k], p, place))
            return found

        def finish(state: list[Value]) -> list[list[Value]]:
            values = iter(state)
            return [
                self.sums.finish(node, [next(values) for _ in range(length)], anchor, count)
                for node, length, anchor in zip(reductions, lengths, anchors, strict=True)
            ]

        return Walk([value for acc in start for value in acc], step, finish)

    def segments(self, p: int, region: Region, state: list[Any], step: Callable[..., list[Any]]) -> list[Any]:
        """The state after each step of the walk of pass p over a region."""
        run = self._string if self.v.stores == "string" else self._along if self.along else self._elements
        if self.v.reduced == 1:
            return run(p, region, state, step)

        def one(state: list[Any]) -> list[Any]:
            for each in self.team:
                each.enter_segment(state[0])
            return [state[0] + 1, *run(p, region, state[1:], step)]

        return repeat(self.b, region.segments, [region.segment, *state], one, "segment")[1:]

    def some(self, step: Callable[..., list[Any]], count: int) -> Callable[[list[Any]], list[Any]]:
        """`count` elements, or vectors along the row, side by side."""
        width, mask = (self.v.W, None) if self.along else (1, self.lane_mask)

        def emit(state: list[Any]) -> list[Any]:
            places = [Place(state[0], mask, {})]
            places += [Place(state[0] + u * width, mask, {}, places[0], u * width) for u in range(1, count)]
            return [state[0] + count * width, *step(state[1:], places)]

        return emit

    def _elements(self, p: int, region: Region, state: list[Any], step: Callable[..., list[Any]]) -> list[Any]:
        """One element after the other, U at a time."""
        b, U = self.b, self.v.U
        state = repeat(b, region.count // U, [region.inner, *state], self.some(step, U), "elements")
        if U > 1:
            left = region.inner + region.count - state[0]
            state = repeat(b, left, state, self.some(step, 1), "element")
        return state[1:]

    def _along(self, p: int, region: Region, state: list[Any], step: Callable[..., list[Any]]) -> list[Any]:
        """U vectors at a time, then one, then what is left, by a mask."""
        b, W, U = self.b, self.v.W, self.v.U
        if self.v.registers:
            return self._in_registers(region, state, step)
        if self.v.run:
            masks = [None] * (self.v.run - 1) + [first_lanes_value(b, region.count - (self.v.run - 1) * W, W)]
            return step(state, [Place(region.inner + u * W, mask, {}) for u, mask in enumerate(masks)])
        end = region.inner + region.count

        def part(count: Any) -> Callable[[list[Any]], list[Any]]:
            def emit(state: list[Any]) -> list[Any]:
                place = Place(state[0], first_lanes_value(b, count(state[0]), W), {})
                return [state[0] + count(state[0]), *step(state[1:], [place])]

            return emit

        state = [region.inner, *state]
        head = self.stores.head(p, region)
        if head is not None:
            state = once(b, head > 0, state, part(lambda _: head), "head")
        state = repeat(b, (end - state[0]) // (U * W), state, self.some(step, U), "vectors", True)
        if U > 1:
            state = repeat(b, (end - state[0]) // W, state, self.some(step, 1), "vector", True)
        return once(b, state[0] < end, state, part(lambda i: end - i), "tail")[1:]

    def _string(self, p: int, region: Region, state: list[Any], step: Callable[..., list[Any]]) -> list[Any]:
        """A run of a copy by one instruction."""
        size = ELEMENTS[self.arrays[0].dtype][0] // 8
        written, read = (element_at(self.b, pointer, region.inner) for pointer in self.segment)
        copy_string_value(self.b, written, read, region.count * size)
        return state

    def _in_registers(self, region: Region, state: list[Any], step: Callable[..., list[Any]]) -> list[Any]:
        """The whole row side by side; what is known of it stays known in the next pass."""
        W, count = self.v.W, self.v.registers
        if not self.resident:
            mask = first_lanes_value(self.b, region.count - (count - 1) * W, W)
            self.resident = [Place(self.number(u * W), mask if u == count - 1 else None, {}) for u in range(count)]
        return step(state, self.resident)

    # ---------------------------------------------------------------- columns

    def clear_columns(self) -> None:
        """Sums over no rows."""
        self._write_columns(lambda place: [self.fixed(0.0, self.vector)] * len(self.graph.columns))

    def add_columns(self) -> None:
        """The team's rows: a sum is read and written once for all of them."""
        for each in self.team:
            for node in self.graph.uniform_in_columns:
                value = each.uniform(node)
                each.wide[node] = value.new(shuffle_value(self.b, value.value, value.value, [0] * self.v.W))

        def sums(place: Place) -> list[Value]:
            found = [self.load_vector(self.columns[k], *place[:2], self.v.compute) for k in self.graph.columns]
            for each in self.team:
                known = {node: value for node, value in place.known.items() if node in self.graph.common}
                own = place if each is self else place._replace(known=known)
                terms = [each.value(self.graph.outputs[k], 0, own) for k in self.graph.columns]
                found = [total + term for total, term in zip(found, terms, strict=True)]
            return found

        self._write_columns(sums)

    def _write_columns(self, sums: Callable[[Place], list[Value]]) -> None:
        n, W = self.plan(INNER), self.v.W

        def emit(mask: Any) -> Callable[[list[Any]], list[Any]]:
            def step(state: list[Any]) -> list[Any]:
                for k, total in zip(self.graph.columns, sums(Place(state[0], mask, {})), strict=True):
                    store_value(self.b, self.columns[k], state[0], total.value, mask)
                return [state[0] + W]

            return step

        state = repeat(self.b, n // W, [self.number(0)], emit(None), "columns", True)
        rest = n - state[0]
        once(self.b, rest > 0, state, emit(first_lanes_value(self.b, rest, W)), "columns_rest")

    def store_uniforms(self) -> None:
        """Results of which a row has one."""
        for k, node in enumerate(self.graph.outputs):
            if node.uniform:
                self.stores.put_uniform(k, self.places.get(node) or self.uniform(node))
