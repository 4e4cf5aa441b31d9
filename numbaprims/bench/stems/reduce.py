"""Reductions of the rows of an array, against torch and NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import DTYPES, Case, Contender
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops.reduce import REDUCTIONS
from numbaprims.reference import reduce as reference

KINDS = tuple(REDUCTIONS)


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    op, m, n = case["kind"], case["m"], case["n"]
    axis = 0 if case.get("across") else 1
    # products of numbers near 1, whose logarithms are 0 on the mean, stay finite; within 1 / n of it the roundings of
    # most products would go the same way
    near = min(0.5, 4 / math.sqrt(n))
    # and of a sum below 0 there is no logarithm
    ends = {"prod": (1 - near + near**2 / 6, 1 + near + near**2 / 6), "log_sum": (0.0, 1.0)}.get(op, (-1.0, 1.0))
    x = draw((n, m) if axis == 0 else (m, n), *ends)
    out = None if REDUCTIONS[op].gives else Operand.empty((m,), DTYPES[case.dtype])
    return Ours(
        partial(numbaprims.reduce, x.ours, op, axis, out=None if out is None else out.ours), {"x": x},
        lambda values: reference.reduce(shared.exact(values[0]), op, (axis,), False, "propagate"),
        lambda values: values, n, out, bound="read",
    )  # fmt: skip


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    op, axis, x = case["kind"], 0 if case.get("across") else 1, p.reads["x"].torch
    norm = torch.linalg.vector_norm
    call: Callable[[], Any] = {
        "min": partial(torch.amin, x, axis), "max": partial(torch.amax, x, axis),
        "amax": partial(norm, x, float("inf"), axis), "norm1": partial(norm, x, 1.0, axis),
        "norm2": partial(norm, x, 2.0, axis), "var": partial(torch.var, x, axis, correction=0),
        "std": partial(torch.std, x, axis, correction=0),
        "sum_square": partial(lambda: torch.square(x).sum(axis)), "log_sum": partial(lambda: x.sum(axis).log()),
    }.get(op) or partial(getattr(torch, op), x, axis)  # fmt: skip
    return {"torch": shared.returned(torch, call)}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    op, axis, x = case["kind"], 0 if case.get("across") else 1, p.reads["x"].storage
    function: Callable[..., Any] = {
        "amax": lambda x, axis: np.linalg.norm(x, np.inf, axis), "norm1": lambda x, axis: np.linalg.norm(x, 1, axis),
        "norm2": lambda x, axis: np.linalg.norm(x, None, axis),
        "sum_square": lambda x, axis: np.square(x).sum(axis), "log_sum": lambda x, axis: np.log(x.sum(axis)),
        "logsumexp": lambda x, axis: np.log(np.exp(x - x.max(axis, keepdims=True)).sum(axis)) + x.max(axis),
    }.get(op) or getattr(np, op)  # fmt: skip
    return {"numpy": shared.returned(np, lambda: function(x, axis))}


# m rows of n elements, with `across` the columns of an n x m array
cases = shared.cases("reduce", [("m", "n")], KINDS, "across")
memory = shared.memory(lambda c: 3 * c["m"] * c["n"])
workload = shared.workload(ours, torch=_torch, numpy=_numpy)
