"""Dropout and random numbers on the CPU, as formulas of the pointwise engine that know where an element stands."""

from __future__ import annotations

from collections.abc import Iterable

from numbaprims.cpu import target
from numbaprims.cpu.random.kernels import form_of
from numbaprims.cpu.random.solvers import SOLVERS as SOLVERS


def warm_specs() -> Iterable[tuple[str, tuple[object, ...]]]:
    """What `numbaprims warmup` compiles: dropout in float32."""
    machine = target.current()
    for stream in (False, True):
        yield "numbaprims.cpu.random.kernels:make_kernel", (form_of("dropout", "f32", machine, stream),)
