"""Local response normalisation: windows over channels or pixels, a line of neighbouring elements at a time."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.lrn.solvers import SOLVERS as SOLVERS
from numbaprims.cpu.simd import lanes


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Both ways in float32, of windows over channels in front."""
    W, made = lanes("f32", target.current().vector_bytes), "numbaprims.cpu.lrn.kernels:make_kernel"
    return [(made, (way, "f32", False, W)) for way in ("forward", "terms", "gradient")]
