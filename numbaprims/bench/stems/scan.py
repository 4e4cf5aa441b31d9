"""Cumulative sums of the rows of an array, against torch and NumPy."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

from numbaprims.bench.cases import Case, Contender, Workload
from numbaprims.bench.operands import on_host
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import scan as reference

KINDS = ("inclusive", "exclusive", "product")


def cases(options: Namespace) -> list[Case]:
    """The cases that the options select: m rows of n elements, with `across` the columns of an n x m array."""
    return [
        Case("scan", suite, (("m", row["m"]), ("n", row["n"])), dtype,
             (("kind", kind), *((("across", True),) if options.across or row.get("across") else ())))
        for suite, dtype, kind, row in shared.rows(options, "scan", [("m", "n")], KINDS)
    ]  # fmt: skip


def memory(case: Case) -> float:
    """Bytes of the operands of a case and of what rivals make."""
    return float(6 * case["m"] * case["n"] * 8)


def _name(case: Case) -> str:
    return "cumprod" if case["kind"] == "product" else "cumsum"


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    import numbaprims

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


def workload(case: Case, threads: int) -> Workload:
    """Our call and every rival; none of them leaves the last element out."""
    p = ours(case, shared.drawn(case))
    return p.workload(case, (_torch(case, p) | _numpy(case, p)) if case["kind"] != "exclusive" else {})


def _torch(case: Case, p: Ours) -> dict[str, Contender]:
    torch = shared.torch_module()
    if torch is None:
        return {}
    axis, x = 0 if case.get("across") else 1, p.reads["x"].torch
    out = torch.empty_like(x)
    return {"torch": shared.returned(torch, partial(getattr(torch, _name(case)), x, axis, out=out))}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    if not on_host() or case.dtype not in ("f32", "f64"):
        return {}
    axis, x = 0 if case.get("across") else 1, p.reads["x"].storage
    out: Any = x.copy()
    return {"numpy": Contender(lambda: getattr(x, _name(case))(axis, out=out), lambda: out)}
