"""Resizing: rows mixed along and across, or pixels of channels."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.resize.solvers import SOLVERS as SOLVERS, along_width
from numbaprims.cpu.simd import lanes


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Twice as many pixels in float32: nearest, linear and cubic, channels in front and behind."""
    lines, copies, pixels = (f"numbaprims.cpu.resize.{name}" for name in ("kernels", "copies", "pixels"))
    W = lanes("f32", target.current().vector_bytes)
    how = along_width("f32", W)
    return [
        (f"{lines}:make_lines", ("ring", "f32", 4, 4, how, False, W)),
        (f"{lines}:make_lines", ("line", "f32", 2, 2, how, False, W)),
        (f"{lines}:make_stairs", ("f32", how, W)),
        (f"{copies}:make_copied_lines", (32, "twice", 2, W)),
        (f"{pixels}:make_walk", ("f32", 2, W)),
        (f"{pixels}:make_pixels", ("f32", W)),
        (f"{pixels}:make_copied_pixels", (32, W)),
    ]
