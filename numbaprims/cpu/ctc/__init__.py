"""Connectionist temporal classification: kernels  of the loss and its gradient;  decode  searches;  solvers."""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.ctc.solvers import SOLVERS as SOLVERS
from numbaprims.cpu.simd import lanes


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """The loss, its gradients and decoding, in float32."""
    W = lanes("f32", target.current().vector_bytes)
    kernels, decode = "numbaprims.cpu.ctc.kernels:make_", "numbaprims.cpu.ctc.decode:make_"
    return [
        (f"{kernels}loss", ("f32", "f32", W)),
        *((f"{kernels}gradient", ("f32", logits, W)) for logits in (False, True)),
        (f"{decode}greedy", ("f32", W)),
        (f"{decode}beams", ("f32",)),
    ]
