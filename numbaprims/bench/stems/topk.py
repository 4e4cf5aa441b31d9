"""The k largest of the rows of an array, against torch, and NumPy's partition and sort of what it gives."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import topk as reference

KINDS = ("largest", "smallest")
SIZES = ("m", "n", "k")


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; its values are looked at."""
    m, n, k = (case[name] for name in SIZES)
    x, largest = draw((m, n)), case["kind"] == "largest"
    call = partial(numbaprims.topk, x.ours, k, largest=largest)
    return Ours(
        lambda: call()[0], {"x": x}, lambda values: reference.topk(shared.exact(values[0]), k, 1, largest)[0],
        lambda values: values, 1, posed=call, bound="read",
    )  # fmt: skip


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    call = partial(torch.topk, p.reads["x"].torch, case["k"], largest=case["kind"] == "largest")
    return {"torch": shared.returned(torch, lambda: call()[0])}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    if case["kind"] != "largest":
        return {}
    x, k = p.reads["x"].storage, case["k"]

    def call() -> Any:
        places = np.argpartition(x, case["n"] - k, 1)[:, -k:]
        values = np.take_along_axis(x, places, 1)
        order = np.argsort(-values, 1)
        return np.take_along_axis(values, order, 1), np.take_along_axis(places, order, 1)

    return {"numpy": shared.returned(np, call)}


cases = shared.cases("topk", [SIZES], KINDS)
memory = shared.memory(lambda c: 8 * c["m"] * c["n"])
workload = shared.workload(ours, torch=_torch, numpy=_numpy)
