"""Depthwise convolutions as windows of stacks, where the CPU's estimates say that it pays."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from numbaprims import settings
from numbaprims.dispatch import registry
from numbaprims.fusion.graph import Graph, Item, Product, Stack
from numbaprims.fusion.layers import Activation, Conv
from numbaprims.fusion.place import Found, Place, Shape, channel_axis, pack
from numbaprims.ops import conv, stack
from numbaprims.ops._conv_pose import Window as Given, geometry
from numbaprims.ops.epilogue import resolve_activation
from numbaprims.reference.convert import from_float64, to_float64
from numbaprims.stacks.operations import Pointwise, Window

#: A stack takes this much less than its parts by the estimates, or they stay apart.
PAYS = 0.95
#: Weights of a channel, at most: what the CPU's stages write out.
MOST_WEIGHTS = 49


def operations_of(layer: Conv, shape: Shape, place: Place) -> list[Found] | None:
    """A convolution, its bias and its activation in a stack; None for one that is not depthwise over images, or whose
    window is larger than a stack writes out."""
    c = shape[channel_axis(shape, place.layout)]
    if len(shape) != 4 or layer.groups != c or layer.weight.shape[:2] != (c, 1):
        return None
    given = Given(layer.stride, layer.padding, layer.dilation, layer.groups, place.layout)
    g = geometry(shape, layer.weight.shape, given)
    (h, w), before = g.x_size[1:], g.padding[1:]
    window = Window("depthwise", g.kernel[1:], g.stride[1:], before, dilation=g.dilation[1:])
    # what the windows of the result reach behind
    reach = [
        (n - 1) * s + e - b for n, s, e, b in zip(g.y_size[1:], window.stride, window.extents, before, strict=True)
    ]
    after = max(0, reach[0] - h), max(0, reach[1] - w)
    window = window._replace(after=after)
    pads = zip((*before, *after), (*window.extents, *window.extents), strict=True)
    if window.numbers > MOST_WEIGHTS or any(pad > extent // 2 for pad, extent in pads):
        return None

    def rounded(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = to_float64(from_float64(values, place.dtype), place.dtype)
        return found

    found: list[Found] = [(window, list(rounded(layer.weight).reshape(c, -1).T))]
    if layer.bias is not None:
        found.append((Pointwise("bias", 1), [rounded(layer.bias)]))
    activation = resolve_activation(layer.activation)
    if layer.activation is not None and activation.kind != "identity":
        kind, values = layer.activation if isinstance(layer.activation, tuple) else (layer.activation, {})
        found.append(Activation(kind, **values).operation(shape, place))
    return found


class Joiner:
    """Joins the items of a graph: a depthwise convolution and a stack, or two of them."""

    def __init__(self, graph: Graph, place: Place, by_result: dict[int, Item], most: int, limit: int) -> None:
        self.graph, self.place, self.by_result, self.most, self.limit = graph, place, by_result, most, limit
        readers = graph.readers
        for value in sorted(by_result):
            item, form = by_result[value], self._form(by_result[value])
            source = item.inputs[0]
            first = by_result.get(source)
            if form is None or first is None or readers[source] > 1 or 0 in first.shape:  # of no images no estimate
                continue
            before = self._form(first)
            if before is None:
                continue
            joined = _joined(before, form)
            if len(joined.inputs) - 1 > stack.MOST_ADDED:
                continue
            if self._seconds(joined) < PAYS * (self._seconds(first) + self._seconds(item)):
                del by_result[source]
                by_result[value] = joined

    def _form(self, item: Item) -> Stack | None:
        """An item as a stack."""
        if isinstance(item, Stack):
            return item if len(item.shape) == 4 else None
        if not isinstance(item, Product) or not isinstance(item.layer, Conv):
            return None
        found = operations_of(item.layer, item.shape, self.place)
        if found is None:
            return None
        why = "it reads the network's input"
        if item.inputs[0]:
            why = f"what it reads is computed by {self.graph.nodes[item.inputs[0]]}"
        made = Stack([], item.inputs[:1], item.shape, item.layer, why, most=self.most, limit=self.limit)
        for operation, columns in found:
            made.append(item.result, item.layer, operation, pack(columns, item.shape, self.place), [])
        made.nodes, made.folded = list(item.nodes), list(item.folded)
        return made

    def _seconds(self, item: Item) -> float:
        """By the estimates of the CPU's solvers."""
        # NumPy has no bfloat16 of its own; float16 has its size
        place = self.place._replace(dtype="f16") if self.place.dtype == "bf16" else self.place

        def array(shape: Any) -> Any:
            return place.library.empty(tuple(shape), place.dtype)[0]

        with settings.config(device="cpu"):
            x = array(item.shape)
            if isinstance(item, Stack):
                given = None if item.parameters is None else place.parameters(item.parameters)
                added = [array(self.graph.nodes[value].shape) for value in item.inputs[1:]]
                texts = [each.text for each in item.operations]
                words = {"added": added, "layout": place.layout, "most": item.most, "limit": item.limit}
                problem: Any = stack.PROBLEMS["stack"](x, texts, given, **words)
                large = any(isinstance(each, Window) and each.numbers > 9 for each in item.operations)
                if large and problem.bytes_moved() > registry.target("cpu").l3:
                    return math.inf  # 7 x 7 of 16x56x56x96 and GELU: 0.5 to 0.9 of apart on a Zen 4
            else:
                layer: Any = item.layer
                words = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
                weight = place.array(layer.weight)
                problem = conv.PROBLEMS["conv"](x, weight, activation=layer.activation, layout=place.layout, **words)
                problem = dataclasses.replace(problem, prepared=True)
            here = registry.target("cpu")
            able = (one for one in registry.solvers(problem.stem, "cpu") if one.why_not(problem, here) is None)
            seconds = min(one.estimate(problem, here) for one in able)
        return float(seconds)


def _joined(first: Stack, then: Stack) -> Stack:
    """Two stacks, the second of what the first gives."""
    parameters = [each.parameters for each in (first, then) if each.parameters is not None]
    return dataclasses.replace(
        first, nodes=first.nodes + then.nodes, inputs=first.inputs + then.inputs[1:],
        layers=first.layers + then.layers, operations=first.operations + then.operations,
        values=first.values + then.values, folded=first.folded + then.folded,
        parameters=np.concatenate(parameters, axis=1) if parameters else None,
    )  # fmt: skip
