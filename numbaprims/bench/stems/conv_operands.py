"""The arrays of a case of conv, and our calls on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import DTYPES, Case, aligned
from numbaprims.bench.operands import Operand, chosen_solver
from numbaprims.bench.stems import conv_suites
from numbaprims.bench.stems.conv_check import Check
from numbaprims.bench.stems.conv_suites import Layer
from numbaprims.bench.stems.shared import Draw
from numbaprims.reference.activation import activation as apply_activation


def layer_of(case: Case) -> Layer:
    """The layer of a case."""
    fields: dict[str, Any] = dict(case.sizes)
    rank = 3 if "d" in fields else 2
    fields |= {
        name: conv_suites.steps(case.get(name, default), rank)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    }
    return Layer(**fields, groups=case.get("groups", 1))


def elements(layer: Layer) -> tuple[int, int, int]:
    """Of x, w and y."""
    weight = layer.k * (layer.c // layer.groups) * math.prod(layer.kernel)
    return layer.n * layer.c * math.prod(layer.image), weight, layer.n * math.prod(layer.output)


class Operands:
    """Arrays of a case: x, w and y (for gradients: dy) with the channels in front, and those of our call.

    `read` names the two that are read, in the order of our call; `out` is what ours writes, in `layout`.
    """

    def __init__(self, case: Case, draw: Draw):
        self.layer, self.dtype = layer_of(case), DTYPES[case.dtype]
        self.direction: str = case.get("direction", "forward")
        self.layout: str = case.get("layout", "NCHW")
        self.activation: str | None = case.get("activation")
        layer = self.layer
        self.x = draw((layer.n, layer.c, *layer.image))
        self.w = draw((layer.k, layer.c // layer.groups, *layer.kernel))
        shapes = {
            "x": self.x.storage.shape, "w": self.w.storage.shape, "y": (layer.n, *layer.output), "b": (layer.k,)
        }  # fmt: skip
        self.y = draw(shapes["y"]) if self.direction != "forward" else self.x
        self.bias = draw((layer.k,)) if case.get("bias") else None
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
        x, weight = self.arguments
        plan = numbaprims.conv.plan(x.shape, weight, **self.words, algorithm=algorithm)
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
        rows = numbaprims.explain(self.function, *self.arguments, **self.words, out=self.out)
        names = [row.solver for row in rows if row.refusal is None]
        return [name for name in names if name != "naive"] or names
