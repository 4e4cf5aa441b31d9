"""The problem of softmax and of the losses on it, and the calls that pose it again."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from numbaprims.ops import examples, reduction

#: Formulas of `softmax` and the like, which reduce one axis.
ROWS = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
#: What formulas are of: kinds of the benchmark.
KINDS = ("softmax", "log_softmax", "cross_entropy", "nll_loss")


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


def example_call(problem: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    formula, example = problem.formula, reduction.Example(problem)
    operands = dict(word.split(":", 1) for word in problem.inputs)
    if formula in ROWS:
        (axis,) = example.axes
        return formula, tuple(example.array(problem.dtype) for _ in operands), {"axis": axis}
    from numbaprims.ops import _cross_entropy as losses

    kinds: Any = {name: tuple(word.split(":")) for name, word in operands.items()}
    if formula not in losses.WHOLE:
        return losses.example(problem, example, kinds)
    dtype = problem.results[0].rpartition(":")[2]
    arrays = [
        examples.array((), dtype) if name == "dy" else example.array(dtype, low=0.5)
        for name, (_, dtype) in kinds.items()
    ]
    return losses.WHOLE[formula], tuple(arrays), {"dtype": dtype}
