"""Normalisations by the statistics of each sample, with gradients of any order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch import activations
from numbaprims.frontends.torch.recording import of_dtype, recorded, sum_to
from numbaprims.frontends.torch.rules import ON_GPUS, Rule, through, wrapped
from numbaprims.shapes import channels_last

# ---------------------------------------------------------------- in functions with gradients


def _composed(
    x: Any, view: tuple[int, ...], inner: tuple[int, ...], weight: Any, bias: Any, eps: float, activation: Any,
    centred: bool = True,
) -> Any:  # fmt: skip
    """Of x as it is: statistics have the shape `view`, parameters are brought to `inner`."""
    wide = x if x.dtype == torch.float64 else of_dtype(x, torch.float32)
    share = functools.reduce(lambda a, b: a * b, view, 1) / max(1, x.numel())
    d = wide - sum_to(wide, view, share) if centred else wide
    y = d * activations.power(sum_to(activations.square(d), view, share), eps, 1.0, -0.5)
    y = y if weight is None else y * weight.reshape(inner)
    y = of_dtype(y if bias is None else y + bias.reshape(inner), x.dtype)
    return y if activation is None else activations.activation(y, activation[0], **activation[1])


def _composed_rows(
    x: Any, weight: Any, bias: Any, *, eps: float, normalized_dims: int, activation: Any, residual: Any,
    centred: bool = True,
) -> Any:  # fmt: skip
    view = (*x.shape[: x.ndim - normalized_dims], *[1] * normalized_dims)
    return _composed(x, view, tuple(x.shape[x.ndim - normalized_dims :]), weight, bias, eps, activation, centred)


def _composed_channels(
    x: Any, weight: Any, bias: Any, *, eps: float, layout: str, activation: Any, groups: int | None = None
) -> Any:
    last = channels_last(layout, max(x.ndim - 2, 1))
    first = x.movedim(-1, 1) if last else x
    n, c, *space = first.shape
    groups = c if groups is None else groups
    split, ones = first.reshape(n, groups, c // groups, *space), [1] * (first.ndim - 1)
    inner = (1, groups, c // groups, *ones[1:])
    y = _composed(split, (n, groups, *ones), inner, weight, bias, eps, activation).reshape(first.shape)
    return y.movedim(1, -1) if last else y


# ---------------------------------------------------------------- the rules


def _of_given(gradient: Callable[[Any], tuple[Any, ...]], weight: Any, bias: Any) -> tuple[Any, ...]:
    """A gradient by a weight, which is ones for the gradient of a bias alone; None for what was not given."""
    dx, dweight, dbias = gradient(torch.ones_like(bias) if weight is None and bias is not None else weight)
    return dx, None if weight is None else dweight, None if bias is None else dbias


def _trained(name: str) -> Callable[..., Any]:
    """(y, what the gradient takes); a residual was added by the caller."""

    def forward(x: Any, *parameters: Any, **words: Any) -> Any:
        number = (words.pop("groups"),) if "groups" in words else ()
        return getattr(numbaprims, f"{name}_train")(x, *number, *parameters, **words)

    return forward


def _backward_rows(
    dy: Any, x: Any, weight: Any, bias: Any, mean: Any, inv_std: Any, *, normalized_dims: int, activation: Any,
    eps: float, residual: Any,
) -> Any:  # fmt: skip
    words = {"normalized_dims": normalized_dims, "activation": activation}
    function = numbaprims.layer_norm_backward
    return _of_given(lambda weight: function(dy, x, weight, mean, inv_std, bias, **words), weight, bias)


def _backward_rms(
    dy: Any, x: Any, weight: Any, inv_rms: Any, *, normalized_dims: int, activation: Any, eps: float, residual: Any
) -> Any:
    return numbaprims.rms_norm_backward(dy, x, weight, inv_rms, normalized_dims=normalized_dims, activation=activation)


def _backward_channels(
    dy: Any, x: Any, weight: Any, bias: Any, mean: Any, inv_std: Any, *, layout: str, activation: Any, eps: float,
    groups: int | None = None,
) -> Any:  # fmt: skip
    words = {"layout": layout, "activation": activation}
    if groups is None:
        function: Any = functools.partial(numbaprims.instance_norm_backward, dy, x)
    else:
        function = functools.partial(numbaprims.group_norm_backward, dy, x, groups)
    return _of_given(lambda weight: function(weight, mean, inv_std, bias, **words), weight, bias)


def _rule(name: str, train: bool, backward: Any, composed: Any) -> Any:
    rms = name == "rms_norm"
    inputs, saved = ("x weight", "inv_rms") if rms else ("x weight bias", "mean inv_std")

    def again(*given: Any, **words: Any) -> Any:
        arrays = given[: 2 if rms else 3]
        return composed(*arrays, *([None] if rms else []), **words)

    return wrapped(
        Rule(
            f"{name}_train" if train else name, inputs, f"y {saved}", f"{inputs} {saved}", backward, through(again),
            covers=2 if rms else 3, forward=None if train else _trained(name), float32=ON_GPUS, activates=True,
        )
    )  # fmt: skip


def _with_residual(function: Any) -> Any:
    """Where gradients are recorded the sum is a tensor of its own, whose gradient autograd adds up."""

    @functools.wraps(function)
    def entry(x: Any, *args: Any, residual: Any = None, **words: Any) -> Any:
        if residual is None or not recorded(x, residual, *args, *words.values()):
            return function(x, *args, residual=residual, **words)
        total = x + residual
        found = function(total, *args, **words)
        return (*found, total) if isinstance(found, tuple) else (found, total)

    return entry


_composed_rms = functools.partial(_composed_rows, centred=False)
layer_norm, layer_norm_train = (
    _with_residual(_rule("layer_norm", train, _backward_rows, _composed_rows)) for train in (False, True)
)
rms_norm, rms_norm_train = (
    _with_residual(_rule("rms_norm", train, _backward_rms, _composed_rms)) for train in (False, True)
)
group_norm, group_norm_train = (
    _rule("group_norm", train, _backward_channels, _composed_channels) for train in (False, True)
)
instance_norm, instance_norm_train = (
    _rule("instance_norm", train, _backward_channels, _composed_channels) for train in (False, True)
)
