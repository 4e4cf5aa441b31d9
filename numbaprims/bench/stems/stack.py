"""Depth-first stacks against torch in both layouts, plain and compiled by inductor, onnxruntime, and our own layers one
by one."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender, Workload, aligned
from numbaprims.bench.onnx_model import Node
from numbaprims.bench.operands import Operand, on_host
from numbaprims.bench.stems import shared, stack_gradient
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.dtypes import DTYPES
from numbaprims.ops import conv_plan, stack as primitive
from numbaprims.reference import stack as reference
from numbaprims.stacks.operations import Operation, Pointwise, Size, Window, parse

_NORM, _RELU = Pointwise("batch_norm", 3), Pointwise("relu")
_DEPTHWISE = Window("depthwise", (3, 3), (1, 1), (1, 1), (1, 1))
_HALVED = Window("max", (3, 3), (2, 2), (1, 1), (1, 1))
#: Layers of a block, by kind; any others as their texts joined by "+".
KINDS: dict[str, tuple[Operation, ...]] = {
    "pool_norm_relu": (Window("max", (3, 3), (1, 1), (1, 1), (1, 1)), _NORM, _RELU),
    "norm_relu": (_NORM, _RELU),
    "norm_relu_pool": (_NORM, _RELU, _HALVED),
    "relu_pool": (_RELU, Window("max", (3, 3), (2, 2), ceil=True)),
    "avg": (_NORM, _RELU, Window("avg", (2, 2), (2, 2))),
    "depthwise": (_DEPTHWISE, _NORM, _RELU),
    "depthwise_pool": (_DEPTHWISE, _RELU, Window("avg", (2, 2), (2, 2))),
}
DIMENSIONS = ("n", "c", "h", "w", "blocks")
EPS = 1e-5


def block(kind: str) -> tuple[Operation, ...]:
    """The layers of a kind.

    ValueError: neither a name of `KINDS` nor texts of operations.
    """
    return KINDS[kind] if kind in KINDS else tuple(parse(text) for text in kind.split("+"))


def cases(options: Namespace) -> list[Case]:
    """The cases that the options select."""
    switches: list[tuple[str, Any]] = [("layout", "NHWC")] if options.layout == "NHWC" else []
    switches += [("backward", True)] if options.backward else []
    switches += [(name, value) for name in ("most", "limit") if (value := getattr(options, name))]
    spelt = [kind for kind in options.kind or () if "/" in kind and block(kind)]
    found = []
    for suite, dtype, kind, row in shared.rows(options, "stack", [DIMENSIONS], (*KINDS, *spelt)):
        sizes = tuple((name, row.get(name, 1)) for name in DIMENSIONS)
        found.append(Case("stack", suite, sizes, dtype, (("kind", kind), *switches)))
    return found


# x in two layouts, results and what the rivals keep between two layers
memory = shared.memory(lambda case: 8 * math.prod(case[name] for name in "nchw"))


class _Stack:
    """What a case says of its layers."""

    def __init__(self, case: Case) -> None:
        self.operations = block(case["kind"]) * case["blocks"]
        self.n, self.c, self.size = case["n"], case["c"], (case["h"], case["w"])
        self.last, self.dtype = case.get("layout") == "NHWC", shared.DTYPES[case.dtype]
        self.accumulate = DTYPES[self.dtype].accumulate
        self.layout = "NHWC" if self.last else "NCHW"
        self.backward = case.get("backward", False)
        self.words = {} if self.backward else {name: case.get(name, 0) for name in ("most", "limit")}

    def shape(self, size: Size) -> tuple[int, ...]:
        """Of an array with so many elements in each dimension."""
        return (self.n, *size, self.c) if self.last else (self.n, self.c, *size)

    def out(self) -> Size:
        """Height and width of the result."""
        size = self.size
        for each in self.operations:
            size = each.out_size(size) if isinstance(each, Window) else size
        return size


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    form = _Stack(case)
    reads = {"dy": draw(form.shape(form.out()))} if form.backward else {}
    reads["x"] = draw(form.shape(form.size))
    numbers = sum(each.numbers for each in form.operations)
    if numbers:
        reads["parameters"] = Operand.of(draw((form.c, numbers), 0.5, 1.5).values(), form.accumulate)
    for k, size in enumerate(primitive.added_sizes(form.operations, form.size)):
        reads[f"added {k}"] = draw(form.shape(size))
    given = [None if name == "parameters" and not numbers else reads[name].ours for name in ("x", "parameters")]
    added = [operand.ours for name, operand in reads.items() if name.startswith("added")]
    out, take = shared.output(case, form.shape(form.size if form.backward else form.out())), shared.spread(form.c, 8)
    words: dict[str, Any] = {"added": added, "layout": form.layout, "out": out.ours, **form.words}
    if form.backward:
        call = partial(primitive.stack_backward, reads["dy"].ours, given[0], form.operations, given[1], **words)
    else:
        call = partial(primitive.stack, given[0], form.operations, given[1], **words)

    def define(values: list[np.ndarray]) -> np.ndarray:
        exact = [shared.exact(shared.channels_first(each, form.last)[:, take]) if each.ndim == 4
                 else shared.exact(each[take]) for each in values]  # fmt: skip
        dy = exact.pop(0) if form.backward else None
        x, *more = exact
        parameters = more.pop(0) if numbers else None
        if dy is not None:
            return reference.stack_backward(form.operations, dy, x, parameters, more)[0]
        return np.asarray(reference.stack(form.operations, x, parameters, more))

    terms = len(form.operations) ** 2  # halves of the rivals are rounded behind each layer
    return Ours(call, reads, define, lambda values: values[:, take], terms, out, last=form.last, bound="copy or fma")


def workload(case: Case, threads: int) -> Workload:
    """Our call and every rival."""
    p, form = ours(case, shared.drawn(case)), _Stack(case)
    if form.backward:
        return p.workload(case, _torch(p, form) | _layers_backward(p, form))
    return p.workload(case, _torch(p, form) | _onnxruntime(p, form, threads) | _layers(p, form))


def _numbers(p: Ours, form: _Stack) -> list[tuple[Operation, np.ndarray]]:
    """The operations, each with its parameters (numbers, c)."""
    found, at = [], 0
    for each in form.operations:
        rows = [p.reads["parameters"].storage[:, at + k] for k in range(each.numbers)]
        found.append((each, aligned(np.array(rows)) if rows else np.empty((0, form.c))))
        at += each.numbers
    return found


# ---------------------------------------------------------------- torch


def _torch(p: Ours, form: _Stack) -> dict[str, Contender]:
    torch = shared.torch_module()
    module = None if torch is None else _module(torch, p, form)
    if module is None:
        return {}
    images = [p.reads[name].torch for name in ("x", "dy") if name in p.reads]
    found = {}
    for name, (given, *dy) in shared.both_layouts(
        torch, *(x.movedim(-1, 1) if form.last else x for x in images)
    ).items():
        if dy:
            found[name] = stack_gradient.of_module(torch, module, dy[0], given)
            continue
        found[name] = shared.returned(torch, partial(module, given))
        if on_host():
            found[name.replace("torch", "inductor")] = inductor(torch, module, given)
    return found


def _module(torch: Any, p: Ours, form: _Stack) -> Any:
    """The layers as torch's; None where it has not all of them."""
    nn, found = torch.nn, torch.nn.Sequential()
    for each, numbers in _numbers(p, form):
        if isinstance(each, Window):
            if each.before != each.after or each.op == "avg" and each.dilation != (1, 1):
                return None
            sizes = {"stride": each.stride, "padding": each.before, "ceil_mode": each.ceil}
            if each.op == "depthwise":
                del sizes["ceil_mode"]
                more = {"dilation": each.dilation, "groups": form.c, "bias": False}
                found.append(nn.Conv2d(form.c, form.c, each.kernel, **sizes, **more))
                found[-1].weight.data = torch.from_numpy(_weight(each, numbers))
            elif each.op == "max":
                found.append(nn.MaxPool2d(each.kernel, dilation=each.dilation, **sizes))
            else:
                found.append(nn.AvgPool2d(each.kernel, count_include_pad=each.count_include_pad, **sizes))
        elif each.kind == "batch_norm":
            norm = nn.BatchNorm2d(form.c, EPS)
            for have, values in zip(_statistics(norm), (*numbers, np.full(form.c, 1 - EPS)), strict=True):
                have.data = torch.from_numpy(values.astype(p.reads["parameters"].storage.dtype))
            found.append(norm)
        elif each.kind == "relu":
            found.append(nn.ReLU(inplace=len(found) > 0))  # x itself stays
        else:
            return None
    return found.to(p.reads["x"].torch.device).eval().requires_grad_(False)


def _weight(window: Window, numbers: np.ndarray) -> np.ndarray:
    """The weight of a convolution (c, 1, rows, columns) from (rows x columns, c)."""
    return aligned(numbers.T.reshape(-1, 1, *window.kernel))


def _statistics(norm: Any) -> tuple[Any, ...]:
    """In the order of an operation's parameters: (x - mean) * weight / sqrt(var + eps) + bias."""
    return norm.running_mean, norm.weight, norm.bias, norm.running_var


def inductor(torch: Any, module: Any, x: Any) -> Contender:
    """The module compiled for images such as x, at the first call.

    Without `fullgraph` torch would run what it cannot compile as it is, and call that compiled too.
    """
    torch.compiler.reset()  # else it stops compiling after eight modules
    compiled = torch.compile(module, fullgraph=True, dynamic=False)
    return shared.returned(torch, partial(compiled, x))


# ---------------------------------------------------------------- onnxruntime


def _onnxruntime(p: Ours, form: _Stack, threads: int) -> dict[str, Contender]:
    if form.dtype != "f32":
        return {}
    nodes: list[Node] = []
    constants = {"variance": np.full(form.c, 1 - EPS, np.float32)}
    for k, (each, numbers) in enumerate(_numbers(p, form)):
        inputs, words = [f"t{k}" if k else "x"], dict[str, Any]()
        if isinstance(each, Window):
            operator = {"max": "MaxPool", "avg": "AveragePool", "depthwise": "Conv"}[each.op]
            words = {"kernel_shape": each.kernel, "strides": each.stride, "pads": (*each.before, *each.after)}
            if each.op == "depthwise":
                constants[f"weight{k}"] = _weight(each, numbers)
                words |= {"dilations": each.dilation, "group": form.c}
                nodes.append(Node(operator, [*inputs, f"weight{k}"], f"t{k + 1}", words))
                continue
            words["ceil_mode"] = int(each.ceil)
            if each.op == "avg" and each.dilation != (1, 1):  # of a later version of ONNX
                return {}
            words |= (
                {"dilations": each.dilation} if each.op == "max" else {"count_include_pad": int(each.count_include_pad)}
            )
        elif each.kind == "batch_norm":
            operator, mean_scale_shift = "BatchNormalization", [f"{name}{k}" for name in ("mean", "scale", "shift")]
            constants |= dict(zip(mean_scale_shift, numbers, strict=True))
            mean, scale, shift = mean_scale_shift
            inputs += [scale, shift, mean, "variance"]
        elif each.kind == "relu":
            operator = "Relu"
        else:
            return {}
        nodes.append(Node(operator, inputs, f"t{k + 1}", words))
    nodes[-1] = nodes[-1]._replace(output="y")
    x = aligned(shared.channels_first(p.reads["x"].storage, form.last))
    return shared.onnxruntime(nodes, x, (form.n, form.c, *form.out()), threads, constants=constants)


# ---------------------------------------------------------------- our own layers


def _layers_backward(p: Ours, form: _Stack) -> dict[str, Contender]:
    if form.dtype not in ("f32", "f64") or not on_host():
        return {}
    found = stack_gradient.of_layers(p.reads["dy"].ours, p.reads["x"].ours, _numbers(p, form), form.layout)
    return {} if found is None else {"numbaprims layers": found}


def _layers(p: Ours, form: _Stack) -> dict[str, Contender]:
    """One call a layer into memory that is there: element-wise layers in place, windows from one buffer to another."""
    if form.dtype not in ("f32", "f64"):
        return {}
    y: Any = p.reads["x"].ours
    first, size = y, form.size
    buffers: dict[Size, list[Operand]] = {}
    calls: list[Callable[[], Any]] = []
    variance = Operand.of(np.full(form.c, 1 - EPS), form.dtype).ours
    for each, numbers in _numbers(p, form):
        if isinstance(each, Window):
            if each.before != each.after:
                return {}
            before, size = size, each.out_size(size)
        if isinstance(each, Window) or y is first:
            pair = buffers.setdefault(size, [Operand.empty(form.shape(size), form.dtype) for _ in range(2)])
            out = next(buffer.ours for buffer in pair if buffer.ours is not y)
        else:
            out = y
        words: dict[str, Any] = {"out": out}
        if isinstance(each, Window) and each.op == "depthwise":
            words = {"stride": each.stride, "padding": each.before, "dilation": each.dilation,
                     "layout": form.layout, "groups": form.c}  # fmt: skip
            plan = conv_plan.plan(form.shape(before), Operand.of(_weight(each, numbers), form.dtype).ours, **words)
            calls.append(partial(plan, y, out=out))
        elif isinstance(each, Window):
            words |= {"stride": each.stride, "padding": each.before, "dilation": each.dilation,
                      "ceil_mode": each.ceil, "layout": form.layout}  # fmt: skip
            words |= {"count_include_pad": each.count_include_pad} if each.op == "avg" else {}
            calls.append(partial(getattr(numbaprims, f"{each.op}_pool"), y, each.kernel, **words))
        elif each.kind == "batch_norm":
            mean, scale, shift = (Operand.of(values, form.dtype).ours for values in numbers)
            words |= {"eps": EPS, "layout": form.layout}
            calls.append(partial(numbaprims.batch_norm, y, scale, shift, mean, variance, **words))
        elif each.kind == "relu":
            calls.append(partial(numbaprims.relu, y, **words))
        else:
            return {}
        y = out

    def call() -> None:
        for each in calls:
            each()

    return {"numbaprims layers": Contender(call, lambda: shared.channels_first(y, form.last))}
