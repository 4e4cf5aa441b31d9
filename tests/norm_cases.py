"""Calls of the normalisations by the statistics of each sample, for the contract suite."""

from collections.abc import Callable
from typing import Any

import numpy as np

#: x, the dimensions that are normalised, an activation.
ROWS: dict[str, tuple[tuple[int, ...], int, Any]] = {
    "rows": ((9, 67), 1, None), "narrow": ((33, 8), 1, "relu"), "long": ((2, 9000), 1, None),
    "planes": ((2, 3, 5, 21), 2, ("leaky_relu", {"negative_slope": 0.25})), "whole": ((4, 130), 2, "silu"),
    "one": ((3, 1), 1, None),
}  # fmt: skip
#: x, groups, layout, an activation.
CHANNELS: dict[str, tuple[tuple[int, ...], int, str, Any]] = {
    "planes": ((2, 6, 9, 7), 3, "NCHW", None), "pixels": ((2, 9, 7, 20), 5, "NHWC", "relu"),
    "matrix": ((5, 12), 4, "NCHW", None), "volume": ((2, 4, 3, 4, 5), 2, "NCHW", "softplus"),
    "sequence": ((2, 70, 64), 2, "NHWC", None), "all": ((2, 5, 70, 31), 1, "NCHW", None),
    "each": ((2, 8, 9, 3), 3, "NHWC", None),
}  # fmt: skip


def _rows(name: str, label: str, *, residual: bool = False, plain: bool = False) -> Callable[..., Any]:
    shape, dims, activation = ROWS[label]

    def make(rng: np.random.Generator) -> Any:
        words: dict[str, Any] = {"normalized_dims": dims, "activation": activation}
        x, rms = rng.standard_normal(shape) + 1.0, name.startswith("rms")
        parameters = [rng.random(shape[-dims:]) + 0.5 for _ in range(2 - rms)]
        if not name.endswith("backward"):
            if residual:
                words["residual"] = rng.standard_normal(shape)
            return (x, *(() if plain else parameters)), words
        saved = [rng.random((*shape[:-dims], *[1] * dims)) + 0.5 for _ in range(2 - rms)]
        if residual:
            words["dsum"] = rng.standard_normal(shape)
        if plain:
            parameters[0] = None  # type: ignore[call-overload]
        return (rng.standard_normal(shape), x, parameters[0], *saved, *(parameters[1:] if activation else ())), words

    return make


def _channels(name: str, label: str, *, plain: bool = False) -> Callable[..., Any]:
    shape, groups, layout, activation = CHANNELS[label]
    instance = name.startswith("instance")

    def make(rng: np.random.Generator) -> Any:
        words = {"layout": layout, "activation": activation}
        count = shape[-1 if layout == "NHWC" else 1]
        x = rng.standard_normal(shape) + 1.0
        weight, bias = rng.random(count) + 0.5, rng.standard_normal(count)
        kind: tuple[Any, ...] = () if instance else (groups,)
        if not name.endswith("backward"):
            return (x, *kind, *(() if plain else (weight, bias))), words
        mean, inv_std = (rng.random((shape[0], count if instance else groups)) + 0.5 for _ in range(2))
        return (
            rng.standard_normal(shape),
            x,
            *kind,
            None if plain else weight,
            mean,
            inv_std,
            *[bias] * bool(activation),
        ), words

    return make


def add_to(add: Callable[..., None]) -> None:
    """All of them, by `contract.add`."""
    for way in ("", "_train", "_backward"):
        for kind in ("layer", "rms"):
            name = f"{kind}_norm{way}"
            for label in ROWS:
                add(name, label, _rows(name, label), single=way != "_backward", k=512)
            add(name, "residual", _rows(name, "rows", residual=True), single=way != "_backward", k=512)
            add(name, "plain", _rows(name, "planes", residual=True, plain=True), k=512)
        for kind in ("group", "instance"):
            name = f"{kind}_norm{way}"
            single = kind == "instance" and way != "_backward"
            for label in CHANNELS:
                if kind != "instance" or CHANNELS[label][0][2:]:
                    add(name, label, _channels(name, label), single=single, k=512)
            add(name, "plain", _channels(name, "planes", plain=True), single=single, k=512)
