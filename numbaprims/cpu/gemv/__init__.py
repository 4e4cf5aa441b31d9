"""gemv on the CPU: its solvers, the best first."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.gemv.arguments import accumulate
from numbaprims.cpu.gemv.naive import Naive
from numbaprims.cpu.gemv.register_block import RegisterBlock
from numbaprims.cpu.gemv.row_block import RowBlock
from numbaprims.cpu.simd import lanes

SOLVERS = (RegisterBlock(), RowBlock(), Naive())


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """The kernels that the first calls in float32 want: plain and transposed products of every size."""
    width = lanes(accumulate("f32"), target.current().vector_bytes)
    package = "numbaprims.cpu.gemv"
    return [
        (f"{package}.rows:make_rows", ("f32", width, 4)),
        (f"{package}.columns:make_panel", ("f32", width, 4)),
        (f"{package}.columns:make_narrow", ("f32", width)),
        (f"{package}.finish:make_combine", ("f32", width)),
        (f"{package}.finish:make_pack", ("f32",)),
    ]
