"""Pads, elements by indices and their gradients, rows that are one at an index, parts of arrays, against torch, NumPy
and onnxruntime."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender, aligned
from numbaprims.bench.onnx_model import Node
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops._gather_problem import MODES
from numbaprims.reference import gather as reference

#: Of a pad the image and how wide it is padded; of the others what stands before the axis, elements along it, indices
#: (or parts), what stands behind.
IMAGE, ROWS = ("n", "c", "h", "w", "p"), ("n", "m", "j", "i")
KINDS = (*(f"pad-{mode}" for mode in MODES), "gather", "one_hot", "split")
_TORCH = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _switches(options: Namespace, kind: str, row: Mapping[str, Any]) -> shared.Switches | None:
    if kind.startswith("pad") != ("p" in row) or (kind == "one_hot" and options.backward):
        return None
    return () if kind == "split" else shared.switched(options, "backward")


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    kind, backward = str(case["kind"]), case.get("backward", False)
    if kind.startswith("pad"):
        n, c, h, w, p = (case[name] for name in IMAGE)
        mode, shape, pads = kind[4:], (n, c, h, w), ((0, 0), (0, 0), (p, p), (p, p))
        padded = (n, c, h + 2 * p, w + 2 * p)
        x = draw(padded if backward else shape)
        out = shared.output(case, shape if backward else padded)
        take = shared.spread(n * c)

        def part(values: np.ndarray) -> np.ndarray:
            return values.reshape(n * c, *values.shape[2:])[take]

        def define(values: list[np.ndarray]) -> np.ndarray:
            planes, inside = shared.exact(part(values[0])), ((0, 0), (p, p), (p, p))
            if backward:
                return reference.pad_backward(planes, (len(take), h, w), inside, mode)
            return reference.pad(planes, inside, mode, 0.0)

        given: Callable[..., Any] = partial(numbaprims.pad, x.ours, pads, mode, out=out.ours)
        if backward:
            given = partial(numbaprims.pad_backward, x.ours, shape, pads, mode, out=out.ours)
        return Ours(given, {"x": x}, define, part, 16, out)
    n, m, j, i = (case[name] for name in ROWS)
    if kind == "split":
        x = draw((n, m, i))
        whole = partial(numbaprims.split, x.ours, j, 1)

        def first() -> Any:
            return whole()[0]

        return Ours(first, {"x": x}, lambda v: v[0][:, : -(-m // j)], lambda v: v, 1, posed=whole)
    if kind == "one_hot":
        indices = draw((n, i), 0, m, dtype="i64")
        out = shared.output(case, (n, m, i))
        word = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}[case.dtype]
        call = partial(numbaprims.one_hot, indices.ours, m, axis=1, dtype=word, out=out.ours)
        return Ours(
            call, {"indices": indices}, lambda v: reference.one_hot(v[0].astype(int), m, 1, 1, 0), lambda v: v, 1, out
        )
    indices = draw((j,), 0, m, dtype="i64")
    x = draw((n, j if backward else m, i))
    out = shared.output(case, (n, m if backward else j, i))

    def taken(values: list[np.ndarray]) -> np.ndarray:
        at = values[1].astype(int)
        if not backward:
            return np.take(shared.exact(values[0]), at, 1)
        dx = np.zeros((m, n, i))
        np.add.at(dx, at, np.moveaxis(shared.exact(values[0]), 1, 0))
        return np.moveaxis(dx, 0, 1)

    function: Callable[..., Any] = partial(numbaprims.gather, x.ours, indices.ours, 1, out=out.ours)
    if backward:
        function = partial(numbaprims.gather_backward, x.ours, indices.ours, m, 1, out=out.ours)
    return Ours(function, {"x": x, "indices": indices}, taken, lambda v: v, j, out)


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    """The fastest of its functions; of a gradient what autograd runs."""
    kind, backward = str(case["kind"]), case.get("backward", False)
    if kind.startswith("pad"):
        width, mode = [case["p"]] * 4, _TORCH[kind[4:]]
        if mode in ("reflect", "circular") and case["p"] >= min(case["h"], case["w"]):
            return {}
        pad = partial(torch.nn.functional.pad, pad=width, mode=mode)
        if backward:
            x = torch.zeros(p.out.torch.shape, dtype=p.out.torch.dtype, requires_grad=True)  # type: ignore[union-attr]
            return {"torch": shared.gradient(torch, pad(x), x, p.reads["x"].torch)}
        return {"torch": shared.returned(torch, partial(pad, p.reads["x"].torch))}
    if kind == "split":
        x = p.reads["x"].torch
        return {"torch": shared.returned(torch, lambda: tuple(q.contiguous() for q in torch.chunk(x, case["j"], 1)))}
    indices = p.reads["indices"].torch
    if kind == "one_hot":
        if case["i"] != 1:
            return {}
        made = partial(torch.nn.functional.one_hot, indices, case["m"])
        return {"torch": shared.returned(torch, lambda: made().movedim(-1, 1))}
    x = p.reads["x"].torch
    if backward:
        leaf = torch.zeros(p.out.torch.shape, dtype=x.dtype, requires_grad=True)  # type: ignore[union-attr]
        forms = {"select": shared.gradient(torch, torch.index_select(leaf, 1, indices), leaf, x)}
        if case["n"] == 1:
            table = leaf.detach()[0].clone().requires_grad_()
            y = torch.nn.functional.embedding(indices, table)
            forms["embedding"] = shared.gradient(torch, y, table, x[0])
        return {"torch": shared.fastest(forms)}
    out = shared.nan_like(torch, p.out.torch)  # type: ignore[union-attr]
    return {"torch": shared.written(torch, partial(torch.index_select, x, 1, indices, out=out), out)}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    kind = str(case["kind"])
    if case.get("backward"):
        return {}
    if kind.startswith("pad"):
        x, width = p.reads["x"].storage, ((0, 0), (0, 0), *((case["p"], case["p"]),) * 2)
        return {"numpy": shared.returned(np, partial(np.pad, x, width, mode=kind[4:]))}
    if kind != "gather":
        return {}
    y = np.empty(p.out.storage.shape, p.out.storage.dtype)  # type: ignore[union-attr]
    take = partial(np.take, p.reads["x"].storage, p.reads["indices"].storage, 1, out=y, mode="clip")
    return {"numpy": Contender(take, lambda: y)}


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    kind = str(case["kind"])
    if kind in ("one_hot", "split"):
        return {}
    x, shape = aligned(p.reads["x"].storage), p.out.storage.shape  # type: ignore[union-attr]
    if kind == "gather":
        indices = {"indices": np.ascontiguousarray(p.reads["indices"].storage)}
        return shared.onnxruntime("Gather", x, shape, threads, constants=indices, attributes={"axis": 1})
    pads = {"pads": np.array([0, 0, *[case["p"]] * 2] * 2, np.int64)}
    node = Node("Pad", ("x", "pads"), "y", {"mode": kind[4:]})
    return shared.onnxruntime([node], x, shape, threads, constants=pads)


def _elements(case: Case) -> float:
    if case["kind"].startswith("pad"):
        n, c, h, w, p = (case[name] for name in IMAGE)
        return 6 * n * c * (h + 2 * p) * (w + 2 * p)
    n, m, j, i = (case[name] for name in ROWS)
    return 6 * n * (m + j) * i


cases, memory = shared.cases("gather", [IMAGE, ROWS], KINDS, _switches), shared.memory(_elements)
workload = shared.workload(ours, torch=_torch, numpy=_numpy, onnxruntime=_onnxruntime)
