"""The k largest of the rows of an array, against torch, and NumPy's partition and sort of what it gives."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np

from numbaprims.bench.cases import Case, Contender, Workload
from numbaprims.bench.operands import on_host
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import topk as reference

KINDS = ("largest", "smallest")
SIZES = ("m", "n", "k")


def cases(options: Namespace) -> list[Case]:
    """The cases that the options select: k of m rows of n elements."""
    return [
        Case("topk", suite, tuple((name, row[name]) for name in SIZES), dtype, (("kind", kind),))
        for suite, dtype, kind, row in shared.rows(options, "topk", [SIZES], KINDS)
    ]


def memory(case: Case) -> float:
    """Bytes of the operands of a case and of what rivals make."""
    return float(32 * case["m"] * case["n"])


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; its values are looked at."""
    import numbaprims

    m, n, k = (case[name] for name in SIZES)
    x, largest = draw((m, n)), case["kind"] == "largest"
    call = partial(numbaprims.topk, x.ours, k, largest=largest)
    return Ours(
        lambda: call()[0], {"x": x}, lambda values: reference.topk(shared.exact(values[0]), k, 1, largest)[0],
        lambda values: values, 1, posed=call, bound="read",
    )  # fmt: skip


def workload(case: Case, threads: int) -> Workload:
    """Our call and every rival."""
    p = ours(case, shared.drawn(case))
    return p.workload(case, _torch(case, p) | _numpy(case, p))


def _torch(case: Case, p: Ours) -> dict[str, Contender]:
    torch = shared.torch_module()
    if torch is None:
        return {}
    call = partial(torch.topk, p.reads["x"].torch, case["k"], largest=case["kind"] == "largest")
    return {"torch": shared.returned(torch, lambda: call()[0])}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    if not on_host() or case.dtype not in ("f32", "f64") or case["kind"] != "largest":
        return {}
    x, k, latest = p.reads["x"].storage, case["k"], [np.empty(0)]

    def call() -> Any:
        places = np.argpartition(x, case["n"] - k, 1)[:, -k:]
        values = np.take_along_axis(x, places, 1)
        order = np.argsort(-values, 1)
        places = np.take_along_axis(places, order, 1)
        latest[0] = np.take_along_axis(values, order, 1)
        return places

    return {"numpy": Contender(call, lambda: latest[0])}
