"""Activations, forward and backward, against torch, NumPy and numexpr, each writing into a given output."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender, select
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.activation_rivals import numexpr_call, numpy_call, torch_backward, torch_call
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops.activation_kinds import ALIASES, DOMAINS, KINDS
from numbaprims.reference import activation as reference

# What the kinds that have parameters are called with.
PARAMETERS: dict[str, dict[str, Any]] = {
    "clip": {"min": -1.0, "max": 1.0},
    "threshold": {"threshold": 0.5, "value": -1.0},
    "power": {"alpha": 1.0, "beta": 0.5, "gamma": 2.0},
}
# Names for a kind with parameters of its own.
SPECIAL: dict[str, tuple[str, dict[str, Any]]] = {**ALIASES, "gelu_tanh": ("gelu", {"approximate": "tanh"})}


def cases(options: Namespace) -> list[Case]:
    """The cases that the options select: every kind but identity and prelu, unless kinds are named."""
    kinds = options.kind or [*(kind for kind in KINDS if kind not in ("identity", "prelu")), "gelu_tanh"]
    known = [*KINDS, *SPECIAL]
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise ValueError(f"kind: {unknown[0]!r} given, allowed are {', '.join(known)}")
    if options.shapes == ["quick"] and not options.kind:
        kinds = ["relu", "clip", "exp", "tanh", "gelu"]
    backward = (("backward", True),) if options.backward else ()
    return [
        Case("activation", name, (("n", size),), dtype, (("kind", kind), *backward))
        for dtype in options.dtype
        for name, suite in select("activation", options.shapes, ("n",))
        for size in ([dict(suite)["n"]] if name == "given" else suite["sizes"])
        for kind in kinds
    ]


def _parts(case: Case) -> tuple[str, dict[str, Any]]:
    """The kind and its parameters."""
    kind, fixed = SPECIAL.get(case["kind"], (case["kind"], {}))
    return kind, {**PARAMETERS.get(kind, {}), **fixed}


def _sample(count: int) -> np.ndarray | slice:
    """All of a small array; of a large one its ends and one element in 997, which no vector width divides."""
    if count <= 1 << 18:
        return slice(None)
    ends = np.arange(4096)
    return np.unique(np.concatenate([ends, np.arange(0, count, 997), count - 1 - ends]))


def ours(case: Case, draw: Draw) -> Ours:
    """y = kind(x), or dx from dy with `backward`."""
    (kind, parameters), count = _parts(case), case["n"]
    half = count // 2 if kind == "glu" else count
    # Finite results everywhere; both sides of every kink. One log of a negative number makes torch's log and sqrt ten
    # times slower (they take a slow path for NaN).
    x = draw((count,), *DOMAINS.get(kind, (-4.0, 4.0)))
    if kind == "prelu":
        parameters["weight"] = Operand.of(np.array([0.25], np.float32), x.dtype).ours
    if not case.get("backward"):
        out, take = shared.output(case, (half,)), _sample(half)

        def defined(values: list[np.ndarray]) -> Any:
            parts = [each[take] for each in np.split(values[0], 2 if kind == "glu" else 1)]
            return reference.activation(np.concatenate(parts), kind, **parameters)

        call = partial(numbaprims.activation, x.ours, kind, **parameters, out=out.ours)
        return Ours(call, {"x": x}, defined, lambda got: got[take], 0, out)
    reads = {"dy": draw((half,)), "x": x, "y": draw((half,))}
    out, take = shared.output(case, (count,)), _sample(count)

    def gradient(values: list[np.ndarray]) -> Any:
        dy, x, _ = values
        if kind != "glu":
            got = reference.activation_backward(dy[take], x[take], kind, **parameters)
            return got[0] if kind == "prelu" else got
        at = np.arange(count)[take]
        both = reference.activation_backward(dy[at % half], x.reshape(2, half)[:, at % half], kind, axis=0)
        return np.where(at < half, both[0], both[1])

    dy, x, y = reads.values()
    call = partial(numbaprims.activation_backward, dy.ours, x.ours, y.ours, kind, **parameters, out=out.ours)
    return Ours(call, reads, gradient, lambda got: got[take], 0, out)


def _with_result(case: Case, draw: Draw) -> Ours:
    """With the y that a gradient may read."""
    p = ours(case, draw)
    if "y" in p.reads:
        kind, parameters = _parts(case)
        parameters |= {"weight": 0.25} if kind == "prelu" else {}
        values = reference.activation(p.reads["x"].values(), kind, **parameters).astype(np.float32)
        p.reads["y"].set(Operand.of(values, p.reads["y"].dtype).storage)
    return p


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    (kind, parameters), out = _parts(case), p.out
    assert out is not None
    if case.get("backward"):
        call = torch_backward(kind, p.reads["dy"], p.reads["x"], p.reads["y"], out, parameters)
    else:
        call = torch_call(kind, p.reads["x"], out, parameters)
    return {} if call is None else {"torch": Contender(call, out.values)}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    (kind, parameters), out = _parts(case), p.out
    if case.get("backward") or out is None:
        return {}
    calls = {
        "numpy": numpy_call(kind, p.reads["x"].storage, out.storage, parameters),
        "numexpr": numexpr_call(kind, p.reads["x"].storage, out.storage, parameters),
    }
    return {name: Contender(call, out.values) for name, call in calls.items() if call is not None}


memory = shared.memory(lambda c: (4 if c.get("backward") else 2) * c["n"])
workload = shared.workload(_with_result, torch=_torch, numpy=_numpy)
