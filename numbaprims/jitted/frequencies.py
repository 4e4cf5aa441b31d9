"""`rope_frequencies` inside `@njit`: Python makes the tables, and so their bits are those of the public call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.errors import TypingError

import numbaprims
from numbaprims.arrays import LONG_NAMES, dtype_name
from numbaprims.jitted.overloads import define


def build(name: str, parameters: dict[str, Any], given: dict[str, Any]) -> Callable[..., Any]:
    """The implementation for a literal dtype; TypingError for others, and for float16, which Numba has not."""
    word = getattr(given["dtype"], "literal_value", given["dtype"])
    dtype = LONG_NAMES[dtype_name(word)] if isinstance(word, str) else None
    if dtype not in ("float64", "float32"):
        raise TypingError(f"numbaprims.{name} inside @njit: dtype is {word}; 'float32' or 'float64'")
    table = f"{dtype}[:, ::1]"
    body = [
        f"with objmode(cos='{table}', sin='{table}'):",
        f"    cos, sin = tables(length, dims, base=base, dtype='{dtype}')",
        "return cos, sin",
    ]
    names = {"objmode": numba.objmode, "tables": numbaprims.rope_frequencies}
    return define(name, parameters, body, names)
