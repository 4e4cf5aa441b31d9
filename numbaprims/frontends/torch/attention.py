"""Attention with gradients."""

from __future__ import annotations

from typing import Any

import torch

from numbaprims.frontends.torch.normalisation import softmax
from numbaprims.frontends.torch.products import gemm
from numbaprims.frontends.torch.rules import Rule, by_name, through, wrapped
from numbaprims.ops._attention_problem import default_scale


def _composed(q: Any, k: Any, v: Any, mask: Any, y: Any, lse: Any, *, causal: bool, scale: float | None) -> Any:
    """The matrix of scores as a whole: for second derivatives, and for the gradient of a mask."""
    share = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(share, -3) for x in (k, v))
    s = gemm(q * (default_scale(q.shape[-1]) if scale is None else scale), k.transpose(-1, -2))
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else s + mask
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(), -torch.inf)
    closed = lse.isneginf()[..., None]
    return gemm(softmax(s.masked_fill(closed, 0.0)).masked_fill(closed, 0.0), v)


attention = wrapped(
    Rule(
        "attention", "q k v mask", "y lse", "q k v mask y lse", through(_composed), covers=3,
        forward=by_name("attention_train", "q k v mask"),
    )
)  # fmt: skip
