"""The activation that a product ends in, as a pointer to its range kernel."""

from __future__ import annotations

from typing import Any


def activation_address(problem: Any, target: Any) -> int:
    """The address of the activation's range kernel for computed rows, 0 for the identity."""
    kind = problem.activation.kind
    if kind == "identity":
        return 0
    from numbaprims.cpu.activation import epilogue_kernel
    from numbaprims.cpu.simd import lanes

    acc = problem.accumulate
    return int(epilogue_kernel(kind, acc, lanes(acc, target.vector_bytes)).address)
