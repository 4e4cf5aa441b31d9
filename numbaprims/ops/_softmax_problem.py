"""The problem of softmax and of the losses on it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from numbaprims.ops import reduction

#: Formulas of `softmax` and the like, which reduce one axis.
ROWS = ("softmax", "log_softmax", "hardmax", "softmax_backward", "log_softmax_backward")
#: What formulas are of: kinds of the benchmark.
KINDS = ("softmax", "log_softmax", "hardmax", "cross_entropy", "nll_loss")


@dataclasses.dataclass(frozen=True)
class SoftmaxProblem(reduction.Reduction):
    """A formula over rows of classes."""

    stem: ClassVar[str] = "softmax"

    def bench_command(self) -> str:
        # what makes one loss of many, or a gradient of it, is launched by the loss of so many rows
        whole = self.formula in ("total", "weighted_mean", "weighted_mean_backward")
        kind = "cross_entropy" if whole else next(kind for kind in KINDS if self.formula.startswith(kind))
        shape = f"{self.n}x1" if whole else f"{self.rows}x{self.n}"
        words = f"numbaprims bench softmax --kind {kind} --shapes {shape} --dtype {self.dtype}"
        words += " --backward" if self.formula.endswith("_backward") else ""
        return words + (" --across" if self.layout == "across" else "")
