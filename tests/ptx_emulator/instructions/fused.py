"""Fused multiply-add with one rounding, by Numba: NumPy has none, and widening rounds twice in rare cases."""

import functools
from typing import Any

import numpy as np

from ..dtypes import NUMPY


@functools.cache
def fused_multiply_add(kind: str) -> Any:
    """A ufunc of three operands for "f32" or "f64"; f16 goes through f64, where the product is exact."""
    if kind == "f16":

        def half(a: Any, b: Any, c: Any) -> Any:
            product = np.asarray(a).astype(np.float64) * np.asarray(b).astype(np.float64)
            return (product + np.asarray(c).astype(np.float64)).astype(np.float16)

        return half
    from numba import vectorize
    from numba.extending import intrinsic

    @intrinsic
    def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
        return a(a, a, a), lambda context, builder, signature, arguments: builder.fma(*arguments)

    name = np.dtype(NUMPY[kind]).name

    @vectorize([f"{name}({name},{name},{name})"])
    def compute(a: Any, b: Any, c: Any) -> Any:
        return fma(a, b, c)  # type: ignore[call-arg]

    return compute
