"""Convolutions with gradients.

Forward, data gradient and weight gradient are bilinear, and the derivatives of each are the other two: any order of
derivative works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import numbaprims
from numbaprims import shapes
from numbaprims.frontends.torch.recording import differentiable, sum_to
from numbaprims.frontends.torch.rules import multilinear

_WINDOW = ("stride", "padding", "dilation", "groups", "layout", "alpha")


def _window(others: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the gradients have as well."""
    return {name: others[name] for name in _WINDOW if name in others}


def _whole_strides(x: Any, stride: Any, output_padding: Any, layout: str, **others: Any) -> dict[str, Any]:
    """An output padding of a stride or more (legal with a larger dilation) as zeros behind x and the rest of it.

    The gradients, which are convolutions of dy, would otherwise find more windows than x has elements.
    """
    rank = x.ndim - 2
    strides = shapes.per_dimension(stride, rank, "stride", 1)
    behind = shapes.per_dimension(output_padding, rank, "output_padding", 0)
    zeros = [more // step for more, step in zip(behind, strides, strict=True)]
    if not any(zeros):
        return {}
    pads = [0, 0] if shapes.channels_last(layout, rank) else []
    for count in reversed(zeros):
        pads += [0, count]
    rest = tuple(m - z * s for m, z, s in zip(behind, zeros, strides, strict=True))
    return {"x": torch.nn.functional.pad(x, pads), "output_padding": rest}


def _spread(g: Any, *, shape: Any, layout: str) -> Any:
    last = shapes.channels_last(layout, len(shape) - 2)
    return (g if last else g.reshape(-1, *(1,) * (len(shape) - 2))).expand(shape)


_bias = "", lambda g, *, layout, **others: conv_backward_bias(g, layout=layout)
_added = "", lambda g, *, shape, beta, **others: sum_to(g, shape, beta)

conv = multilinear(
    "conv", "x weight bias c", bias=_bias, c=_added,
    x=("weight", lambda g, weight, *, shape, **others: conv_backward_data(g, weight, shape, **_window(others))),
    weight=("x", lambda g, x, *, shape, **others: conv_backward_weight(g, x, shape, **_window(others))),
)  # fmt: skip
conv_transpose = multilinear(
    "conv_transpose", "x weight bias", bias=_bias, also=_whole_strides,
    x=("weight", lambda g, weight, **others: conv(g, weight, **_window(others))),
    weight=("x", lambda g, x, *, shape, **others: conv_backward_weight(x, g, shape, **_window(others))),
)  # fmt: skip
conv_backward_data: Callable[..., Any] = multilinear(
    "conv_backward_data", "dy weight c", cast=False, c=_added,
    dy=("weight", lambda g, weight, **others: conv(g, weight, **_window(others))),
    weight=("dy", lambda g, dy, *, shape, **others: conv_backward_weight(dy, g, shape, **_window(others))),
)  # fmt: skip
conv_backward_weight: Callable[..., Any] = multilinear(
    "conv_backward_weight", "dy x c", cast=False, c=_added,
    dy=("x", lambda g, x, **others: conv(x, g, **_window(others))),
    x=("dy", lambda g, dy, *, shape, **others: conv_backward_data(dy, g, shape, **_window(others))),
)  # fmt: skip
conv_backward_bias: Callable[..., Any] = multilinear("conv_backward_bias", "dy", cast=False, dy=("", _spread))


@differentiable(numbaprims.conv_transpose_backward_data)
def conv_transpose_backward_data(dy: Any, weight: Any, **arguments: Any) -> Any:
    return conv(dy, weight, **arguments)


@differentiable(numbaprims.conv_transpose_backward_weight)
def conv_transpose_backward_weight(dy: Any, x: Any, kernel_shape: Sequence[int], **arguments: Any) -> Any:
    return conv_backward_weight(x, dy, kernel_shape, **arguments)
