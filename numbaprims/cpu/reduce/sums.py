"""Reductions: accumulators of vectors side by side, and what they give in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numbaprims.cpu.pointwise import bytes
from numbaprims.cpu.reduce.first import First, FirstAlong, tree
from numbaprims.cpu.reduce.memory import Place
from numbaprims.cpu.simd.convert import nearest_ints_value
from numbaprims.cpu.simd.emit import first_lanes_value
from numbaprims.cpu.simd.lanes import reduce_value
from numbaprims.cpu.simd.math import exponential, functions
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.formulas.elementary import fmod_value
from numbaprims.formulas.graph import COMMON, Node
from numbaprims.formulas.merging import identity, larger, moments_of
from numbaprims.formulas.stacks import KIND, SLOPE
from numbaprims.formulas.trigonometric import atan2_value
from numbaprims.formulas.value import SHIFTER, at_least, at_most, bits, float_bits, from_bits, mad, rarely

if TYPE_CHECKING:
    from numbaprims.cpu.reduce.emit import Emitter
    from numbaprims.cpu.reduce.memory import Region

_FIRST = 8
"""Elements that an anchor is the mean of, where lanes are rows."""
LOWEST = {"f32": -3.4028234663852886e38, "f64": -1.7976931348623157e308}


def _integers(x: Value, nan: bool) -> Value:
    """The nearest integers of 32 bits, which results are stored from; the largest ones are 2**30.

    With `nan` it is 0 of NaN, and what is added to the smallest ones, -2**30, does not wrap.
    """
    x = at_most(x, 2.0**30)
    whole = x.new(nearest_ints_value(x.builder, (at_least(x, -(2.0**30)) if nan else x).value))
    if not nan:
        return whole
    number = x.builder.fcmp_ordered("ord", x.value, x.value)
    return x.new(x.builder.select(number, whole.value, whole.like(0).value))


def _quotients(x: Value, scale: Value, low: Value, high: Value, zero: Any) -> Value:
    """As "quantized" of x / scale, without dividing where two products tell: `low` and `high` lie around 1 / scale.

    What lies between x * low and x * high has the integer that both are rounded to, if that is one; it then stands in
    the low bits of a sum with the shifter. Else there is a division: of elements near a half, of those far beyond the
    range, of NaN and infinities.
    """
    integer = _integers(x.like(zero), False)
    if not (x.fused and x.width == 32):
        return _integers(x / scale, True) + integer
    shifter = x.like(SHIFTER[32])
    below, above = mad(x, low, shifter), mad(x, high, shifter)
    b, usual = x.builder, bits(below) + (integer - float_bits(SHIFTER[32], 32))
    apart = x.new(b.fcmp_unordered("!=", below.value, above.value))
    return rarely(x.new(apart.anywhere()), [usual], lambda: [_integers(x / scale, True) + integer])[0]


#: The names of formulas as functions of this machine's Values.
TABLE: dict[str, Callable[..., Any]] = COMMON | {
    "div": lambda a, b: a / b,
    "reciprocal": lambda x: 1.0 / x,
    "sqrt": functions.sqrt,
    "exp": exponential.exp,
    "exp_of_negative": exponential.exp_of_negative,
    "log": functions.log,
    "nearest": functions.nearest,
    "quantized": lambda x, zero: _integers(x, True) + _integers(x.like(zero), False),
    "quotients": _quotients,
    "rounded": lambda x: _integers(x, False),
    "pow": power_value,
    "fmod": lambda a, b: fmod_value(a, b, Value.__truediv__),
    "atan2": lambda y, x: atan2_value(y, x, Value.__truediv__),
    # the earlier of two places, integers that are held as floats of their bits
    "sooner": lambda a, b: from_bits(at_most(bits(a), bits(b))),
}


def function_of(op: str, kind: type[Value]) -> Callable[..., Any]:
    """A node's function; kinds of activation and their slopes are the activations' own."""
    if issubclass(kind, bytes.Byte) and op in bytes.TABLE:
        return bytes.TABLE[op]
    if not op.startswith((KIND, SLOPE)):
        return TABLE[op]
    from numbaprims.cpu.activation import formulas, gradients  # their package makes sums of this engine

    table = formulas.FORWARD if op.startswith(KIND) else gradients.BACKWARD
    function: Callable[..., Any] = table[op.partition(":")[2]][0]
    return function


class Sums:
    """The reductions of an emitter's passes."""

    def __init__(self, emitter: Emitter) -> None:
        self.e = emitter
        self.first: dict[Node, First] = {}

    def anchor(self, node: Node, p: int, region: Region) -> Value:
        """A number near the mean of a region: that of its first vectors, or of its first eight elements.

        Of one element alone, eight standard deviations off, the variance of 128 lost 4e-5 in float32, NumPy's 7e-7.
        """
        e, x = self.e, node.args[0]
        b, W = e.b, e.v.W
        e.enter_segment(region.segment)
        total = e.fixed(0.0, e.vector)
        if not e.along:
            last = region.inner + region.count - 1
            for k in range(_FIRST):
                total = total + e.value(x, p, Place(at_most(region.inner + k, last), None, {}))
            found = total * (1.0 / _FIRST)
        else:
            taken = at_most(region.count, e.v.U * W)
            for u in range(e.v.U):
                mask = first_lanes_value(b, taken - u * W, W)
                value = e.value(x, p, Place(region.inner + u * W, mask, {}))
                total = total + value.new(b.select(mask, value.value, value.like(0.0).value))
            found = e.splat(reduce_value(b, total.value, b.fadd), e.row_vector) / e.count(taken)
        finite = TABLE["less"](TABLE["magnitude"](found), float("inf"))
        return TABLE["select"](finite, found, 0.0)

    def empty(self, reductions: Sequence[Node], p: int, region: Region) -> list[list[Value]]:
        """Accumulators before the first element: of moments the sums of d and d * d, of exp_sum one top for all."""
        U, v = self.e.v.U, self.e.vector
        found = []
        for node in reductions:
            if node.op == "first":
                self.first[node] = (FirstAlong if self.e.along else First)(self.e, node, p, region)
                found.append(self.first[node].start())
                continue
            start = identity(node.op, LOWEST[self.e.v.compute])
            if node.op == "exp_sum":
                found.append([self.e.fixed(start[0], v)] + [self.e.fixed(0.0, v)] * U)
            else:
                found.append([self.e.fixed(part, v) for part in start[:2] for _ in range(U)])
        return found

    def accumulate(self, node: Node, p: int, acc: list[Value], places: Sequence[Place], anchor: Value | None) -> None:
        """Take places side by side into a reduction's accumulators."""
        if node.op == "exp_sum":
            self._exponentials(node, p, acc, places)
            return
        if node in self.first:
            self.first[node].accumulate(acc, places)
            return
        U, x = self.e.v.U, node.args[0]
        if node.op == "max" and len(places) % 2 == 0 and not (self.e.along and any(place.mask for place in places)):
            # a NaN in either of two is one test: 2 instructions for each vector in the place of 3
            for u, pair in enumerate(zip(places[::2], places[1::2], strict=True)):
                one, two = (self.e.value(x, p, place) for place in pair)
                bad = one.new(self.e.b.fcmp_unordered("uno", one.value, two.value))
                found = larger("top", acc[u % U], larger("top", one, two))
                acc[u % U] = TABLE["select"](bad, float("nan"), found)
            return
        for at, place in enumerate(places):
            mask = place.mask if self.e.along else None

            def put(k: int, new: Value, mask: Any = mask) -> None:
                acc[k] = new if mask is None else new.new(self.e.b.select(mask, new.value, acc[k].value))

            u = at % U
            if node.op == "sum" and x.op == "mul" and not x.uniform and all(isinstance(arg, Node) for arg in x.args):
                # said here, or it is contracted in one loop and not in another
                a, c = (self.e.value(arg, p, place) for arg in x.args)
                put(u, TABLE["mad"](a, c, acc[u]))
                continue
            value = self.e.value(x, p, place)
            if node.op == "sum":
                put(u, acc[u] + value)
            elif node.op == "product":
                put(u, acc[u] * value)
            elif node.op == "moments":
                d = value - anchor
                put(u, acc[u] + d)
                put(U + u, TABLE["mad"](d, d, acc[U + u]))
            else:
                put(u, larger(node.op, acc[u], value))

    def _exponentials(self, node: Node, p: int, acc: list[Value], places: Sequence[Place]) -> None:
        exp, values = TABLE["exp_of_negative"], []
        top = acc[0]
        for place in places:
            x = self.e.value(node.args[0], p, place)
            if place.mask is not None and self.e.along:
                x = x.new(self.e.b.select(place.mask, x.value, x.like(float("-inf")).value))
            values.append(x)
            top = larger("top", top, x)
        scale = exp(acc[0] - top)
        sums = [total * scale for total in acc[1:]]
        for at, x in enumerate(values):
            # as a sum with the product, so that it is never contracted in one loop and not in another
            u = at % self.e.v.U
            e = exp(x - top)
            sums[u] = TABLE["mad"](acc[1 + u], scale, e) if at < self.e.v.U else sums[u] + e
        acc[:] = [top, *sums]

    def finish(self, node: Node, acc: list[Value], anchor: Value | None, count: Value) -> list[Value]:
        """Accumulators as the parts of a reduction."""
        U = self.e.v.U

        def across_lanes(value: Value, combine: Callable[[Any, Any], Any]) -> Value:
            if not self.e.along:
                return value

            def of_lanes(a: Any, c: Any) -> Any:
                return combine(Value(self.e.b, a), Value(self.e.b, c)).value

            return self.e.splat(reduce_value(self.e.b, value.value, of_lanes), self.e.row_vector)

        def add(a: Any, c: Any) -> Any:
            return a + c

        def top(a: Any, c: Any) -> Any:
            return larger("top" if node.op == "exp_sum" else node.op, a, c)

        if node.op == "moments":
            sums = [across_lanes(tree(acc[k : k + U], add), add) for k in (0, U)]
            assert anchor is not None
            return moments_of(anchor, self.e.to_rows(1.0 / count), *sums)
        if node.op == "exp_sum":
            total, highest = tree(acc[1:], add), across_lanes(acc[0], top)
            if self.e.along:
                total = total * TABLE["exp_of_negative"](acc[0] - self.e.splat(self.e.first(highest), self.e.vector))
            return [highest, across_lanes(total, add)]
        if node in self.first:
            return self.first[node].finish(acc)
        combine = {"sum": add, "product": lambda a, c: a * c}.get(node.op, top)
        return [across_lanes(tree(acc, combine), combine)]
