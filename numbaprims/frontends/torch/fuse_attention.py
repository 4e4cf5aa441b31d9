"""Attention as torch's functions and modules are called, for `fuse`: with masks that are parameters."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from numbaprims.fusion import layers


def _added(mask: Any, dtype: torch.dtype, open_where: bool) -> Any:
    """What is added to scores for a mask of either type; None where it is not known or is one for each image."""
    if not isinstance(mask, torch.Tensor) or mask.ndim > 5 or (mask.ndim > 3 and len(mask) != 1):
        return None
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask ^ open_where, -torch.inf)
    return mask


#: Of scaled_dot_product_attention behind queries, keys and values.
ARGUMENTS = ("attn_mask", "dropout_p", "is_causal")


def attention(
    q: Any, k: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, each: bool = False,
) -> Any:  # fmt: skip
    """The layer that scaled_dot_product_attention is, with a mask that is known or (`each`) a value; None where it is
    none."""
    if dropout_p or q.ndim < 4 or (q.shape[-3] != k.shape[-3] and not enable_gqa):
        return None
    if each:
        return None if is_causal else layers.MaskedAttention(scale=scale)
    if isinstance(attn_mask, torch.Tensor) and attn_mask.dtype == torch.bool and q.shape[-2] == k.shape[-2]:
        if torch.equal(attn_mask, torch.ones_like(attn_mask).tril()):  # 0.6 of the time of a mask that is read
            attn_mask, is_causal = None, True
    mask = None if attn_mask is None else _added(attn_mask, q.dtype, True)
    if attn_mask is not None and mask is None:
        return None
    return layers.Attention(is_causal, scale, None if mask is None or not mask.any() else mask)


def unrepeated(nodes: Sequence[Any], images: dict[Any, tuple[int, ...]], values: Any) -> Sequence[Any]:
    """Keys and values (N, groups, length, width) of which nodes have each group several times, one after another;
    the nodes themselves where they have not.  Attention reads groups where they lie."""
    found = [_of_groups(n) for n in nodes]
    for n, source in zip(nodes, found, strict=True):
        if source not in values or len(images[source]) != 3 or len(images[n]) != 3:
            return nodes
        if images[n][0] % images[source][0] or images[n][1:] != images[source][1:]:
            return nodes
    return found


def _of_groups(n: Any) -> Any:
    """Of what a node is ``x[:, :, None].expand(...).reshape(...)``; None where it is not."""
    for targets in (("reshape", "view"), ("expand",), (operator.getitem,)):
        if getattr(n, "target", None) not in targets:
            return None
        given, n = n.args, n.args[0]
    at: Any = given[1]
    whole = isinstance(at, tuple) and all(each == slice(None) for each in at[3:])
    return n if whole and at[:3] == (slice(None), slice(None), None) else None


def self_attention(heads: int, in_weight: Any, in_bias: Any, out_weight: Any, out_bias: Any) -> list[Any]:
    """The layers of attention of a sequence to itself, with one product for queries, keys and values."""
    return [layers.Linear(in_weight, in_bias), layers.SelfAttention(heads=heads), layers.Linear(out_weight, out_bias)]


def encoder_layer(parts: Sequence[Any], norms: Sequence[Any], norm_first: bool) -> list[Any]:
    """The two parts of a transformer's layer, with norms in front of them or behind them."""
    if norm_first:
        return [layers.Residual([norm, part]) for norm, part in zip(norms, parts, strict=True)]
    return [[layers.Residual(part), norm] for norm, part in zip(norms, parts, strict=True)]


def encoder_forward(
    x: Any, size: int, heads: int, in_weight: Any, in_bias: Any, out_weight: Any, out_bias: Any, use_gelu: bool,
    norm_first: bool, eps: float, weight1: Any, bias1: Any, weight2: Any, bias2: Any, first_weight: Any,
    first_bias: Any, last_weight: Any, last_bias: Any, mask: Any = None, mask_type: Any = None,
) -> Any:  # fmt: skip
    """The layers that torch._transformer_encoder_layer_fwd is: a TransformerEncoderLayer to torch.compile."""
    if mask is not None or x.ndim != 3:
        return None
    attend = self_attention(heads, in_weight, in_bias, out_weight, out_bias)
    first, last = layers.Linear(first_weight, first_bias), layers.Linear(last_weight, last_bias)
    between = [first, layers.Activation("gelu" if use_gelu else "relu"), last]
    norms = layers.LayerNorm(weight1, bias1, eps), layers.LayerNorm(weight2, bias2, eps)
    return encoder_layer([attend, between], norms, norm_first)


def multihead(n: Any, known: Callable[[Any], Any]) -> Any:
    """(the layers that a node is the last of, the node that they read): attention to itself by
    functional.multi_head_attention_forward, which takes and gives (length, N, size); None where it is none."""
    turned = _turned(n)
    if turned is None or turned.target is not operator.getitem or turned.args[1:] != (0,):
        return None
    call = turned.args[0]
    if call.target is not torch.nn.functional.multi_head_attention_forward:
        return None
    bound = inspect.signature(call.target).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    given = {name: known(value) for name, value in bound.arguments.items()}
    x, mask = _turned(given["query"]), given["attn_mask"]
    same = given["query"] is given["key"] is given["value"]
    more = ("training", "add_zero_attn", "use_separate_proj_weight", "is_causal")
    others = ("bias_k", "bias_v", "key_padding_mask", "static_k", "static_v")
    if x is None or not same or any(given[name] for name in more) or any(given[name] is not None for name in others):
        return None
    if mask is not None and (not isinstance(mask, torch.Tensor) or mask.ndim != 2):
        return None
    names = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
    attend = self_attention(given["num_heads"], *(given[name] for name in names))
    weight = given["in_proj_weight"]
    return (attend if mask is None else _with(attend, _added(mask, weight.dtype, False))), x


def _turned(n: Any) -> Any:
    """What a node is with its first two dimensions the other way round; None where it is not."""
    if not isinstance(n, torch.fx.Node) or n.target not in ("transpose", "swapaxes", torch.transpose, torch.swapaxes):
        return None
    return n.args[0] if {*n.args[1:]} == {0, 1} else None


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
