"""Formulas with reductions as graphs: a formula is run once, with `Node`s, and what it returns says what to emit.

A node holds the *name* of a function ("exp"); each machine has a table from names to functions over its own `Value`.
Whatever the length of such a function, it is one node: only reductions mean something to an engine.  Their results
are *uniform*, one value for each row.  A reduction ends a *pass* over the row: `level` of a node is the first pass that
can compute it.

As everywhere, no product is an operand of ``+`` or ``-``: what a compiler would fuse in one pass and not in another
gives two means of one row.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from numbaprims.formulas import value
from numbaprims.formulas.value import mad as mad_of, select as select_of

Operand = Any
"""A `Node` or a number."""

#: Functions -> operations that they are counted as, a division as 8.
COSTS = {
    "add": 1, "sub": 1, "mul": 1, "div": 8, "mad": 1, "negative": 1, "magnitude": 1, "at_most": 1, "at_least": 1,
    "less": 1, "greater": 1, "less_equal": 1, "greater_equal": 1, "equals": 1, "is_nan": 1, "select": 1,
    "floor": 4, "nearest": 1, "quantized": 3, "quotients": 6, "rounded": 2, "pow": 60, "fmod": 40, "atan2": 45,
    "reciprocal": 8, "sqrt": 8, "exp": 12, "exp_of_negative": 11, "log": 14,
    "bitwise_and": 1, "bitwise_or": 1, "bitwise_xor": 1, "left_shift": 4, "right_shift": 4, "integer_bits": 2,
    "low_byte": 3,
}  # fmt: skip

#: Those that every `Value` has; a machine adds "div", "quotients", "reciprocal", "sqrt", "exp", "exp_of_negative",
#: "log", "pow", "fmod" and "atan2".
COMMON: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: mad_of(a, b, c) if isinstance(a, value.Value) else mad_of(b, a, c),
    "negative": value.negative,
    "magnitude": value.magnitude,
    "at_most": value.at_most,
    "at_least": value.at_least,
    "less": lambda a, b: a < b,
    "greater": lambda a, b: a > b,
    "less_equal": lambda a, b: a <= b,
    "greater_equal": lambda a, b: a >= b,
    "equals": lambda a, b: a.equals(b),
    "floor": value.floor,
    "nearest": value.nearest,
    "quantized": lambda x, zero: select_of(x.equals(x), value.nearest(x), 0.0) + zero,
    "rounded": value.nearest,
    "is_nan": lambda a: a.new(a.builder.fcmp_unordered("uno", a.value, a.value)),
    "select": value.select,
    # of integers that stand as their bits
    "bitwise_and": lambda a, b: value.from_bits(value.bits(a) & value.bits(b)),
    "bitwise_or": lambda a, b: value.from_bits(value.bits(a) | value.bits(b)),
    "bitwise_xor": lambda a, b: value.from_bits(value.bits(a) ^ value.bits(b)),
    "left_shift": lambda a, b: value.from_bits(value.bits_shifted(value.bits(a), value.bits(b), True)),
    "right_shift": lambda a, b: value.from_bits(value.bits_shifted(value.bits(a), value.bits(b), False)),
    "integer_bits": lambda a: value.from_bits(value.integer_bits(a)),
    "low_byte": lambda a, signed: value.low_byte(value.bits(a), signed),
}

#: Reductions -> the values of one, which `part` nodes stand for:
#: "sum"; "product"; "max" (NaN where any is); "top" (the largest that is no NaN, -inf of none);
#: "moments": an anchor near the mean, the rest of the mean, the variance;
#: "exp_sum": the top, and the sum of exp(x - top);
#: "first": the max, and the position of the first element that is it.
PARTS = {"sum": 1, "product": 1, "max": 1, "top": 1, "moments": 3, "exp_sum": 2, "first": 2}

#: Inputs by kind: an element each; the same row for all rows; a value for each row; a number of the call.
KINDS = ("row", "along", "one", "number")


class Node:
    """A value of a formula.

    `op` is a name of COSTS, or: "input" (its index), "constant" (the number), "length", "position", a reduction, or
    "part" (a reduction and which of its values).
    """

    __slots__ = ("args", "cost", "level", "op", "uniform")

    def __init__(self, op: str, args: tuple[Any, ...], uniform: bool, level: int) -> None:
        self.op, self.args, self.uniform, self.level = op, args, uniform, level
        #: Operations for an element, those of what it is computed from included.
        self.cost: int = COSTS.get(op, 0) + sum(node.cost for node in self.operands if not node.uniform)

    @property
    def operands(self) -> tuple[Node, ...]:
        """Nodes that it is computed from."""
        return tuple(arg for arg in self.args if isinstance(arg, Node))

    def __add__(self, other: Operand) -> Node:
        return _apart("add", self, other)

    def __radd__(self, other: Operand) -> Node:
        return _apart("add", self, other)

    def __sub__(self, other: Operand) -> Node:
        return _apart("sub", self, other)

    def __rsub__(self, other: Operand) -> Node:
        return _apart("sub", other, self)

    def __mul__(self, other: Operand) -> Node:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Node:
        return apply("mul", self, other)

    def __truediv__(self, other: Operand) -> Node:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Node:
        return apply("div", other, self)

    def __lt__(self, other: Operand) -> Node:
        return apply("less", self, other)

    def __gt__(self, other: Operand) -> Node:
        return apply("greater", self, other)

    def __le__(self, other: Operand) -> Node:
        return apply("less_equal", self, other)

    def __ge__(self, other: Operand) -> Node:
        return apply("greater_equal", self, other)

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(repr, self.args))})"


_tracing = threading.local()


def _node(op: str, args: tuple[Any, ...], uniform: bool, level: int) -> Node:
    """The same text twice is one node."""
    trace: dict[Any, Node] = _tracing.nodes
    key = (op, *(id(arg) if isinstance(arg, Node) else (type(arg), arg) for arg in args))
    if key not in trace:
        trace[key] = Node(op, args, uniform, level)
    return trace[key]


def apply(op: str, *args: Operand) -> Node:
    """A function of nodes and numbers."""
    nodes = [arg for arg in args if isinstance(arg, Node)]
    if not nodes:
        raise TypeError(f"{op} of numbers alone")
    return _node(op, args, all(node.uniform for node in nodes), max(node.level for node in nodes))


def _apart(op: str, *args: Operand) -> Node:
    if any(isinstance(arg, Node) and arg.op == "mul" for arg in args):
        raise TypeError("a product is an operand of + or -; write mad")
    return apply(op, *args)


def _lifted(op: str, doc: str) -> Callable[..., Node]:
    def function(*args: Operand) -> Node:
        return apply(op, *args)

    function.__name__, function.__doc__ = op, doc
    return function


exp = _lifted("exp", "e**x.")
exp_of_negative = _lifted("exp_of_negative", "e**x of an x that is about 0 at most.")
log = _lifted("log", "The natural logarithm.")
sqrt = _lifted("sqrt", "The square root.")
reciprocal = _lifted("reciprocal", "1 / x.")
floor = _lifted("floor", "The largest integer that is not above x.")
nearest = _lifted("nearest", "The nearest integer, halves to even.")
power = _lifted("pow", "a**b.")
quantized = _lifted(
    "quantized", "The nearest integer of x, 0 of NaN, and another integer; beyond 2**30 any other beyond it."
)
quotients = _lifted(
    "quotients",
    "`quantized` of x / a scale; two numbers around 1 / scale, off by 2**-23 of it to 2**-20, spare divisions.",
)
rounded = _lifted("rounded", "The same of a number that is no NaN, alone.")
fmod = _lifted("fmod", "What is left of a / b, with the sign of a.")
atan2 = _lifted("atan2", "The angle of (b, a).")
mad = _lifted("mad", "a * b + c.")
select = _lifted("select", "a where the condition holds, else b; one of the two may be a number.")
at_most = _lifted("at_most", "The smaller of the two; NaN in x stays.")
at_least = _lifted("at_least", "The larger of the two; NaN in x stays.")
magnitude = _lifted("magnitude", "|x|.")
negative = _lifted("negative", "-x.")
equals = _lifted("equals", "Where the two are equal.")
is_nan = _lifted("is_nan", "Where it is NaN.")


def constant(number: float) -> Node:
    """A number as a uniform value."""
    return _node("constant", (float(number),), True, 0)


def position() -> Node:
    """The index of an element along the reduced axes, as a float."""
    return _node("position", (), False, 0)


def length() -> Node:
    """How many elements are reduced, as a float."""
    return _node("length", (), True, 0)


# ---------------------------------------------------------------- reductions


def _reduced(kind: str, x: Node, *more: Node) -> tuple[Node, ...]:
    found = _node(kind, (x, *more), True, x.level + 1)
    return tuple(_node("part", (found, k), True, found.level) for k in range(PARTS[kind]))


def reduce_sum(x: Node) -> Node:
    """The sum of a row."""
    return _reduced("sum", x)[0]


def reduce_product(x: Node) -> Node:
    """The product of a row."""
    return _reduced("product", x)[0]


def reduce_max(x: Node) -> Node:
    """The largest element; NaN where any is."""
    return _reduced("max", x)[0]


def reduce_top(x: Node) -> Node:
    """The largest element that is not NaN: for shifts, where NaN comes through another way."""
    return _reduced("top", x)[0]


def reduce_first(x: Node) -> tuple[Node, Node]:
    """(max, position): the largest element, NaN where any is, and where the first of them stands."""
    top, place = _reduced("first", x, position())
    return top, place


def reduce_mean(x: Node) -> Node:
    """The mean of a row."""
    return reduce_sum(x) / length()


def moments(x: Node) -> tuple[Node, Node, Node]:
    """(anchor, rest, variance) of a row, whose mean is anchor + rest.

    One float32 of 1e4 is 5e-4 off: what is subtracted from elements is the anchor and then the rest.
    """
    anchor, rest, variance = _reduced("moments", x)
    return anchor, rest, variance


def exp_sum(x: Node) -> tuple[Node, Node]:
    """(top, sum of exp(x - top)): in one pass, or in two that can keep the exponentials (see `trace`)."""
    if _tracing.online:
        top, total = _reduced("exp_sum", x)
        return top, total
    top = reduce_top(x)
    return top, reduce_sum(exp_of_negative(x - top))


# ---------------------------------------------------------------- graphs


class Pass(NamedTuple):
    """One walk over a row."""

    reductions: tuple[Node, ...]
    """That end with it."""
    outputs: tuple[int, ...]
    """Results of kind "row" that it writes: all of them the last one, so that a result may lie where an input does."""


class Graph:
    """A traced formula, cut into passes."""

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[tuple[str, str]],
        results: Sequence[tuple[str, str]],
        online: bool,
    ) -> None:
        self.operands, self.results = tuple(operands), tuple(results)
        with _trace(online):
            self.inputs = tuple(
                _node("input", (i,), kind in ("one", "number"), 0) for i, (_, kind) in enumerate(self.operands)
            )
            found = function(*self.inputs)
        self.outputs: tuple[Node, ...] = found if isinstance(found, tuple) else (found,)
        for node, (name, kind) in zip(self.outputs, self.results, strict=True):
            if node.uniform != (kind == "one"):
                raise TypeError(
                    f"{name} is of kind {kind!r}, and one value {'a row' if node.uniform else 'an element'}"
                )
        self.nodes = tuple(_below(self.outputs))
        reductions = [node for node in self.nodes if node.op in PARTS]
        last = max(
            [node.args[0].level for node in reductions] + [node.level for node in self.outputs if not node.uniform]
        )
        rows = tuple(k for k, (_, kind) in enumerate(self.results) if kind == "row")
        self.passes = tuple(
            Pass(tuple(node for node in reductions if node.args[0].level == p), rows if p == last else ())
            for p in range(last + 1)
        )

    @functools.cached_property
    def digest(self) -> str:
        """Of all that an engine sees of it."""
        number = {id(node): str(i) for i, node in enumerate(self.nodes)}
        words = [
            f"{node.op} {[number[id(arg)] if isinstance(arg, Node) else repr(arg) for arg in node.args]}"
            for node in self.nodes
        ]
        words += [str(self.operands), str(self.results), *(number[id(node)] for node in self.outputs)]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]

    @functools.cached_property
    def operations(self) -> int:
        """For one element of a row, each value counted once."""
        each = sum(COSTS.get(node.op, 0) for node in self.nodes if not node.uniform)
        return max(1, each + sum(PARTS[node.op] for node in self.nodes if node.op in PARTS))

    @property
    def is_map(self) -> bool:
        """Whether each element of the results is a function of elements alone."""
        return not self.reductions and not any(node.op in ("position", "length") for node in self.nodes)

    def of_elements(self, function_of: Callable[[str], Callable[..., Any]], *operands: Any) -> tuple[Any, ...]:
        """The results of a map over a machine's Values, which has functions by the names of nodes."""
        known: dict[Node, Any] = dict(zip(self.inputs, operands, strict=True))

        def value(node: Any) -> Any:
            if not isinstance(node, Node):
                return node
            if node not in known:
                constant = node.op == "constant"
                known[node] = (
                    operands[0].like(node.args[0]) if constant else function_of(node.op)(*map(value, node.args))
                )
            return known[node]

        return tuple(value(node) for node in self.outputs)

    @property
    def reductions(self) -> tuple[Node, ...]:
        """Pass by pass."""
        return tuple(node for each in self.passes for node in each.reductions)

    @functools.cached_property
    def columns(self) -> tuple[int, ...]:
        """Results that are sums over rows, for each element of a row: of operands, before all passes."""
        return tuple(k for k, (_, kind) in enumerate(self.results) if kind == "column")

    @property
    def uniform_in_columns(self) -> list[Node]:
        """Values of a row that go into them."""
        return [node for node in _below([self.outputs[k] for k in self.columns]) if node.uniform]

    @functools.cached_property
    def common(self) -> frozenset[Node]:
        """Values that are the same for all rows: of operands that lie along them, of numbers and of positions."""
        found: set[Node] = set()
        for node in self.nodes:
            if node.op == "input":
                alike = self.operands[node.args[0]][1] in ("along", "number")
            else:
                alike = node.op not in PARTS and found.issuperset(node.operands)
            if alike:
                found.add(node)
        return frozenset(found)

    def roots(self, p: int) -> tuple[Node, ...]:
        """What pass p needs of each element: what is reduced and what is written."""
        reductions, outputs = self.passes[p]
        return (*(arg for node in reductions for arg in node.args), *(self.outputs[k] for k in outputs))

    def kept(self, dear: int) -> dict[Node, int]:
        """Values of an element that a pass computes and a later one takes from there -> the pass.

        What more than `dear` operations and loads give again is kept, the rest is computed again.
        """
        found: dict[Node, int] = {}
        computed: dict[Node, int] = {}

        def look(node: Node, p: int) -> None:
            if node.uniform or node.op in ("input", "position"):
                return
            if computed.setdefault(node, p) < p and node.cost > dear:
                found[node] = computed[node]
            else:
                for operand in node.operands:
                    look(operand, p)

        for p in range(len(self.passes)):
            for root in self.roots(p):
                look(root, p)
        return found

    def reads(self, p: int, kept: Mapping[Node, int]) -> tuple[Node, ...]:
        """Nodes that pass p takes as they are: inputs, values that earlier passes kept, and uniform ones."""
        return tuple(node for node, taken in self._visited(p, kept).items() if taken)

    def computed(self, p: int, kept: Mapping[Node, int]) -> tuple[Node, ...]:
        """Nodes that pass p computes of each element."""
        return tuple(node for node, taken in self._visited(p, kept).items() if not taken)

    def _visited(self, p: int, kept: Mapping[Node, int]) -> dict[Node, bool]:
        """What pass p needs of each element -> whether it takes that as it is."""
        found: dict[Node, bool] = {}

        def look(node: Node) -> None:
            if node not in found:
                found[node] = node.uniform or node.op in ("input", "position") or kept.get(node, p) < p
                if not found[node]:
                    for operand in node.operands:
                        look(operand)

        for root in self.roots(p):
            look(root)
        return found


def _below(roots: Iterable[Node]) -> Iterator[Node]:
    """The nodes that others are computed from, before those."""
    seen: set[Node] = set()

    def look(node: Node) -> Iterator[Node]:
        if node not in seen:
            seen.add(node)
            for operand in node.operands:
                yield from look(operand)
            yield node

    for root in roots:
        yield from look(root)


@contextlib.contextmanager
def _trace(online: bool) -> Iterator[None]:
    before = getattr(_tracing, "nodes", None), getattr(_tracing, "online", False)
    _tracing.nodes, _tracing.online = {}, online
    try:
        yield
    finally:
        _tracing.nodes, _tracing.online = before
