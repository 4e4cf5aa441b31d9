"""Resizing and its gradient against torch in both layouts and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from numbaprims.bench.cases import Case, Contender, aligned
from numbaprims.bench.onnx_model import Node
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops._resize_problem import MODES
from numbaprims.ops.resize import resize, resize_backward
from numbaprims.reference import resize as reference

DIMENSIONS = ("n", "c", "d", "h", "w", "z", "r", "s")
_TORCH = {("linear", 1): "bilinear", ("linear", 0): "trilinear", ("cubic", 1): "bicubic"}


def _pixels(case: Case) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the source and of the result; volumes of one plane are planes."""
    source, result = (tuple(case[name] for name in names) for names in ("dhw", "zrs"))
    return (source[1:], result[1:]) if source[0] == result[0] == 1 else (source, result)


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    n, c = case["n"], case["c"]
    last, backward, mode = case.get("layout") == "NHWC", case.get("backward", False), case["kind"]
    source, result = _pixels(case)
    shapes = [(n, *pixels, c) if last else (n, c, *pixels) for pixels in (source, result)]
    given, made = reversed(shapes) if backward else shapes
    reads = {"dy" if backward else "x": draw(given)}
    out = shared.output(case, made)
    # a channel or two are held to the definition
    take = shared.spread(c, 2)

    def part(values: np.ndarray) -> np.ndarray:
        return values[:1, take]

    def definition(values: list[np.ndarray]) -> np.ndarray:
        x = shared.exact(part(shared.channels_first(values[0], last)))
        steps = [Fraction(size, to) for size, to in zip(source, result, strict=True)]
        along = zip(source, result, steps, strict=True)
        tables = [reference.taps(size, to, step, mode, False, False, -0.75) for size, to, step in along]
        return reference.backward(x, tables, source) if backward else reference.forward(x, tables)

    words: dict[str, Any] = {"mode": mode, "layout": "NHWC" if last else "NCHW", "out": out.ours}
    function: Callable[..., Any] = resize_backward if backward else resize
    call = partial(function, next(iter(reads.values())).ours, shapes[0] if backward else result, **words)
    return Ours(call, reads, definition, part, 16, out, last=last)


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    """Its function, and of a gradient what autograd runs behind it."""
    source, result = _pixels(case)
    mode = _TORCH.get((case["kind"], 3 - len(result)), case["kind"].replace("_", "-"))
    if case["kind"] == "cubic" and len(result) == 3:
        return {}
    found: dict[str, Contender] = {}
    (read,) = p.reads.values()
    tensor = read.torch.movedim(-1, 1) if p.last else read.torch
    call = partial(torch.nn.functional.interpolate, size=result, mode=mode)
    for name, (given,) in dict(shared.both_layouts(torch, tensor)).items():
        if not case.get("backward"):
            found[name] = shared.returned(torch, partial(call, given))
            continue
        form = torch.channels_last if len(source) == 2 else torch.channels_last_3d
        x = torch.empty((*given.shape[:2], *source), dtype=given.dtype).fill_(1)
        x = x.contiguous(memory_format=form) if name.endswith("nhwc") else x
        x.requires_grad_()
        found[name] = shared.gradient(torch, call(x), x, given)
    return found


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    result = _pixels(case)[1]
    if case["kind"] == "nearest_exact" or (case["kind"] == "cubic" and len(result) == 3):
        return {}
    x = aligned(shared.channels_first(p.reads["x"].storage, p.last))
    place, words = "half_pixel", {"mode": case["kind"]}
    if case["kind"] == "nearest":
        place, words = "asymmetric", {**words, "nearest_mode": "floor"}
    words |= {"coordinate_transformation_mode": place}
    sizes = np.array([*x.shape[:2], *result], np.int64)
    node = Node("Resize", ("x", "", "", "sizes"), "y", words)
    return shared.onnxruntime([node], x, (*x.shape[:2], *result), threads, constants={"sizes": sizes})


cases = shared.cases("resize", [DIMENSIONS], MODES, "layout backward")
memory = shared.memory(lambda c: 8 * c["n"] * c["c"] * (c["d"] * c["h"] * c["w"] + c["z"] * c["r"] * c["s"]))
workload = shared.workload(ours, torch=_torch, onnxruntime=_onnxruntime)
