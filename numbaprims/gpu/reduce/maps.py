"""Formulas without reductions by the pointwise engine: elements wherever they lie."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from numbaprims.formulas.reductions import graph_of
from numbaprims.gpu.jit import GpuKernel, gpu_kernel, types
from numbaprims.gpu.launch import make_launcher
from numbaprims.gpu.pointwise.emit import emitter
from numbaprims.gpu.pointwise.form import THREADS, Form, Formula
from numbaprims.gpu.pointwise.walk import Array, turns, walker, width
from numbaprims.gpu.reduce.plans import function_of


class _Graphs(dict[str, Formula]):
    """Traced formulas as functions of Values, by "name@digest of the graph"."""

    def __missing__(self, name: str) -> Formula:
        graph = graph_of(name.partition("@")[0])
        function = functools.partial(graph.of_elements, function_of)
        return Formula(function, [kind for _, kind in graph.operands].count("number"))


_formulas: Mapping[str, Formula] = _Graphs()
_emit = emitter(_formulas)


@functools.cache
def make_map(form: Form) -> GpuKernel:
    """The kernel of a form."""
    text = form.text

    @gpu_kernel("reduce_map", types.void(form.parameters(_formulas[form.formula])), form, threads=THREADS, registers=64)
    def reduce_map(given):  # type: ignore[no-untyped-def]
        _emit(text, given)

    return reduce_map


def _arrays(problem: Any) -> tuple[list[Array], list[Array]]:
    """Results and operands, along the kept dimensions and the reduced ones."""
    found = [
        Array(place, array.dtype, (*kept, *reduced))
        for place, (array, (kept, reduced)) in enumerate(zip(problem.arrays, problem.strides, strict=True))
    ]
    return found[: len(problem.results)], found[len(problem.results) :]


def pack_width(problem: Any) -> int:
    """Elements of a pack."""
    return width(problem.reduced[-1], *_arrays(problem))


def tiled(problem: Any) -> bool:
    """Whether operands lie the other way than results, which tiles turn."""
    return turns((*problem.kept, *problem.reduced), *_arrays(problem))


def map_launcher(problem: Any, target: Any, V: int, turned: bool = False) -> Any:
    """All elements, by packs of V, or by tiles."""
    if problem.empty:
        return make_launcher(())
    graph = graph_of(problem.formula)
    name, count = f"{problem.formula}@{graph.digest}", [kind for _, kind in graph.operands].count("number")
    return walker(
        make_map, name, problem.compute, (*problem.kept, *problem.reduced), *_arrays(problem), target,
        lambda floats: floats[:count], V, turned,
    )  # fmt: skip


def _form(formula: str, compute: str, results: str, operands: str, V: int, loops: int = 1) -> Form:
    return Form(f"{formula}@{graph_of(formula).digest}", compute, results, operands, V, loops, False)


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_map, (_form("map:add:row,along", "f32", "f32", "f32,f32", 4, 2),), ("LDG.E.128", "STG.E.128")),
    (make_map, (_form("map:add:row,one", "f32", "bf16", "bf16,bf16:one", 8, 2),), ("LDG.E.128", "STG.E.128")),
    (make_map, (_form("map:add:row,row", "f32", "f32", "f32,f32:turned", 4, 2),), ("LDG.E.128", "STG.E.128", "LDS")),
    (make_map, (_form("map:add:row,row", "f32", "bf16", "bf16:turned,bf16:turned", 8, 3),), ("LDG.E.128", "STG.E.128")),
    (make_map, (_form("map:quantize:row", "f32", "i8", "f32", 4),), ("LDG.E.128", "STG.E")),
    (make_map, (_form("map:add:row,row", "f64", "i64", "i64,i64", 1, 3),), ("LDG.E.64", "STG.E.64")),
]
