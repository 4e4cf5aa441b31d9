"""The k first elements by size: sorted lists of what is beyond a bound, or a radix sort of what may be among them."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.topk.solvers import SOLVERS as SOLVERS


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Every way for the largest of float32."""
    W, made = lanes("f32", target.current().vector_bytes), "numbaprims.cpu.topk.kernels:make_"
    each = [(made + way, ("f32", "i32", True, False, W)) for way in ("insert", "radix")]
    return [*each, (f"{made}across", ("f32", True, "rows", W // 2))]
