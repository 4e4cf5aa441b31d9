"""Activations on the CPU, by the engines.

formulas  y of every kind over vectors;  gradients  dx of every kind
kernels   both as formulas of the pointwise engine
solvers   which there are, and what they are estimated to take
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

from numbaprims.cpu import target
from numbaprims.cpu.activation.kernels import epilogue_kernel as epilogue_kernel, form_of
from numbaprims.cpu.activation.solvers import SOLVERS as SOLVERS
from numbaprims.ops.activation_kinds import KINDS


def warm_specs() -> Iterable[tuple[str, tuple[object, ...]]]:
    """What `numbaprims warmup` compiles: every kind forward and backward, in float32."""
    machine = target.current()
    for kind in KINDS:
        if kind not in ("prelu", "glu"):
            for direction, operands in (("forward", ("out", "x")), ("backward", ("out", "dy", KINDS[kind].reads))):
                posed = SimpleNamespace(kind=kind, dtype="f32", direction=direction, operands=operands)
                yield "numbaprims.cpu.activation.kernels:make_kernel", (form_of(posed, machine),)
