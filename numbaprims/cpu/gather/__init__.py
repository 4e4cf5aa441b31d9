"""Elements of an array at other places: by indices, and by the boxes of a pad."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.gather.index_solvers import SOLVERS as SOLVERS


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Pads of 32-bit elements, and rows of them by indices of 64 bits."""
    vector_bytes = target.current().vector_bytes
    return [
        ("numbaprims.cpu.gather.kernels:make_framed", (4, vector_bytes, False)),
        ("numbaprims.cpu.gather.indices:make_table", ("i64", False)),
        ("numbaprims.cpu.gather.indices:make_take", (4, "i64", vector_bytes)),
    ]
