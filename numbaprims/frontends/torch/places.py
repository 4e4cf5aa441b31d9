"""Elements at other places, with gradients of any order: each function is linear, and the gradient of its gradient."""

from __future__ import annotations

from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch.rules import Rule, RuleFunction, wrapped

# ---------------------------------------------------------------- by indices


def _take(x: Any, indices: Any, *, axis: int, size: int) -> Any:
    return numbaprims.gather(x, indices, axis)


def _scatter(dy: Any, indices: Any, *, axis: int, size: int) -> Any:
    return numbaprims.gather_backward(dy, indices, size, axis)


def _embed(weight: Any, indices: Any, *, rows: int, padding_idx: int | None) -> Any:
    return numbaprims.embedding(weight, indices, padding_idx)


def _embed_back(dy: Any, indices: Any, *, rows: int, padding_idx: int | None) -> Any:
    return numbaprims.embedding_backward(dy, indices, rows, padding_idx)


def _embed_twice(ddx: Any, indices: Any, *, rows: int, padding_idx: int | None) -> Any:
    """The gradient of the gradient: rows of what has none are 0."""
    found = numbaprims.embedding(ddx, indices)
    if padding_idx is None:
        return found
    skipped = (indices == padding_idx % rows) | (indices == padding_idx % rows - rows)
    return found.masked_fill(skipped[..., None], 0)


def _again(of: str) -> Any:
    return lambda dy, *saved, **others: RuleFunction.apply(_RULES[of], others, dy, *saved)


_RULES = {
    "gather": Rule(
        "gather", "x indices", "y", "indices", _scatter, _again("gather_backward"), forward=_take,
        also=lambda x, indices, *, axis: {"size": x.shape[axis]},
    ),
    "gather_backward": Rule(
        "gather_backward", "dy indices", "dx", "indices", _take, _again("gather"), forward=_scatter
    ),
    "embedding": Rule(
        "embedding", "weight indices", "y", "indices", _embed_back, _again("embedding_backward"), forward=_embed,
        also=lambda weight, indices, **_: {"rows": len(weight)},
    ),
    "embedding_backward": Rule(
        "embedding_backward", "dy indices", "dx", "indices", _embed_twice, _again("embedding_twice"),
        forward=_embed_back,
    ),
    "embedding_twice": Rule(
        "embedding", "weight indices", "y", "indices", _embed_back, _again("embedding_backward"), forward=_embed_twice,
    ),
    "pad": Rule(
        "pad", "x", "y", "", lambda dy, shape, pads, mode, value: numbaprims.pad_backward(dy, shape, pads, mode),
        _again("pad_backward"), forward=lambda x, shape, pads, mode, value: numbaprims.pad(x, pads, mode, value),
        also=lambda x, **_: {"shape": tuple(x.shape)},
    ),
    "pad_backward": Rule(
        "pad_backward", "dy", "dx", "", lambda ddx, shape, pads, mode, value: numbaprims.pad(ddx, pads, mode),
        _again("pad_again"),
        forward=lambda dy, shape, pads, mode, value: numbaprims.pad_backward(dy, shape, pads, mode),
    ),
    "pad_again": Rule(
        "pad", "x", "y", "", lambda dy, shape, pads, mode, value: numbaprims.pad_backward(dy, shape, pads, mode),
        _again("pad_backward"), forward=lambda x, shape, pads, mode, value: numbaprims.pad(x, pads, mode),
    ),
}  # fmt: skip
gather, embedding, pad = (wrapped(_RULES[name]) for name in ("gather", "embedding", "pad"))


class Embedding(torch.nn.Embedding):
    """`torch.nn.Embedding` by `numbaprims.embedding`; with `max_norm`, `sparse` or `scale_grad_by_freq` torch's own.

    Example:
        >>> import torch
        >>> Embedding(10, 3)(torch.tensor([[1, 2], [4, 5]])).shape
        torch.Size([2, 2, 3])
    """

    def forward(self, input: Any) -> Any:
        if self.max_norm is not None or self.sparse or self.scale_grad_by_freq:
            return super().forward(input)
        return embedding(self.weight, input, self.padding_idx)
