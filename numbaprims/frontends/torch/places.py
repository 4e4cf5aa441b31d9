"""Elements at other places, with gradients of any order: each function is linear but for a constant,
and the gradient of its gradient."""

from __future__ import annotations

from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch.recording import Recorded, differentiable, recorded, refuse_out, written
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

transform = wrapped(
    adjoint("transform", "x", backward=lambda dy, axes: numbaprims.transform(dy, [*map([*axes].index, range(dy.ndim))]))
)


class _Split(Recorded):
    @staticmethod
    def forward(sizes: Any, axis: int, x: Any) -> Any:
        return numbaprims.split(x, sizes, axis)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.axis = inputs[1]

    @staticmethod
    def backward(ctx: Any, *dys: Any) -> Any:
        return None, None, concat(dys, ctx.axis)


class _Concat(Recorded):
    @staticmethod
    def forward(axis: int, *parts: Any) -> Any:
        return numbaprims.concat(parts, axis)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.axis, *parts = inputs
        ctx.sizes = [part.shape[ctx.axis] for part in parts]

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return None, *split(dy, ctx.sizes, ctx.axis)


@differentiable(numbaprims.split)
def split(x: Any, sizes: Any, axis: int = 0) -> Any:
    return _Split.apply(sizes, axis, x) if recorded(x) else numbaprims.split(x, sizes, axis)


@differentiable(numbaprims.concat)
def concat(parts: Any, axis: int = 0, *, out: Any = None) -> Any:
    parts = tuple(parts)
    if not recorded(*parts):
        return written(numbaprims.concat(parts, axis, out=out), out)
    refuse_out(out)
    return _Concat.apply(axis, *parts)


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
