"""The k first elements by size: a threshold and a sorted list, or a radix sort of what may be among them."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.topk.solvers import SOLVERS as SOLVERS


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Both ways for the largest of float32."""
    W, made = lanes("f32", target.current().vector_bytes), "numbaprims.cpu.topk.kernels:make_"
    return [(made + way, ("f32", "i32", True, False, W)) for way in ("insert", "radix")]
