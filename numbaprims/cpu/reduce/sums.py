"""Reductions: accumulators of vectors side by side, and what they give in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numbaprims.cpu.simd.lanes import reduce_value
from numbaprims.cpu.simd.math import exponential, functions
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.formulas.elementary import fmod_value
from numbaprims.formulas.graph import COMMON, Node, identity, larger, moments_of
from numbaprims.formulas.stacks import KIND, SLOPE
from numbaprims.formulas.trigonometric import atan2_value

if TYPE_CHECKING:
    from numbaprims.cpu.reduce.emit import Emitter
    from numbaprims.cpu.reduce.memory import Place

LOWEST = {"f32": -3.4028234663852886e38, "f64": -1.7976931348623157e308}

#: The names of formulas as functions of this machine's Values.
TABLE: dict[str, Callable[..., Any]] = COMMON | {
    "div": lambda a, b: a / b,
    "reciprocal": lambda x: 1.0 / x,
    "sqrt": functions.sqrt,
    "exp": exponential.exp,
    "exp_of_negative": exponential.exp_of_negative,
    "log": functions.log,
    "pow": power_value,
    "fmod": lambda a, b: fmod_value(a, b, Value.__truediv__),
    "atan2": lambda y, x: atan2_value(y, x, Value.__truediv__),
}


def function_of(op: str) -> Callable[..., Any]:
    """A node's function; kinds of activation and their slopes are the activations' own."""
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

    def empty(self, reductions: Sequence[Node]) -> list[list[Value]]:
        """Accumulators before the first element: of moments the sums of d and d * d, of exp_sum one top for all."""
        U, v = self.e.v.U, self.e.vector
        found = []
        for node in reductions:
            start = identity(node.op, LOWEST[self.e.v.compute])
            if node.op == "exp_sum":
                found.append([self.e.fixed(start[0], v)] + [self.e.fixed(0.0, v)] * U)
            else:
                found.append([self.e.fixed(start[0], v)] * (2 * U if node.op == "moments" else U))
        return found

    def accumulate(self, node: Node, p: int, acc: list[Value], places: Sequence[Place], anchor: Value | None) -> None:
        """Take places side by side into a reduction's accumulators."""
        if node.op == "exp_sum":
            self._exponentials(node, p, acc, places)
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

        def fold(values: list[Value], combine: Callable[[Any, Any], Any]) -> Value:
            while len(values) > 1:
                pairs = zip(values[::2], [*values[1::2], None], strict=False)
                values = [a if c is None else combine(a, c) for a, c in pairs]
            return values[0]

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
            sums = [across_lanes(fold(acc[k : k + U], add), add) for k in (0, U)]
            assert anchor is not None
            return moments_of(anchor, self.e.to_rows(1.0 / count), *sums)
        if node.op == "exp_sum":
            total, highest = fold(acc[1:], add), across_lanes(acc[0], top)
            if self.e.along:
                total = total * TABLE["exp_of_negative"](acc[0] - self.e.splat(self.e.first(highest), self.e.vector))
            return [highest, across_lanes(total, add)]
        combine = {"sum": add, "product": lambda a, c: a * c}.get(node.op, top)
        return [across_lanes(fold(acc, combine), combine)]
