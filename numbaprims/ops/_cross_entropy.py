"""Losses on classes: `softmax_cross_entropy` of scores, `nll_loss` of log-probabilities, and their gradients.

The losses of rows and their reduction are two launches, as are what a row counts in the gradient and the gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dtypes import DTYPES
from numbaprims.ops import examples, reduction
from numbaprims.ops._softmax_problem import SoftmaxProblem
from numbaprims.ops.gemv import scalar
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, word
from numbaprims.reference import softmax as reference

REDUCTIONS = ("mean", "sum", "none")
CLASSES = ("i64", "i32")


# ---------------------------------------------------------------- losses of rows


def _rows(given: Given, options: tuple[Any, ...]) -> Pose:
    """Of "cross_entropy" and "nll_loss": losses, what each counts in a mean, tops, sums of exponentials below them."""
    name, backward, exact, smooth = options
    x, target, weight = given.storages[:3]
    if x.ndim < 2:
        raise ValueError(f"{given.words(0)}; it must be (N, C), or have further dimensions behind the classes")
    rows, classes = (x.shape[0], *x.shape[2:]), x.shape[1]
    soft = name == "cross_entropy" and given.dtypes[1] not in CLASSES
    if soft and (given.dtypes[1] != given.dtypes[0] or target.shape != x.shape):
        raise TypeError(f"{given.words(1)}; it must be int64 or int32 classes, or probabilities of x's shape and dtype")
    if not soft and given.dtypes[1] not in CLASSES:
        raise TypeError(f"{given.words(1)}; it must hold int64 or int32 classes")
    if not soft and target.shape != rows:
        raise ValueError(f"{given.words(1)} and {given.words(0)}; the classes must have shape {rows}")
    if weight is not None and (weight.shape != (classes,) or given.dtypes[2] != given.dtypes[0]):
        raise ValueError(f"{given.words(2)} and {given.words(0)}; it must be ({classes},) of x's dtype")
    one, along = (x.shape[0], 1, *x.shape[2:]), (classes, *(1,) * (x.ndim - 2))
    views = dict.fromkeys(("loss", "count", "top", "sum", "g"), one) | {"weight": along}
    if not soft:
        views["target"] = one
    dtype: str = given.dtypes[0]  # type: ignore[assignment]
    formula = name + ("_soft" if soft else "_smooth" if smooth else "") + ("_weighted" if weight is not None else "")
    if backward:
        if given.storages[5].shape not in ((), rows):
            raise ValueError(f"dy is a {arrays.describe(given.arrays[5])}; the loss has shape {rows}")
        if given.storages[5].shape == ():
            views["g"] = (1,) * x.ndim
        formula += "_backward"
        results = [Result(x.shape, dtype, like=0)]
    else:
        sums = DTYPES[dtype].accumulate
        names = ("loss", "count", "top", "sum")[: 2 if name == "nll_loss" else 4]
        # what is summed up afterwards is not rounded before
        results = [Result(rows, dtype if word == "loss" and exact else sums) for word in names]
    return reduction.pose(SoftmaxProblem, given, formula, x.shape, (1,), results, views)


def _define_rows(values: Any, options: Any, numbers: Any) -> Any:
    name, backward, *_ = options
    x, target, weight = values[:3]
    smoothing, ignore = (0.0, *numbers) if name == "nll_loss" else (*numbers, 0.0)[:2]
    factors, counted = reference.targets(x, target, weight, ignore, smoothing)
    logs = reference.log_softmax(x, 1) if name == "cross_entropy" else x
    if backward:
        dx = np.where(factors == 0, 0.0, -factors * np.expand_dims(values[5] * np.ones(counted.shape), 1))
        return dx if name == "nll_loss" else reference.log_softmax_backward(dx, logs, 1)
    loss = reference.rows_of(logs, factors)
    if name == "nll_loss":
        return loss, counted
    top = x.max(1, keepdims=True, initial=-np.inf)
    return loss, counted, top.squeeze(1), np.exp(x - top).sum(1)


_INPUTS = ("x", "target", "weight", "top", "sum", "g")
_losses = Primitive(
    "softmax_cross_entropy", _INPUTS[:3], _rows, _define_rows, others=("target", "weight"), required=2
)  # fmt: skip
_gradients = Primitive(
    "softmax_cross_entropy_backward", _INPUTS, _rows, _define_rows,
    others=_INPUTS[1:], exact=("x",), required=2,
)  # fmt: skip


# ---------------------------------------------------------------- what a reduction makes of them


def _whole(formula: str, given: Given, options: tuple[Any, ...]) -> Pose:
    """One number of all rows."""
    (dtype,) = options
    rows = given.storages[-1]
    views = dict.fromkeys(("sum", "mean", "g", "dy"), (1,) * rows.ndim)
    results = [Result((), dtype)]
    return reduction.pose(SoftmaxProblem, given, formula, rows.shape, tuple(range(rows.ndim)), results, views)


def _of_all(formula: str, inputs: tuple[str, ...], definition: Any) -> Primitive:
    def define(values: Any, options: Any, numbers: Any) -> Any:
        return np.asarray(definition(*values))

    return Primitive(formula, inputs, functools.partial(_whole, formula), define, others=inputs[1:])


_total = _of_all("total", ("x",), np.sum)
_weighted_mean = _of_all("weighted_mean", ("x", "count"), lambda x, count: x.sum() / np.float64(count.sum()))
_mean_backward = _of_all("weighted_mean_backward", ("dy", "count"), lambda dy, count: dy / np.float64(count.sum()))


def total(x: Any, dtype: str) -> Any:
    """The sum of losses."""
    return _total((x,), (dtype,))


#: Formula -> the call of it.
WHOLE = {
    "total": total,
    "weighted_mean": lambda x, count, dtype: _weighted_mean((x, count), (dtype,)),
    "weighted_mean_backward": lambda dy, count, dtype: _mean_backward((dy, count), (dtype,)),
}


def example(
    problem: Any, made: reduction.Example, operands: dict[str, tuple[str, str]]
) -> tuple[str, tuple[Any, ...], Any]:
    """A call that poses the losses of rows, or their gradient."""
    (axis,) = made.axes
    dtypes = {name: dtype for name, (_, dtype) in operands.items()}

    def rows(dtype: str, **bounds: float) -> Any:
        """Classes along axis 1, whatever lies where."""
        return made.permuted([axis, *(other for other in range(len(made.shape)) if other != axis)], dtype, **bounds)[
            None
        ]

    x = rows(problem.dtype)
    shape = (1, *x.shape[2:])
    if "x" not in operands and problem.layout == "strided":
        x = examples.array(tuple(x.shape), problem.dtype)  # what lies apart is the target
    words: dict[str, Any] = {"reduction": "none" if "loss:one:" + problem.dtype in problem.results else "sum"}
    if dtypes.get("target") in CLASSES:
        count = max(1, x.shape[1])
        spread = np.arange(int(np.prod(shape))) * 7 % count
        target = spread.reshape(shape).astype(np.int64 if dtypes["target"] == "i64" else np.int32)
        if problem.layout == "strided" or "x" not in operands:  # then it is the target that keeps dimensions apart
            step = 2 if problem.layout == "strided" else 1
            spaced = np.zeros([step * size + 2 for size in shape], target.dtype)
            spaced = spaced[tuple(slice(0, step * size, step) for size in shape)]
            spaced[...] = target
            target = spaced
    else:
        target = rows(problem.dtype, low=0.0)
    if "weight" in dtypes:
        words["weight"] = examples.array((x.shape[1],), problem.dtype, low=0.5)
    name = problem.formula.removesuffix("_backward").removesuffix("_weighted").removesuffix("_soft")
    if name.endswith("_smooth"):
        name, words["label_smoothing"] = name.removesuffix("_smooth"), 0.1
    public = {"cross_entropy": "softmax_cross_entropy", "nll_loss": "nll_loss"}[name]
    if not problem.formula.endswith("_backward"):
        return public, (x, target), words
    words["reduction"] = "none"
    if operands["g"][0] == "flat":
        words["reduction"] = "sum" if dtypes["g"] == problem.dtype and name == "nll_loss" else "mean"
    dy = examples.array(() if operands["g"][0] == "flat" else shape, problem.dtype)
    return f"{public}_backward", (dy, x, target), words


def _check(
    name: str, x: Any, target: Any, reduction: str, ignore_index: Any, label_smoothing: Any
) -> tuple[float, ...]:
    """The numbers that the formula takes, smoothing and ignored class: of probabilities none is ignored."""
    word(reduction, "reduction", REDUCTIONS)
    smoothing, ignore = scalar(label_smoothing, "label_smoothing"), scalar(ignore_index, "ignore_index")
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {smoothing}; it must be between 0 and 1")
    classes, dtype, _ = arrays.enter(target, "target")
    shape = arrays.enter(x, "x")[0].shape
    if dtype in CLASSES and isinstance(classes, np.ndarray) and classes.size and len(shape) > 1:
        # without its sign what is negative is larger too; the exact test where one of them may be the ignored class
        if np.maximum.reduce(classes.view(f"u{classes.itemsize}"), axis=None) >= shape[1]:
            wrong = (classes != ignore) & ((classes < 0) | (classes >= shape[1]))
            if wrong.any():
                raise ValueError(f"target holds {int(classes[wrong][0])}; x has classes from 0 to {shape[1] - 1}")
    if name == "nll_loss":
        return (ignore,)
    return (smoothing, ignore) if dtype in CLASSES else (smoothing,)


def forward(
    name: str, x: Any, target: Any, weight: Any, ignore_index: Any, label_smoothing: Any, reduction: str
) -> tuple[Any, ...]:
    """(loss, and what `backward` needs not compute again) of "cross_entropy" or "nll_loss"."""
    numbers = _check(name, x, target, reduction, ignore_index, label_smoothing)
    loss, *saved = _losses.run((x, target, weight), (name, False, reduction == "none", bool(label_smoothing)), numbers)
    if reduction != "none":
        options = (arrays.enter(x, "x")[1],)
        loss = total(loss, *options) if reduction == "sum" else _weighted_mean((loss, saved[0]), options)
    return loss, *saved


def backward(
    name: str, dy: Any, x: Any, target: Any, weight: Any, ignore_index: Any, label_smoothing: Any, reduction: str,
    out: Any = None, saved: Any = None,
) -> Any:  # fmt: skip
    """dx; `saved` is what `forward` gave behind the loss."""
    numbers = _check(name, x, target, reduction, ignore_index, label_smoothing)
    g, of_exponentials = dy, (None, None)
    given = arrays.enter(dy, "dy")[0]
    if out is not None:
        arrays.check_overlap(arrays.enter(out, "out")[0], [(given, "dy", False)])
    if reduction != "none" and given.shape != ():
        raise ValueError(f"dy is a {arrays.describe(dy)}; with reduction={reduction!r} the loss has shape ()")
    if name == "cross_entropy" or reduction == "mean":
        counted, *more = saved or _losses.run((x, target, weight), (name, False, True, False), numbers)[1:]
        of_exponentials = more or of_exponentials
        if reduction == "mean":
            g = _mean_backward((dy, counted), (DTYPES[arrays.enter(x, "x")[1]].accumulate,))
    return _gradients.run((x, target, weight, *of_exponentials, g), (name, True, True, False), numbers, out)


# ---------------------------------------------------------------- the public functions


def softmax_cross_entropy(
    x: Any, target: Any, *, weight: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """Cross entropy of scores: with ``p = softmax(x)`` along axis 1, ``loss = -sum_c q_c weight_c log p_c`` a row.

    ``q`` is 1 for the target's class, or the target's probabilities, of which `label_smoothing` spreads a part evenly
    over all classes: ``q = (1 - s) q + s / C``.

    Args:
        x: scores (N, C), or (N, C, d1, ...); float64, float32, float16 or bfloat16.
        target: classes (N, d1, ...) of int64 or int32; or probabilities of x's shape and dtype.
        weight: (C,), a factor for each class; None for ones.
        ignore_index: rows with this class count nothing.
        label_smoothing: from 0 to 1.
        reduction: "mean", the sum of losses by the sum of the weights of their targets (of soft targets: by the number
            of rows); "sum"; or "none".

    Returns:
        The loss, of x's dtype and library: shape (), or with reduction="none" (N, d1, ...). The mean of no row that
        counts is NaN.

    Raises:
        TypeError: integers as x, a target or weight of another dtype, mixed libraries.
        ValueError: shapes that do not fit, classes that x does not have (looked for on the CPU), an unknown reduction.

    Example:
        >>> import numpy as np, numbaprims
        >>> float(numbaprims.softmax_cross_entropy(np.zeros((3, 2)), np.array([0, 1, 1])).round(6))
        0.693147

    References:
        ONNX SoftmaxCrossEntropyLoss; torch.nn.functional.cross_entropy.
    """
    return forward("cross_entropy", x, target, weight, ignore_index, label_smoothing, reduction)[0]


def softmax_cross_entropy_backward(
    dy: Any, x: Any, target: Any, *, weight: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    reduction: str = "mean", out: Any = None,
) -> Any:  # fmt: skip
    """Gradient of `softmax_cross_entropy`: ``dx_c = g (p_c sum_k q_k weight_k - q_c weight_c)`` a row.

    Args:
        dy: the gradient of the loss, of its shape; ``g`` is dy, divided as the loss was.
        x, target, weight, ignore_index, label_smoothing, reduction: those of the loss.
        out: where dx goes; it may be x.

    Returns:
        dx, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `softmax_cross_entropy`; a dy of another shape, an `out` that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.softmax_cross_entropy_backward(np.ones(()), np.zeros((1, 2)), np.array([1]))
        array([[ 0.5, -0.5]])
    """
    return backward("cross_entropy", dy, x, target, weight, ignore_index, label_smoothing, reduction, out)


def nll_loss(x: Any, target: Any, *, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """Negative log-likelihood of log-probabilities: ``loss = -weight[target] x[target]`` a row.

    Args:
        x: log-probabilities (N, C), or (N, C, d1, ...), as `log_softmax` gives them along axis 1.
        target: classes (N, d1, ...) of int64 or int32.
        weight, ignore_index, reduction: as of `softmax_cross_entropy`.

    Returns:
        The loss, as `softmax_cross_entropy` gives it.

    Raises:
        TypeError, ValueError: as `softmax_cross_entropy`.

    Example:
        >>> import numpy as np, numbaprims
        >>> float(numbaprims.nll_loss(np.log([[0.25, 0.75]]), np.array([1])).round(6))
        0.287682

    References:
        ONNX NegativeLogLikelihoodLoss; torch.nn.functional.nll_loss.
    """
    return forward("nll_loss", x, target, weight, ignore_index, 0.0, reduction)[0]


def nll_loss_backward(
    dy: Any, x: Any, target: Any, *, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    out: Any = None,
) -> Any:  # fmt: skip
    """Gradient of `nll_loss`: ``dx_c = -g weight_c`` for the target's class, else 0.

    Args:
        dy: the gradient of the loss, of its shape; ``g`` is dy, divided as the loss was.
        x, target, weight, ignore_index, reduction: those of the loss; of x only shape and dtype are looked at.
        out: where dx goes.

    Returns:
        dx, of x's shape, dtype and library.

    Raises:
        TypeError, ValueError: as `softmax_cross_entropy_backward`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.nll_loss_backward(np.ones(()), np.zeros((1, 2)), np.array([1]))
        array([[ 0., -1.]])
    """
    return backward("nll_loss", dy, x, target, weight, ignore_index, 0.0, reduction, out)
