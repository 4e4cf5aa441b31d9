"""Element types: their short names, how arrays store them, and the types in which their sums are kept.

The short names ("f32") are used everywhere inside; `numbaprims.arrays` knows which dtypes of NumPy and torch they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class DType(NamedTuple):
    """How one element type is stored, and the type in which its sums are kept."""

    storage: np.dtype
    itemsize: int
    accumulate: str


#: float16 and bfloat16 travel as the uint16 patterns of their bits (Numba has no CPU float16), bool as bytes.
DTYPES: dict[str, DType] = {
    "f64": DType(np.dtype(np.float64), 8, "f64"),
    "f32": DType(np.dtype(np.float32), 4, "f32"),
    "f16": DType(np.dtype(np.uint16), 2, "f32"),
    "bf16": DType(np.dtype(np.uint16), 2, "f32"),
    "i8": DType(np.dtype(np.int8), 1, "i32"),
    "u8": DType(np.dtype(np.uint8), 1, "i32"),
    "i32": DType(np.dtype(np.int32), 4, "i32"),
    "i64": DType(np.dtype(np.int64), 8, "i64"),
    "bool": DType(np.dtype(np.uint8), 1, "i64"),
}
LONG_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "i8": "int8", "u8": "uint8", "i32": "int32", "i64": "int64", "bool": "bool",
}  # fmt: skip
FLOATS = ("f64", "f32", "f16", "bf16")
"""What most primitives compute in; the last two through f32."""
