"""Activations with gradients, of any order: a gradient's own gradient is composed of functions of this module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch.recording import (
    Multilinear,
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
from numbaprims.stems import KINDS as NAMES

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


def _towards_glu(g: Any, x: Any, *, shape: Any, axis: int) -> Any:
    (a, b), (ga, gb) = x.chunk(2, axis), g.chunk(2, axis)
    s = activation(b, "sigmoid")
    return product(ga, s) + gradient(product(gb, a), s, "sigmoid", {})


def _through_glu(g: Any, dy: Any, x: Any, *, shape: Any, axis: int) -> Any:
    (a, b), (ga, gb) = x.chunk(2, axis), g.chunk(2, axis)
    s = activation(b, "sigmoid")

    def slope(z: Any) -> Any:
        """z sigmoid'(b)."""
        return gradient(z, s, "sigmoid", {})

    # sigmoid''(b) = sigmoid'(b) (1 - 2 s), which is the second derivative by s, times sigmoid'
    both = product(product(gb, dy), a)
    toward_b = slope(product(ga, dy)) + slope(SECONDS["sigmoid"](both, s))
    return torch.cat([slope(product(gb, dy)), toward_b], axis)


_GLU_GRADIENT = Multilinear(
    "dy x", lambda dy, x, *, axis: numbaprims.glu_backward(dy, x, axis),
    {"dy": ("x", _towards_glu), "x": ("dy x", _through_glu)},
)  # fmt: skip
# a sigmoid(b), a and b the halves of x
_GLU = Multilinear(
    "x", lambda x, *, axis: numbaprims.glu(x, axis),
    {"x": ("x", lambda g, x, *, shape, axis: _GLU_GRADIENT.apply({"axis": axis}, g, x))},
)  # fmt: skip


# ---------------------------------------------------------------- the public functions


@differentiable(numbaprims.activation)
def activation(x: Any, kind: str, *, out: Any = None, **parameters: Any) -> Any:
    if kind == "prelu" and "weight" in parameters:
        return prelu(x, out=out, **parameters)
    if not recorded(x):
        return written(numbaprims.activation(x, kind, out=out, **parameters), out)
    refuse_out(out)
    if kind == "glu":
        return _GLU.apply({"axis": resolve(kind, parameters)[1]["axis"]}, x)
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


def __getattr__(name: str) -> Any:
    """The function of a kind, at its first use."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, _wrapped(name))
