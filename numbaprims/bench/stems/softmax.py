"""softmax, its logarithm, losses on classes, and their gradients, against torch, onnxruntime and NumPy."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import softmax as reference

LOSSES = ("cross_entropy", "nll_loss")
KINDS = ("softmax", "log_softmax", "hardmax", *LOSSES)


def _switches(options: Namespace, kind: str, row: Mapping[str, Any]) -> shared.Switches | None:
    if options.backward and options.kind == ["hardmax"]:
        raise ValueError("kind: 'hardmax' given, which has no gradient; --backward takes the others")
    return None if options.backward and kind == "hardmax" else shared.switched(options, "backward across", row)


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; classes are along axis 1, behind which `across` has the rows."""
    from numbaprims.ops import _cross_entropy as losses

    kind, m, n = case["kind"], case["m"], case["n"]
    across, backward = case.get("across", False), case.get("backward", False)
    shape, rows = ((1, n, m), (1, m)) if across else ((m, n), (m,))
    take = shared.spread(m)

    def part(values: np.ndarray) -> np.ndarray:
        return values[..., take] if across else values[take]

    if kind not in LOSSES:
        # a gradient reads y, which may be any probabilities, or their logarithms
        low, high = (-4.0, 4.0) if not backward else (0.0, 2.0 / n) if kind == "softmax" else (-8.0, 0.0)
        reads = ({"dy": draw(shape)} if backward else {}) | {"x": draw(shape, low, high)}
        name, out = kind + "_backward" * backward, shared.output(case, shape)
        call = partial(getattr(numbaprims, name), *(each.ours for each in reads.values()), axis=1, out=out.ours)
        define = getattr(reference, name)
        return Ours(call, reads, lambda values: define(*(shared.exact(part(each)) for each in values), 1), part, n, out)

    def logs(x: np.ndarray) -> np.ndarray:
        return reference.log_softmax(x, 1) if kind == "cross_entropy" else x

    x, target = draw(shape, -4.0, 4.0), draw(rows, 0, n, "i64")
    given = (kind, x.ours, target.ours)
    if not backward:
        public = getattr(numbaprims, kind if kind == "nll_loss" else f"softmax_{kind}")
        return Ours(
            partial(public, x.ours, target.ours), {"x": x, "target": target},
            lambda values: -np.take_along_axis(logs(shared.exact(values[0])), target.storage[:, None], 1).mean(),
            lambda values: values, n, bound="read",
        )  # fmt: skip
    # given what the forward call saved, as autograd runs it; the sum's gradient is the mean's largest launch
    dy, out = draw(()), shared.output(case, shape)
    saved = losses.forward(*given, None, -100, 0.0, "mean")[1:]

    def gradient(values: list[np.ndarray]) -> np.ndarray:
        ones = np.arange(n).reshape(-1, *(1,) * (len(shape) - 2)) == part(target.storage[:, None])
        return (
            values[0] / m * ((np.exp(logs(shared.exact(part(values[1])))) if kind == "cross_entropy" else 0.0) - ones)
        )

    def call_of(reduction: str) -> Callable[[], Any]:
        return partial(losses.backward, kind, dy.ours, *given[1:], None, -100, 0.0, reduction, out.ours, saved)

    reads = {"dy": dy, "x": x, "target": target}
    return Ours(call_of("mean"), reads, gradient, part, n, out, posed=call_of("sum"))


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    """Kernels of torch that write into a given output; a loss is returned, and its gradient takes saved logarithms."""
    if case["kind"] == "hardmax":
        return {}
    aten, kind, x = torch.ops.aten, case["kind"], p.reads["x"].torch
    if kind in LOSSES and not case.get("backward"):
        loss = torch.nn.functional.cross_entropy if kind == "cross_entropy" else torch.nn.functional.nll_loss
        return {"torch": shared.returned(torch, partial(loss, x, p.reads["target"].torch))}
    out = shared.nan_like(torch, x)
    if not case.get("backward"):
        call: Callable[[], Any] = partial(getattr(aten, f"_{kind}").out, x, 1, False, out=out)
    elif kind not in LOSSES:
        gradient, name = getattr(aten, f"_{kind}_backward_data").out, "grad_input" if kind == "softmax" else "out"
        call = partial(gradient, p.reads["dy"].torch, x, 1, x.dtype, **{name: out})
    else:
        call = _torch_loss_gradient(torch, p, out, kind == "cross_entropy")
    return {"torch": shared.written(torch, call, out)}


def _torch_loss_gradient(torch: Any, p: Ours, out: Any, of_scores: bool) -> Callable[[], Any]:
    aten, x, target = torch.ops.aten, p.reads["x"].torch, p.reads["target"].torch
    logs, given = (torch.log_softmax(x, 1), torch.empty_like(x)) if of_scores else (x, out)
    total, dy = torch.tensor(float(target.numel()), dtype=x.dtype, device=x.device), p.reads["dy"].torch
    flat = x.ndim == 2
    pick = aten.nll_loss_backward.grad_input if flat else aten.nll_loss2d_backward.grad_input
    views = (logs, target, given) if flat else (logs[..., None], target[..., None], given[..., None])

    def call() -> None:
        pick(dy, views[0], views[1], None, 1, -100, total, grad_input=views[2])
        if of_scores:
            aten._log_softmax_backward_data.out(given, logs, 1, x.dtype, out=out)

    return call


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    """ufuncs in place."""
    if case["kind"] in (*LOSSES, "hardmax") or case.get("backward"):
        return {}
    x, y = p.reads["x"].storage, np.full_like(p.reads["x"].storage, np.nan)

    def softmax() -> None:
        np.subtract(x, x.max(1, keepdims=True), out=y)
        np.exp(y, out=y)
        np.divide(y, y.sum(1, keepdims=True), out=y)

    def log_softmax() -> None:
        np.subtract(x, x.max(1, keepdims=True), out=y)
        np.subtract(y, np.log(np.exp(y).sum(1, keepdims=True)), out=y)

    return {"numpy": Contender(softmax if case["kind"] == "softmax" else log_softmax, lambda: y)}


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    if case["kind"] in LOSSES:
        return {}
    x = p.reads["x"].storage
    operator = {"softmax": "Softmax", "log_softmax": "LogSoftmax", "hardmax": "Hardmax"}[case["kind"]]
    return shared.onnxruntime(operator, x, x.shape, threads, attributes={"axis": 1})


# m rows of n elements, with `across` the columns of an n x m array
cases = shared.cases("softmax", [("m", "n")], KINDS, _switches)
memory = shared.memory(lambda c: 6 * c["m"] * c["n"])
workload = shared.workload(ours, torch=_torch, numpy=_numpy, onnxruntime=_onnxruntime)
