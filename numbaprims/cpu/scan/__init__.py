"""Cumulative sums: prefix sums in registers along rows, a running line across them."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.scan.solvers import SOLVERS as SOLVERS
from numbaprims.cpu.simd import lanes


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """float32, both ways that rows may lie."""
    W, made = lanes("f32", target.current().vector_bytes), "numbaprims.cpu.scan.kernels:"
    return [
        (f"{made}make_rows", ("rows", "f32", "f32", False, False, False, W)),
        (f"{made}make_across", ("f32", "f32", False, False, False, W)),
    ]
