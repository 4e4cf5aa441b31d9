"""What a reader wants to know first: one goal for each class of primitives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

HEADLINES = {
    "gemm, square, over NumPy (OpenBLAS)": ("gemm", "f32, square 256-4096, over NumPy (OpenBLAS)"),
    "gemm, skinny and odd, over the best rival": ("gemm", "f32, skinny and odd, over the best rival"),
    "gemv, over the better of NumPy and torch": ("gemv", "f32, gemv and gemv^T, over the better of NumPy and torch"),
    "exp, tanh, gelu and the like, over torch": ("activation", "f32, exp-like, 16 Ki to 1 Mi, over torch"),
    "relu, clip and the like, over torch": ("activation", "f32, cheap, 64 Ki to 1 Mi, over torch"),
    "conv, ResNet-50 and VGG-16, over the best": ("conv", "f32, ResNet-50 and VGG-16, over the best rival"),
    "conv, gradient of the data, over torch": ("conv", "f32, data gradient, over torch"),
    "pooling, over the best": ("pooling", "f32, over the best rival"),
    "softmax, over the best": ("softmax", "f32, softmax, over the best rival"),
    "batch norm, inference, over the best": ("batch_norm", "f32, inference, over the best rival"),
}


class Reached(NamedTuple):
    """What a run reached of a target."""

    value: float
    missed: bool
    """Whether it is below the floor."""


def headlines(rows: Iterable[dict[str, Any]]) -> dict[int, dict[str, Reached]]:
    """threads -> headline -> what was reached, of the rows that `summarise` makes."""
    titles = {target: title for title, target in HEADLINES.items()}
    found: dict[int, dict[str, Reached]] = {}
    for row in rows:
        title = titles.get((row["stem"], row["name"]))
        if title is not None:
            found.setdefault(row["threads"], {})[title] = Reached(row["value"], row["verdict"].startswith("MISSED"))
    return dict(sorted(found.items()))
