"""Calls of the contract suite that work on rows: rotary position embedding, cumulative sums, the first by size."""

from collections.abc import Callable
from typing import Any

import numpy as np

Make = Callable[[np.random.Generator], Any]


def _rows(shape: tuple[int, ...], *more: Any, **words: Any) -> Make:
    return lambda rng: ((rng.standard_normal(shape), *more), words)


def _rope(shape: tuple[int, ...], half: int, rows: int = 0, **words: Any) -> Make:
    """With `rows` of the tables positions are given, of each batch its own."""

    def make(rng: np.random.Generator) -> Any:
        tables = [rng.standard_normal((rows or shape[-2], half)) for _ in range(2)]
        more = {"positions": rng.integers(0, rows, (*shape[:-3], shape[-2]))} if rows else {}
        return (rng.standard_normal(shape), *tables), words | more

    return make


_PAIRS = {"interleaved": True}
ROPE: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any]]] = {
    "halves": ((2, 3, 5, 37), 16, 0, {}), "pairs": ((2, 3, 5, 37), 17, 0, _PAIRS), "head": ((1, 2, 7, 64), 32, 0, {}),
    "part": ((4, 9, 40), 9, 0, {}), "matrix": ((20, 6), 3, 11, {}), "one": ((1, 1, 1, 2), 1, 0, {}),
    "places": ((2, 4, 6, 16), 8, 9, _PAIRS | {"rotary_dims": 16}),
}  # fmt: skip
CUMSUM = {
    "rows": ((7, 67), -1), "long": ((2, 20003), 1), "vector": ((300,), 0), "middle": ((3, 5, 37), 1),
    "first": ((33, 1100), 0), "one": ((4, 1), 1), "short": ((40, 3), -1), "planes": ((2, 3, 4, 70), 3),
}  # fmt: skip
TOPK = {
    "rows": ((7, 67), 5, -1), "long": ((2, 3001), 40, 1), "all": ((3, 300), 300, 1), "many": ((2, 5000), 900, 1),
    "middle": ((3, 50, 37), 4, 1), "one": ((4, 1), 1, 1), "vector": ((200,), 7, 0),
}  # fmt: skip


def add_to(add: Callable[..., None]) -> None:
    """Add the calls."""
    for label, (shape, half, rows, words) in ROPE.items():
        for name in ("rope", "rope_backward"):
            add(name, label, _rope(shape, half, rows, **words), k=8)
    for label, (shape, axis) in CUMSUM.items():
        add("cumsum", label, _rows(shape, axis=axis), k=1024)
        add("cumprod", label, _rows(shape, axis=axis, reverse=label == "short"), k=1024)
        add("cumsum", f"{label}-back", _rows(shape, axis=axis, exclusive=True, reverse=True), k=1024)
    for label, (shape, k, axis) in TOPK.items():
        add("topk", label, _rows(shape, k, axis))
        add("topk", f"{label}-smallest", _rows(shape, k, axis, largest=False))
