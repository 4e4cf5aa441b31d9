"""ger on the CPU: its solvers, the best first."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.ger.solvers import Naive, RegisterBlock, RowBlock
from numbaprims.cpu.simd import lanes

SOLVERS = (RegisterBlock(), RowBlock(), Naive())


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """The kernels that the first calls in float32 want."""
    width = lanes("f32", target.current().vector_bytes)
    rows = "numbaprims.cpu.ger.rows:make_rows"
    return [
        (rows, ("f32", width, 2, True, False)),
        (rows, ("f32", width, 1, True, False)),
        (rows, ("f32", width, 2, False, False)),
        (rows, ("f32", width, 1, False, True)),
    ]
