"""Cumulative sums and products: `cumsum`, `cumprod`."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Sequence
from typing import Any

from numbaprims.ops import reduction
from numbaprims.ops._reduction_problem import collapse
from numbaprims.ops._scan_problem import ScanProblem as ScanProblem
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems, truth
from numbaprims.reference import scan as reference
from numbaprims.shapes import element_strides

_DTYPES = ("f64", "f32", "f16", "bf16", "i32", "i64")


def _pose(function: str, given: Given, options: tuple[Any, ...]) -> Pose:
    axis, exclusive, reverse = options
    x, dtype = given.storages[0], given.dtypes[0]
    assert dtype is not None
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis} and {given.words(0)}; " + (
            f"allowed is {-x.ndim} to {x.ndim - 1}" if x.ndim else "it must have a dimension at least"
        ))  # fmt: skip
    along = axis % x.ndim

    def problem(made: Sequence[Any]) -> ScanProblem:
        kept, _, lies = collapse(x.shape, (along,), [element_strides(each) for each in (made[0], x)], 1)
        n = x.shape[along]
        # of one element rows lie across where they lie side by side
        beside, across = (
            all(step == 1 for step in steps) for steps in zip(*((b[0], a[-1]) for a, b in lies), strict=True)
        )
        if n == 1:
            beside = math.prod(kept) == 1
        layout = "rows" if beside else "across" if across else "strided"
        if n == 1 and not across:
            layout = "rows" if math.prod(kept) == 1 else "strided"
        return ScanProblem(
            dtype, kept, n, exclusive, reverse, function == "cumprod", layout, tuple((a, b[0]) for a, b in lies)
        )

    return Pose((Result(x.shape, dtype, like=0),), problem)


class _Scan(Primitive):
    """Integers are defined in their own arithmetic, which wraps around."""

    def __init__(self, function: str) -> None:
        def define(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
            return reference.scan(function, values[0], *options)

        super().__init__(
            function, ("x",), functools.partial(_pose, function), define, dtypes=_DTYPES, exact=("x",)
        )  # fmt: skip

    def _define(
        self, storages: list[Any], kinds: list[Any], made: list[Any], pose: Pose, options: Any, numbers: Any
    ) -> None:
        if made[0].size and kinds[0][0] in ("i32", "i64"):
            made[0][...] = reference.scan(self.name, storages[0], *options)
        else:
            super()._define(storages, kinds, made, pose, options, numbers)


_cumsum, _cumprod = _Scan("cumsum"), _Scan("cumprod")


def cumsum(x: Any, axis: int = -1, *, exclusive: bool = False, reverse: bool = False, out: Any = None) -> Any:
    """Sum up along an axis: ``y_i = x_0 + ... + x_i``.

    Args:
        x: an array with a dimension at least, of any strides; float64, float32, float16 or bfloat16, the last two
            summed in float32 and rounded once; int32 and int64, which wrap around.
        axis: along which.
        exclusive: whether y_i leaves x_i out: ``y_i = x_0 + ... + x_(i - 1)``, y_0 = 0.
        reverse: whether sums begin at the end: ``y_i = x_i + ... + x_(n - 1)``.
        out: where y goes; it may be x.

    Returns:
        y, of x's shape, dtype and library; a new array lies in memory as x does. The order of the sums depends on the
        shape and on the machine's vectors, not on the number of threads.

    Raises:
        TypeError: another dtype, an axis that is no integer.
        ValueError: an axis that there is none, an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.cumsum(np.float32([1, 2, 3]))
        array([1., 3., 6.], dtype=float32)
        >>> numbaprims.cumsum(np.int64([[1, 2], [3, 4]]), axis=0, exclusive=True, reverse=True).tolist()
        [[3, 4], [0, 0]]

    References:
        ONNX CumSum; Hillis and Steele, Data parallel algorithms, 1986; Blelloch, Prefix sums and their applications,
        1990.
    """
    return _call(_cumsum, x, axis, exclusive, reverse, out)


def cumprod(x: Any, axis: int = -1, *, exclusive: bool = False, reverse: bool = False, out: Any = None) -> Any:
    """Multiply along an axis: ``y_i = x_0 * ... * x_i``.

    Args:
        x: as of `cumsum`: floats, of which float16 and bfloat16 are multiplied in float32, int32 and int64.
        axis: along which.
        exclusive: whether y_i leaves x_i out: ``y_i = x_0 * ... * x_(i - 1)``, y_0 = 1.
        reverse: whether products begin at the end.
        out: where y goes; it may be x.

    Returns:
        y, as `cumsum` gives it. Floats are multiplied in the order of the axis.

    Raises:
        TypeError: another dtype, an axis that is no integer.
        ValueError: an axis that there is none, an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.cumprod(np.float32([1, 2, 3]))
        array([1., 2., 6.], dtype=float32)

    References:
        torch.cumprod.
    """
    return _call(_cumprod, x, axis, exclusive, reverse, out)


def _call(function: Primitive, x: Any, axis: Any, exclusive: bool, reverse: bool, out: Any) -> Any:
    return function.run(
        (x,), (integer(axis, "axis"), truth(exclusive, "exclusive"), truth(reverse, "reverse")), (), out
    )


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem
    words = {"exclusive": p.exclusive, "reverse": p.reverse}
    made = reduction.Example(types.SimpleNamespace(kept=p.kept, reduced=(p.n,), layout=p.layout))
    return "cumprod" if p.product else "cumsum", (made.array(p.dtype), made.axes[0]), words


PROBLEMS = problems(cumsum, cumprod)
EXAMPLES = {"scan": _example_call}
