"""log and log1p of vectors."""

from __future__ import annotations

from numbaprims.cpu.simd.math.emit import Value, vector_function
from numbaprims.formulas import elementary


def log_value(x: Value) -> Value:
    """log x."""
    return elementary.log_value(x, Value.__truediv__)


def log1p_value(x: Value, one_more: Value | None = None) -> Value:
    """log(1 + x); x + 1 may be given."""
    return elementary.log1p_value(x, Value.__truediv__, one_more)


@vector_function(log_value)
def log(x):  # type: ignore[no-untyped-def]
    """The natural logarithm of every lane, for f32 and f64, within 1.0 ULP.

    That of 0 is -inf, that of a negative number NaN.
    """


@vector_function(log1p_value)
def log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x) of every lane, for f32 and f64, within 1.0 ULP, near 0 too."""
