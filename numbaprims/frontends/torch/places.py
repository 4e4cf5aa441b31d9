"""Elements at other places, with gradients of any order: each function is linear but for a constant,
and the gradient of its gradient."""

from __future__ import annotations

from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch.rules import adjoint, wrapped

gather = wrapped(adjoint("gather", "x indices", also=lambda x, indices, *, axis: {"size": x.shape[axis]}))


def _embedded(ddx: Any, indices: Any, *, num_embeddings: int, padding_idx: int | None) -> Any:
    """Rows of what has no gradient are 0."""
    found = numbaprims.embedding(ddx, indices)
    if padding_idx is None:
        return found
    skipped = (indices == padding_idx % num_embeddings) | (indices == padding_idx % num_embeddings - num_embeddings)
    return found.masked_fill(skipped[..., None], 0)


embedding = wrapped(
    adjoint(
        "embedding", "weight indices", linear=_embedded,
        also=lambda weight, indices, **others: {"num_embeddings": len(weight)},
    )
)  # fmt: skip
pad = wrapped(
    adjoint(
        "pad", "x", linear=lambda x, *, pads, mode, **others: numbaprims.pad(x, pads, mode),
        also=lambda x, **others: {"shape": tuple(x.shape)},
    )
)  # fmt: skip


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
