"""Calls that pose stored problems of quantisation again (`numbaprims.dispatch.examples` has the contract)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbaprims.dtypes import LONG_NAMES
from numbaprims.ops import examples, reduction
from numbaprims.reference.quantize import LIMITS


def example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    if not problem.formula.startswith("map:"):
        return _example_of_rows(problem)
    made = reduction.Example(problem, apart=True)
    word, result = problem.formula.split(":")[1].partition(".")[0], problem.results[0].rpartition(":")[2]
    given = []
    for each in problem.inputs:
        _, kind, dtype = each.split(":")
        shape = [1 if (at in made.axes) != (kind == "along") else size for at, size in enumerate(made.shape)]
        if kind == "flat":
            shape[max(at for at in range(len(shape)) if at not in made.axes)] = 1
        like = kind == "row"
        given.append(made.array(dtype, low=0.5) if like else examples.array(tuple(shape), dtype, low=0.5))
    x, *more = given
    zero = np.dtype(LONG_NAMES[result]).type(3) if result in LIMITS else None
    name, way = next((name, word.removeprefix(name)) for name in _CALLS if word.startswith(name))
    if name == "qlinear_add":
        _, cuts, limits = problem.formula.split(":")[1].partition(".")
        zero = np.dtype(LONG_NAMES[result]).type(limits.partition("_")[0] or 3)
        return name, (x, 0.5, 0, *more, 0.25, 0, 0.5, zero), {"activation": "relu" if cuts else None}
    if name == "lookup":
        return "qlinear_activation", (x, "relu", 0.5, 0, 0.25, zero), {}
    if name == "signed":
        return "gemm_integer", (examples.array((1, x.shape[0]), "i8"), x), {}
    if name == "requantize":
        return "quantize", (x, *(more or [0.5])), {"dtype": LONG_NAMES[result]}
    words: dict[str, Any] = {}
    if "_pair" in way or "_lone" in way or "er" in way:  # lower, upper
        signed = "-8" in problem.formula
        words["dtype"] = "int4" if signed else "uint4"
        if "_pair" in way:
            n, gap = 2 * x.shape[-1], 2 * (math.prod(problem.kept) > 1)  # rows that are not one
            x = examples.array((*x.shape[:-1], n + gap), problem.inputs[0].rpartition(":")[2])[..., :n]
            more = [each for each in more[1::2]]
    elif name == "quantize":
        words["dtype"] = LONG_NAMES[result]
    if name == "dequantize":
        words["out_dtype"] = LONG_NAMES[result]
    return name, (x, *(more or [0.5])), words


#: What begins a formula's name -> whose it is.
_CALLS = ("quantize", "dequantize", "qlinear_add", "lookup", "signed", "requantize")


def _example_of_rows(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    made = reduction.Example(problem)
    x = made.array(problem.dtype)
    if problem.formula == "integer_sum":
        k = x.shape[made.axes[-1]]
        if made.axes[-1] == x.ndim - 1:
            return "gemm_integer", (x, examples.array((k, 1), "i8"), None, 1), {}
        return "gemm_integer", (examples.array((1, k), "i8"), x, 1), {}
    if problem.formula == "qlinear_mean":
        zero = np.dtype(LONG_NAMES[problem.results[0].rpartition(":")[2]]).type(3)
        last = made.axes[-1] != x.ndim - 1
        x = x[None] if x.ndim < 3 else x
        return "qlinear_global_avg_pool", (x, 0.5, 0, 0.25, zero), {"layout": "NWC" if last else "NCW"}
    words = {"symmetric": problem.formula.endswith("symmetric")}
    return "dynamic_quantize", (x,), {"axis": made.axes[0] if math.prod(problem.kept) > 1 else None, **words}
