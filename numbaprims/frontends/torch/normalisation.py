"""Softmax, the losses on it, and batch normalisation, with gradients of any order."""

from __future__ import annotations

from typing import Any

import torch

from numbaprims.frontends.torch import activations
from numbaprims.frontends.torch.recording import (
    of_dtype,
    product,
    sum_to,
)
from numbaprims.frontends.torch.rules import EVERYWHERE, ON_GPUS, Rule, through, wrapped
from numbaprims.ops import _cross_entropy, batch_norm as _batch_norm
from numbaprims.shapes import channels_last

# ---------------------------------------------------------------- softmax


def _sums(z: Any, axis: int) -> Any:
    """The sums along an axis, for each of its elements."""
    shape = list(z.shape)
    shape[axis] = 1
    return sum_to(z, shape).expand(z.shape)


softmax = wrapped(
    Rule(
        "softmax", "x", "y", "y", float32=ON_GPUS,
        again=lambda dy, y, axis: product(y, dy - _sums(product(dy, y), axis)),
    )
)  # fmt: skip
log_softmax = wrapped(
    Rule(
        "log_softmax", "x", "y", "y", float32=ON_GPUS,
        again=lambda dy, y, axis: dy - product(activations.exp(y), _sums(dy, axis)),
    )
)  # fmt: skip


# ---------------------------------------------------------------- losses


def _composed_loss(
    logs: Any, target: Any, weight: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> Any:
    """The loss of log-probabilities, as a product with what each of them counts."""
    classes = logs.shape[1]
    share, rows, counts = target, (logs.shape[0], 1, *logs.shape[2:]), 1
    if not target.is_floating_point():
        counts = (target != ignore_index).unsqueeze(1)
        chosen = target.unsqueeze(1).long().where(counts, 0)
        share = torch.zeros_like(logs).scatter(1, chosen, counts.to(logs.dtype))
    if weight is not None:
        weight = weight.reshape(-1, *[1] * (logs.ndim - 2)).to(logs.dtype)
    whole = logs.numel() // max(classes, 1)
    if reduction == "mean" and not target.is_floating_point():
        whole = (share if weight is None else share * weight).sum()
    share = (share * (1.0 - label_smoothing) + label_smoothing / max(classes, 1)) * counts
    loss = sum_to(product(logs, share if weight is None else share * weight), rows, -1.0).squeeze(1)
    if reduction == "none":
        return loss
    loss = sum_to(loss, ())
    return loss / whole if reduction == "mean" else loss


def _composed_cross_entropy(x: Any, target: Any, weight: Any, *saved: Any, **words: Any) -> Any:
    return _composed_loss(log_softmax(x, axis=1), target, weight, **words)


def _composed_nll(x: Any, target: Any, weight: Any, *saved: Any, **words: Any) -> Any:
    return _composed_loss(x, target, weight, label_smoothing=0.0, **words)


def _loss(name: str, formula: str, saved: str, composed: Any) -> Any:
    def forward(x: Any, target: Any, weight: Any, label_smoothing: float = 0.0, **words: Any) -> Any:
        return _cross_entropy.forward(formula, x, target, weight, label_smoothing=label_smoothing, **words)

    def backward(
        dy: Any, x: Any, target: Any, weight: Any, *saved: Any, label_smoothing: Any = 0.0, **words: Any
    ) -> Any:
        words["label_smoothing"] = label_smoothing
        return _cross_entropy.backward(formula, dy, x, target, weight, saved=saved, **words)

    inputs = "x target weight"
    return wrapped(
        Rule(
            name, inputs, f"loss {saved}", f"{inputs} {saved}", through(composed), backward, forward=forward,
            float32=EVERYWHERE,
        )
    )  # fmt: skip


softmax_cross_entropy = _loss("softmax_cross_entropy", "cross_entropy", "count top sum", _composed_cross_entropy)
nll_loss = _loss("nll_loss", "nll_loss", "count", _composed_nll)


# ---------------------------------------------------------------- batch normalisation


def _view(x: Any, mode: str, layout: str) -> tuple[int, ...]:
    """The shape in which parameters broadcast to x."""
    if mode == "per_activation":
        return 1, *x.shape[1:]
    channel = x.ndim - 1 if channels_last(layout, max(x.ndim - 2, 1)) else 1
    return tuple(n if axis == channel else 1 for axis, n in enumerate(x.shape))


def _composed_fixed(x: Any, scale: Any, shift: Any, mean: Any, var: Any, *, eps: float, mode: str, layout: str) -> Any:
    view = _view(x, mode, layout)
    scale, shift, mean, var = (each.reshape(view) for each in (scale, shift, mean, var))
    return of_dtype((x - mean) * (activations.power(var, eps, 1.0, -0.5) * scale) + shift, x.dtype)


def _composed_train(
    x: Any, scale: Any, shift: Any, *saved: Any, eps: float, mode: str, layout: str, momentum: float, activation: Any
) -> Any:
    view = _view(x, mode, layout)
    mean, _ = saved
    wide, count = of_dtype(x, mean.dtype), x.numel() // mean.numel()
    mean = sum_to(wide, view, 1.0 / count)
    var = sum_to(activations.square(wide - mean), view, 1.0 / count)
    mean, var = mean.reshape(scale.shape), var.reshape(scale.shape)
    y = of_dtype(_composed_fixed(wide, scale, shift, mean, var, eps=eps, mode=mode, layout=layout), x.dtype)
    return y if activation is None else activations.activation(y, activation[0], **activation[1])


def _backward_fixed(dy: Any, x: Any, scale: Any, shift: Any, mean: Any, var: Any, **words: Any) -> Any:
    return _batch_norm.batch_norm_backward_fixed(dy, x, scale, mean, var, **words)


_FIXED = "x scale shift mean var"
batch_norm = wrapped(Rule("batch_norm", _FIXED, "y", _FIXED, through(_composed_fixed), _backward_fixed, covers=3))
batch_norm_train = wrapped(
    Rule(
        "batch_norm_train", "x scale shift running_mean running_var", "y saved_mean saved_inv_std",
        "x scale shift saved_mean saved_inv_std", through(_composed_train), covers=3, activates=True,
    )
)  # fmt: skip


# ---------------------------------------------------------------- local response normalisation


def _composed_lrn(
    x: Any, *, size: int, alpha: float, beta: float, k: float, mode: str, before: int | None, layout: str
) -> Any:
    """By sums over windows that torch unfolds."""
    last = channels_last(layout, x.ndim - 2)
    y = x.movedim(-1, 1) if last else x
    before = size // 2 if before is None else before
    sums, axes = product(y, y), (1,) if mode == "across_channels" else tuple(range(2, x.ndim))
    for axis in axes:
        pads = [0, 0] * (x.ndim - 1 - axis) + [before, size - 1 - before]
        sums = torch.nn.functional.pad(sums, pads).unfold(axis, size, 1).sum(-1)
    y = product(y, activations.power(sums, float(k), alpha / size ** len(axes), -beta))
    return y.movedim(1, -1) if last else y


lrn = wrapped(Rule("lrn", "x", "y", "x", through(_composed_lrn)))
