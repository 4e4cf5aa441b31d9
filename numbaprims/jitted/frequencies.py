"""`rope_frequencies` inside `@njit`: Python makes the tables, and so their bits are those of the public call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.errors import TypingError

import numbaprims
from numbaprims.arrays import dtype_name


def build(given: dict[str, Any]) -> Callable[..., Any]:
    """The implementation for a literal dtype; TypingError for others, and for float16, which Numba has not."""
    word = getattr(given["dtype"], "literal_value", given["dtype"])
    name = dtype_name(word) if isinstance(word, str) else None
    if name == "f64":

        def tables(length, dims, base=10000.0, dtype="float32"):  # type: ignore[no-untyped-def]
            with numba.objmode(cos="float64[:, ::1]", sin="float64[:, ::1]"):
                cos, sin = numbaprims.rope_frequencies(length, dims, base=base, dtype="float64")
            return cos, sin
    elif name == "f32":

        def tables(length, dims, base=10000.0, dtype="float32"):  # type: ignore[no-untyped-def]
            with numba.objmode(cos="float32[:, ::1]", sin="float32[:, ::1]"):
                cos, sin = numbaprims.rope_frequencies(length, dims, base=base)
            return cos, sin
    else:
        raise TypingError(f"numbaprims.rope_frequencies inside @njit: dtype is {word}; 'float32' or 'float64'")
    return tables
