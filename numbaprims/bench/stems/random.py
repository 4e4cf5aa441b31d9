"""dropout and random numbers against torch, and NumPy's generators where they write into an array."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import random as reference

KINDS = ("dropout", "uniform", "normal")
SEED, P = 7, 0.5
#: Elements that are held to the definition, the first ones: a stream's beginning does not depend on its length.
CHECKED = 1 << 18


def ours(case: Case, draw: Draw) -> Ours:
    """Our call, into an array."""
    kind, n = case["kind"], case["n"]
    out, some = shared.output(case, (n,)), (min(n, CHECKED),)
    if kind == "dropout":
        x = draw((n,))
        call: Callable[[], Any] = partial(numbaprims.dropout, x.ours, P, seed=SEED, out=out.ours)

        def definition(values: list[np.ndarray]) -> Any:
            return reference.dropout(shared.exact(_first(values[0])), P, SEED, 0)

        return Ours(call, {"x": x}, definition, _first, 1, out)
    call = partial(getattr(numbaprims, f"random_{kind}"), seed=SEED, out=out.ours)
    define = partial(getattr(reference, kind), some, SEED, 0, out.dtype, 0.0, 1.0)
    return Ours(call, {}, lambda values: define(), _first, 1, out)


def _first(values: np.ndarray) -> np.ndarray:
    return values[:CHECKED]


def _check(case: Case, p: Ours) -> Callable[[np.ndarray], str | None]:
    """Of a rival, whose generator is another one: that it is a dropout of x, or has the moments of its distribution."""

    def check(got: np.ndarray) -> str | None:
        got, n, kind = shared.exact(got), case["n"], case["kind"]
        if kind == "dropout":
            x = shared.exact(p.reads["x"].values())
            if not np.allclose(got[got != 0], (x / (1 - P))[got != 0], rtol=1e-2):
                return "what is kept is not x / (1 - p)"
            shares = [((got == 0).mean(), P, math.sqrt(P * (1 - P)))]
        else:
            mean, std = (0.5, 12**-0.5) if kind == "uniform" else (0.0, 1.0)
            shares = [(got.mean(), mean, std), ((got**2).mean(), mean**2 + std**2, 3**0.5)]
        # halves round: 1 %
        off = [share for share, mean, std in shares if not abs(share - mean) < 6 * std / math.sqrt(n) + 0.01]
        return f"its moments are off: {off}" if off else None

    return check


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    """`dropout`, which returns a new tensor, and the generators that fill one."""
    assert p.out is not None
    if case["kind"] == "dropout":
        made = shared.returned(torch, partial(torch.nn.functional.dropout, p.reads["x"].torch, P))
    else:
        target = shared.nan_like(torch, p.out.torch)
        made = shared.written(torch, getattr(target, f"{case['kind']}_"), target)
    return {"torch": dataclasses.replace(made, check=_check(case, p))}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    if case["kind"] == "dropout":
        return {}
    assert p.out is not None
    rng, y = np.random.default_rng(SEED), np.full_like(p.out.storage, np.nan)
    draw = rng.random if case["kind"] == "uniform" else rng.standard_normal
    return {"numpy": Contender(lambda: draw(out=y, dtype=y.dtype), lambda: y, check=_check(case, p))}


cases = shared.cases("random", [("n",)], KINDS)
memory = shared.memory(lambda c: 3 * c["n"])
workload = shared.workload(ours, torch=_torch, numpy=_numpy)
