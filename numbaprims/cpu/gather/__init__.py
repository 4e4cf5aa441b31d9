"""Elements of an array at other places: by indices, and by the boxes of a pad."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.gather.index_solvers import SOLVERS as SOLVERS


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Pads of 32-bit elements."""
    return [("numbaprims.cpu.gather.kernels:make_framed", (4, target.current().vector_bytes))]
