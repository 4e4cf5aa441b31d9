"""Activations, forward and backward, against torch, NumPy and numexpr, each writing into a given output."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims.bench.cases import (
    DTYPES,
    EPS,
    OURS,
    Case,
    Contender,
    Workload,
    disagreement,
    generator,
    select,
)
from numbaprims.bench.operands import Operand, chosen_solver
from numbaprims.bench.stems.activation_rivals import numexpr_call, numpy_call, torch_backward, torch_call
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


def memory(case: Case) -> float:
    """Bytes of the operands of a case."""
    arrays = 4 if case.get("backward") else 2
    return float(arrays * case["n"] * {"f64": 8, "f32": 4}.get(case.dtype, 2))


def _draw(kind: str, count: int, rng: np.random.Generator, dtype: str) -> Operand:
    # Finite results everywhere; both sides of every kink.
    values = rng.random(count, np.float32)
    # one log of a negative number makes torch's log and sqrt ten times slower (they take a slow path for NaN)
    low, high = DOMAINS.get(kind, (-4.0, 4.0))
    return Operand.of(values * (high - low) + low, dtype)


def workload(case: Case, threads: int) -> Workload:
    """y = kind(x), or dx from dy with `backward`."""
    kind, dtype, count = case["kind"], DTYPES[case.dtype], case["n"]
    kind, fixed = SPECIAL.get(kind, (kind, {}))
    parameters = {**PARAMETERS.get(kind, {}), **fixed}
    rng = generator(case)
    x = _draw(kind, count, rng, dtype)
    if kind == "prelu":
        parameters["weight"] = Operand.of(np.array([0.25], np.float32), dtype).ours
    make = _backward if case.get("backward") else _forward
    return make(kind, dtype, x, parameters, rng)


def _sample(count: int) -> np.ndarray | slice:
    """All of a small array; of a large one its ends and one element in 997, which no vector width divides."""
    if count <= 1 << 18:
        return slice(None)
    ends = np.arange(4096)
    return np.unique(np.concatenate([ends, np.arange(0, count, 997), count - 1 - ends]))


def _check(expected: Callable[[Any], np.ndarray], count: int, dtype: str) -> Callable[[np.ndarray], str | None]:
    def check(got: np.ndarray) -> str | None:
        if not np.isfinite(got).all():
            return f"{int((~np.isfinite(got)).sum())} of {got.size} elements are not finite"
        take = _sample(count)
        want = expected(take)
        # Far above the few ULP of a good kernel and far below what a wrong formula gives.
        bound = 16 * max(EPS[dtype], 2.0**-24 if dtype != "f64" else 0) * float(np.abs(want).max())
        return disagreement(got[take], want, bound)

    return check


def _forward(kind: str, dtype: str, x: Operand, parameters: dict[str, Any], rng: Any) -> Workload:
    import numbaprims

    count = x.storage.size
    y = Operand.empty((count // 2 if kind == "glu" else count,), dtype)
    ours, out = x.ours, y.ours

    def expected(take: Any) -> np.ndarray:
        if kind == "glu":
            first, second = np.split(x.values(), 2)
            return reference.activation(np.concatenate([first[take], second[take]]), kind)
        return reference.activation(x.values()[take], kind, **parameters)

    contenders = {OURS: Contender(lambda: numbaprims.activation(ours, kind, **parameters, out=out), y.values)}
    call = torch_call(kind, x, y, parameters)
    if call is not None:
        contenders["torch"] = Contender(call, y.values)
    if dtype in ("f32", "f64"):
        call = numpy_call(kind, x.storage, y.storage, parameters)
        if call is not None:
            contenders["numpy"] = Contender(call, y.values)
        call = numexpr_call(kind, x.storage, y.storage, parameters)
        if call is not None:
            contenders["numexpr"] = Contender(call, y.values)
    return Workload(
        contenders,
        _check(expected, y.storage.size, dtype),
        flops=float(count),
        bytes=float(x.storage.nbytes + y.storage.nbytes),
        bound="copy",
        solver=lambda: chosen_solver(numbaprims.activation, ours, kind, **parameters, out=out),
        output=y.storage,
    )


def _backward(kind: str, dtype: str, x: Operand, parameters: dict[str, Any], rng: Any) -> Workload:
    import numbaprims

    count = x.storage.size
    half = count // 2
    dy = Operand.of(rng.random(half if kind == "glu" else count, np.float32) * 2 - 1, dtype)
    y = Operand.of(reference.activation(x.values(), kind, **parameters).astype(np.float32), dtype)
    dx = Operand.empty((count,), dtype)
    words = {**parameters, "out": dx.ours}
    ours = (dy.ours, x.ours, y.ours)

    def expected(take: Any) -> np.ndarray:
        if kind == "glu":
            at = np.arange(count)[take]
            pairs = x.values().reshape(2, half)[:, at % half]
            both = reference.activation_backward(dy.values()[at % half], pairs, kind, axis=0)
            return np.where(at < half, both[0], both[1])
        got = reference.activation_backward(dy.values()[take], x.values()[take], kind, **parameters)
        return got[0] if kind == "prelu" else got

    contenders = {OURS: Contender(lambda: numbaprims.activation_backward(*ours, kind, **words), dx.values)}
    call = torch_backward(kind, dy, x, y, dx, parameters)
    if call is not None:
        contenders["torch"] = Contender(call, dx.values)
    read = 1.5 if kind == "glu" else 2 if KINDS[kind].reads else 1
    return Workload(
        contenders,
        _check(expected, count, dtype),
        flops=2.0 * count,
        bytes=float((read + 1) * dx.storage.nbytes),
        bound="copy",
        solver=lambda: chosen_solver(numbaprims.activation_backward, *ours, kind, **words),
        output=dx.storage,
    )
