"""Softmax, its logarithm, and the losses on them: `softmax`, `log_softmax`, `softmax_cross_entropy`, `nll_loss`."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.ops import reduction
from numbaprims.ops._cross_entropy import (
    nll_loss as nll_loss,
    nll_loss_backward as nll_loss_backward,
    softmax_cross_entropy as softmax_cross_entropy,
    softmax_cross_entropy_backward as softmax_cross_entropy_backward,
)
from numbaprims.ops._docs import documented
from numbaprims.ops._softmax_example import example_call
from numbaprims.ops._softmax_problem import SoftmaxProblem as SoftmaxProblem
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems
from numbaprims.reference import softmax as reference

# ---------------------------------------------------------------- softmax and its logarithm


def _along(formula: str, given: Given, options: tuple[Any, ...]) -> Pose:
    """Of one shape, over one axis."""
    (axis,) = options
    x = given.storages[0]
    axis = integer(axis, "axis")
    for at, other in enumerate(given.storages):
        if other.shape != x.shape:
            raise ValueError(f"{given.words(0)} and {given.words(at)}; they must have one shape")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis} and {given.words(0)}; allowed is {-x.ndim} to {x.ndim - 1}")
    result = Result(x.shape, given.dtypes[0], like=0)  # type: ignore[arg-type]
    return reduction.pose(SoftmaxProblem, given, formula, x.shape, (axis % x.ndim,), [result], {})


def _of_axis(name: str, inputs: tuple[str, ...]) -> Primitive:
    def definition(values: Any, options: Any, numbers: Any) -> Any:
        return getattr(reference, name)(*values, *options)

    return Primitive(name, inputs, functools.partial(_along, name), definition, exact=inputs, required=len(inputs))


_softmax = _of_axis("softmax", ("x",))
_log_softmax = _of_axis("log_softmax", ("x",))
_hardmax = _of_axis("hardmax", ("x",))
_softmax_backward = _of_axis("softmax_backward", ("dy", "y"))
_log_softmax_backward = _of_axis("log_softmax_backward", ("dy", "y"))


def softmax(x: Any, *, axis: int = -1, out: Any = None) -> Any:
    """Turn rows of scores into probabilities: ``y = exp(x - max x) / sum exp(x - max x)`` along an axis.

    Args:
        x: any shape of at least one dimension and any strides; float64, float32, float16 or bfloat16, the last two
            computed in float32.
        axis: along which the results sum to 1.
        out: where y goes; it may be x itself, and otherwise shares no memory with x.

    Returns:
        y, of x's shape, dtype and library; a new array lies in memory as x does. A row that holds NaN or +inf, or
        nothing but -inf, is NaN, as in torch.

    Raises:
        TypeError: integers, or an axis that is none.
        ValueError: an axis that x does not have; an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softmax(np.float32([[0, 0, 0, 0], [0, -np.inf, 0, -np.inf]]))
        array([[0.25, 0.25, 0.25, 0.25],
               [0.5 , 0.  , 0.5 , 0.  ]], dtype=float32)

    References:
        ONNX Softmax; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018 (solver ``online``).
    """
    return _softmax.run((x,), (axis,), (), out)


_gradient = documented("""
Args:
    dy: the gradient of y.
    y: the result of the forward pass, of dy's shape and dtype.
    axis: that of the forward pass.
    out: where dx goes; it may be dy or y.

Returns:
    dx, as `softmax` gives y.

Raises:
    TypeError: integers, mixed dtypes or libraries.
    ValueError: shapes that differ, an axis that they do not have, an `out` that overlaps.
""")


@_gradient
def softmax_backward(dy: Any, y: Any, *, axis: int = -1, out: Any = None) -> Any:
    """Gradient of `softmax`: ``dx = y * (dy - sum(dy * y))`` along an axis.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softmax_backward(np.float32([1, 0]), np.float32([0.5, 0.5]))
        array([ 0.25, -0.25], dtype=float32)
    """
    return _softmax_backward((dy, y), (axis,), (), out)


def log_softmax(x: Any, *, axis: int = -1, out: Any = None) -> Any:
    """Logarithms of probabilities from rows of scores: ``y = x - max x - log(sum exp(x - max x))`` along an axis.

    Args:
        x: as of `softmax`.
        axis: along which exp(y) sums to 1.
        out: where y goes; it may be x itself.

    Returns:
        y, as `softmax` gives it.

    Raises:
        TypeError: integers, or an axis that is none.
        ValueError: an axis that x does not have; an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.log_softmax(np.float64([7.0, 7.0])).round(4)
        array([-0.6931, -0.6931])

    References:
        ONNX LogSoftmax.
    """
    return _log_softmax.run((x,), (axis,), (), out)


def hardmax(x: Any, *, axis: int = -1, out: Any = None) -> Any:
    """Mark the largest element of each row: ``y = 1 where x is its first maximum along an axis, else 0``.

    Args:
        x: as of `softmax`. The first NaN counts as the largest.
        axis: along which one result is 1.
        out: where y goes; it may be x itself.

    Returns:
        y, as `softmax` gives it.

    Raises:
        TypeError: integers, or an axis that is none.
        ValueError: an axis that x does not have; an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hardmax(np.float32([2, 7, 7]))
        array([0., 1., 0.], dtype=float32)

    References:
        ONNX Hardmax.
    """
    return _hardmax((x,), (axis,), (), out)


@_gradient
def log_softmax_backward(dy: Any, y: Any, *, axis: int = -1, out: Any = None) -> Any:
    """Gradient of `log_softmax`: ``dx = dy - exp(y) * sum(dy)`` along an axis.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.log_softmax_backward(np.float64([1, 0]), np.log([0.5, 0.5])).round(6)
        array([ 0.5, -0.5])
    """
    return _log_softmax_backward((dy, y), (axis,), (), out)


PROBLEMS = problems(
    softmax, softmax_backward, log_softmax, log_softmax_backward, hardmax,
    softmax_cross_entropy, softmax_cross_entropy_backward, nll_loss, nll_loss_backward,
)  # fmt: skip
EXAMPLES = {"softmax": example_call}
