"""Attention as torch's functions and modules are called, for `fuse`: with masks that are parameters."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch

from numbaprims.fusion import layers


def _added(mask: Any, dtype: torch.dtype, open_where: bool) -> Any:
    """What is added to scores for a mask of either type; None where it is not known or is one for each image."""
    if not isinstance(mask, torch.Tensor) or mask.ndim > 4 or (mask.ndim == 4 and len(mask) != 1):
        return None
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask ^ open_where, -torch.inf)
    return mask


def attention(
    q: Any, k: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """The layer that scaled_dot_product_attention is; None where it is none."""
    mask = None if attn_mask is None else _added(attn_mask, q.dtype, True)
    if attn_mask is not None and mask is None:
        return None
    if dropout_p or q.ndim != 4 or (q.shape[1] != k.shape[1] and not enable_gqa):
        return None
    return layers.Attention(is_causal, scale, mask)


def masked(described: Any, module: Any, *arguments: Any) -> Any:
    """The layers that attend, with the mask that a module is called with; `arguments` are those of its `forward`, the
    last one its keywords.  None where they say more than a mask that is a parameter."""
    *operands, words = arguments
    names = dict(inspect.signature(type(module).forward).bind(module, *operands, **words).arguments)
    for name in ("self", "src", "query", "key", "value", "need_weights", "average_attn_weights"):
        names.pop(name, None)
    masks = [mask for name in ("mask", "src_mask", "attn_mask") if (mask := names.pop(name, None)) is not None]
    names.pop("is_causal", None)  # a hint of what the mask is, which torch wants beside it
    if described is None or any(each is not None for each in names.values()) or len(masks) > 1:
        return None
    if not masks:
        return described
    mask = _added(masks[0], next(module.parameters()).dtype, False)
    return None if mask is None or mask.ndim != 2 else _with(described, mask)


def _with(described: Any, mask: Any) -> Any:
    if isinstance(described, list):
        return [_with(each, mask) for each in described]
    if isinstance(described, layers.Residual):
        return dataclasses.replace(described, body=_with(described.body, mask))
    return dataclasses.replace(described, mask=mask) if isinstance(described, layers.SelfAttention) else described
