"""Convolutions with gradients.

Forward, data gradient and weight gradient are bilinear, and the derivatives of each are the other two: any order of
derivative works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

import numbaprims
from numbaprims import shapes
from numbaprims.frontends.torch import activations
from numbaprims.frontends.torch.recording import (
    Recorded,
    autocast,
    differentiable,
    of_dtype,
    reads,
    recorded,
    refuse_out,
    split_activation,
    sum_to,
    written,
)


class _How(NamedTuple):
    """The arguments of a convolution that are no tensors."""

    window: dict[str, Any]
    alpha: float = 1.0
    beta: float = 0.0
    activation: tuple[str, dict[str, Any]] | None = None
    out_dtype: Any = None
    algorithm: str = "auto"

    def scales(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "beta": self.beta}


class ConvFunction(Recorded):
    """activation(alpha conv(x, weight) + beta c + bias), for activations whose gradient reads the result."""

    @staticmethod
    def forward(x: Any, weight: Any, bias: Any, c: Any, how: _How) -> Any:
        return numbaprims.conv(
            x, weight, bias, c=c, activation=how.activation, out_dtype=how.out_dtype, algorithm=how.algorithm,
            **how.scales(), **how.window,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, c, how = inputs
        need_x, need_weight = ctx.needs_input_grad[:2]
        ctx.how, ctx.dtype = how, x.dtype
        ctx.shapes = x.shape, weight.shape, None if c is None else c.shape
        ctx.save_for_backward(x if need_weight else None, weight if need_x else None, _result_read(how, output))

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        how: _How = ctx.how
        x, weight, y = ctx.saved_tensors
        need_x, need_weight, need_bias, need_c, _ = ctx.needs_input_grad
        x_shape, weight_shape, c_shape = ctx.shapes
        dz = dy if how.activation is None else activations.gradient(dy, y, *how.activation)
        dc = sum_to(dz, c_shape, how.beta) if need_c else None
        dz = of_dtype(dz, ctx.dtype)
        scale = {"alpha": how.alpha}
        dx = conv_backward_data(dz, weight, x_shape, **scale, **how.window) if need_x else None
        dweight = conv_backward_weight(dz, x, weight_shape, **scale, **how.window) if need_weight else None
        dbias = conv_backward_bias(dz, layout=how.window["layout"]) if need_bias else None
        return dx, dweight, dbias, dc, None


class ConvTransposeFunction(Recorded):
    """activation(conv_transpose(x, weight) + bias), for activations whose gradient reads the result."""

    @staticmethod
    def forward(x: Any, weight: Any, bias: Any, output_padding: Any, how: _How) -> Any:
        return numbaprims.conv_transpose(
            x, weight, bias, output_padding=output_padding, activation=how.activation, algorithm=how.algorithm,
            **how.window,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, _, _, ctx.how = inputs
        need_x, need_weight = ctx.needs_input_grad[:2]
        ctx.weight_shape = weight.shape
        ctx.save_for_backward(x if need_weight else None, weight if need_x else None, _result_read(ctx.how, output))

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        how: _How = ctx.how
        x, weight, y = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        dz = dy if how.activation is None else activations.gradient(dy, y, *how.activation)
        dx = conv(dz, weight, **how.window) if need_x else None
        dweight = conv_backward_weight(x, dz, ctx.weight_shape, **how.window) if need_weight else None
        dbias = conv_backward_bias(dz, layout=how.window["layout"]) if need_bias else None
        return dx, dweight, dbias, None, None


def _result_read(how: _How, output: Any) -> Any:
    return output if how.activation is not None and reads(how.activation[0]) == "y" else None


@differentiable(numbaprims.conv)
def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    algorithm: str = "auto",
    out: Any = None,
    out_dtype: Any = None,
) -> Any:
    if beta == 0.0:
        c = None
    x, weight, bias = autocast(x, weight, bias)
    if c is not None and out_dtype is None:
        (c,) = autocast(c)
    window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    if not recorded(x, weight, bias, c):
        return written(
            numbaprims.conv(
                x, weight, bias, activation=activation, alpha=alpha, beta=beta, c=c, algorithm=algorithm, out=out,
                out_dtype=out_dtype, **window,
            ),
            out,
        )  # fmt: skip
    refuse_out(out)
    act = split_activation(activation)
    how = _How(window, float(alpha), float(beta), None, out_dtype, algorithm)
    if act is not None and reads(act[0]) == "x":
        # its gradient reads the sums, which the fused convolution does not keep
        return activations.activation(ConvFunction.apply(x, weight, bias, c, how), act[0], **act[1])
    return ConvFunction.apply(x, weight, bias, c, how._replace(activation=act))


@differentiable(numbaprims.conv_transpose)
def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: Any = None,
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    x, weight, bias = autocast(x, weight, bias)
    window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    if not recorded(x, weight, bias):
        return written(
            numbaprims.conv_transpose(
                x, weight, bias, output_padding=output_padding, activation=activation, algorithm=algorithm, out=out,
                **window,
            ),
            out,
        )  # fmt: skip
    refuse_out(out)
    act = split_activation(activation)
    how = _How(window, algorithm=algorithm)
    x, output_padding = _whole_strides(x, stride, output_padding, layout)
    if act is not None and reads(act[0]) == "x":
        y = ConvTransposeFunction.apply(x, weight, bias, output_padding, how)
        return activations.activation(y, act[0], **act[1])
    return ConvTransposeFunction.apply(x, weight, bias, output_padding, how._replace(activation=act))


def _whole_strides(x: Any, stride: Any, output_padding: Any, layout: str) -> tuple[Any, Any]:
    """An output padding of a stride or more (legal with a larger dilation) as zeros behind x and the rest of it.

    The gradients, which are convolutions of dy, would otherwise find more windows than x has elements.
    """
    rank = x.ndim - 2
    strides = shapes.per_dimension(stride, rank, "stride", 1)
    behind = shapes.per_dimension(output_padding, rank, "output_padding", 0)
    zeros = [more // step for more, step in zip(behind, strides, strict=True)]
    if not any(zeros):
        return x, output_padding
    pads = [0, 0] if shapes.channels_last(layout, rank) else []
    for count in reversed(zeros):
        pads += [0, count]
    return torch.nn.functional.pad(x, pads), tuple(m - z * s for m, z, s in zip(behind, zeros, strides, strict=True))


# ---------------------------------------------------------------- the gradients, which have gradients too


class ConvDataFunction(Recorded):
    """alpha times the data gradient, + beta c."""

    @staticmethod
    def forward(dy: Any, weight: Any, c: Any, input_shape: tuple[int, ...], how: _How) -> Any:
        return numbaprims.conv_backward_data(
            dy, weight, input_shape, c=c, algorithm=how.algorithm, **how.scales(), **how.window
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        dy, weight, c, _, ctx.how = inputs
        need_dy, need_weight = ctx.needs_input_grad[:2]
        ctx.shapes = weight.shape, None if c is None else c.shape
        ctx.save_for_backward(dy if need_weight else None, weight if need_dy else None)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        how: _How = ctx.how
        dy, weight = ctx.saved_tensors
        need_dy, need_weight, need_c = ctx.needs_input_grad[:3]
        weight_shape, c_shape = ctx.shapes
        return (
            conv(g, weight, alpha=how.alpha, **how.window) if need_dy else None,
            conv_backward_weight(dy, g, weight_shape, alpha=how.alpha, **how.window) if need_weight else None,
            sum_to(g, c_shape, how.beta) if need_c else None,
            None,
            None,
        )


class ConvWeightFunction(Recorded):
    """alpha times the weight gradient, + beta c."""

    @staticmethod
    def forward(dy: Any, x: Any, c: Any, kernel_shape: tuple[int, ...], how: _How) -> Any:
        return numbaprims.conv_backward_weight(
            dy, x, kernel_shape, c=c, algorithm=how.algorithm, **how.scales(), **how.window
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        dy, x, c, _, ctx.how = inputs
        need_dy, need_x = ctx.needs_input_grad[:2]
        ctx.shapes = x.shape, None if c is None else c.shape
        ctx.save_for_backward(dy if need_x else None, x if need_dy else None)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        how: _How = ctx.how
        dy, x = ctx.saved_tensors
        need_dy, need_x, need_c = ctx.needs_input_grad[:3]
        x_shape, c_shape = ctx.shapes
        return (
            conv(x, g, alpha=how.alpha, **how.window) if need_dy else None,
            conv_backward_data(dy, g, x_shape, alpha=how.alpha, **how.window) if need_x else None,
            sum_to(g, c_shape, how.beta) if need_c else None,
            None,
            None,
        )


class ConvBiasFunction(Recorded):
    """The sums over all but the channels."""

    @staticmethod
    def forward(dy: Any, layout: str) -> Any:
        return numbaprims.conv_backward_bias(dy, layout=layout)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shape, ctx.last = inputs[0].shape, shapes.channels_last(inputs[1], inputs[0].ndim - 2)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        spread = g if ctx.last else g.reshape(-1, *(1,) * (len(ctx.shape) - 2))
        return spread.expand(ctx.shape), None


def _bilinear(
    function: Any,
    plain: Any,
    first: Any,
    second: Any,
    shape: Sequence[int],
    given: dict[str, Any],
) -> Any:
    """A gradient of conv, recorded where it has to be."""
    c, out = given.pop("c", None), given.pop("out", None)
    alpha, beta = float(given.pop("alpha", 1.0)), float(given.pop("beta", 0.0))
    if beta == 0.0:
        c = None
    if not recorded(first, second, c):
        return written(plain(first, second, shape, c=c, out=out, alpha=alpha, beta=beta, **given), out)
    refuse_out(out)
    how = _How(given, alpha, beta, algorithm=given.pop("algorithm", "auto"))
    return function.apply(first, second, c, tuple(shape), how)


@differentiable(numbaprims.conv_backward_data)
def conv_backward_data(dy: Any, weight: Any, input_shape: Sequence[int], **arguments: Any) -> Any:
    return _bilinear(ConvDataFunction, numbaprims.conv_backward_data, dy, weight, input_shape, arguments)


@differentiable(numbaprims.conv_backward_weight)
def conv_backward_weight(dy: Any, x: Any, kernel_shape: Sequence[int], **arguments: Any) -> Any:
    return _bilinear(ConvWeightFunction, numbaprims.conv_backward_weight, dy, x, kernel_shape, arguments)


@differentiable(numbaprims.conv_backward_bias)
def conv_backward_bias(dy: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    if not recorded(dy):
        return written(numbaprims.conv_backward_bias(dy, layout=layout, out=out), out)
    refuse_out(out)
    return ConvBiasFunction.apply(dy, layout)


@differentiable(numbaprims.conv_transpose_backward_data)
def conv_transpose_backward_data(dy: Any, weight: Any, **arguments: Any) -> Any:
    return conv(dy, weight, **arguments)


@differentiable(numbaprims.conv_transpose_backward_weight)
def conv_transpose_backward_weight(dy: Any, x: Any, kernel_shape: Sequence[int], **arguments: Any) -> Any:
    return conv_backward_weight(x, dy, kernel_shape, **arguments)
