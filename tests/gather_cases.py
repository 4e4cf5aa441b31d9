"""Calls of pads and of elements by indices, for the contract suite."""

from collections.abc import Callable
from typing import Any

import numpy as np

PADS: dict[str, tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = {
    "images": ((2, 3, 9, 20), ((0, 0), (0, 0), (1, 1), (2, 1))),
    "pixels": ((2, 6, 5, 4), ((0, 0), (2, 1), (1, 7), (0, 0))), "crop": ((6, 7, 8), ((-1, 2), (0, -3), (-2, -1))),
    "rows": ((7, 67), ((0, 0), (3, 40))), "often": ((4, 3), ((9, 5), (8, 7))),
    "vector": ((21,), ((5, 3),)), "long": ((2, 40000), ((0, 1), (3, 3))),
}  # fmt: skip
MODES = ("constant", "reflect", "edge", "wrap")
TAKES: dict[str, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    "rows": ((9, 37), 0, (20,)), "middle": ((3, 5, 37), 1, (2, 4)), "last": ((6, 50), 1, (70,)),
    "vector": ((50,), 0, (9,)),
    "one": ((4, 5), 0, ()), "long": ((300, 64), 0, (9000,)),
}  # fmt: skip


def add_to(add: Callable[..., None]) -> None:
    """Add the calls."""
    for label, (shape, pads) in PADS.items():
        for mode in MODES if label in ("images", "often", "crop") else ("constant", "reflect"):
            padded = tuple(size + low + high for size, (low, high) in zip(shape, pads, strict=True))

            def forward(rng: Any, shape: Any = shape, pads: Any = pads, mode: str = mode) -> Any:
                return (rng.standard_normal(shape), pads, mode), {"value": 2.0}

            def backward(rng: Any, shape: Any = shape, padded: Any = padded, pads: Any = pads, mode: str = mode) -> Any:
                return (rng.standard_normal(padded), shape, pads, mode), {}

            add("pad", f"{mode}-{label}", forward)
            add("pad_backward", f"{mode}-{label}", backward, k=64)
    for label, (shape, axis, taken) in TAKES.items():
        for of in (np.int32, np.int64) if label == "middle" else (np.int64,):

            def take(rng: Any, shape: Any = shape, axis: int = axis, taken: Any = taken, of: Any = of) -> Any:
                indices = np.asarray(rng.integers(-shape[axis], shape[axis], taken)).astype(of)
                return (rng.standard_normal(shape), indices, axis), {}

            def back(rng: Any, shape: Any = shape, axis: int = axis, taken: Any = taken, of: Any = of) -> Any:
                indices = np.asarray(rng.integers(-shape[axis], shape[axis], taken)).astype(of)
                whole = (*shape[:axis], *taken, *shape[axis + 1 :])
                return (rng.standard_normal(whole), indices, shape[axis], axis), {}

            add("gather", f"{label}-{of.__name__}", take)
            add("gather_backward", f"{label}-{of.__name__}", back, k=1024)
    for label, words in {"rows": {}, "padding": {"padding_idx": 2}, "mean": {"scale_grad_by_freq": True}}.items():
        add(
            "embedding_backward", label,
            lambda rng, words=words: ((rng.standard_normal((40, 13)), rng.integers(-9, 9, 40), 9), words), k=64,
        )  # fmt: skip
    add("embedding", "rows", lambda rng: ((rng.standard_normal((9, 37)), rng.integers(-9, 9, (3, 4))), {}))
    for label, axis, sizes in (("sizes", 1, (3, 1, 6)), ("sections", 1, 4), ("last", 2, (1, 4, 2))):
        add("split", label, lambda rng, axis=axis, sizes=sizes: ((rng.standard_normal((6, 10, 7)), sizes, axis), {}))
