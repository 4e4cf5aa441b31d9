"""What a convolution must give: the definition in float64 on a part of the result that takes a second, not an hour.

A part is some channels of the result (whole groups, where there are groups) of the first and the last image: the first
channel, the last and those spread between them touch every tile of a blocked kernel in every pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from numbaprims.bench.cases import disagreement, sum_bound
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.conv_suites import Layer
from numbaprims.reference import conv as reference

# Products that a check may take, and the channels that it looks at if they are cheap.
_PRODUCTS = 2e8
_CHANNELS = 24


class Check:
    """Compares results with the definition; the part of it that is needed is computed once.

    `first` and `second` give the operands as NCHW float arrays (integers for int8): x and w forward, dy and w for the
    gradient by the data, dy and x for that by the weight.
    """

    def __init__(
        self,
        layer: Layer,
        direction: str,
        dtype: str,
        first: Callable[[], np.ndarray],
        second: Callable[[], np.ndarray],
        finish: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._layer, self._direction, self._dtype = layer, direction, dtype
        self._first, self._second, self._finish = first, second, finish
        self._want: np.ndarray | None = None
        self._images = sorted({0, layer.n - 1})
        self._groups, self._channels, self._inputs = _part(layer, direction)

    def __call__(self, got: np.ndarray) -> str | None:
        """What is wrong with a result (N, K, P, Q), (N, C, H, W), (K, C, R, S) or (K,) in one sentence, or None."""
        if got.dtype.kind == "f" and not np.isfinite(got).all():
            return f"{int((~np.isfinite(got)).sum())} of {got.size} elements are not finite"
        if self._want is None:
            self._want = self._definition()
        if self._direction == "bias":
            part = got
        elif self._direction == "weight":
            part = got[self._channels][:, self._inputs]
        else:
            part = got[self._images][:, self._channels]
        largest = float(np.abs(self._want).max(initial=0.0))
        return disagreement(part, self._want, sum_bound(largest, self._terms(), self._dtype))

    def _terms(self) -> int:
        """Products of one sum that count for its error: rounding errors of random sign grow with the root of their
        number. At least 512, because the transforms of a Winograd convolution amplify the rounding of a short sum."""
        layer = self._layer
        taps, pixels = math.prod(layer.kernel), math.prod(layer.output[1:])
        channels = {"forward": layer.c, "data": layer.k}.get(self._direction, 0) // layer.groups
        products = channels * taps or layer.n * pixels
        return 512 + int(16 * products**0.5)

    def _definition(self) -> np.ndarray:
        layer, groups = self._layer, self._groups
        exact = np.int64 if self._dtype == "i8" else np.float64
        if self._direction == "bias":
            return reference.conv_backward_bias(self._first().astype(exact))
        first, second = self._first(), self._second()
        words = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
        own_c, own_k = layer.c // layer.groups, layer.k // layer.groups
        of_c, of_k = _members(groups, own_c), _members(groups, own_k)
        if self._direction == "weight":
            if layer.groups == 1:
                of_k, of_c = self._channels, self._inputs
            dy, x = first[:, of_k].astype(exact), second[:, of_c].astype(exact)
            return reference.conv_backward_weight(dy, x, layer.kernel, groups=len(groups), **words)
        if layer.groups == 1:
            of_c, of_k = (of_c, self._channels) if self._direction == "forward" else (self._channels, of_k)
            weight = second[self._channels] if self._direction == "forward" else second[:, self._channels]
        else:
            weight = second[of_k]
        operand = first[self._images][:, of_c if self._direction == "forward" else of_k].astype(exact)
        weight = weight.astype(exact)
        if self._direction == "data":
            return reference.conv_backward_data(operand, weight, layer.image, groups=len(groups), **words)
        want = reference.conv(operand, weight, layer.output[1:], groups=len(groups), **words)
        return want if self._finish is None else self._finish(want, self._channels)


def _members(groups: np.ndarray, size: int) -> np.ndarray:
    """The channels of some groups of `size` channels each."""
    return (groups[:, None] * size + np.arange(size)).ravel()


def _part(layer: Layer, direction: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The groups that a check computes, the channels of the result that it compares, and, of the gradient by the
    weight, the channels of the input."""
    images = layer.n if direction == "weight" else min(layer.n, 2)
    total = replace(layer, n=images).flops / 2
    own_c, own_k = layer.c // layer.groups, layer.k // layer.groups
    if layer.groups > 1:
        groups = _spread(layer.groups, _PRODUCTS * layer.groups / total)
        return groups, _members(groups, own_c if direction == "data" else own_k), np.arange(own_c)
    if direction == "weight":
        side = (_PRODUCTS * own_c * own_k / total) ** 0.5
        return np.zeros(1, int), _spread(own_k, side), _spread(own_c, side)
    channels = own_c if direction == "data" else own_k
    return np.zeros(1, int), _spread(channels, _PRODUCTS * channels / total), np.arange(own_c)


def _spread(count: int, affordable: float) -> np.ndarray:
    """Some of `count` indices, the first and the last among them."""
    return shared.spread(count, int(min(_CHANNELS, max(2, affordable))))
