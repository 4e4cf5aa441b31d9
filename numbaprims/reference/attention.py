"""Attention by definition, in float64: the whole matrix of scores."""

from __future__ import annotations

from typing import Any

import numpy as np


def _scores(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, causal: bool, scale: float) -> np.ndarray:
    s = scale * q @ k.swapaxes(-1, -2)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == np.bool_ else s + mask
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=np.bool_), s, -np.inf)
    return s


def _of_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """Each head of keys or values once for each query head of its group."""
    return np.repeat(x, heads // x.shape[-3], -3)


def forward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any, causal: bool, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """(out, log of the sums of exponentials); a row that nothing takes part in is 0 and -inf."""
    heads = q.shape[-3]
    s = _scores(q, _of_heads(k, heads), mask, causal, scale)
    most = s.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(most == -np.inf, 0.0, most))
    total = e.sum(-1, keepdims=True)
    out = e / np.where(total == 0, 1.0, total) @ _of_heads(v, heads)
    return out, (most + np.log(total))[..., 0]


def backward(
    dout: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, lse: np.ndarray, mask: Any,
    causal: bool, scale: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """(dq, dk, dv) from what the forward pass gave."""
    heads, groups = q.shape[-3], k.shape[-3]
    k, v = _of_heads(k, heads), _of_heads(v, heads)
    p = np.exp(_scores(q, k, mask, causal, scale) - np.where(lse == -np.inf, 0.0, lse)[..., None])
    ds = p * (dout @ v.swapaxes(-1, -2) - (dout * out).sum(-1, keepdims=True)) * scale

    def summed(x: np.ndarray) -> np.ndarray:
        """Over the query heads of each group."""
        return x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:]).sum(-3)

    return ds @ k, summed(ds.swapaxes(-1, -2) @ q), summed(p.swapaxes(-1, -2) @ dout)
