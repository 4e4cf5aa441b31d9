"""Elements of an array at other places: by indices, and by the boxes of a pad."""

from __future__ import annotations

from typing import Any

from numbaprims.ops import examples
from numbaprims.ops._gather_pad import pad as pad
from numbaprims.ops.primitive import problems


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    pads = [(before - first, after - (size - first - kept)) for size, first, kept, before, after in problem.sizes]
    shape = [size for size, *_ in problem.sizes]
    x = examples.array(tuple(shape), problem.dtype)
    return "pad", (x, pads, problem.mode), {}


PROBLEMS = problems(pad)
EXAMPLES = {"gather": _example_call}
