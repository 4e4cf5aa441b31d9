"""Pads, elements by indices and their gradients, rows that are one at an index, parts of arrays, against torch, NumPy
and onnxruntime."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numbaprims.bench.cases import Case, Contender, Workload, aligned
from numbaprims.bench.onnx_model import Node
from numbaprims.bench.operands import on_host
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops._gather_problem import MODES
from numbaprims.reference import gather as reference

#: Of a pad the image and how wide it is padded; of the others what stands before the axis, elements along it, indices
#: (or parts), what stands behind.
IMAGE, ROWS = ("n", "c", "h", "w", "p"), ("n", "m", "j", "i")
KINDS = (*(f"pad-{mode}" for mode in MODES), "gather", "one_hot", "split")
_TORCH = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def cases(options: Namespace) -> list[Case]:
    """The cases that the options select."""
    found = []
    for suite, dtype, kind, row in shared.rows(options, "gather", [IMAGE, ROWS], KINDS):
        names = IMAGE if kind.startswith("pad") else ROWS
        backward = bool(options.backward) and kind not in ("one_hot", "split")
        if all(name in row for name in names) and not (kind == "one_hot" and options.backward):
            more = (("backward", True),) * backward
            found.append(
                Case("gather", suite, tuple((name, row[name]) for name in names), dtype, (("kind", kind), *more))
            )
    return found


def memory(case: Case) -> float:
    """Bytes of the operands of a case and of the rivals' results."""
    if case["kind"].startswith("pad"):
        n, c, h, w, p = (case[name] for name in IMAGE)
        return float(6 * n * c * (h + 2 * p) * (w + 2 * p) * {"f64": 8, "f32": 4}.get(case.dtype, 4))
    n, m, j, i = (case[name] for name in ROWS)
    return float(6 * n * (m + j) * i * {"f64": 8, "f32": 4}.get(case.dtype, 4))


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    import numbaprims

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


def workload(case: Case, threads: int) -> Workload:
    """Our call and every rival."""
    p = ours(case, shared.drawn(case))
    return p.workload(case, _torch(case, p) | _numpy(case, p) | _onnxruntime(case, p, threads))


def _torch(case: Case, p: Ours) -> dict[str, Contender]:
    """The fastest of its functions; of a gradient what autograd runs."""
    torch = shared.torch_module()
    if torch is None:
        return {}
    kind, backward = str(case["kind"]), case.get("backward", False)
    if kind.startswith("pad"):
        width, mode = [case["p"]] * 4, _TORCH[kind[4:]]
        if mode in ("reflect", "circular") and case["p"] >= min(case["h"], case["w"]):
            return {}
        pad = partial(torch.nn.functional.pad, pad=width, mode=mode)
        if backward:
            x = torch.zeros(p.out.torch.shape, dtype=p.out.torch.dtype, requires_grad=True)  # type: ignore[union-attr]
            return {"torch": shared.returned(torch, partial(_gradient, torch, pad(x), x, p.reads["x"].torch))}
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
        forms = {
            "select": shared.returned(torch, partial(_gradient, torch, torch.index_select(leaf, 1, indices), leaf, x))
        }
        if case["n"] == 1:
            table = leaf.detach()[0].clone().requires_grad_()
            y = torch.nn.functional.embedding(indices, table)
            forms["embedding"] = shared.returned(torch, lambda: _gradient(torch, y, table, x[0])[None])
        return {"torch": shared.fastest(forms)}
    out = shared.nan_like(torch, p.out.torch)  # type: ignore[union-attr]
    return {"torch": shared.written(torch, partial(torch.index_select, x, 1, indices, out=out), out)}


def _gradient(torch: Any, y: Any, x: Any, dy: Any) -> Any:
    return torch.autograd.grad(y, x, dy, retain_graph=True)[0]


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    if not on_host() or case.get("backward") or case.dtype not in ("f32", "f64"):
        return {}
    kind, latest = str(case["kind"]), list[Any]([None])
    if kind.startswith("pad"):
        x, width = p.reads["x"].storage, ((0, 0), (0, 0), *((case["p"], case["p"]),) * 2)

        def pad() -> None:
            latest[0] = np.pad(x, width, mode=kind[4:])  # type: ignore[call-overload]

        return {"numpy": Contender(pad, lambda: np.asarray(latest[0]))}
    if kind != "gather":
        return {}
    y = np.empty(p.out.storage.shape, p.out.storage.dtype)  # type: ignore[union-attr]
    take = partial(np.take, p.reads["x"].storage, p.reads["indices"].storage, 1, out=y, mode="clip")
    return {"numpy": Contender(take, lambda: y)}


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    kind = str(case["kind"])
    if case.dtype != "f32" or case.get("backward") or not on_host() or kind in ("one_hot", "split"):
        return {}
    x, shape = aligned(p.reads["x"].storage), p.out.storage.shape  # type: ignore[union-attr]
    if kind == "gather":
        indices = {"indices": np.ascontiguousarray(p.reads["indices"].storage)}
        return shared.onnxruntime("Gather", x, shape, threads, constants=indices, attributes={"axis": 1})
    pads = {"pads": np.array([0, 0, *[case["p"]] * 2] * 2, np.int64)}
    node = Node("Pad", ("x", "pads"), "y", {"mode": kind[4:]})
    return shared.onnxruntime([node], x, shape, threads, constants=pads)
