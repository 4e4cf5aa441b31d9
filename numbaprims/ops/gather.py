"""Elements of an array at other places: by indices, and by the boxes of a pad."""

from __future__ import annotations

from typing import Any

from numbaprims.ops import examples
from numbaprims.ops._gather_pad import pad as pad, pad_backward as pad_backward
from numbaprims.ops.primitive import problems


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    pads = [(before - first, after - (size - first - kept)) for size, first, kept, before, after in problem.sizes]
    shape = [size for size, *_ in problem.sizes]
    x = examples.array(tuple(shape), problem.dtype)
    if problem.kind == "fold":
        padded = tuple(before + kept + after for _, _, kept, before, after in problem.sizes)
        return "pad_backward", (examples.array(padded, problem.dtype), shape, pads, problem.mode), {}
    return "pad", (x, pads, problem.mode), {}


PROBLEMS = problems(pad, pad_backward)
EXAMPLES = {"gather": _example_call}
