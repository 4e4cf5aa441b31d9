"""The activation problem, and the loops over its elements that every solver starts from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy import ndarray

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.ops import examples
from numbaprims.ops._activation_errors import ACTIVATION_ERRORS
from numbaprims.ops.activation_kinds import DOMAINS, SPECIAL as SPECIAL
from numbaprims.shapes import element_strides


class Loops(NamedTuple):
    """The elements of a call as nested loops that all operands share, the innermost last."""

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    """For each operand, in elements."""
    offsets: tuple[int, ...]
    """For each operand, the element at which its loops begin, counted from its array's first."""


@dataclasses.dataclass(frozen=True)
class ActivationProblem(Problem):
    """One element-wise pass over the operands, or the sum that is the gradient of prelu's weight."""

    stem: ClassVar[str] = "activation"
    kind: str
    """A name of the table of kinds, or one of `SPECIAL`."""
    direction: str
    """"forward", "backward", or "weight" for the gradient of prelu's weight."""
    dtype: str
    n: int
    """Elements of one operand."""
    layout: str
    """"contiguous"; "rows": the innermost loop is contiguous in every operand; "strided"; and for the
    gradient of prelu's weight "channels" where the channels lie side by side."""
    inner: int
    """Length of the innermost loop."""
    in_place: bool
    """The result overwrites an operand."""
    operands: tuple[str, ...]
    """Names of the arrays that take part, results first; `loops` has them in this order."""
    loops: Loops = dataclasses.field(compare=False)

    @property
    def empty(self) -> bool:
        return self.n == 0

    def flops(self) -> float:
        return float(self.n)

    def bytes_moved(self) -> float:
        size = arrays.DTYPES[self.dtype].itemsize
        # an operand that is broadcast (prelu's weight) is read once for each of its own elements
        total = 0
        for strides in self.loops.strides:
            loops = zip(self.loops.shape, strides, strict=True)
            total += math.prod(length for length, stride in loops if stride)
        return float(total * size)

    def roundings(self) -> int:
        kind = self.kind if self.kind in ACTIVATION_ERRORS else SPECIAL[self.kind]
        if kind == "prelu" and self.direction != "forward":
            return self.n  # the call also makes the gradient of the weight, a sum
        errors = ACTIVATION_ERRORS[kind]
        return math.ceil(max(errors.forward, errors.backward, errors.reference)) + 1

    def bench_command(self) -> str:
        kind = SPECIAL.get(self.kind, self.kind)
        # the size of x: two elements of it make one of glu's
        n = 2 * self.n if kind == "glu" else self.n
        words = f"numbaprims bench activation --kind {kind} --shapes {n} --dtype {self.dtype}"
        return words if self.direction == "forward" else f"{words} --backward"


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]], offsets: Sequence[int], keep: int = 0) -> Loops:
    """Fewest nested loops over operands of one shape, the first operand walked in the order of its memory.

    Dimensions along which the first operand runs backwards are turned round in all of them; neighbours that
    every operand walks evenly become one loop. The first `keep` dimensions stay loops of their own.

    >>> collapse((4, 5), [(-5, -1), (1, 4)], (0, 0))
    Loops(shape=(4, 5), strides=((5, 1), (-1, -4)), offsets=(-19, 19))
    >>> collapse((2, 3, 4), [(12, 4, 1), (24, 8, 2)], (0, 0))
    Loops(shape=(24,), strides=((1,), (2,)), offsets=(0, 0))
    """
    begin = list(offsets)
    dims = []
    for axis, length in enumerate(shape):
        steps = [operand[axis] for operand in strides]
        if length == 1 and axis >= keep:
            continue
        if steps[0] < 0:
            for which, step in enumerate(steps):
                begin[which] += step * (length - 1)
            steps = [-step for step in steps]
        dims.append((length, steps))
    kept, rest = dims[:keep], dims[keep:]
    rest.sort(key=lambda dim: [-abs(step) for step in dim[1]])
    merged: list[tuple[int, list[int]]] = []
    for length, steps in rest:
        if merged and all(outer == step * length for outer, step in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * length, steps)
        else:
            merged.append((length, steps))
    loops = kept + (merged or [(1, [1] * len(strides))])
    return Loops(
        tuple(length for length, _ in loops),
        tuple(tuple(steps[which] for _, steps in loops) for which in range(len(strides))),
        tuple(begin),
    )


def make_problem(
    kind: str, direction: str, dtype: str, out: ndarray, inputs: dict[str, ndarray], axis: int | None = None
) -> ActivationProblem:
    """The problem of a checked call: storage arrays in, an array parameter broadcast to the shape of x.

    `axis` is glu's: x, and dx with it, then hold two operands, the half that is gated and its gate.
    """
    if direction == "weight":
        names, loops = _weight_loops(out, inputs)
        channels = all(steps[0] == 1 for steps in loops.strides[1:])
        rows = all(steps[-1] == 1 for steps in loops.strides[1:])
        layout = "rows" if rows else "channels" if channels else "strided"
    else:
        names, loops = _elementwise_loops(direction, out, inputs, axis)
        layout = "strided"
        if all(steps[-1] == 1 for steps in loops.strides):
            layout = "contiguous" if len(loops.shape) == 1 and not any(loops.offsets) else "rows"
    return ActivationProblem(
        kind=kind,
        direction=direction,
        dtype=dtype,
        n=math.prod(loops.shape),
        layout=layout,
        inner=loops.shape[-1],
        in_place=any(np.may_share_memory(out, x) for x in inputs.values()),
        operands=names,
        loops=loops,
    )


def _elementwise_loops(
    direction: str, out: ndarray, inputs: dict[str, ndarray], axis: int | None
) -> tuple[tuple[str, ...], Loops]:
    operands = [("out", element_strides(out), 0)]
    operands += [(name, element_strides(x), 0) for name, x in inputs.items()]
    if axis is None:
        shape = out.shape
    else:
        shape = out.shape if direction == "forward" else inputs["dy"].shape
        half = shape[axis]
        # each array of both halves is two operands, whose second begins half an axis further
        gates = {"x": "gate"} if direction == "forward" else {"x": "gate", "out": "dgate"}
        operands += [(gates[name], steps, half * steps[axis]) for name, steps, _ in operands if name in gates]
    names = tuple(name for name, _, _ in operands)
    return names, collapse(shape, [steps for _, steps, _ in operands], [begin for _, _, begin in operands])


def _weight_loops(out: ndarray, inputs: dict[str, ndarray]) -> tuple[tuple[str, ...], Loops]:
    """Channels outermost, then the elements of one channel; a single weight is one channel of everything."""
    x = inputs["x"]
    if out.size == 1:
        shape = (1, *x.shape)
        strides = [(0,) * len(shape), *((0, *element_strides(each)) for each in inputs.values())]
    else:
        order = [1, 0, *range(2, x.ndim)]
        shape = tuple(x.shape[axis] for axis in order)
        strides = [(1, *(0,) * (x.ndim - 1))]
        strides += [tuple(element_strides(each)[axis] for axis in order) for each in inputs.values()]
    return ("out", *inputs), collapse(shape, strides, [0] * len(strides), keep=1)


def example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    p = problem
    kind, words = examples.KIND_OF.get(p.kind, p.kind), dict(examples.parameters(p.kind))
    low, high = DOMAINS.get(kind, (-4.0, 4.0))
    outer = max(1, p.n // max(p.inner, 1))

    def array(*shape: int, low: float = low, high: float = high) -> Any:
        """x of this shape; what lies between its rows, or its elements, follows from the layout."""
        if p.layout == "strided" and "weight" not in p.operands:
            return examples.array((*shape[:-1], 2 * shape[-1] + 2), p.dtype, low=low, high=high)[..., :-2:2]
        gap = 8 if p.layout == "rows" and p.direction != "weight" and "weight" not in p.operands else 0
        made = examples.array((*shape[:-1], shape[-1] + gap), p.dtype, low=low, high=high)
        return made[..., : shape[-1]]

    shape: tuple[int, ...]
    if kind == "glu":
        shape, words["axis"] = (outer, 2 * p.inner), -1
    elif p.direction == "weight":
        shape = (p.inner, outer) if p.layout == "channels" else (1, outer, p.inner)
        words["weight"] = examples.array((outer,), p.dtype)
    elif "weight" in p.operands:
        shape = (1, outer, p.inner) if p.layout == "strided" else (outer, p.inner)
        words["weight"] = examples.array((outer if p.layout == "strided" else p.inner,), p.dtype)
    else:
        shape = (p.n,) if p.layout == "contiguous" else (outer, p.inner)
        if kind == "prelu":
            words["weight"] = examples.array((1,), p.dtype)
    x = array(*shape)
    if p.direction == "forward":
        return "activation", (x, kind), {**words, **({"out": x} if p.in_place else {})}
    dy = array(outer, p.inner) if kind == "glu" else array(*shape)
    over = {"out": x if kind == "glu" else dy} if p.in_place else {}
    low, high = _OF_Y.get(kind, (low, high))
    y = array(*shape, low=low, high=high) if "y" in p.operands else None
    return "activation_backward", (dy, x, y, kind), {**words, **over}


#: Values that a result can have, for the gradients that are computed from it.
_OF_Y = {"sigmoid": (0.02, 0.98), "tanh": (-0.98, 0.98), "exp": (0.02, 4.0)}
