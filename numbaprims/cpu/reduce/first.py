"""The largest element of a row, and the place of the first such one.

Where vectors lie along the row, those of a step are a block. A lane keeps the largest element that it has met, and the
block where it met that: 19 instructions for four vectors (AVX-512), where the place of each vector took 27. In the end
the first block of the lanes that hold the largest is read again, for the first element that equals it. A NaN stays in
its lane; then the row is walked once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numbaprims.cpu import target
from numbaprims.cpu.reduce.memory import Place, Region
from numbaprims.cpu.reduce.variant import INNER
from numbaprims.cpu.simd.convert import floats_value
from numbaprims.cpu.simd.emit import I64, counting, first_lanes_value, lanes_before
from numbaprims.cpu.simd.lanes import reduce_value
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import ELEMENTS
from numbaprims.formulas.graph import COMMON, Node
from numbaprims.formulas.merging import first_of, larger
from numbaprims.formulas.value import at_most, from_bits, rarely, select

if TYPE_CHECKING:
    from numbaprims.cpu.reduce.emit import Emitter


def tree(values: Sequence[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """All of them combined, neighbours first."""
    while len(values) > 1:
        pairs = zip(values[::2], [*values[1::2], None], strict=False)
        values = [a if c is None else combine(a, c) for a, c in pairs]
    return values[0]


def _top(a: Value, c: Value) -> Value:
    return larger("top", a, c)


class First:
    """A reduction "first" over a region: lanes are rows, or all alike; places count from the region's first."""

    def __init__(self, emitter: Emitter, node: Node, p: int, region: Region) -> None:
        self.e, self.b, self.x, self.p, self.region = emitter, emitter.b, node.args[0], p, region
        self.origin = emitter.flat(region)
        machine, v = target.current(), emitter.v
        registers = v.W * ELEMENTS[v.compute][0] // 8 / machine.vector_bytes
        #: Elements of a row side by side, by half of the registers: with AVX2 64 x 3136 across takes 17 us so; two
        #: elements, half of whose sums lay on the stack, took 22 (Zen 4).
        self.U = max(1, min(v.U, int((8 if machine.isa in ("avx512", "neon") else 4) / registers)))

    def _value(self, place: Place) -> Value:
        return self.e.value(self.x, self.p, place)

    def start(self) -> list[Value]:
        """Accumulators before the first element: of nothing but -inf the region's is the first."""
        e = self.e
        return [e.fixed(number, e.vector) for number in (float("-inf"), 0.0) for _ in range(self.U)]

    def accumulate(self, acc: list[Value], places: Sequence[Place]) -> None:
        """Take elements into (the largest, their places) side by side."""
        e, b, U = self.e, self.b, self.U
        for at, place in enumerate(places):
            u, x = at % U, self._value(place)
            # larger, or the first NaN
            better = x.new(b.and_(
                b.fcmp_unordered("ugt", x.value, acc[u].value), b.fcmp_ordered("ord", acc[u].value, acc[u].value)
            ))  # fmt: skip
            distance = e.flat(place.lead or place) - self.origin
            index = e.splat(floats_value(b, distance.value, e.element), e.vector) + float(place.ahead)
            acc[u], acc[U + u] = select(better, x, acc[u]), select(better, index, acc[U + u])

    def finish(self, acc: list[Value]) -> list[Value]:
        """(largest, bits of its place)"""
        U = self.U
        best, place = tree(list(zip(acc[:U], acc[U:], strict=True)), first_of)
        index = place.new(self.b.fptosi(place.value, place.integers))
        return [best, from_bits(index + self.e.integers(self.origin, self.e.vector))]


class FirstAlong(First):
    """The same where vectors lie along the row."""

    def __init__(self, emitter: Emitter, node: Node, p: int, region: Region) -> None:
        super().__init__(emitter, node, p, region)
        v = emitter.v
        #: The places of the only block, of a row that is walked without loops.
        self.known: Sequence[Place] | None = () if v.reduced == 1 and (v.run or v.registers) else None

    @property
    def _nowhere(self) -> int:
        """Behind all places."""
        return int((1 << (ELEMENTS[self.e.v.compute][0] - 1)) - 1)

    def _over_lanes(self, value: Value, combine: Callable[[Value, Value], Value]) -> Any:
        """All lanes combined: LLVM's float, or an integer of 64 bits as a Value."""
        found = reduce_value(self.b, value.value, lambda x, y: combine(value.new(x), value.new(y)).value)
        if value.is_float:
            return found
        return Value(self.b, found if found.type == I64 else self.b.sext(found, I64))

    def start(self) -> list[Value]:
        """(largest, block) of each lane."""
        return [self.e.fixed(float("-inf"), self.e.vector), self.e.integers(self.origin, self.e.vector)]

    def accumulate(self, acc: list[Value], places: Sequence[Place]) -> None:
        """Take a block."""
        b, values = self.b, [self._value(place) for place in places]
        for k, place in enumerate(places):
            if place.mask is not None:
                values[k] = select(values[k].new(place.mask), values[k], float("-inf"))
        pairs = zip(values[::2], [*values[1::2], values[-1]], strict=False)
        bad = tree([b.fcmp_unordered("uno", one.value, two.value) for one, two in pairs], b.or_)
        top = tree(values, _top)
        better = top > acc[0]
        if self.known is None:
            acc[1] = select(better, self.e.integers(self.e.flat(places[0]), self.e.vector), acc[1])
        else:
            self.known = places
        acc[0] = select(top.new(bad), float("nan"), select(better, top, acc[0]))

    def finish(self, acc: list[Value]) -> list[Value]:
        """(largest, bits of its place)"""
        e, (own, block) = self.e, acc
        best = self._over_lanes(own, _top)
        most = e.splat(best, e.vector)
        start, places = self.region.inner, self.known
        if places is None:
            # of a row with NaN there is none: its last element, since only some CPUs mask loads of what is not there
            start = self._over_lanes(select(own.equals(most), block, self._nowhere), at_most)
            start = at_most(start, e.elements() - 1)
            places = self._block(start)
        place = start + self._lane(places, lambda x: x.equals(most))
        nan = Value(self.b, COMMON["is_nan"](own).anywhere())
        found = [e.splat(best, e.row_vector), e.place_bits(place)]
        return rarely(nan, found, lambda: [e.fixed(float("nan"), e.row_vector), e.place_bits(self._first_nan())])

    def _block(self, start: Value) -> list[Place]:
        """The places of the block that begins with an element of the row: it may be shorter."""
        e, W = self.e, self.e.v.W
        inner = e.plan(INNER)
        e.enter_segment(start // inner)
        i = start if e.v.reduced == 1 else start % inner
        # a mask is of what 32 bits count, and a row may be longer
        left = at_most(inner - i, e.v.U * W)
        masks = [first_lanes_value(self.b, left - u * W, W) for u in range(e.v.U)]
        return [Place(i + u * W, mask, {}) for u, mask in enumerate(masks)]

    def _lane(self, places: Sequence[Place], test: Callable[[Value], Value]) -> Value:
        """How many elements lie before the first of which something is true."""
        masks = []
        for place in places:
            found = test(self._value(place))
            masks.append((found if place.mask is None else found & found.new(place.mask)).value)
        return Value(self.b, lanes_before(self.b, masks))

    def _first_nan(self) -> Value:
        """The place of the first NaN."""
        if self.known is not None:
            return self.region.inner + self._lane(self.known, COMMON["is_nan"])

        def step(state: list[Value], places: Sequence[Place]) -> list[Value]:
            for place in places:
                index = self.e.integers(self.e.flat(place), self.e.vector)
                index = index + index.new(counting(index.value.type))
                nan = COMMON["is_nan"](self._value(place))
                if place.mask is not None:
                    nan = nan & nan.new(place.mask)
                state = [at_most(state[0], select(nan, index, self._nowhere))]
            return state

        start = [self.e.integers(self.e.number(0), self.e.vector).like(self._nowhere)]
        return self._over_lanes(self.e.segments(self.p, self.region, start, step)[0], at_most)
