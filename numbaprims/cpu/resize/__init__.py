"""Resizing: rows mixed along and across, or pixels of channels."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.resize.solvers import SOLVERS as SOLVERS, along_width
from numbaprims.cpu.simd import lanes


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Twice as many pixels in float32: nearest, linear and cubic, channels in front and behind."""
    module, W = "numbaprims.cpu.resize.kernels", lanes("f32", target.current().vector_bytes)
    how = along_width("f32", W)
    return [
        *((f"{module}:make_lines", ("ring", "f32", taps, taps, how, False, W)) for taps in (2, 4)),
        (f"{module}:make_copied_lines", (32, how, W)),
        (f"{module}:make_walk", ("f32", 2, W)),
        (f"{module}:make_pixels", ("f32", W)),
        (f"{module}:make_copied_pixels", (32, W)),
    ]
