"""Calls that pose a problem of softmax again."""

from __future__ import annotations

from typing import Any

from numbaprims.ops import _cross_entropy as losses, examples, reduction
from numbaprims.ops._softmax_problem import ROWS


def example_call(problem: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    formula, example = problem.formula, reduction.Example(problem)
    operands = dict(word.split(":", 1) for word in problem.inputs)
    if formula in ROWS:
        (axis,) = example.axes
        return formula, tuple(example.array(problem.dtype) for _ in operands), {"axis": axis}
    kinds: Any = {name: tuple(word.split(":")) for name, word in operands.items()}
    if formula not in losses.WHOLE:
        return losses.example(problem, example, kinds)
    dtype = problem.results[0].rpartition(":")[2]
    arrays = [
        examples.array((), dtype) if name == "dy" else example.array(dtype, low=0.5)
        for name, (_, dtype) in kinds.items()
    ]
    return losses.WHOLE[formula], tuple(arrays), {"dtype": dtype}
