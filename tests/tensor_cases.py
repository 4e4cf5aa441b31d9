"""Calls of reductions and of functions of elements, for the contract suite."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims.formulas.maps import BINARY
from numbaprims.formulas.tensor import REDUCTIONS
from numbaprims.reference.convert import to_float64

BROADCASTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "alike": ((7, 67), (7, 67)), "row": ((7, 67), (67,)), "column": ((33, 20), (33, 1)), "one": ((4, 500), ()),
    "planes": ((3, 5, 37), (5, 1)), "short": ((130, 3), (3,)),
}  # fmt: skip


def _rows(shape: tuple[int, ...], arrays: int, *more: Any, **words: Any) -> Any:
    return lambda rng: ((*(rng.standard_normal(shape) for _ in range(arrays)), *more), words)


def _pair(a: tuple[int, ...], b: tuple[int, ...], *more: Any, c: bool = False, **words: Any) -> Any:
    def make(rng: np.random.Generator) -> Any:
        given = rng.uniform(0.5, 2.0, a), np.asarray(rng.uniform(0.5, 2.0, b))
        return (*given, *more), {**words, **({"c": rng.standard_normal(a)} if c else {})}

    return make


def near_ties(dtype: str) -> np.ndarray:
    """float64 half-way between neighbours of a type of 16 bits, a little beside, and what is special."""
    infinite, edge = {"f16": (0x7C00, 65520.0), "bf16": (0x7F80, (2 - 2**-8) * 2.0**127)}[dtype]
    values = to_float64(np.arange(infinite, dtype=np.uint16), dtype)
    ties = np.append(values[:-1] / 2 + values[1:] / 2, edge)[:, None] * [1 - 2**-40, 1, 1 + 2**-40]
    found = np.concatenate([values, ties.ravel(), [1e300, 5e-324, 2.0**-140, np.inf, np.nan]])
    return np.concatenate([found, -found])


def add_to(add: Callable[..., None], rows: dict[str, tuple[tuple[int, ...], int]]) -> None:
    """Add the calls; `rows` are shapes with an axis."""
    for op in REDUCTIONS:
        for label, (shape, axis) in rows.items():
            if op in ("sum", "argmax", "var", "logsumexp") or label in ("tail", "middle"):
                add("reduce", f"{op}-{label}", _rows(shape, 1, op, axis), k=256, relative=op == "prod")
    for axes in (None, (0, 2), (1, 2), ()):
        add("reduce", f"sum-{axes}", _rows((4, 5, 23), 1, "sum", axis=axes, keepdims=True), k=64)
    add("reduce", "argmin-None", _rows((4, 5, 23), 1, "argmin"))
    for label, shapes in BROADCASTS.items():
        for op in BINARY if label == "alike" else ("add", "less"):
            add("binary", f"{op}-{label}", _pair(*shapes, op))
        add("binary", f"factors-{label}", _pair(*shapes, "sub", c=True, alpha1=0.5, alpha2=-2.0, beta=3.0))
    for label, (shape, _) in rows.items():
        add("isnan", label, _rows(shape, 1))
        add("isinf", label, _rows(shape, 1, detect_negative=label == "tail"))
        add("scale", label, _rows(shape, 1, 0.75))
        add("where", label, _rows(shape, 3))
    for label, turned in {"turned": (1, 0), "last": (0, 2, 3, 1), "first": (0, 3, 1, 2), "back": (2, 1, 0)}.items():
        add("transform", label, _rows((35, 40, 6, 5)[: len(turned)], 1, turned))
    for to in ("float32", "float64", "int8"):
        add("cast", to, lambda rng, to=to: ((rng.standard_normal((7, 67)) * 100, to), {}))
