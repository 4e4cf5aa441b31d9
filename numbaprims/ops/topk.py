"""The largest or smallest elements: `topk`."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from numbaprims.ops import reduction
from numbaprims.ops._reduction_problem import collapse
from numbaprims.ops._topk_problem import TopkProblem as TopkProblem
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems, truth
from numbaprims.reference import topk as reference
from numbaprims.shapes import element_strides

_DTYPES = ("f64", "f32", "f16", "bf16", "i32", "i64")


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    k, axis, largest = options
    x, dtype = given.storages[0], given.dtypes[0]
    assert dtype is not None
    if not -x.ndim <= axis < x.ndim:
        allowed = f"allowed is {-x.ndim} to {x.ndim - 1}" if x.ndim else "it must have a dimension at least"
        raise ValueError(f"axis is {axis} and {given.words(0)}; {allowed}")
    along = axis % x.ndim
    if not 0 <= k <= x.shape[along]:
        raise ValueError(f"k is {k} and {given.words(0)}; along axis {axis} it must be 0 to {x.shape[along]}")
    shape = tuple(k if at == along else size for at, size in enumerate(x.shape))

    def problem(made: Sequence[Any]) -> TopkProblem:
        whole = tuple(1 if at == along else size for at, size in enumerate(x.shape))
        steps = [element_strides(each) for each in (*made, x)]
        kept, _, lies = collapse(whole, (along,), steps, 2)
        own = tuple((kept_steps, each[along]) for (kept_steps, _), each in zip(lies, steps, strict=True))
        layout = "rows" if own[2][1] == 1 or x.shape[along] == 1 else "strided"
        return TopkProblem(dtype, kept, x.shape[along], k, largest, layout, own)

    return Pose((Result(shape, dtype), Result(shape, "i64")), problem)


def _define(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    return reference.topk(values[0], *options)


_topk = Primitive("topk", ("x",), _pose, _define, dtypes=_DTYPES)


def topk(x: Any, k: int, axis: int = -1, *, largest: bool = True, sorted: bool = True) -> Any:
    """Find the k largest elements along an axis, or the smallest: ``values = x[indices]``.

    Args:
        x: an array with a dimension at least, of any strides; float64, float32, float16, bfloat16, int32 or int64.
        k: how many, from 0 to the length of the axis.
        axis: along which.
        largest: whether the largest are wanted, or the smallest.
        sorted: where False, any order would do; they are sorted all the same.

    Returns:
        values, of x's dtype, and indices, int64: the first is the largest (smallest). NaN counts as larger than all
        others, as in torch; of equal elements the one of the lower index comes first (-0 equals 0).

    Raises:
        TypeError: another dtype, a k or an axis that is no integer.
        ValueError: an axis that there is none, a k that is negative or larger than the axis.

    Example:
        >>> import numpy as np, numbaprims
        >>> values, indices = numbaprims.topk(np.float32([3, 1, 4, 1, 5]), 2)
        >>> values.tolist(), indices.tolist()
        ([5.0, 4.0], [4, 2])

    References:
        ONNX TopK; torch.topk.
    """
    return _topk.run((x,), (integer(k, "k"), integer(axis, "axis"), truth(largest, "largest")))


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem
    made = reduction.Example(types.SimpleNamespace(kept=p.kept, reduced=(p.n,), layout=p.layout))
    return "topk", (made.array(p.dtype), p.k, made.axes[0]), {"largest": p.largest}


PROBLEMS = problems(topk)
EXAMPLES = {"topk": _example_call}
