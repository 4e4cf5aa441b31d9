"""Normalisations by definition, in float64, over some axes of arrays that broadcast to x; what is missing is None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Axes = tuple[int, ...]
Found = dict[str, Any]
#: dy behind an activation, and how to get at what that took, as dy in front of it.
Bent = Callable[[Array, Callable[[], Array]], Array]


def _affine(normal: Array, weight: Array | None, bias: Array | None) -> Array:
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias


def norm(a: Found, axes: Axes, eps: float) -> Found:
    """y = (x + residual - mean) / sqrt(var + eps) weight + bias."""
    x = a["x"] if a.get("residual") is None else a["x"] + a["residual"]
    mean = x.mean(axes, keepdims=True)
    inv_std = 1 / np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + eps)
    y = _affine((x - mean) * inv_std, a.get("weight"), a.get("bias"))
    return {"y": y, "mean": mean, "inv_std": inv_std, "sum": x}


def rms_norm(a: Found, axes: Axes, eps: float) -> Found:
    """y = (x + residual) / sqrt(mean x**2 + eps) weight."""
    x = a["x"] if a.get("residual") is None else a["x"] + a["residual"]
    inv_rms = 1 / np.sqrt(np.square(x).mean(axes, keepdims=True) + eps)
    return {"y": _affine(x * inv_rms, a.get("weight"), None), "inv_rms": inv_rms, "sum": x}


def _terms(a: Found, bent: Bent) -> tuple[Array, Array, Array]:
    """(dy in front of the activation, what was multiplied by the weight, 1 / what x was divided by)."""
    if "inv_rms" in a:
        normal, inv = a["x"] * a["inv_rms"], a["inv_rms"]
    else:
        normal, inv = (a["x"] - a["mean"]) * a["inv_std"], a["inv_std"]
    return bent(a["dy"], lambda: _affine(normal, a.get("weight"), a.get("bias"))), normal, inv


def norm_backward(a: Found, axes: Axes, bent: Bent) -> Found:
    """Of `norm` by its statistics, or of `rms_norm`, which subtracts no mean."""
    dy, normal, inv = _terms(a, bent)
    g = _affine(dy, a.get("weight"), None)
    apart = normal * (g * normal).mean(axes, keepdims=True)
    dx = inv * (g - apart - (0.0 if "inv_rms" in a else g.mean(axes, keepdims=True)))
    sums = {"by_weight": (dy * normal).sum(axes, keepdims=True), "by_bias": dy.sum(axes, keepdims=True)}
    return {"dx": dx if a.get("dsum") is None else dx + a["dsum"], **sums}


def norm_gradient(a: Found, axes: Axes, bent: Bent, rows: int) -> Found:
    """dx, and what the gradients of parameters are of blocks of so many rows."""
    dy, normal, _ = _terms(a, bent)

    def blocks(x: Array) -> Array:
        return np.stack([x[at : at + rows].sum(0) for at in range(0, len(x), rows)])

    return {"dx": norm_backward(a, axes, bent)["dx"], "by_weight": blocks(dy * normal), "by_bias": blocks(dy)}


def norm_sums(a: Found, axes: Axes, bent: Bent) -> Found:
    """Gradients of parameters."""
    dy, normal, _ = _terms(a, bent)
    return {"dweight": (dy * normal).sum(axes, keepdims=True), "dbias": dy.sum(axes, keepdims=True)}


# ---------------------------------------------------------------- the steps of a group norm


def channel_moments(a: Found, axes: Axes) -> Found:
    """Mean, as a number near it and the rest, and variance."""
    mean = a["x"].mean(axes, keepdims=True)
    return {"anchor": mean, "rest": 0 * mean, "var": np.square(a["x"] - mean).mean(axes, keepdims=True)}


def group_factors(a: Found, axes: Axes, eps: float) -> Found:
    """y = (x - anchor) factor + shift."""
    means = a["anchor"] + a["rest"]
    mean = means.mean(axes, keepdims=True)
    inv_std = 1 / np.sqrt((a["var"] + np.square(means - mean)).mean(axes, keepdims=True) + eps)
    factor = _affine(inv_std, a.get("weight"), None)
    return {"factor": factor, "shift": _affine((a["anchor"] - mean) * factor, None, a.get("bias")),
            "mean": mean, "inv_std": inv_std}  # fmt: skip


def group_apply(a: Found, axes: Axes) -> Found:
    """y."""
    return {"y": (a["x"] - a["anchor"]) * a["factor"] + a["shift"]}


def group_spread(a: Found, axes: Axes) -> Found:
    """Mean and factor of each channel."""
    return {"centre": a["mean"], "factor": _affine(a["inv_std"], a.get("weight"), None)}


def group_sums(a: Found, axes: Axes, bent: Bent) -> Found:
    """Of dy * (x - centre), and of dy."""
    d = a["x"] - a["centre"]
    dy = bent(a["dy"], lambda: _affine(d, a["factor"], a.get("bias")))
    return {"by_x": (dy * d).sum(axes, keepdims=True), "total": dy.sum(axes, keepdims=True)}


def group_gradients(a: Found, axes: Axes, positions: float) -> Found:
    """dx = dy factor + (x - centre) slope + shift."""
    by_x, inv_std, each = a["by_x"], a["inv_std"], -1 / (positions * a["by_x"].shape[axes[0]])
    slope = (by_x * a["factor"]).sum(axes, keepdims=True) * inv_std**2 * each
    shift = (a["total"] * a["factor"]).sum(axes, keepdims=True) * each
    return {"slope": slope, "shift": shift, "by_weight": by_x * inv_std}


def group_backward(a: Found, axes: Axes, bent: Bent) -> Found:
    """dx."""
    d = a["x"] - a["centre"]
    dy = bent(a["dy"], lambda: _affine(d, a["factor"], a.get("bias")))
    return {"dx": dy * a["factor"] + d * a["slope"] + a["shift"]}


def sample_sums(a: Found, axes: Axes) -> Found:
    """Over the samples."""
    names = {"dweight": a["by_weight"], "dbias": a.get("by_bias")}
    return {name: x.sum(axes, keepdims=True) for name, x in names.items() if x is not None}
