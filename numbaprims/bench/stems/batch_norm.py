"""Batch normalisation with given statistics, with those of the batch, and its gradient, against torch in both layouts,
onnxruntime and NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender, aligned
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import batch_norm as reference

KINDS = ("inference", "train", "backward")
DIMENSIONS = ("n", "c", "h", "w")
EPS, MOMENTUM = 1e-5, 0.1


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; training gives running statistics too."""
    kind, layout = case["kind"], case.get("layout", "NCHW")
    n, c, h, w = (case[name] for name in DIMENSIONS)
    last = layout == "NHWC"
    shape = (n, h, w, c) if last else (n, c, h, w)
    reads = {"dy": draw(shape)} if kind == "backward" else {}
    reads |= {"x": draw(shape, -1.0, 3.0), "scale": draw((c,), 0.5, 1.5)}
    reads |= {"shift": draw((c,))} if kind != "backward" else {}
    reads |= {"mean": draw((c,)), "var": draw((c,), 0.5, 1.5)}  # those of training run, that of a gradient is inverse
    out, take = shared.output(case, shape), shared.spread(c)
    axes, name = (0, 2, 3), "batch_norm" + f"_{kind}" * (kind != "inference")
    define = getattr(reference, name)

    def definition(values: list[np.ndarray]) -> np.ndarray:
        images = [shared.exact(shared.channels_first(each, last)[:, take]) for each in values if each.ndim == 4]
        others = [shared.exact(each[take]).reshape(1, -1, 1, 1) for each in values if each.ndim == 1]
        if kind == "inference":
            return np.asarray(define(*images, *others, EPS))
        # training needs no statistics, a gradient those of the batch
        others, more = (others[:2], (axes, EPS)) if kind == "train" else (others, (axes,))
        return np.asarray(define(*images, *others, *more)[0])

    given = [each.ours for each in reads.values()]
    call = partial(getattr(numbaprims, name), *given, layout=layout, out=out.ours)
    terms = 1 if kind == "inference" else n * h * w
    return Ours(call, reads, definition, lambda values: values[:, take], terms, out, last=last)


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    aten, kind, found = torch.ops.aten, case["kind"], {}
    tensors = [
        each.torch.movedim(-1, 1) if p.last and each.storage.ndim == 4 else each.torch for each in p.reads.values()
    ]
    images, others = [t for t in tensors if t.ndim == 4], [t for t in tensors if t.ndim == 1]
    for name, (*gradient, x) in shared.both_layouts(torch, *images).items():
        if kind == "backward":
            scale, mean, inv_std = others
            call = partial(aten.native_batch_norm_backward, gradient[0], x, scale, None, None, mean, inv_std, True, EPS,
                           [True] * 3)  # fmt: skip
            found[name] = shared.returned(torch, call)
            continue
        out, running = shared.nan_like(torch, x), [each.clone() for each in others[2:]]
        saved = {each: torch.empty(x.shape[1] if kind == "train" else 0, dtype=running[0].dtype, device=x.device)
                 for each in ("save_mean", "save_invstd")}  # fmt: skip
        call = partial(
            aten.native_batch_norm.out, x, *others[:2], *running, kind == "train", MOMENTUM, EPS, out=out, **saved
        )
        found[name] = shared.written(torch, call, out)
    return found


def _folded(case: Case, p: Ours) -> dict[str, Contender]:
    """NumPy: a factor and a summand for each channel, in place."""
    if case["kind"] != "inference":
        return {}
    x, *parameters = (each.storage for each in p.reads.values())
    scale, shift, mean, var = (each if p.last else each[:, None, None] for each in parameters)
    y, eps = np.full_like(x, np.nan), x.dtype.type(EPS)

    def call() -> None:
        factor = scale / np.sqrt(var + eps)
        np.multiply(x, factor, out=y)
        np.add(y, shift - mean * factor, out=y)

    return {"numpy": Contender(call, lambda: shared.channels_first(y, p.last))}


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    if case["kind"] != "inference":
        return {}
    x, *parameters = (each.storage for each in p.reads.values())
    x = aligned(shared.channels_first(x, p.last))
    constants = dict(zip("sbmv", parameters, strict=True))
    return shared.onnxruntime("BatchNormalization", x, x.shape, threads, constants=constants)


cases = shared.cases("batch_norm", [DIMENSIONS], KINDS, "layout")
memory = shared.memory(lambda c: 8 * c["n"] * c["c"] * c["h"] * c["w"])
workload = shared.workload(ours, torch=_torch, numpy=_folded, onnxruntime=_onnxruntime)
