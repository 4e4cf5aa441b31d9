"""Attention and transformer layers as modules; `numbaprims.frontends.torch.nn` gives them out."""

from __future__ import annotations

from typing import Any

import torch

from numbaprims.frontends.torch.attention import attention
from numbaprims.frontends.torch.modules import Linear, hooked
from numbaprims.frontends.torch.products import linear

_functional: Any = torch.nn.functional


class MultiheadAttention(torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` by `numbaprims.linear` and `numbaprims.attention`, which keeps no matrix of scores.

    By torch where the weights of attention are asked for (``need_weights=True``, torch's default), where they are
    dropped out in training, with `add_bias_kv` or `add_zero_attn`, and for nested tensors. A query to which no key is
    open gives what `out_proj` makes of 0.

    Example:
        >>> import torch
        >>> x = torch.ones(2, 5, 8)
        >>> MultiheadAttention(8, 2, batch_first=True)(x, x, x, need_weights=False)[0].shape
        torch.Size([2, 5, 8])
    """

    def forward(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any = None, need_weights: bool = True,
        attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> Any:  # fmt: skip
        words = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "is_causal": is_causal}
        if need_weights or not self._is_plain(query, key, value) or (is_causal and attn_mask is None):
            own: Any = super()
            words |= {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
            return own.forward(query, key, value, **words)
        one = query.ndim == 2
        if one:
            query, key, value = query[None], key[None], value[None]
        elif not self.batch_first:
            query, key, value = self._turned(query, key, value)
        self._check_masks(query, key, key_padding_mask, attn_mask, one)
        if one and key_padding_mask is not None:
            key_padding_mask = key_padding_mask[None]
        causal = is_causal and key_padding_mask is None  # beside a mask of keys the other mask says so itself
        heads = [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in self._projected(query, key, value)]
        # in the type of the heads, which under autocast is not that of the query
        mask = None if causal else self._mask(heads[0].dtype, key_padding_mask, attn_mask)
        y = attention(*heads, mask=mask, causal=causal).transpose(1, 2).flatten(-2)
        y = linear(y, self.out_proj.weight, self.out_proj.bias)
        return (y[0] if one else y if self.batch_first else y.transpose(0, 1)), None

    def _is_plain(self, *given: Any) -> bool:
        dropped = self.training and self.dropout > 0
        added = self.bias_k is not None or self.bias_v is not None or self.add_zero_attn
        return not (dropped or added or any(x.is_nested or x.ndim not in (2, 3) for x in given))

    @staticmethod
    def _turned(query: Any, key: Any, value: Any) -> Any:
        """With the batch in front, and still one tensor where they were."""
        turned = query.transpose(0, 1)
        keys = turned if key is query else key.transpose(0, 1)
        return turned, keys, keys if value is key else value.transpose(0, 1)

    def _projected(self, query: Any, key: Any, value: Any) -> Any:
        size, bias = self.embed_dim, self.in_proj_bias
        if self._qkv_same_embed_dim and query is key and key is value:
            return linear(query, self.in_proj_weight, bias).split(size, -1)
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.split(size)
        biases = (None,) * 3 if bias is None else bias.split(size)
        return [linear(*each) for each in zip((query, key, value), weights, biases, strict=True)]

    def _check_masks(self, query: Any, key: Any, of_keys: Any, of_pairs: Any, one: bool) -> None:
        """Raise unless masks have the types and shapes that torch takes."""
        batch, pairs = query.shape[0], (query.shape[1], key.shape[1])
        allowed = {
            "key_padding_mask": (of_keys, [pairs[1:] if one else (batch, *pairs[1:])]),
            "attn_mask": (of_pairs, [pairs, (batch * self.num_heads, *pairs)]),
        }
        for name, (mask, shapes) in allowed.items():
            if mask is None:
                continue
            if not (mask.dtype == torch.bool or mask.is_floating_point()):
                raise TypeError(f"{name} is of {mask.dtype}; it must be of torch.bool or of floats")
            if tuple(mask.shape) not in shapes:
                raise ValueError(f"{name} has shape {tuple(mask.shape)}; it must be {' or '.join(map(str, shapes))}")

    def _mask(self, dtype: torch.dtype, of_keys: Any, of_pairs: Any) -> Any:
        """torch's two masks, whose True closes, as one whose True is open, or as what is added to the scores."""
        found = None
        if of_pairs is not None:
            found = of_pairs if of_pairs.ndim == 2 else of_pairs.unflatten(0, (-1, self.num_heads))
        if of_keys is not None:
            of_keys = of_keys[:, None, None]
            if found is None:
                found = of_keys
            elif found.dtype == of_keys.dtype == torch.bool:
                found = found | of_keys
            else:
                found = sum(_functional._canonical_mask(x, "mask", None, "", dtype) for x in (found, of_keys))
        if found is None:
            return None
        return ~found if found.dtype == torch.bool else found.to(dtype)


class _TransformerLayer(torch.nn.Module):
    """The products of the layer by ours, which apply its activation in the same pass where it is ReLU or GELU.

    A `linear1` that does more than its class does is called as it is.
    """

    #: torch takes a whole layer at inference to a kernel of its own where it reads 1 or 2 here, past all modules.
    activation_relu_or_gelu = property(lambda self: 0, lambda self, value: None)

    _ACTIVATIONS = {_functional.relu: "relu", _functional.gelu: "gelu"}

    def _hidden(self, x: Any) -> Any:
        inner: Any = self
        kind, module = self._ACTIVATIONS.get(inner.activation), inner.linear1
        plain = type(module) in (torch.nn.Linear, Linear) and not hooked(module)
        if kind is None or not plain or getattr(module, "activation", None) is not None:
            return inner.activation(module(x))
        return linear(x, module.weight, module.bias, activation=kind)


class TransformerEncoderLayer(_TransformerLayer, torch.nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer`, whose modules `replace` turns.

    Example:
        >>> import torch
        >>> layer = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
        >>> from numbaprims.frontends.torch import nn
        >>> nn.replace(layer)(torch.ones(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def _ff_block(self, x: Any) -> Any:
        return self.dropout2(self.linear2(self.dropout(self._hidden(x))))


class TransformerDecoderLayer(_TransformerLayer, torch.nn.TransformerDecoderLayer):
    """`torch.nn.TransformerDecoderLayer`, whose modules `replace` turns."""

    def _ff_block(self, x: Any) -> Any:
        return self.dropout3(self.linear2(self.dropout(self._hidden(x))))
