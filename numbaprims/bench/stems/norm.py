"""Layer, rms, group and instance normalisation and their gradients, against torch and onnxruntime."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender, aligned
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops._norm_problem import STEPS
from numbaprims.reference import norm as reference

#: Of m rows of n elements; of images.
ROWS, IMAGES = ("layer", "rms"), ("group", "instance")
KINDS = (*ROWS, *IMAGES)
FORMS: tuple[tuple[str, ...], ...] = (("m", "n"), ("n", "c", "h", "w"))
EPS = 1e-5


def _switches(options: Namespace, kind: str, row: Mapping[str, Any]) -> shared.Switches | None:
    if ("m" in row) != (kind in ROWS):
        return None
    groups = (("groups", row.get("g", options.groups)),) if kind == "group" else ()
    layout = shared.switched(options, "layout") if kind in IMAGES else ()
    return (*shared.switched(options, "backward"), *groups, *layout)


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; a gradient takes the statistics of x, for rivals that compute them."""
    kind, backward, last = case["kind"], case.get("backward", False), case.get("layout") == "NHWC"
    words: dict[str, Any] = {}
    if kind in ROWS:
        shape: tuple[int, ...] = (case["m"], case["n"])
        parameters, statistics = shape[1:], (shape[0], 1)
        first, take = shape, shared.spread(shape[0])
    else:
        first = tuple(case[name] for name in FORMS[1])
        shape, words = ((first[0], *first[2:], first[1]) if last else first), {"layout": "NHWC" if last else "NCHW"}
        groups = case.get("groups", first[1])
        parameters, statistics, first_channels = (first[1],), (first[0], groups), first[:2]
        first, take = (first[0], groups, first[1] // groups, *first[2:]), shared.spread(first[0])

    axes: tuple[int, ...] = (1,) if kind in ROWS else (2, 3, 4)
    reads = {"dy": draw(shape)} if backward else {}
    reads |= {"x": draw(shape, -1.0, 3.0), "weight": draw(parameters, 0.5, 1.5)}
    names = ("inv_rms",) if kind == "rms" else ("mean", "inv_std")
    if backward:
        x = shared.exact(shared.channels_first(reads["x"].values(), last)).reshape(first)
        found = (reference.rms_norm if kind == "rms" else reference.norm)({"x": x}, axes, EPS)
        wide = "f64" if case.dtype == "f64" else "f32"
        reads |= {name: Operand.of(found[name].reshape(statistics).astype(np.float32), wide) for name in names}
    if kind != "rms":
        reads["bias"] = draw(parameters)
    define, bent = (reference.rms_norm if kind == "rms" else reference.norm), lambda dy, y: dy

    def part(values: np.ndarray) -> np.ndarray:
        return values[take]

    def definition(values: list[np.ndarray]) -> Any:
        given: dict[str, Any] = {}
        for (name, operand), value in zip(reads.items(), values, strict=True):
            wide = shared.exact(value)
            if operand.storage.shape == shape:
                wide = part(shared.channels_first(wide, last)).reshape(len(take), *first[1:])
            elif name in names:
                wide = part(wide).reshape(len(take), *statistics[1:], *(1,) * (len(first) - 2))
            elif kind in IMAGES:
                wide = wide.reshape(1, *first[1:3], 1, 1)
            given[name] = wide
        found = reference.norm_backward(given, axes, bent)["dx"] if backward else define(given, axes, EPS)["y"]
        return found if kind in ROWS else found.reshape(len(take), parameters[0], *first[3:])

    out = shared.output(case, shape)
    order = ("dy", "x", "weight", *names) if backward else ("x", "weight", "bias")
    given: list[Any] = [reads[name].ours for name in order if name in reads]
    if kind == "group":
        given.insert(1 + backward, groups)
    call = partial(getattr(numbaprims, f"{kind}_norm" + "_backward" * backward), *given, out=out.ours, **words)
    posed = partial(call, out=None) if backward else None
    if kind == "group" and backward:
        # its largest launch
        step = STEPS["pixel_backward" if last else "group_backward"]
        each = [shared.output(case, first_channels).ours for _ in range(4)]
        posed = partial(step, (reads["dy"].ours, reads["x"].ours, *each, None), words["layout"], out=out.ours)
    return Ours(call, reads, definition, part, int(np.prod(first[1:])), out, last=last, posed=posed)


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    """ATen's kernels; without one of a gradient, what autograd runs."""
    kind, backward = case["kind"], case.get("backward", False)
    t = {name: each.torch for name, each in p.reads.items()}
    if kind in ROWS:
        return {"torch": _torch_rows(torch, kind, backward, case["n"], t)}
    names = [name for name in ("dy", "x") if name in t]
    found = {}
    images = [t[name].movedim(-1, 1) if p.last else t[name] for name in names]
    for label, given in shared.both_layouts(torch, *images).items():
        found[label] = _torch_images(torch, case, {**t, **dict(zip(names, given, strict=True))})
    return found


def _torch_rows(torch: Any, kind: str, backward: bool, n: int, t: dict[str, Any]) -> Contender:
    aten, functional = torch.ops.aten, torch.nn.functional
    saved: Any
    if kind == "rms":
        call = partial(functional.rms_norm, t["x"], (n,), t["weight"], EPS)
        return _composed(torch, call, t)
    if backward:
        saved = t["mean"], t["inv_std"], t["weight"], t["bias"]
        return shared.returned(
            torch, partial(aten.native_layer_norm_backward, t["dy"], t["x"], [n], *saved, [True] * 3)
        )
    out, saved = shared.nan_like(torch, t["x"]), [t["x"].new_empty((t["x"].shape[0], 1)) for _ in range(2)]
    given = t["x"], [n], t["weight"], t["bias"], EPS
    return shared.written(
        torch, partial(aten.native_layer_norm.out, *given, out0=out, out1=saved[0], out2=saved[1]), out
    )


def _torch_images(torch: Any, case: Case, t: dict[str, Any]) -> Contender:
    functional, (n, c, h, w) = torch.nn.functional, (case[name] for name in FORMS[1])
    given: Any
    if case["kind"] == "instance":
        call = partial(functional.instance_norm, t["x"], weight=t["weight"], bias=t["bias"], eps=EPS)
        return _composed(torch, call, t)
    if not case.get("backward"):
        given = t["x"], case["groups"], t["weight"], t["bias"], EPS
        return shared.returned(torch, partial(functional.group_norm, *given))
    given = t["dy"], t["x"], t["mean"], t["inv_std"], t["weight"], n, c, h * w, case["groups"], [True] * 3
    return shared.returned(torch, partial(torch.ops.aten.native_group_norm_backward, *given))


def _composed(torch: Any, forward: Any, t: dict[str, Any]) -> Contender:
    """A function that is composed of others, or its gradient."""
    if "dy" not in t:
        return shared.returned(torch, forward)
    leaves = [t[name].requires_grad_() for name in ("x", "weight", "bias") if name in t]
    return shared.gradient(torch, forward(), leaves, t["dy"])


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    kind = case["kind"]
    operator = {"layer": "LayerNormalization", "instance": "InstanceNormalization"}.get(kind)
    if operator is None:
        return {}
    x = aligned(shared.channels_first(p.reads["x"].storage, p.last))
    constants = {name: p.reads[name].storage for name in ("weight", "bias")}
    return shared.onnxruntime(operator, x, x.shape, threads, constants=constants, attributes={})


cases = shared.cases("norm", FORMS, KINDS, _switches)
memory = shared.memory(lambda case: 8 * math.prod(size for _, size in case.sizes))
workload = shared.workload(ours, torch=_torch, onnxruntime=_onnxruntime)
