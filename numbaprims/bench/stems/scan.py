"""Cumulative sums of the rows of an array, against torch and NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numbaprims
from numbaprims.bench.cases import Case, Contender
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import scan as reference

KINDS = ("inclusive", "exclusive", "product")


def _name(case: Case) -> str:
    return "cumprod" if case["kind"] == "product" else "cumsum"


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    m, n, exclusive = case["m"], case["n"], case["kind"] == "exclusive"
    name = _name(case)
    axis = 0 if case.get("across") else 1
    shape = (n, m) if axis == 0 else (m, n)
    x, out = draw(shape, 0.0), shared.output(case, shape)
    return Ours(
        partial(getattr(numbaprims, name), x.ours, axis, exclusive=exclusive, out=out.ours), {"x": x},
        lambda values: reference.scan(name, shared.exact(values[0]), axis, exclusive, False),
        lambda values: values, n, out,
    )  # fmt: skip


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    if case["kind"] == "exclusive":  # it leaves no last element out
        return {}
    axis, x = 0 if case.get("across") else 1, p.reads["x"].torch
    out = torch.empty_like(x)
    return {"torch": shared.returned(torch, partial(getattr(torch, _name(case)), x, axis, out=out))}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    if case["kind"] == "exclusive":
        return {}
    axis, x = 0 if case.get("across") else 1, p.reads["x"].storage
    out: Any = x.copy()
    return {"numpy": Contender(lambda: getattr(x, _name(case))(axis, out=out), lambda: out)}


# m rows of n elements, with `across` the columns of an n x m array
cases = shared.cases("scan", [("m", "n")], KINDS, "across")
memory = shared.memory(lambda c: 12 * c["m"] * c["n"])
workload = shared.workload(ours, torch=_torch, numpy=_numpy)
