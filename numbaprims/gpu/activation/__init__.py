"""Activations on a GPU: formulas and gradients, the switch from a kind's name to them, kernels, solvers."""

from __future__ import annotations

from typing import Any

from numbaprims.gpu.activation import kernels, sums
from numbaprims.gpu.activation.solvers import SOLVERS as SOLVERS

GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [*kernels.GATES, *sums.GATES]
