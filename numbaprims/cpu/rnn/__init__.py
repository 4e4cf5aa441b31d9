"""Recurrent networks: the input product of all steps, or of a block of them, then a time loop in one native call.

network   memory, rows and products of a program;  forward  a network's layers;  gradient  theirs backward
cells, cells_backward   the end of a step;  kernels  what programs run;  tiles  their sizes
panels, wave   `persistent`, and layers that overlap;  solvers   which there are
"""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.rnn.solvers import PREPARED as PREPARED, SOLVERS as SOLVERS
from numbaprims.cpu.simd import lanes


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """What calls in float32 want whatever their sizes; the kernel of a step is that of a cell and a batch."""
    W = lanes("f32", target.current().vector_bytes)
    kernels = "numbaprims.cpu.rnn.kernels:"
    return [
        (f"{kernels}make_rows", ("f32", "f32", W)),
        (f"{kernels}make_numbers", ("f32", "f32", 4, False, W)),
        (f"{kernels}make_pack", ("f32", "f32", "f32", 4, 1, W)),
    ]
