"""Reductions of an array over some of its axes: `reduce`."""

from __future__ import annotations

import dataclasses
import operator
import warnings
from typing import Any, ClassVar

from numbaprims.dtypes import DTYPES, FLOATS, LONG_NAMES
from numbaprims.formulas.tensor import REDUCE, REDUCTIONS as REDUCTIONS
from numbaprims.ops import reduction
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems
from numbaprims.reference import reduce as reference


@dataclasses.dataclass(frozen=True)
class ReduceProblem(reduction.Reduction):
    """One value of each row."""

    stem: ClassVar[str] = "reduce"

    def bench_command(self) -> str:
        op, across = self.formula.split(":")[1], " --across" if self.layout == "across" else ""
        return f"numbaprims bench reduce --kind {op} --shapes {self.rows}x{self.n} --dtype {self.dtype}{across}"


def _indices(axis: Any) -> int | tuple[int, ...]:
    """Axes as ints."""
    several = isinstance(axis, (tuple, list))
    try:
        if not any(isinstance(each, bool) for each in (axis if several else (axis,))):
            return tuple(map(operator.index, axis)) if several else operator.index(axis)
    except TypeError:
        pass
    raise TypeError(f"axis is {axis!r}; it must be None, an integer or a tuple of integers")


def _axes(axis: Any, ndim: int, x: str) -> tuple[int, ...]:
    """The axes that are reduced."""
    given = tuple(range(ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    for each in given:
        if not -ndim <= each < ndim:
            raise ValueError(f"axis is {axis!r} and {x}; allowed is {-ndim} to {ndim - 1}")
    axes = tuple(each % ndim for each in given)
    if len(set(axes)) < len(axes):
        raise ValueError(f"axis is {axis!r}: an axis comes twice")
    return axes


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    op, axis, keepdims, nan = options
    x, dtype = given.storages[0], given.dtypes[0]
    if op not in REDUCTIONS:
        raise ValueError(f"op is {op!r}; it must be one of {', '.join(REDUCTIONS)}")
    if nan not in ("propagate", "omit"):
        raise ValueError(f"nan is {nan!r}; it must be 'propagate' or 'omit'")
    known = REDUCTIONS[op]
    takes = {"bool": tuple(DTYPES), "place": tuple(each for each in DTYPES if each != "i64")}.get(known.gives, FLOATS)
    if dtype not in takes:
        raise TypeError(f"{given.words(0)}; {op} takes {', '.join(LONG_NAMES[each] for each in takes)}")
    axes = _axes(axis, x.ndim, given.words(0))
    if known.gives == "place" and axis is not None and len(axes) != 1:
        raise ValueError(f"axis is {axis!r}; {op} takes one axis, or None for all of them")
    kept = tuple(1 if at in axes else size for at, size in enumerate(x.shape))
    if not known.empty and 0 in (x.shape[at] for at in axes):
        raise ValueError(f"{given.words(0)} and axis is {axis!r}; {op} of no elements has no value")
    shape = kept if keepdims else tuple(size for at, size in enumerate(x.shape) if at not in axes)
    result = Result(shape, {"place": "i64"}.get(known.gives, known.gives) or str(dtype))
    formula = f"{REDUCE}{op}" + (":omit" if nan == "omit" else "")
    return reduction.pose(
        ReduceProblem, given, formula, x.shape, axes, [result], {"y": kept}, ordered=known.gives == "place"
    )


def _define(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    op, axis, keepdims, nan = options
    axes = None if axis is None else axis if isinstance(axis, tuple) else (axis,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that are all NaN
        return reference.reduce(values[0], op, axes, keepdims, nan)


_reduce = Primitive("reduce", ("x",), _pose, _define, dtypes=tuple(DTYPES))


def reduce(
    x: Any, op: str, axis: Any = None, keepdims: bool = False, *, nan: str = "propagate", out: Any = None
) -> Any:
    """Reduce an array over axes to one value: ``y = op(x[..., :, ...])``.

    Args:
        x: any shape and strides. float64, float32, float16 or bfloat16, the last two computed in float32; "any" and
            "all" take every type, "argmin" and "argmax" all but int64.
        op: "sum", "mean", "prod", "min", "max", "amax" (the largest absolute value), "norm1" (sum \\|x\\|), "norm2"
            (sqrt sum x**2), "sum_square", "log_sum" (log sum x), "logsumexp", "argmin", "argmax" (the first of equals),
            "any", "all", "var" or "std" (over n, not n - 1).
        axis: an axis, a tuple of them, or None for all; "argmin" and "argmax" take one, or None for the place in C
            order.
        keepdims: whether reduced axes stay, of length 1.
        nan: "propagate": a row that holds NaN is NaN ("argmin" and "argmax" give the place of the first); "omit":
            NaN is left out, and of rows that are nothing but NaN "mean", "min", "max", "amax", "var" and "std" are NaN.
        out: where y goes; it shares no memory with x.

    Returns:
        y, in C order, of x's dtype and library; int64 of "argmin" and "argmax", bool of "any" and "all". Sums are
        taken in chunks that depend on the shape only: the bits are the same for any number of threads.

    Raises:
        TypeError: a dtype that the operation does not take.
        ValueError: an op, an axis or a `nan` that there is none; "min", "max", "amax", "argmin" or "argmax" of no
            elements; an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.reduce(np.float32([[1, 2], [3, 4]]), "sum", axis=0)
        array([4., 6.], dtype=float32)
        >>> numbaprims.reduce(np.float32([1, np.nan, 3]), "mean", nan="omit")
        array(2., dtype=float32)

    References:
        ONNX ReduceSum, ReduceSumSquare, ReduceLogSum and their kin, ArgMax; MIOpen miopenReduceTensor; Chan, Golub and
        LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """
    # here, since 1.0 and True are equal to 1 where calls are looked up
    if axis.__class__ is not int and axis is not None:
        axis = _indices(axis)
    if keepdims.__class__ is not bool:
        raise TypeError(f"keepdims is {keepdims!r}; it must be True or False")
    return _reduce.run((x,), (op, axis, keepdims, nan), (), out)


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    made = reduction.Example(problem)
    _, op, nan = f"{problem.formula}:".split(":")[:3]
    axes: Any = made.axes if REDUCTIONS[op].gives != "place" else made.axes[0] if len(made.axes) == 1 else None
    return "reduce", (made.array(problem.dtype), op, axes), {"nan": nan or "propagate"}


PROBLEMS = problems(reduce)
EXAMPLES = {"reduce": _example_call}
