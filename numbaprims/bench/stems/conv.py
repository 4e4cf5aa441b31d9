"""conv and its gradients against torch (oneDNN) in both layouts and onnxruntime."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

from numbaprims.bench.cases import (
    DTYPES,
    OURS,
    Case,
    Contender,
    Workload,
    aligned,
    generator,
    parse_shape,
    select,
)
from numbaprims.bench.operands import Operand, chosen_solver
from numbaprims.bench.stems import conv_suites
from numbaprims.bench.stems.conv_check import Check
from numbaprims.bench.stems.conv_rivals import all_rivals
from numbaprims.bench.stems.conv_solvers import regret
from numbaprims.bench.stems.conv_suites import Layer
from numbaprims.reference.activation import activation as apply_activation

DIMENSIONS = ("n", "c", "h", "w", "k", "r", "s")
VOLUME = ("n", "c", "d", "h", "w", "k", "z", "r", "s")
DIRECTIONS = ("forward", "data", "weight", "bias")
# The cost of a first call is the difference of two times: where a call takes longer than this, it drowns in noise.
_COLD_CALLS_UP_TO = 20e-3


def cases(options: Namespace) -> list[Case]:
    """The cases that the options of the command select; the batch is that of a layer, else of --batch."""
    found: list[Case] = []
    for direction in options.direction or DIRECTIONS[:1]:
        if direction not in DIRECTIONS:
            raise ValueError(f"direction: {direction!r} given, allowed are {', '.join(DIRECTIONS)}")
        for dtype in options.dtype:
            for name, layer in _layers(options):
                found.append(_case(name, layer, dtype, direction, options))
    return found


def _layers(options: Namespace) -> list[tuple[str, Layer]]:
    given: dict[str, Any] = {name: getattr(options, name) for name in VOLUME if getattr(options, name) is not None}
    if given:
        given.setdefault("n", 1)
        if {"d", "z"} & given.keys():
            given = {"d": 1, "z": 1} | given
        missing = [f"--{name}" for name in DIMENSIONS if name not in given]
        if missing:
            raise ValueError(f"sizes: {' '.join(missing)} missing, a layer needs --c --h --w --k --r --s")
        return [("given", _given(tuple(given.items()), options))]
    found = []
    batches = options.batch or ([1] if options.quick else [1, 16])
    wanted = options.shapes
    volumes = [word for word in wanted or [] if word[:1].isdecimal() and word.count("x") == len(VOLUME) - 1]
    if volumes:
        found = [("given", _given(parse_shape(word, VOLUME), options)) for word in volumes]
        wanted = [word for word in wanted if word not in volumes]
    for name, suite in select("conv", wanted, DIMENSIONS):
        if name == "given":
            found.append((name, _given(suite, options)))
        else:
            found += [(name, layer) for layer in conv_suites.layers(suite, batches)]
    return found


def _given(sizes: tuple[tuple[str, int], ...], options: Namespace) -> Layer:
    fields: dict[str, Any] = dict(sizes)
    rank = 3 if "d" in fields else 2
    fields |= {name: conv_suites.steps(getattr(options, name), rank) for name in ("stride", "padding", "dilation")}
    layer = Layer(**fields, groups=options.groups)
    if layer.c % layer.groups or layer.k % layer.groups:
        raise ValueError(f"groups: {layer.groups} given, allowed are divisors of {layer.c} and of {layer.k} channels")
    if min(layer.stride + layer.dilation) < 1 or min(layer.output) < 1:
        filters = "x".join(map(str, layer.kernel))
        raise ValueError(f"shapes: a filter {filters} given that does not fit its padded image")
    return layer


def _case(suite: str, layer: Layer, dtype: str, direction: str, options: Namespace) -> Case:
    switches: list[tuple[str, Any]] = [
        (name, conv_suites.text(getattr(layer, name)))
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        if set(getattr(layer, name)) != {default}
    ]
    switches += [("groups", layer.groups)] if layer.groups > 1 else []
    switches += [("direction", direction)] if direction != "forward" else []
    switches += [("layout", "NHWC")] if options.layout == "NHWC" else []
    if direction == "forward":
        switches += [(name, value) for name in ("bias", "activation") if (value := getattr(options, name))]
    names = VOLUME if len(layer.stride) == 3 else DIMENSIONS
    return Case("conv", suite, tuple((name, getattr(layer, name)) for name in names), dtype, tuple(switches))


def layer_of(case: Case) -> Layer:
    """The layer of a case."""
    fields: dict[str, Any] = dict(case.sizes)
    rank = 3 if "d" in fields else 2
    fields |= {
        name: conv_suites.steps(case.get(name, default), rank)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    }
    return Layer(**fields, groups=case.get("groups", 1))


def _elements(layer: Layer) -> tuple[int, int, int]:
    """Of x, w and y."""
    weight = layer.k * (layer.c // layer.groups) * math.prod(layer.kernel)
    return layer.n * layer.c * math.prod(layer.image), weight, layer.n * math.prod(layer.output)


def memory(case: Case) -> float:
    """Bytes of the operands of a case; x is there in two layouts, results once for each rival."""
    x, w, y = _elements(layer_of(case))
    return float((3 * x + 4 * w + 6 * y) * {"f64": 8, "f32": 4}.get(case.dtype, 4))


class Operands:
    """Arrays of a case: x, w and y (for gradients: dy) with the channels in front, and those of our call.

    `read` names the two that are read, in the order of our call; `out` is what ours writes, in `layout`.
    """

    def __init__(self, case: Case):
        self.layer, self.dtype = layer_of(case), DTYPES[case.dtype]
        self.direction: str = case.get("direction", "forward")
        self.layout: str = case.get("layout", "NCHW")
        self.activation: str | None = case.get("activation")
        layer, rng = self.layer, generator(case)

        def draw(*shape: int) -> Operand:
            if self.dtype == "i8":
                return Operand.of(rng.integers(-128, 128, shape, np.int8), "i8")
            # In [-1, 1): no rare large value decides what the error bound is.
            return Operand.of(rng.random(shape, np.float32) * 2 - 1, self.dtype)

        self.x = draw(layer.n, layer.c, *layer.image)
        self.w = draw(layer.k, layer.c // layer.groups, *layer.kernel)
        shapes = {
            "x": self.x.storage.shape, "w": self.w.storage.shape, "y": (layer.n, *layer.output), "b": (layer.k,)
        }  # fmt: skip
        self.y = draw(*shapes["y"]) if self.direction != "forward" else self.x
        self.bias = draw(layer.k) if case.get("bias") else None
        self.read, written = {
            "forward": ("xw", "y"), "data": ("yw", "x"), "weight": ("yx", "w"), "bias": ("y", "b")
        }[self.direction]  # fmt: skip
        self._last = self.layout == "NHWC" and written in "xy"
        shape = shapes[written]
        if self._last:
            shape = (shape[0], *shape[2:], shape[1])
        self.out = Operand.empty(shape, "i32" if self.dtype == "i8" else self.dtype)

    def inputs(self) -> list[Any]:
        """The arrays that our call reads: two, of the gradient by the bias one."""
        found = []
        for name in self.read:
            operand: Operand = getattr(self, name)
            if self.layout == "NHWC" and name != "w":
                operand = Operand(aligned(np.moveaxis(operand.storage, 1, -1)), self.dtype)
            found.append(operand.ours)
        return found

    def plain(self, position: int) -> np.ndarray:
        """The first or the second array that is read, with the channels in front."""
        operand: Operand = getattr(self, self.read[position])
        return operand.values()

    def result(self) -> np.ndarray:
        """What our call wrote, with the channels in front."""
        values = self.out.values()
        return np.moveaxis(values, -1, 1) if self._last else values

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of our call, without `out`."""
        layer = self.layer
        layout = self.layout if len(layer.image) == 2 else self.layout.replace("HW", "DHW")
        if self.direction == "bias":
            return {"layout": layout}
        words: dict[str, Any] = {
            "stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation, "groups": layer.groups,
            "layout": layout,
        }  # fmt: skip
        if self.bias is not None:
            words["bias"] = self.bias.ours
        if self.activation:
            words["activation"] = self.activation
        return words

    def check(self) -> Check:
        """The definition of the case."""

        def finish(want: np.ndarray, channels: np.ndarray) -> np.ndarray:
            if self.bias is not None:
                bias = self.bias.values().astype(np.float64)[channels]
                want = want + bias.reshape(-1, *[1] * len(self.layer.image))
            return apply_activation(want, self.activation) if self.activation else want

        return Check(self.layer, self.direction, self.dtype, lambda: self.plain(0), lambda: self.plain(1), finish)


class Ours:
    """Our calls of a case: the plain one, and forward the plan that a layer with fixed weights runs."""

    def __init__(self, p: Operands) -> None:
        import numbaprims

        layer, words, self.out = p.layer, p.keywords(), p.out.ours
        sizes: list[Any] = []
        if p.direction == "data":
            last = p.layout == "NHWC"
            sizes = [(layer.n, *layer.image, layer.c) if last else (layer.n, layer.c, *layer.image)]
        elif p.direction == "weight":
            sizes = [p.w.storage.shape]
        functions: dict[str, Callable[..., Any]] = {
            "forward": numbaprims.conv,
            "data": numbaprims.conv_backward_data,
            "weight": numbaprims.conv_backward_weight,
            "bias": numbaprims.conv_backward_bias,
        }
        self.function = functions[p.direction]
        self.arguments, self.words, self._direction = (*p.inputs(), *sizes), words, p.direction
        self._plans: dict[str, Any] = {}

    def call(self, algorithm: str = "auto") -> Callable[[], Any]:
        """The plain call; that of the gradient by the bias has one way to be computed."""
        function, arguments = self.function, self.arguments
        words = {**self.words, "out": self.out}
        if self._direction != "bias":
            words["algorithm"] = algorithm
        return lambda: function(*arguments, **words)

    def plan(self, algorithm: str = "auto") -> Callable[[], Any]:
        """The call with its weights prepared; a gradient has none, and is the plain call."""
        if self._direction != "forward":
            return self.call(algorithm)
        import numbaprims

        x, weight = self.arguments
        plan = numbaprims.conv.plan(x.shape, weight, **self.words, algorithm=algorithm)  # type: ignore[attr-defined]
        self._plans[algorithm], out = plan, self.out
        return lambda: plan(x, out=out)

    def solver(self) -> str:
        """Name of the solver that dispatch picks: of the plan, where there is one."""
        if "auto" in self._plans:
            plan = self._plans["auto"]
            plan(self.arguments[0], out=self.out)
            return str(next(iter(plan._bound.values()))[0].solver.name)
        return chosen_solver(self.function, *self.arguments, **self.words, out=self.out)

    def candidates(self) -> list[str]:
        """Every solver that does not refuse the plain call; the naive one, which may take seconds, if it is alone."""
        import numbaprims

        rows = numbaprims.explain(self.function, *self.arguments, **self.words, out=self.out)
        names = [row.solver for row in rows if row.refusal is None]
        return [name for name in names if name != "naive"] or names


def workload(case: Case, threads: int) -> Workload:
    """Our plan forward, our call for gradients, and every rival."""
    p = Operands(case)
    ours, check = Ours(p), p.check()
    contenders = {OURS: Contender(ours.plan(), p.result)}
    if p.direction == "forward":
        contenders["numbaprims call"] = Contender(ours.call(), p.result)
    contenders |= all_rivals(p, threads)
    if case.dtype in ("bf16", "f16", "int8"):
        contenders["numbaprims f32"] = _ours_f32(case)
    sizes = {"x": p.x.storage.nbytes, "w": p.w.storage.nbytes, "y": p.y.storage.nbytes}
    # 9 or 25 products for each element of a depthwise convolution: memory bounds it; in a cache, or with 25, arithmetic
    bound = "copy or fma" if p.layer.is_depthwise else "fma"
    more: dict[str, Callable[[], Any]] = {"cold": lambda: cold(ours), "regret": lambda: regret(ours)}
    if p.direction == "bias":
        bound, more = "read", {}
    return Workload(
        contenders,
        check,
        flops=float(p.y.storage.size if p.direction == "bias" else p.layer.flops),
        bytes=float(sum(sizes[name] for name in p.read) + p.out.storage.nbytes),
        bound=bound,
        solver=ours.solver,
        output=p.out.storage,
        more=more,
    )


def _ours_f32(case: Case) -> Contender:
    """The same layer in our own float32, which the narrow types are compared with."""
    p = Operands(replace(case, dtype="f32"))
    return Contender(Ours(p).plan(), p.result, check=p.check())


def cold(ours: Ours) -> float | None:
    """Seconds that the first plain call of a problem takes longer than the next ones, kernels being loaded.

    None where a call is so long that the difference would be noise.
    """
    call = ours.call()
    launchers = import_module("numbaprims.ops._conv_call").launchers
    call()
    steady = statistics.median(_seconds(call) for _ in range(5))
    if steady > _COLD_CALLS_UP_TO:
        return None
    firsts = []
    for _ in range(5):
        launchers.clear()
        firsts.append(_seconds(call))
    return max(statistics.median(firsts) - steady, 0.0)


def _seconds(call: Callable[[], Any]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin
