"""What a kernel needs to know of a formula and of the types of its arrays, by a key that is a literal in the kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numbaprims.formulas.elementary import exp_value, fmod_value
from numbaprims.formulas.graph import COMMON, PARTS, Node
from numbaprims.formulas.reductions import graph_of
from numbaprims.formulas.stacks import KIND, SLOPE
from numbaprims.formulas.trigonometric import atan2_value
from numbaprims.gpu.device.math import divide_value, log_value, power_value, sqrt_value
from numbaprims.gpu.device.value import Value


def _divide(a: Any, b: Any) -> Value:
    return divide_value(b.like(a), b) if isinstance(b, Value) else divide_value(a, a.like(b))


#: Names of nodes -> functions over Values, one of whose operands may be a number.
TABLE: dict[str, Callable[..., Any]] = {
    **COMMON,
    "div": _divide,
    "quotients": lambda x, scale, low, high, zero: COMMON["quantized"](_divide(x, scale), zero),
    "reciprocal": lambda x: divide_value(x.like(1.0), x),
    "sqrt": sqrt_value,
    "exp": exp_value,
    "exp_of_negative": exp_value,
    "log": log_value,
    "pow": power_value,
    "fmod": lambda a, b: fmod_value(a, b, divide_value),
    "atan2": lambda y, x: atan2_value(y, x, divide_value),
}


def function_of(op: str) -> Callable[..., Any]:
    """A node's function; kinds of activation and their slopes are the activations' own."""
    if not op.startswith((KIND, SLOPE)):
        return TABLE[op]
    from numbaprims.gpu.activation import formulas, gradients  # their package makes sums of this engine

    table = formulas.FORWARD if op.startswith(KIND) else gradients.BACKWARD
    function: Callable[..., Any] = table[op.partition(":")[2]][0]
    return function


def key_of(problem: Any) -> str:
    """The key of a `Reduction`'s kernels."""
    dtypes = [array.dtype for array in problem.arrays]
    # of integers, and of positions that float32 does not count
    wide = problem.compute == "f64" and "f64" not in dtypes
    return "|".join((problem.formula, ",".join(dtypes), *["f64"] * wide))


@functools.cache
def plan_of(key: str) -> Plan:
    """The plan that a key names."""
    return Plan(key)


class Plan:
    """A traced formula, whose sums of exponentials take one pass, over arrays of given types.

    A pass has a *state*: the parts of its reductions one after another, then how many elements they are of.
    """

    def __init__(self, key: str) -> None:
        formula, dtypes, *wide = key.split("|")
        self.graph = graph_of(formula, online=True)
        self.dtypes = dtypes.split(",")
        """Of each array of a launch, results first."""
        self.number = "f64" if wide or "f64" in self.dtypes else "f32"
        """What is computed in."""
        self.results = len(self.graph.results)
        self.arrays = len(self.dtypes)
        self.kinds = [kind for _, kind in (*self.graph.results, *self.graph.operands)]
        """Of each array, and then of the numbers."""
        scalars = [i for i, (_, kind) in enumerate(self.graph.operands) if kind in ("one", "number")]
        self.scalars = {operand: place for place, operand in enumerate(scalars)}
        """Operands that are one value for a row -> their place among those; the length follows them."""
        self.numbers = self.kinds.count("number")
        self.passes = len(self.graph.passes)
        self.reduced = [p for p in range(self.passes) if self.graph.passes[p].reductions]
        """Passes with reductions."""

    @functools.cached_property
    def light(self) -> bool:
        """Whether 64 registers are enough for 32 numbers of a row and what is done to them.

        Exponentials take more, and so do two weights, which are asked for ahead of the results."""
        kinds = {node.op for each in self.graph.passes for node in each.reductions}
        plain = self.number == "f32" and kinds <= {"sum", "max", "top", "moments"}
        return plain and self.graph.operations <= 7 and len(self.late) < 2

    def state(self, p: int) -> int:
        """Numbers of the state of pass p."""
        return 1 + sum(PARTS[node.op] for node in self.graph.passes[p].reductions)

    def place(self, p: int) -> int:
        """Where the state of pass p begins among those of all, which one unused number precedes."""
        return 1 + sum(self.state(q) for q in range(p))

    def part(self, reduction: Node, which: int) -> int:
        """Where a part of a reduction stands among the states of all passes."""
        p = reduction.level - 1
        place = self.place(p)
        for node in self.graph.passes[p].reductions:
            if node is reduction:
                return place + which
            place += PARTS[node.op]
        raise KeyError(reduction)

    def reads(self, p: int) -> list[int]:
        """Operands of an element that pass p reads; those that a thread keeps from the first pass on if p is -1."""
        if p < 0:
            every = {operand for q in range(self.passes) for operand in self.reads(q)}
            return sorted(every - set(self.late))
        nodes = set(self.graph.reads(p, {}))
        return [
            i for i, (_, kind) in enumerate(self.graph.operands)
            if kind in ("row", "along", "run") and self.graph.inputs[i] in nodes
        ]  # fmt: skip

    @functools.cached_property
    def late(self) -> list[int]:
        """Operands that rows or runs share and the results alone are made of: weights, which a cache holds."""
        last = self.passes - 1
        if last in self.reduced:
            return []
        before = {operand for q in range(last) for operand in self.reads(q)}
        return [i for i in self.reads(last) if self.graph.operands[i][1] != "row" and i not in before]

    @functools.cached_property
    def ones(self) -> list[int]:
        """Results that are one value for a row."""
        return [k for k in range(self.results) if self.kinds[k] == "one"]
