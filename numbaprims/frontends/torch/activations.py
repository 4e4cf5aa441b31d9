"""Activations with gradients, of any order: a gradient's own gradient is composed of functions of this module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch.recording import (
    Recorded,
    differentiable,
    product,
    reads,
    recorded,
    refuse_out,
    sum_to,
    written,
)
from numbaprims.ops.activation_kinds import resolve

#: By kind, its second derivative, of functions of this module (seconds.py).
SECONDS: dict[str, Callable[..., Any]] = {}


class ActivationFunction(Recorded):
    """kind(x) for the kinds of one array and some numbers."""

    @staticmethod
    def forward(x: Any, kind: str, parameters: dict[str, Any]) -> Any:
        return numbaprims.activation(x, kind, **parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.kind, ctx.parameters = inputs
        read = reads(ctx.kind)
        ctx.save_for_backward(x if read == "x" else output if read == "y" else None)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return gradient(dy, ctx.saved_tensors[0], ctx.kind, ctx.parameters), None, None


class GradientFunction(Recorded):
    """dx from dy and from what the kind's gradient reads."""

    @staticmethod
    def forward(dy: Any, saved: Any, kind: str, parameters: dict[str, Any]) -> Any:
        return numbaprims.activation_backward(dy, saved, saved, kind, **parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        dy, saved, ctx.kind, ctx.parameters = inputs
        ctx.save_for_backward(dy if ctx.needs_input_grad[1] else None, saved)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        dy, saved = ctx.saved_tensors
        need_dy, need_saved = ctx.needs_input_grad[:2]
        kind, parameters = resolve(ctx.kind, ctx.parameters)
        second = SECONDS.get(kind) if need_saved else None
        return (
            gradient(g, saved, ctx.kind, ctx.parameters) if need_dy else None,
            None if second is None else second(product(g, dy), saved, **parameters),
            None,
            None,
        )


def gradient(dy: Any, saved: Any, kind: str, parameters: dict[str, Any]) -> Any:
    """dx, of kinds of one array; `saved` is x or y, whichever `reads` names."""
    if recorded(dy, saved):
        return GradientFunction.apply(dy, saved, kind, parameters)
    return numbaprims.activation_backward(dy, saved, saved, kind, **parameters)


class PreluFunction(Recorded):
    """x where it is positive, weight x elsewhere."""

    @staticmethod
    def forward(x: Any, weight: Any) -> Any:
        return numbaprims.prelu(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, weight = ctx.saved_tensors
        if recorded(dy, x, weight):
            return PreluGradientFunction.apply(dy, x, weight)
        need_x, need_weight = ctx.needs_input_grad
        if not need_weight and weight.numel() == 1 and weight.device.type == "cpu":
            return numbaprims.leaky_relu_backward(dy, x, float(weight)), None
        return numbaprims.prelu_backward(dy, x, weight)


class PreluGradientFunction(Recorded):
    """dx and dweight of prelu."""

    @staticmethod
    def forward(dy: Any, x: Any, weight: Any) -> Any:
        return numbaprims.prelu_backward(dy, x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any, g_weight: Any) -> Any:
        dy, x, weight = ctx.saved_tensors

        def below(z: Any) -> Any:
            """z where x is not positive, else 0."""
            return gradient(z, x, "clip", {"max": 0.0})

        def spread(slopes: Any) -> Any:
            per_channel = slopes.numel() > 1
            return slopes.reshape((1, -1) + (1,) * (x.ndim - 2) if per_channel else (1,) * x.ndim).expand(x.shape)

        toward_slope = product(g, below(dy))
        per_channel = (1, x.shape[1], *(1,) * (x.ndim - 2)) if weight.numel() > 1 else (1,) * x.ndim
        from_weight = below(spread(g_weight))
        return (
            PreluGradientFunction.apply(g, x, weight)[0] + product(from_weight, x),
            product(from_weight, dy),
            sum_to(toward_slope, per_channel).reshape(weight.shape),
        )


class GluFunction(Recorded):
    """a sigmoid(b), a and b the halves of x."""

    @staticmethod
    def forward(x: Any, axis: int) -> Any:
        return numbaprims.glu(x, axis)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.axis = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        if recorded(dy, x):
            return GluGradientFunction.apply(dy, x, ctx.axis), None
        return numbaprims.glu_backward(dy, x, ctx.axis), None


class GluGradientFunction(Recorded):
    """dx of glu."""

    @staticmethod
    def forward(dy: Any, x: Any, axis: int) -> Any:
        return numbaprims.glu_backward(dy, x, axis)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        dy, x, ctx.axis = inputs
        ctx.save_for_backward(dy, x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        dy, x = ctx.saved_tensors
        (a, b), (ga, gb) = x.chunk(2, ctx.axis), g.chunk(2, ctx.axis)
        s = sigmoid(b)

        def slope(z: Any) -> Any:
            """z sigmoid'(b)."""
            return gradient(z, s, "sigmoid", {})

        # sigmoid''(b) = sigmoid'(b) (1 - 2 s), which is the second derivative by s, times sigmoid'
        both = product(product(gb, dy), a)
        toward_b = slope(product(ga, dy)) + slope(SECONDS["sigmoid"](both, s))
        toward_dy = product(ga, s) + slope(product(gb, a))
        return toward_dy, torch.cat([slope(product(gb, dy)), toward_b], ctx.axis), None


# ---------------------------------------------------------------- the public functions


@differentiable(numbaprims.activation)
def activation(x: Any, kind: str, *, out: Any = None, **parameters: Any) -> Any:
    if kind == "prelu" and "weight" in parameters:
        return prelu(x, out=out, **parameters)
    if not recorded(x):
        return written(numbaprims.activation(x, kind, out=out, **parameters), out)
    refuse_out(out)
    if kind == "glu":
        return GluFunction.apply(x, resolve(kind, parameters)[1]["axis"])
    return ActivationFunction.apply(x, kind, parameters)


@differentiable(numbaprims.prelu)
def prelu(x: Any, weight: Any, *, out: Any = None) -> Any:
    if (
        isinstance(weight, torch.Tensor)
        and weight.dtype == torch.float32 != x.dtype
        and torch.is_autocast_enabled(x.device.type)
    ):
        weight = weight.to(x.dtype)
    if not recorded(x, weight):
        return written(numbaprims.prelu(x, weight, out=out), out)
    refuse_out(out)
    return PreluFunction.apply(x, weight)


def _wrapped(kind: str) -> Callable[..., Any]:
    """The function of a kind."""
    original = getattr(numbaprims, kind)
    names = [name for name in inspect.signature(original).parameters if name not in ("x", "out")]

    @differentiable(original)
    def function(x: Any, *values: Any, out: Any = None, **parameters: Any) -> Any:
        if not recorded(x):
            return written(original(x, *values, out=out, **parameters), out)
        refuse_out(out)
        if len(values) > len(names):
            raise TypeError(f"{kind} takes {1 + len(names)} positional arguments, {1 + len(values)} were given")
        return activation(x, kind, **dict(zip(names, values, strict=False)), **parameters)

    return function


abs = _wrapped("abs")
acos = _wrapped("acos")
acosh = _wrapped("acosh")
asin = _wrapped("asin")
asinh = _wrapped("asinh")
atan = _wrapped("atan")
atanh = _wrapped("atanh")
ceil = _wrapped("ceil")
celu = _wrapped("celu")
clip = _wrapped("clip")
clipped_relu = _wrapped("clipped_relu")
cos = _wrapped("cos")
cosh = _wrapped("cosh")
elu = _wrapped("elu")
erf = _wrapped("erf")
erfc = _wrapped("erfc")
exp = _wrapped("exp")
exp2 = _wrapped("exp2")
expm1 = _wrapped("expm1")
floor = _wrapped("floor")
gelu = _wrapped("gelu")
glu = _wrapped("glu")
hard_shrink = _wrapped("hard_shrink")
hard_sigmoid = _wrapped("hard_sigmoid")
hard_swish = _wrapped("hard_swish")
hard_tanh = _wrapped("hard_tanh")
identity = _wrapped("identity")
leaky_relu = _wrapped("leaky_relu")
log = _wrapped("log")
log10 = _wrapped("log10")
log1p = _wrapped("log1p")
log2 = _wrapped("log2")
log_sigmoid = _wrapped("log_sigmoid")
mish = _wrapped("mish")
neg = _wrapped("neg")
power = _wrapped("power")
reciprocal = _wrapped("reciprocal")
relu = _wrapped("relu")
relu6 = _wrapped("relu6")
round = _wrapped("round")
rsqrt = _wrapped("rsqrt")
selu = _wrapped("selu")
shrink = _wrapped("shrink")
sigmoid = _wrapped("sigmoid")
sign = _wrapped("sign")
silu = _wrapped("silu")
sin = _wrapped("sin")
sinh = _wrapped("sinh")
soft_shrink = _wrapped("soft_shrink")
softplus = _wrapped("softplus")
softsign = _wrapped("softsign")
sqrt = _wrapped("sqrt")
square = _wrapped("square")
swish = _wrapped("swish")
tan = _wrapped("tan")
tanh = _wrapped("tanh")
tanh_shrink = _wrapped("tanh_shrink")
threshold = _wrapped("threshold")
