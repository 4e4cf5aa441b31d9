"""Formulas without reductions by the pointwise engine: blocks of elements wherever they lie."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.pointwise.bytes import VALUES as BYTES
from numbaprims.cpu.pointwise.emit import emitter
from numbaprims.cpu.pointwise.form import ARGS, Form, Formula, Operand
from numbaprims.cpu.reduce.sums import function_of
from numbaprims.cpu.reduce.variant import takes_exponentials
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.graph import COSTS
from numbaprims.formulas.maps import BINARY, BITWISE, MAP
from numbaprims.formulas.reductions import graph_of


class _Graphs(dict[str, Formula]):
    """Traced formulas as functions of Values, by name."""

    def __missing__(self, name: str) -> Formula:
        graph = graph_of(name.partition("@")[0])

        def function(*operands: Value) -> tuple[Value, ...]:
            return graph.of_elements(functools.partial(function_of, kind=type(operands[0])), *operands)

        return Formula(function, [kind for _, kind in graph.operands].count("number"))


_formulas: Mapping[str, Formula] = _Graphs()
_emit = emitter(_formulas)


_EXACT = {f"{MAP}{name}" for name, each in BINARY.items() if each.exact}
_EXACT |= {f"{MAP}{name}.{kind}" for name in BITWISE for kind in BYTES} | {
    f"{MAP}{name}" for name in ("where", "truth", "signed")
}


def compute_of(problem: Any) -> str:
    """The type that a problem is computed in: that of its operands where all are 8-bit integers and stay exact.

    Places are integers here, as wide as the numbers are.
    """
    word = problem.formula.rpartition(":")[0]
    kinds = {"u8" if each.dtype == "bool" else each.dtype for each in problem.arrays[len(problem.results) :]}
    own = next(iter(kinds)) if len(kinds) == 1 else ""
    exact = word in _EXACT or (word == f"{MAP}cast" and problem.arrays[0].dtype == own)
    if own in BYTES and exact and all(DTYPES[each.dtype].itemsize == 1 for each in problem.arrays):
        return own
    first = problem.places and graph_of(problem.formula).reductions
    return str(problem.numbers if first and problem.n < 1 << 31 else problem.compute)


def form_of(problem: Any, W: int) -> Form:
    """The kernel of contiguous elements of a problem."""
    arrays = [Operand(at, "u8" if x.dtype == "bool" else x.dtype) for at, x in enumerate(problem.arrays)]
    results = len(problem.results)
    name = f"{problem.formula}@{graph_of(problem.formula).digest}"
    return Form(name, compute_of(problem), tuple(arrays[:results]), tuple(arrays[results:]), W)


@functools.cache
def make_map(form: Form) -> RangeKernel:
    """The range kernel of contiguous elements of a form, whose formula is "name@digest of the graph"."""
    text = form.text

    @range_kernel("reduce_map", ARGS.types(), spec=(text,))
    def reduce_map(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        _emit(text, args, lo, hi)

    return reduce_map


def halves(problem: Any, target: Any) -> bool:
    """Whether rows are walked by half vectors, where whole ones take two turns.

    A sum of 98,304 floats in the caches took 13 us at best and 18 where arrays lay 64 bytes apart, by halves 13
    everywhere.  The gradient of softmax of 4608 x 384 took 506 and 352 us; with numbers of columns or rows beside them,
    as layer norm's, halves take 1.1 times as long, and exponentials 1.5 times, which have other bits where no register
    holds their table.  Sums over runs of a few vectors have fewer idle lanes: training 16 x 2048 x 7 x 7 took 759 us,
    627 so, sums of 2048 x 49 6.9 and 5.1 (Zen 4).
    """
    size, graph = DTYPES[compute_of(problem)].itemsize, graph_of(problem.formula)
    alike = all(DTYPES[each.dtype].itemsize == size for each in problem.arrays)
    if not target.rates.two_turns(target.vector_bytes) or not alike:
        return False
    rows = len(problem.inputs) > 1 and all(each.kind == "row" for each in problem.arrays)
    near = rows and problem.bytes_moved() < target.third
    few = 64 < problem.reduced[-1] * size <= 256 and all(node.op in ("sum", "moments") for node in graph.reductions)
    if graph.is_map:
        return all(COSTS.get(node.op, 0) < COSTS["exp_of_negative"] for node in graph.nodes if not node.uniform)
    # an activation behind it changes no sum
    return (near or few) and not takes_exponentials(problem.formula)


def doubles(problem: Any, target: Any) -> bool:
    """Whether rows of float32 whose results are bytes are walked by two AVX2 registers, which become one of 16 bytes.

    Comparisons in the caches take 0.83 to 0.92 of the time, casts 0.85 to 0.93, from memory 1.0 to 1.08 (Zen 3).
    """
    narrow = all(DTYPES[each.dtype].itemsize == 1 for each in problem.arrays[: len(problem.results)])
    near = compute_of(problem) == "f32" and problem.bytes_moved() <= target.third
    return narrow and near and target.vector_bytes == 32 and graph_of(problem.formula).is_map
