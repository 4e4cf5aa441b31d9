"""Normalisations by the statistics of each sample, with gradients of any order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from numbaprims.frontends.torch import activations
from numbaprims.frontends.torch.recording import of_dtype, recorded, sum_to
from numbaprims.frontends.torch.rules import ON_GPUS, Rule, by_name, through, wrapped
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


def _backward(name: str, saves: str) -> Callable[..., Any]:
    """A gradient by a weight, which is ones for the gradient of a bias alone; None for what was not given."""
    gradient = by_name(f"{name}_backward", f"dy {saves}")

    def backward(dy: Any, x: Any, weight: Any, bias: Any, *saved: Any, **others: Any) -> Any:
        ones = torch.ones_like(bias) if weight is None and bias is not None else weight
        dx, dweight, dbias = gradient(dy, x, ones, bias, *saved, **others)
        return dx, None if weight is None else dweight, None if bias is None else dbias

    return backward


def _rule(name: str, train: bool, composed: Any) -> Any:
    rms = name == "rms_norm"
    inputs, saved = ("x weight", "saved_inv_rms") if rms else ("x weight bias", "saved_mean saved_inv_std")
    saves = f"{inputs} {saved}"

    def again(*given: Any, **words: Any) -> Any:
        arrays = given[: 2 if rms else 3]
        return composed(*arrays, *([None] if rms else []), **words)

    return wrapped(
        Rule(
            f"{name}_train" if train else name, inputs, f"y {saved}", saves, through(again),
            None if rms else _backward(name, saves), covers=2 if rms else 3, float32=ON_GPUS, activates=True,
            forward=None if train else by_name(f"{name}_train", inputs),
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
layer_norm, layer_norm_train = (_with_residual(_rule("layer_norm", train, _composed_rows)) for train in (False, True))
rms_norm, rms_norm_train = (_with_residual(_rule("rms_norm", train, _composed_rms)) for train in (False, True))
group_norm, group_norm_train = (_rule("group_norm", train, _composed_channels) for train in (False, True))
instance_norm, instance_norm_train = (_rule("instance_norm", train, _composed_channels) for train in (False, True))
