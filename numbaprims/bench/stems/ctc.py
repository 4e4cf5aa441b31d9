"""CTC against torch: the loss, the loss and its gradient, decoding."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import ctc as reference, softmax

KINDS = ("loss", "greedy", "beam")
#: Of classes in front of a softmax; sequences that are held to the definition.
RANGE, HELD = 6.0, 2


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; with its gradient, that of the scores in front of a log_softmax, as torch gives it."""
    t, n, c, s = (case[name] for name in "tncs")
    x = draw((t, n, c), -RANGE, 0.0)
    x = Operand.of(softmax.log_softmax(shared.exact(x.values()), 2), x.dtype)
    take = shared.spread(n, HELD)
    if case["kind"] != "loss":
        decode = {"greedy": numbaprims.ctc_greedy_decode, "beam": numbaprims.ctc_beam_search_decode}[case["kind"]]
        scores = partial(lambda: decode(x.ours)[2])
        return Ours(scores, {"x": x}, lambda values: _scores(case, values[0][:, take]), lambda y: y[take], t)
    targets = draw((n, s), 1, c, "i64")
    targets.set(np.maximum(targets.storage, 1))  # those that are looked at only are 0, the blank
    given = (x.ours, targets.ours, np.full(n, t), np.full(n, s))
    reads = {"x": x, "targets": targets}
    loss = partial(numbaprims.ctc_loss, *given)
    pairs = (take, targets.storage[take])

    def definition(values: list[np.ndarray]) -> np.ndarray:
        rows = [shared.exact(values[0][:, k]) for k in pairs[0]]
        if not case.get("backward"):
            return np.array([reference.loss(y, labels, 0) for y, labels in zip(rows, pairs[1], strict=True)])
        found = [np.exp(y) - reference.posteriors(y, labels, 0) for y, labels in zip(rows, pairs[1], strict=True)]
        return np.stack(found, 1)

    if not case.get("backward"):
        return Ours(loss, reads, definition, lambda y: y[take], t, bound="read")
    dy, out = draw((n,), 1.0, 1.0), shared.output(case, (t, n, c))
    gradient = partial(numbaprims.ctc_loss_backward, dy.ours, *given, logits=True, out=out.ours)

    def both() -> None:
        loss()
        gradient()

    # torch's logarithms lose a digit of the gradient for each that the loss has before its point
    return Ours(both, reads, definition, lambda dx: dx[:, take], (64 * t) ** 2, out, posed=gradient)


def _scores(case: Case, x: np.ndarray) -> np.ndarray:
    """Of decoding, by definition."""
    rows = [shared.exact(x[:, k]) for k in range(x.shape[1])]
    if case["kind"] == "greedy":
        return np.array([reference.greedy(y, 0)[1] for y in rows])
    return np.array([[reference.beams(y, 0, 16)[0][1]] for y in rows])


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    """It decodes nothing."""
    if case["kind"] != "loss" or case.dtype in ("f16", "bf16"):
        return {}
    x, targets = p.reads["x"].torch, p.reads["targets"].torch
    lengths = [torch.full((case["n"],), case[name], dtype=torch.int64) for name in "ts"]
    function: Any = partial(torch.nn.functional.ctc_loss, reduction="none")
    if not case.get("backward"):
        return {"torch": shared.returned(torch, partial(function, x, targets, *lengths))}
    given = x.clone().requires_grad_()
    dy = torch.ones(case["n"], dtype=x.dtype)

    def training() -> Any:
        given.grad = None
        function(given, targets, *lengths).backward(dy)
        return given.grad

    return {"torch": shared.returned(torch, training)}


# t steps of n sequences of s labels, c classes
cases = shared.cases("ctc", [("t", "n", "c", "s")], KINDS, "backward")
memory = shared.memory(lambda c: 4 * c["t"] * c["n"] * (c["c"] + 2 * c["s"]))
workload = shared.workload(ours, torch=_torch)
