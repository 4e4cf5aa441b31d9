"""Local response normalisation: `lrn` and its gradient."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbaprims.ops import examples
from numbaprims.ops._lrn_problem import Five, LrnProblem
from numbaprims.ops._numbers import finite
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems
from numbaprims.reference import lrn as reference
from numbaprims.shapes import channels_last, element_strides

MODES = ("across_channels", "within_channel")


def _five(values: tuple[int, ...], last: bool, fill: int) -> Five:
    """Numbers of an array's dimensions over (n, c, d, h, w)."""
    if last:
        values = (values[0], values[-1], *values[1:-1])
    return (*values[:2], *(fill,) * (5 - len(values)), *values[2:])  # type: ignore[return-value]


def reach(rank: int, size: int, before: int, mode: str) -> tuple[Five, Five]:
    """How far a window of a tensor of `rank` dimensions goes to smaller and to larger indices of (n, c, d, h, w)."""
    window = (False, True, False, False, False)
    if mode != MODES[0]:
        window = (False, False, rank > 4, rank > 3, rank > 2)
    low = tuple(before if there else 0 for there in window)
    high = tuple(size - 1 - before if there else 0 for there in window)
    return low, high  # type: ignore[return-value]


def _pose(direction: str, given: Given, options: tuple[Any, ...]) -> Pose:
    size, before, mode, layout = options
    x = given.storages[-1]
    if not 3 <= x.ndim <= 5:
        raise ValueError(f"{given.words(len(given.arrays) - 1)}; lrn takes one to three dimensions beside N and C")
    last = channels_last(layout, x.ndim - 2)
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; allowed are {', '.join(MODES)}")
    for name, number, least in (("size", size, 1), ("before", before, 0)):
        if number < least:
            raise ValueError(f"{name} is {number!r}; it must be an integer of {least} at least")
    if before >= size:
        raise ValueError(f"before is {before}; of a window of {size} at most {size - 1} elements lie before its own")
    if given.storages[0].shape != x.shape:
        raise ValueError(f"{given.words(0)} and {given.words(1)}; they must have one shape")
    low, high = reach(x.ndim, size, before, mode)

    def problem(made: Any) -> LrnProblem:
        arrays = (*made, *given.storages)
        strides = tuple(_five(element_strides(each), last, 0) for each in arrays)
        shape = _five(x.shape, last, 1)
        return LrnProblem(direction, given.dtypes[0], shape, low, high, _layout(shape, strides), strides)  # type: ignore[arg-type]

    return Pose((Result(x.shape, given.dtypes[0], like=len(given.arrays) - 1),), problem)  # type: ignore[arg-type]


def _layout(size: Five, strides: tuple[Five, ...]) -> str:
    """What lies innermost in every array."""

    def contiguous(order: tuple[int, ...]) -> bool:
        for steps in strides:
            step = 1
            for axis in order:
                if size[axis] > 1 and steps[axis] != step:
                    return False
                step *= size[axis]
        return True

    if contiguous((4, 3, 2)):
        return "channels_first"
    return "channels_last" if contiguous((1, 4, 3, 2)) else "strided"


def _define(direction: str, values: Any, options: Any, numbers: Any) -> Any:
    size, before, mode, layout = options
    last = channels_last(layout, values[0].ndim - 2)
    arrays = [np.moveaxis(x, -1, 1) if last else x for x in values]
    low, high = reach(values[0].ndim, size, before, mode)
    axes = [axis - (5 - values[0].ndim) * (axis > 1) for axis in range(5) if low[axis] or high[axis]]
    alpha, beta, k = numbers
    a = alpha / float(size) ** (1 if mode == MODES[0] else values[0].ndim - 2)
    found = getattr(reference, direction)(*arrays, axes, before, size - 1 - before, a, beta, k)
    return np.moveaxis(found, 1, -1) if last else found


_lrn = Primitive(
    "lrn", ("x",), functools.partial(_pose, "forward"), functools.partial(_define, "forward")
)  # fmt: skip
_lrn_backward = Primitive(
    "lrn_backward", ("dy", "x"), functools.partial(_pose, "backward"), functools.partial(_define, "backward"),
    required=2,
)  # fmt: skip


def _said(size: Any, alpha: Any, beta: Any, k: Any, mode: Any, before: Any, layout: str) -> Any:
    """(options, numbers) of a call."""
    size = integer(size, "size")
    before = size // 2 if before is None else integer(before, "before")
    return (size, before, mode, layout), (finite(alpha, "alpha"), finite(beta, "beta"), finite(k, "k"))


def lrn(
    x: Any,
    size: int,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    mode: str = "across_channels",
    before: int | None = None,
    layout: str = "NCHW",
    out: Any = None,
) -> Any:
    """Divide each element by the energy around it: ``y = x / (k + alpha / m sum x**2)**beta``, sums over windows.

    A window of `size` goes over neighbouring channels (`mode` "across_channels", m = size), or over the pixels around
    an element in its own channel ("within_channel", m = size**d of d dimensions); what would lie outside is zero.

    Args:
        x: (N, C, ...) of one to three dimensions beside N and C, or (N, ..., C) with `layout` "NHWC"; any strides;
            float64, float32, float16 or bfloat16, the last two computed in float32.
        size: of a window.
        alpha, beta, k: the factor of the sum, the exponent, and what is added to the sum.
        mode: "across_channels" or "within_channel".
        before: how many elements of a window lie before its own, by default size // 2, as in torch; ONNX has
            (size - 1) // 2, which is another one for even sizes.
        layout: "NCHW" or "NHWC", at any rank.
        out: where y goes; it shares no memory with x.

    Returns:
        y, of x's shape, dtype and library; a new array lies in memory as x does. Where k + alpha / m sum x**2 is
        negative, y is NaN.

    Raises:
        TypeError: integers in x, a size that is none, factors that are no numbers.
        ValueError: a size below 1, factors that are not finite, an unknown mode or layout; an `out` of another shape,
            or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.float32([[[3], [4], [0]]])
        >>> numbaprims.lrn(x, 3, alpha=3, beta=0.5, k=0).ravel()
        array([0.6, 0.8, 0. ], dtype=float32)

    References:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural networks, 2012,
        section 3.3; ONNX LRN; both modes as MIOpen's.
    """
    options, numbers = _said(size, alpha, beta, k, mode, before, layout)
    return _lrn.run((x,), options, numbers, out)


def lrn_backward(
    dy: Any,
    x: Any,
    size: int,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    mode: str = "across_channels",
    before: int | None = None,
    layout: str = "NCHW",
    out: Any = None,
) -> Any:
    """Gradient of `lrn`: ``dx_i = dy_i s_i**-beta - 2 alpha beta / m x_i sum_j dy_j x_j s_j**(-beta - 1)``.

    s is k + alpha / m sum x**2 of `lrn`; the sum goes over the elements j whose window holds i.

    Args:
        dy: the gradient of y, of its shape.
        x: what was normalised.
        size, alpha, beta, k, mode, before, layout: those of `lrn`.
        out: where dx goes; it shares no memory with dy and x.

    Returns:
        dx, of x's shape, dtype and library, in x's order in memory.

    Raises:
        TypeError: as of `lrn`; mixed dtypes or libraries.
        ValueError: as of `lrn`; shapes that differ.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.float32([[[3], [4]]])
        >>> numbaprims.lrn_backward(np.ones_like(x), x, 3, alpha=3, beta=0.5, k=0).ravel()
        array([ 0.032, -0.024], dtype=float32)

    References:
        The chain rule; MIOpen's and Caffe's LRN layers compute the same.
    """
    options, numbers = _said(size, alpha, beta, k, mode, before, layout)
    return _lrn_backward.run((dy, x), options, numbers, out)


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem
    # dimensions of one element and no windows in front are not there
    lead = next((d for d in (2, 3) if p.size[d] > 1 or p.before[d] or p.after[d]), 4)
    sizes = (*p.size[:2], *p.size[lead:])
    last = p.layout != "channels_first"
    shape = (sizes[0], *sizes[2:], sizes[1]) if last else sizes
    across = not any((*p.before[2:], *p.after[2:]))
    axis = 1 if across else 4
    words = {
        "mode": MODES[0] if across else MODES[1], "layout": "NHWC" if last else "NCHW", "before": p.before[axis],
    }  # fmt: skip

    def make() -> Any:
        if p.layout == "strided":
            return examples.array((*shape[:-1], 2 * shape[-1] + 2), p.dtype)[..., :-2:2]
        return examples.array(shape, p.dtype)

    name, arrays = ("lrn", [make()]) if p.direction == "forward" else ("lrn_backward", [make(), make()])
    return name, (*arrays, p.before[axis] + p.after[axis] + 1), words


PROBLEMS = problems(lrn, lrn_backward)
EXAMPLES = {"lrn": _example_call}
