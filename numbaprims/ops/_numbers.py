"""Numbers of a call that formulas take as they are."""

from __future__ import annotations

import sys
from typing import Any

from numbaprims.ops.primitive import scalar

_MOST = sys.float_info.max


def finite(value: Any, name: str, least: float = -_MOST) -> float:
    """A factor that is finite; ValueError, naming it, where it is not or is below `least`."""
    found = scalar(value, name)
    if not least <= found <= _MOST:
        words = "" if least == -_MOST else f", and {least:g} at least"
        raise ValueError(f"{name} is {value!r}; it must be finite{words}")
    return found
