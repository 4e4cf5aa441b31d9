"""Layers of transformers: norms by the statistics of each row or image, softmax, products of values, attention."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from numbaprims.fusion.layer import Layer, check_integers, values_of
from numbaprims.fusion.place import Place, Run, Shape
from numbaprims.fusion.rearranging import viewed
from numbaprims.ops import norm
from numbaprims.ops.attention import attention
from numbaprims.ops.epilogue import resolve_activation
from numbaprims.ops.gemm import gemm
from numbaprims.ops.primitive import integer, scalar
from numbaprims.ops.softmax import softmax


class Norm(Layer):
    """A norm by a public function of `numbaprims.ops.norm`, which takes an activation behind it."""

    weight: Any
    bias: Any
    eps: float
    activation: Any
    function = ""
    takes_activation = True
    stays = "a norm of rows is a launch of its own"

    def _check(self) -> None:
        for name in ("weight", "bias"):
            value = getattr(self, name)
            self._set(**{name: None if value is None else values_of(value, name, *range(1, 5))})
        self._set(eps=scalar(self.eps, "eps"))
        resolve_activation(self.activation)

    def _words(self, place: Place) -> dict[str, Any]:
        """What its function takes beside arrays and eps."""
        return {}

    def bind(self, shape: Shape, place: Place) -> Run:
        given = {
            name: place.array(value) for name in ("weight", "bias") if (value := getattr(self, name, None)) is not None
        }
        return functools.partial(
            getattr(norm, self.function), eps=self.eps, activation=self.activation, **given, **self._words(place)
        )


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class LayerNorm(Norm):
    """`numbaprims.layer_norm` of the last dimensions."""

    weight: Any = None
    bias: Any = None
    eps: float = 1e-5
    normalized_dims: int = 1
    activation: Any = None
    function = "layer_norm"

    def __post_init__(self) -> None:
        check_integers(self, "normalized_dims")
        self._check()

    def _words(self, place: Place) -> dict[str, Any]:
        return {"normalized_dims": self.normalized_dims}


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class RMSNorm(LayerNorm):
    """`numbaprims.rms_norm` of the last dimensions."""

    bias: None = dataclasses.field(default=None, init=False)
    function = "rms_norm"


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class GroupNorm(Norm):
    """`numbaprims.group_norm` of groups of channels."""

    groups: int
    weight: Any = None
    bias: Any = None
    eps: float = 1e-5
    activation: Any = None
    function = "group_norm"

    def __post_init__(self) -> None:
        check_integers(self, "groups")
        self._check()

    def _words(self, place: Place) -> dict[str, Any]:
        return {"groups": self.groups, "layout": place.layout}


@dataclasses.dataclass(frozen=True, repr=False)
class Softmax(Layer):
    """`numbaprims.softmax` along a dimension of images."""

    axis: int = -1
    stays = "a softmax is a launch of its own"

    def __post_init__(self) -> None:
        self._set(axis=integer(self.axis, "axis"))

    def bind(self, shape: Shape, place: Place) -> Run:
        if self.axis % len(shape) == 0 or not -len(shape) <= self.axis < len(shape):
            raise ValueError(f"axis is {self.axis}; it must be one of the image's")
        return functools.partial(softmax, axis=self.axis)


@dataclasses.dataclass(frozen=True, repr=False)
class MatMul(Layer):
    """`numbaprims.gemm` of two values (N, ..., M, K) and (N, ..., K, L), a step of a `Wired`."""

    stays = "a product is a launch of its own"
    reads = 2

    def bind(self, shape: Shape, place: Place) -> Run:
        if len(shape) < 3:
            raise ValueError("it takes matrices of each image")
        return lambda a, b, *, out=None: gemm(a, b, out=out)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Attention(Layer):
    """`numbaprims.attention` of queries, keys and values (N, heads, length, width): a step of a `Wired`."""

    causal: bool = False
    scale: float | None = None
    mask: Any = None
    """What is added to the scores, of any shape that broadcasts to theirs."""
    stays = "attention is a launch of its own"
    reads = 3

    def __post_init__(self) -> None:
        if self.mask is not None:
            self._set(mask=values_of(self.mask, "mask", *range(1, 6)))
        if self.scale is not None:
            self._set(scale=scalar(self.scale, "scale"))

    def bind(self, shape: Shape, place: Place) -> Run:
        mask = None if self.mask is None else place.array(self.mask)
        return functools.partial(attention, causal=self.causal, scale=self.scale, mask=mask)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class MaskedAttention(Attention):
    """`Attention` with the mask as its fourth value: bool, where True takes part, or added to the scores."""

    mask: None = dataclasses.field(default=None, init=False)
    reads = 4

    def bind(self, shape: Shape, place: Place) -> Run:
        attend = super().bind(shape, place)
        return lambda q, k, v, mask, *, out=None: attend(q, k, v, mask=mask, out=out)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class SelfAttention(Attention):
    """`numbaprims.attention` of queries, keys and values that stand side by side, as one product gives them: of
    (N, ..., length, 3 * heads * width) it makes (N, ..., length, heads * width).
    """

    heads: int = dataclasses.field(kw_only=True)
    reads = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(self, "heads")

    def bind(self, shape: Shape, place: Place) -> Run:
        attend = super().bind(shape, place)
        if len(shape) < 3 or shape[-1] % (3 * self.heads):
            raise ValueError(f"it takes (N, ..., length, 3 * {self.heads} * width)")
        size = shape[-1] // 3

        def part(x: Any, first: int, parts: int) -> Any:
            """(N, ..., heads, length, width) of one of several parts of the last dimension."""

            def view(each: np.ndarray) -> np.ndarray:
                heads = each.reshape((*each.shape[:-1], parts * self.heads, size // self.heads))
                return heads[..., first * self.heads : (first + 1) * self.heads, :].swapaxes(-3, -2)

            return viewed(x, view)

        def run(x: Any, *, out: Any = None) -> Any:
            y = place.library.empty((*x.shape[:-1], size), place.dtype)[0] if out is None else out
            attend(*(part(x, at, 3) for at in range(3)), out=part(y, 0, 1))
            return y

        return run
