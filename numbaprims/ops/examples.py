"""Arrays of the calls that `find` and `tune` time: ``EXAMPLES`` of each stem makes its arguments of them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.shapes import element_strides


def array(shape: tuple[int, ...], dtype: str, *, low: float = -1.0, high: float = 1.0) -> Any:
    """A C-ordered array of numbers drawn evenly from [low, high), always the same ones; integers from all of their
    range.

    NumPy has bfloat16 by ml_dtypes; where that is not installed, a torch tensor is given.

    >>> array((2, 3), "f32").shape, array((5,), "i8").dtype
    ((2, 3), dtype('int8'))
    """
    rng = np.random.default_rng(20)
    # a block that is repeated: 64 Mi numbers are drawn in 0.5 s, copied in 0.05 s
    count = math.prod(shape)
    block = min(count, 1 << 20)
    values: Any
    if dtype == "bool":
        values = rng.integers(0, 2, block, np.uint8).view(np.bool_)
    elif dtype in ("i8", "u8", "i32", "i64"):
        kind = np.dtype(arrays.LONG_NAMES[dtype])
        bounds = np.iinfo(kind if dtype[1:] == "8" else np.int8)
        values = rng.integers(bounds.min, bounds.max, block, kind, endpoint=True)
    elif dtype == "f64":
        values = rng.random(block) * (high - low) + low
    else:
        values = rng.random(block, np.float32) * np.float32(high - low) + np.float32(low)
    if dtype == "f16":
        values = values.astype(np.float16)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        values = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    storage = np.resize(values, count).reshape(shape)
    return _bfloat16(storage) if dtype == "bf16" else storage


def _bfloat16(storage: Any) -> Any:
    """uint16 patterns as an array that a caller could have."""
    try:
        return storage.view(importlib.import_module("ml_dtypes").bfloat16)
    except ModuleNotFoundError:
        torch = importlib.import_module("torch")
        return torch.from_numpy(storage).view(torch.bfloat16)


def matrix(
    rows: int,
    columns: int,
    dtype: str,
    order: str,
    walk: Callable[[int, int, int, int], str],
    lead: tuple[int, ...] = (),
) -> Any:
    """(*lead, rows, columns) that lies in memory as `order` says: "row", "column" or "strided".

    `walk(row_stride, column_stride, rows, columns)` is the stem's own word for how a matrix lies: of a single row or
    column several orders are the same memory.
    """
    made = array((*lead, rows, columns), dtype)
    makers: tuple[Callable[[], Any], ...] = (
        lambda: made,
        lambda: array((*lead, columns, rows), dtype).swapaxes(-1, -2),
        lambda: array((*lead, 2 * rows, 2 * columns), dtype)[..., ::2, ::2],  # a gap after each, in both directions
    )
    for make in makers:
        x = make()
        strides = element_strides(arrays.enter(x, "x")[0])
        if walk(strides[-2], strides[-1], rows, columns) == order:
            return x
    return made


def vector(length: int, dtype: str, *, unit: bool = True) -> Any:
    """(length,), its elements side by side or every other one."""
    return array((length,), dtype) if unit else array((2 * length,), dtype)[::2]


def parameters(kind: str) -> dict[str, Any]:
    """Parameters for the kinds of activations that have no defaults, or whose kernel follows from them."""
    return _PARAMETERS.get(kind, {})


_PARAMETERS: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": 0.5, "value": -1.0},
    "gelu_tanh": {"approximate": "tanh"},
    "softplus": {"beta": 2.0},
    "power": {"alpha": 1.0, "beta": 0.5, "gamma": 3.0},
    "power_2": {"alpha": 1.0, "beta": 0.5, "gamma": 2.0},
}
KIND_OF = {"gelu_tanh": "gelu", "softplus_1": "softplus", "power_2": "power"}


def fused(kind: str) -> Any:
    """An `activation=` argument of the kind that a problem names."""
    return None if kind == "identity" else (KIND_OF.get(kind, kind), parameters(kind))
