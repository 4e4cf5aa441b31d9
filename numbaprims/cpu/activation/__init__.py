"""Activations on the CPU.

formulas     y of every kind over vectors;  gradients  dx of every kind
exponential  e**x and e**x - 1 for them;  functions, tables  what else they need
dispatch     from a kind's name to its formula, in a kernel
kernels      range kernels over contiguous elements;  rows, naive  over others, through these
prelu        the gradient of prelu's weight
solvers      which there are, and what they are estimated to take
"""

from __future__ import annotations

from collections.abc import Iterable

from numbaprims.cpu import target
from numbaprims.cpu.activation.kernels import make_forward
from numbaprims.cpu.activation.solvers import SOLVERS as SOLVERS, compute_lanes, step_registers
from numbaprims.cpu.jit import RangeKernel
from numbaprims.ops.activation_kinds import KINDS


def epilogue_kernel(kind: str, dtype: str, W: int) -> RangeKernel:
    """The kernel that applies a kind to contiguous elements of a computed type ("f32", "f64"; "i32" for
    relu).

    Slot 0 of its arguments is the result, slot 1 x, which may be the same address; p0, p1 and p2 are the
    parameters in the order of the table of kinds, n and tile the number of elements. Kinds are those of
    `ops.epilogue.Activation`: "gelu_tanh" is one, prelu and glu are not. `W` is the lanes of a register.
    """
    return make_forward(kind, dtype, W)


def warm_specs() -> Iterable[tuple[str, tuple[object, ...]]]:
    """What `numbaprims warmup` compiles: every kind forward and backward, in float32."""
    here, machine = "numbaprims.cpu.activation.kernels", target.current()
    for kind in KINDS:
        if kind not in ("prelu", "glu"):
            W = compute_lanes("f32", machine, step_registers(kind, machine))
            yield f"{here}:make_forward", (kind, "f32", W)
            yield f"{here}:make_backward", (kind, "f32", W, KINDS[kind].reads)
