"""Pooling and its gradients against torch in both layouts, oneDNN's own tensors and onnxruntime."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from numbaprims.bench.cases import Case, Contender, aligned
from numbaprims.bench.operands import on_host
from numbaprims.bench.stems import conv_suites, shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops import pooling
from numbaprims.ops.primitive import problems
from numbaprims.reference import pooling as reference

WINDOWS = ("max", "avg", "lp")
KINDS = (*WINDOWS, "global_max", "global_avg", "adaptive_max", "adaptive_avg")
#: r x s is the window, of adaptive kinds the output, of global ones unused
DIMENSIONS, VOLUME = ("n", "c", "h", "w", "r", "s"), ("n", "c", "d", "h", "w", "z", "r", "s")
# what a window without the option has
_STEPS = {"stride": 1, "padding": 0, "dilation": 1}


def _switches(options: Namespace, kind: str, row: Mapping[str, Any]) -> shared.Switches | None:
    found: list[tuple[str, Any]] = []
    if kind in WINDOWS:
        for name, plain in _STEPS.items():
            steps = conv_suites.steps(row.get(name, getattr(options, name)), 3 if "d" in row else 2, name)
            found += [(name, conv_suites.text(steps))] if set(steps) != {plain} else []
        found += shared.switched(options, "ceil", row)
    return (*found, *shared.switched(options, "layout backward"))


class _Windows:
    """What a case says of its windows."""

    def __init__(self, case: Case) -> None:
        self.kind, self.backward, self.last = case["kind"], case.get("backward", False), case.get("layout") == "NHWC"
        self.n, self.c, *sizes = (size for _, size in case.sizes)
        self.rank = len(sizes) // 2
        self.size, self.window = tuple(sizes[: self.rank]), tuple(sizes[self.rank :])
        self.steps = {name: conv_suites.steps(case.get(name, plain), self.rank, name) for name, plain in _STEPS.items()}
        self.ceil, self.dilated = case.get("ceil", False), set(self.steps["dilation"]) != {1}
        self.more = () if self.kind.startswith("global") else (self.window,)
        self.words: dict[str, Any] = {"layout": "NHWC" if self.last else "NCHW"}
        if self.kind in WINDOWS:
            self.words |= {**self.steps, "ceil_mode": self.ceil}

    def shape(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Of an array with so many elements in each dimension."""
        return (self.n, *size, self.c) if self.last else (self.n, self.c, *size)


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; the gradient of a maximum is given its places, as torch's is."""
    form = _Windows(case)
    x = draw(form.shape(form.size))
    forward = getattr(pooling, f"{form.kind}_pool")
    problem: Any = problems(forward)[forward.__name__](x.ours, *form.more, **form.words)
    shape = form.shape(problem.out)
    take = shared.spread(form.n * form.c, 12)

    def part(values: np.ndarray) -> np.ndarray:
        """Some planes as the channels of one image."""
        return values.reshape(form.n * form.c, *values.shape[2:])[take][None]

    def define(values: list[np.ndarray]) -> np.ndarray:
        planes: Any = [shared.exact(part(shared.channels_first(each, form.last))) for each in values]
        if not form.backward:
            return reference.forward(problem, *planes)[0]
        return reference.backward(problem, *planes[: 3 if form.kind == "lp" else 2])  # it finds places itself

    def made(call: Callable[..., Any], reads: dict[str, Any], *given: Any) -> Ours:
        more = () if form.backward and form.kind not in WINDOWS else form.more
        out = shared.output(case, x.storage.shape if form.backward else shape)
        call = partial(call, *given, *more, **form.words, out=out.ours)
        return Ours(call, reads, define, part, problem.taps, out, last=form.last)

    if not form.backward:
        return made(forward, {"x": x}, x.ours)
    reads, back = {"dy": draw(shape), "x": x}, getattr(pooling, f"{form.kind}_pool_backward")
    if form.kind == "max":
        reads["places"] = places = draw(shape, 0, 1, "i64")
        return made(partial(back, indices=places.ours, size=form.size), reads, reads["dy"].ours, None)
    if form.kind.endswith("avg"):
        return made(back, reads, reads["dy"].ours, form.size)
    if form.kind == "lp":
        reads["y"] = draw(shape)
    return made(back, reads, *(each.ours for each in reads.values()))


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    form = _Windows(case)
    if form.rank == 1 or case.dtype == "int8":
        return {}
    tensors = [each.torch.movedim(-1, 1) if p.last else each.torch for each in p.reads.values()]
    function: Callable[..., Any] = _gradient if form.backward else _forward
    found: dict[str, Contender] = {}
    images = dict(shared.both_layouts(torch, *tensors))
    if form.rank == 2 and form.kind in WINDOWS[:2] and not form.backward and on_host() and case.dtype == "f32":
        images |= {"onednn": (tensors[0].contiguous().to_mkldnn(),)} if torch.backends.mkldnn.is_available() else {}
    for name, given in images.items():
        forms = {text: shared.returned(torch, call, text) for text, call in function(torch, form, *given).items()}
        found |= {name: shared.fastest(forms)} if forms else {}
    return found


def _forward(torch: Any, form: _Windows, x: Any) -> dict[str, Callable[[], Any]]:
    nn, kind, axes = torch.nn.functional, form.kind, tuple(range(2, 2 + form.rank))
    stride, padding, dilation = form.steps.values()
    adaptive = kind.replace("global", "adaptive")
    pool = getattr(nn, f"{adaptive}_pool{form.rank}d")
    if kind not in WINDOWS:
        whole = {"max": torch.amax, "avg": torch.mean}[kind[-3:]]
        found: dict[str, Callable[[], Any]] = {"adaptive": partial(pool, x, form.window if kind == adaptive else 1)}
        return found if kind == adaptive else found | {"reduction": partial(whole, x, axes, keepdim=True)}
    words = {"max": (padding, dilation, form.ceil), "avg": (padding, form.ceil), "lp": (form.ceil,)}[kind]
    if kind != "max" and form.dilated or kind == "lp" and any(padding):
        return {}
    return {"": partial(pool, x, *((2.0,) if kind == "lp" else ()), form.window, stride, *words)}


def _gradient(torch: Any, form: _Windows, dy: Any, x: Any, *more: Any) -> dict[str, Callable[[], Any]]:
    """Kernels that autograd runs."""
    aten, kind, d = torch.ops.aten, form.kind, f"{form.rank}d"
    stride, padding, dilation = map(list, form.steps.values())
    if kind == "global_avg":
        count, out = float(math.prod(form.size)), torch.empty_like(x)
        return {"": lambda: torch.div(dy.expand(x.shape), count, out=out)}
    if kind == "max":
        back = getattr(aten, f"max_pool{d}_with_indices_backward")
        return {"": partial(back, dy, x, form.window, stride, padding, dilation, form.ceil, *more)}
    if kind == "avg" and not form.dilated:
        back = getattr(aten, f"avg_pool{d}_backward")
        return {"": partial(back, dy, x, form.window, stride, padding, form.ceil, True, None)}
    return {}


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    names = {"max": "MaxPool", "avg": "AveragePool", "global_avg": "GlobalAveragePool", "global_max": "GlobalMaxPool"}
    form = _Windows(case)
    operator = names.get(form.kind)
    # dilated averages are of a later version of ONNX
    if operator is None or form.kind == "avg" and form.dilated:
        return {}
    x, problem = aligned(shared.channels_first(p.reads["x"].storage, p.last)), p.problem()
    stride, padding, dilation = form.steps.values()
    words: dict[str, Any] = {}
    if form.kind in WINDOWS:
        words = {"kernel_shape": form.window, "strides": stride, "pads": padding * 2, "ceil_mode": int(form.ceil)}
        words |= {"count_include_pad": 1} if form.kind == "avg" else {"dilations": dilation}
    out: tuple[int, ...] = problem.out  # type: ignore[attr-defined]
    return shared.onnxruntime(operator, x, (form.n, form.c, *out), threads, attributes=words)


def _with_places(case: Case, draw: Draw) -> Ours:
    p, form = ours(case, draw), _Windows(case)
    if "places" in p.reads:
        x = p.reads["x"].ours
        places = pooling.max_pool(x, *form.more, **form.words, return_indices=True)[1]
        p.reads["places"].set(places.to_host() if hasattr(places, "to_host") else np.asarray(places))
    return p


cases = shared.cases("pooling", (DIMENSIONS, VOLUME), KINDS, _switches)
# x in two layouts and results; a gradient has as many elements
memory = shared.memory(lambda case: 6 * math.prod(case.get(name, 1) for name in "ncdhw"))
workload = shared.workload(_with_places, torch=_torch, onnxruntime=_onnxruntime)
