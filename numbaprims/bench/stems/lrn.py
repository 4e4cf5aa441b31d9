"""Local response normalisation and its gradient against torch in both layouts and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numbaprims.bench.cases import Case, Contender, aligned
from numbaprims.bench.onnx_model import Node
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops.lrn import MODES, lrn, lrn_backward
from numbaprims.reference import lrn as reference

DIMENSIONS = ("n", "c", "h", "w", "s")
WORDS = {"alpha": 1e-2, "beta": 0.75, "k": 2.0}


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    n, c, h, w, size = (case[name] for name in DIMENSIONS)
    last, backward, mode = case.get("layout") == "NHWC", case.get("backward", False), case["kind"]
    shape = (n, h, w, c) if last else (n, c, h, w)
    reads = {"dy": draw(shape)} if backward else {}
    reads |= {"x": draw(shape, -2.0, 2.0)}
    out, before = shared.output(case, shape), size // 2
    axes = (1,) if mode == MODES[0] else (2, 3)
    # windows go over neighbours: images are held to the definition whole
    take = shared.spread(n, 2)

    def part(values: np.ndarray) -> np.ndarray:
        return values[take]

    def definition(values: list[np.ndarray]) -> np.ndarray:
        images = [shared.exact(part(shared.channels_first(each, last))) for each in values]
        define: Any = reference.backward if backward else reference.forward
        a = WORDS["alpha"] / size ** len(axes)
        return define(*images, axes, before, size - 1 - before, a, WORDS["beta"], WORDS["k"])

    words: dict[str, Any] = {**WORDS, "mode": mode, "layout": "NHWC" if last else "NCHW", "out": out.ours}
    function: Callable[..., Any] = lrn_backward if backward else lrn
    call = partial(function, *(each.ours for each in reads.values()), size, **words)
    return Ours(call, reads, definition, part, size ** len(axes), out, last=last)


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    """Its function, and of a gradient what autograd runs behind it."""
    if case["kind"] != MODES[0]:
        return {}
    found: dict[str, Contender] = {}
    tensors = [each.torch.movedim(-1, 1) if p.last else each.torch for each in p.reads.values()]
    for name, given in dict(shared.both_layouts(torch, *tensors)).items():
        call = partial(torch.nn.functional.local_response_norm, size=case["s"], **WORDS)
        if not case.get("backward"):
            found[name] = shared.returned(torch, partial(call, given[0]))
            continue
        dy, x = given[0], given[1].clone().requires_grad_()
        found[name] = shared.gradient(torch, call(x), x, dy)
    return found


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    if case["kind"] != MODES[0] or case["s"] % 2 == 0:
        return {}
    x = aligned(shared.channels_first(p.reads["x"].storage, p.last))
    words = {"size": case["s"], "alpha": WORDS["alpha"], "beta": WORDS["beta"], "bias": WORDS["k"]}
    return shared.onnxruntime([Node("LRN", ("x",), "y", words)], x, x.shape, threads)


cases = shared.cases("lrn", [DIMENSIONS], MODES, "layout backward")
memory = shared.memory(lambda c: 16 * c["n"] * c["c"] * c["h"] * c["w"])
workload = shared.workload(ours, torch=_torch, onnxruntime=_onnxruntime)
