"""Rotary position embedding: rows whose pairs of elements are turned, a vector of pairs at a time."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.rope.solvers import SOLVERS as SOLVERS
from numbaprims.cpu.simd import lanes


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Halves in float32, both ways, of heads of 64 and 128 elements."""
    W, made = lanes("f32", target.current().vector_bytes), "numbaprims.cpu.rope.kernels:make_kernel"
    return [(made, ("f32", "f32", "", False, inverse, pairs, W)) for inverse in (False, True) for pairs in (32, 64)]
