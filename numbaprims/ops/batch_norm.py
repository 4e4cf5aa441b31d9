"""Batch normalisation: `batch_norm` with given statistics, `batch_norm_train` with those of the batch, its gradient."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from numbaprims.dtypes import DTYPES, LONG_NAMES
from numbaprims.formulas.stacks import ENDING
from numbaprims.ops import examples, reduction
from numbaprims.ops._ending import define_ending, define_gradient, ending_of, named_ending
from numbaprims.ops._numbers import finite
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems
from numbaprims.reference import batch_norm as reference
from numbaprims.shapes import channels_last

MODES = ("spatial", "per_activation")


@dataclasses.dataclass(frozen=True)
class BatchNormProblem(reduction.Reduction):
    """A formula of this module: statistics of a channel, or of an element of a sample, over the batch."""

    stem: ClassVar[str] = "batch_norm"

    def bench_command(self) -> str:
        kind = next((word for word in ("backward", "train") if word in self.formula), "inference")
        along = self.formula.startswith("batch_norm_along")  # of rows of channels
        layout = "NHWC" if along or self.layout == "across" else "NCHW"
        channels = self.n if along else self.kept[-1]
        positions = self.reduced[-1] if layout == "NCHW" else 1
        shape = f"{self.rows * self.n // max(1, channels * positions)}x{channels}x{positions}x1"
        return f"numbaprims bench batch_norm --kind {kind} --shapes {shape} --dtype {self.dtype} --layout {layout}"


class _Shapes:
    """What a mode and a layout make of the shape of x."""

    def __init__(self, given: Given, options: tuple[Any, ...], first: int = 0) -> None:
        mode, layout, self.ending = (*options, "")[:3]
        x = given.storages[first]
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
        if not 2 <= x.ndim <= 5:
            raise ValueError(f"{given.words(first)}; batch norm takes (N, C) and up to three dimensions behind C")
        last = channels_last(layout, max(x.ndim - 2, 1))
        self.shape: tuple[int, ...] = x.shape
        if mode == "per_activation":
            self.parameter: tuple[int, ...] = (1, *x.shape[1:])
            self.view = self.parameter
            self.axes: tuple[int, ...] = (0,)
            self.inner = tuple(range(1, x.ndim))
            self.along = True
        else:
            channel = x.ndim - 1 if last else 1
            self.parameter = (x.shape[channel],)
            self.view = tuple(n if axis == channel else 1 for axis, n in enumerate(x.shape))
            self.axes = tuple(axis for axis in range(x.ndim) if axis != channel)
            # at inference the rows are what one parameter is for, or the channels where they lie side by side
            self.along = channel == x.ndim - 1
            self.inner = (channel,) if self.along else tuple(range(2, x.ndim))
        self.dtype: str = given.dtypes[first]  # type: ignore[assignment]
        self.statistics = DTYPES[self.dtype].accumulate

    def ended(self, formula: str) -> str:
        """The formula, with the activation of its result."""
        return f"{formula}{ENDING}{self.ending}" if self.ending else formula

    def check(self, given: Given, names: tuple[str, ...]) -> None:
        """Shapes and dtypes of parameters and statistics."""
        for name in names:
            at = given.names.index(name)
            if given.storages[at] is None:
                continue
            if given.storages[at].shape != self.parameter:
                raise ValueError(f"{given.words(at)}; x {self.shape} takes {name} of shape {self.parameter}")
            if given.dtypes[at] not in (self.dtype, self.statistics):
                allowed = " or ".join(dict.fromkeys((LONG_NAMES[self.dtype], LONG_NAMES[self.statistics])))
                raise TypeError(f"{given.words(at)}; with x of {LONG_NAMES[self.dtype]} it must be {allowed}")


_PARAMETERS = ("scale", "shift", "mean", "var")
_RUNNING = ("running_mean", "running_var")
_SAVED = ("saved_mean", "saved_inv_std")


def _views(names: tuple[str, ...], view: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(names, view)


def _inference(given: Given, options: tuple[Any, ...]) -> Pose:
    seen = _Shapes(given, options)
    seen.check(given, _PARAMETERS)
    results = [Result(seen.shape, seen.dtype, like=0)]
    views = _views(_PARAMETERS, seen.view)
    formula = seen.ended("batch_norm_along" if seen.along else "batch_norm")
    return reduction.pose(BatchNormProblem, given, formula, seen.shape, seen.inner, results, views)


def _train(given: Given, options: tuple[Any, ...]) -> Pose:
    seen = _Shapes(given, options)
    seen.check(given, ("scale", "shift", *_RUNNING))
    if not math.prod(seen.shape[axis] for axis in seen.axes):
        raise ValueError(f"{given.words(0)}; statistics need one value at least for each channel")
    results = [Result(seen.shape, seen.dtype, like=0), *[Result(seen.parameter, seen.statistics)] * 2]
    formula = "batch_norm_train"
    if given.storages[3] is not None:
        formula = "batch_norm_train_running"
        results += [Result(seen.parameter, given.dtypes[at]) for at in (3, 4)]  # type: ignore[arg-type]
    views = _views(("scale", "shift", *_RUNNING, "mean", "inv_std", "new_mean", "new_var"), seen.view)
    return reduction.pose(BatchNormProblem, given, seen.ended(formula), seen.shape, seen.axes, results, views)


def _backward(formula: str, given: Given, options: tuple[Any, ...]) -> Pose:
    seen = _Shapes(given, options, 1)
    if given.storages[0].shape != seen.shape:
        raise ValueError(f"{given.words(0)} and {given.words(1)}; they must have one shape")
    seen.check(given, given.names[2:])
    if formula == "batch_norm_backward" and not math.prod(seen.shape[axis] for axis in seen.axes):
        raise ValueError(f"{given.words(1)}; statistics need one value at least for each channel")
    results = [Result(seen.shape, seen.dtype, like=1), *[Result(seen.parameter, given.dtypes[2])] * 2]  # type: ignore[arg-type]
    views = _views((*given.names[2:], "dscale", "dshift"), seen.view)
    return reduction.pose(BatchNormProblem, given, seen.ended(formula), seen.shape, seen.axes, results, views)


# ---------------------------------------------------------------- the definitions


def _axes(x: np.ndarray, options: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the axes of statistics, the shape in which parameters broadcast to x)."""
    mode, layout = options[:2]
    if mode == "per_activation":
        return (0,), (1, *x.shape[1:])
    channel = x.ndim - 1 if channels_last(layout, max(x.ndim - 2, 1)) else 1
    axes = tuple(axis for axis in range(x.ndim) if axis != channel)
    return axes, tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))


def _define_inference(values: Any, options: Any, numbers: Any) -> Any:
    x, *parameters = values
    view = _axes(x, options)[1]
    return define_ending(reference.batch_norm(x, *(each.reshape(view) for each in parameters), *numbers), *options[2:])


def _define_train(values: Any, options: Any, numbers: Any) -> Any:
    x, scale, shift, running_mean, running_var = values
    *momentum, eps = numbers
    axes, view = _axes(x, options)
    y, mean, inv_std, unbiased = reference.batch_norm_train(x, scale.reshape(view), shift.reshape(view), axes, eps)
    shape = scale.shape
    found = [define_ending(y, *options[2:]), mean.reshape(shape), inv_std.reshape(shape)]
    if running_mean is not None:
        for old, new in ((running_mean, mean), (running_var, unbiased)):
            found.append((1 - momentum[0]) * old + momentum[0] * new.reshape(shape))
    return tuple(found)


def _define_backward(values: Any, options: Any, numbers: Any) -> Any:
    dy, x, *parameters, shift = values
    axes, view = _axes(x, options)
    scale, mean, inv_std = (each.reshape(view) for each in parameters)
    if len(options) > 2:
        dy = define_gradient(dy, lambda: (x - mean) * inv_std * scale + shift.reshape(view), options[2])
    found = reference.batch_norm_backward(dy, x, scale, mean, inv_std, axes)
    return found[0], *(each.reshape(parameters[0].shape) for each in found[1:])


def _define_backward_fixed(values: Any, options: Any, numbers: Any) -> Any:
    dy, x, *parameters = values
    axes, view = _axes(x, options)
    scale, mean, var = (each.reshape(view) for each in parameters)
    inv_std = 1.0 / np.sqrt(var + numbers[0])
    shape = parameters[0].shape
    sums = (dy * (x - mean) * inv_std).sum(axes), dy.sum(axes)
    return dy * scale * inv_std, *(each.reshape(shape) for each in sums)


_batch_norm = Primitive(
    "batch_norm", ("x", *_PARAMETERS), _inference, _define_inference, others=_PARAMETERS, exact=("x",), required=5
)
_batch_norm_train = Primitive(
    "batch_norm_train", ("x", "scale", "shift", *_RUNNING), _train, _define_train,
    others=("scale", "shift", *_RUNNING), exact=("x",), required=3,
)  # fmt: skip
_batch_norm_backward = Primitive(
    "batch_norm_backward", ("dy", "x", "scale", *_SAVED, "shift"), functools.partial(_backward, "batch_norm_backward"),
    _define_backward, others=("scale", *_SAVED, "shift"), exact=("dy", "x"), required=5,
)  # fmt: skip
_batch_norm_backward_fixed = Primitive(
    "batch_norm_backward_fixed", ("dy", "x", "scale", "mean", "var"),
    functools.partial(_backward, "batch_norm_backward_fixed"), _define_backward_fixed,
    others=("scale", "mean", "var"), exact=("dy", "x"), required=5,
)  # fmt: skip


# ---------------------------------------------------------------- the public functions


def batch_norm(
    x: Any, scale: Any, shift: Any, mean: Any, var: Any, *, eps: float = 1e-5, mode: str = "spatial",
    layout: str = "NCHW", activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Normalise by given statistics: ``y = (x - mean) / sqrt(var + eps) * scale + shift``.

    Args:
        x: (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W), any strides; float64, float32, float16 or bfloat16, the
            last two computed in float32.
        scale, shift, mean, var: (C,) each, or with mode="per_activation" ``(1, *x.shape[1:])``; of x's dtype, or
            float32 beside halves.
        eps: added to the variance.
        mode: "spatial", a value a channel; "per_activation", one for each element of a sample.
        layout: "NCHW", or "NHWC" for channels behind the other dimensions, in any number of them.
        activation: a kind, or (kind, parameters), applied to y; those that `conv` fuses too.
        out: where y goes; it may be x itself.

    Returns:
        y, of x's shape, dtype and library; a new array lies in memory as x does.

    Raises:
        TypeError: integers, mixed libraries, parameters of another dtype.
        ValueError: an unknown mode or layout, parameters of another shape, an eps that is not finite or below 0, an
            `out` that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> one = np.ones(2, np.float32)
        >>> numbaprims.batch_norm(np.float32([[1, 2], [3, 6]]), one, 0 * one, 2 * one, one, eps=0.0)
        array([[-1.,  0.],
               [ 1.,  4.]], dtype=float32)

    References:
        Ioffe and Szegedy, Batch normalization, 2015, algorithm 2; the modes are MIOpen's (Khan et al., 2019, IV.B).
    """
    numbers = (finite(eps, "eps", 0.0),)
    if activation is None:
        return _batch_norm.run((x, scale, shift, mean, var), (mode, layout), numbers, out)
    return _batch_norm.run((x, scale, shift, mean, var), (mode, layout, ending_of(activation)), numbers, out)


def batch_norm_train(
    x: Any, scale: Any, shift: Any, running_mean: Any = None, running_var: Any = None, *, momentum: float = 0.1,
    eps: float = 1e-5, mode: str = "spatial", layout: str = "NCHW", activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Normalise by the statistics of the batch: ``y = (x - mean x) / sqrt(var x + eps) * scale + shift``.

    ``running = (1 - momentum) * running + momentum * statistic``, of the unbiased variance as in torch. Statistics
    are exact for data far from 0 (mean 1e4, standard deviation 1).

    Args:
        x: as of `batch_norm`.
        scale, shift: (C,), or with mode="per_activation" ``(1, *x.shape[1:])``.
        running_mean, running_var: of the same shape, both or neither; they are not changed.
        momentum: what the batch's statistics count in the running ones.
        eps: added to the variance.
        mode: "spatial" for statistics of a channel over N and all positions; "per_activation" for those of each
            element of a sample over N.
        layout: "NCHW", or "NHWC" for channels behind the other dimensions.
        activation: a kind, or (kind, parameters), applied to y; those that `conv` fuses too.
        out: where y goes; it may be x itself.

    Returns:
        (y, mean, inv_std), with running statistics (y, mean, inv_std, running_mean, running_var): y as of
        `batch_norm`; mean and ``inv_std = 1 / sqrt(var + eps)`` are what `batch_norm_backward` takes (float32 beside
        halves).

    Raises:
        TypeError: integers, mixed libraries, parameters of another dtype.
        ValueError: an unknown mode or layout, parameters of another shape, one running statistic without the other,
            numbers as of `batch_norm`, nothing to take statistics of, an `out` that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> one = np.ones(2, np.float32)
        >>> y, mean, inv_std = numbaprims.batch_norm_train(np.float32([[1, 2], [3, 6]]), one, 0 * one, eps=0.0)
        >>> y, mean, inv_std
        (array([[-1., -1.],
               [ 1.,  1.]], dtype=float32), array([2., 4.], dtype=float32), array([1. , 0.5], dtype=float32))

    References:
        Ioffe and Szegedy, Batch normalization, 2015, algorithm 1; Chan, Golub and LeVeque, Updating formulae and a
        pairwise algorithm for computing sample variances, 1979.
    """
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var: give both, or neither")
    numbers: tuple[float, ...] = (finite(eps, "eps", 0.0),)
    if running_mean is not None:
        numbers = (finite(momentum, "momentum"), *numbers)
    options = (mode, layout) if activation is None else (mode, layout, ending_of(activation))
    return _batch_norm_train.run((x, scale, shift, running_mean, running_var), options, numbers, out)


def batch_norm_backward(
    dy: Any, x: Any, scale: Any, saved_mean: Any, saved_inv_std: Any, shift: Any = None, *, mode: str = "spatial",
    layout: str = "NCHW", activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Gradients of `batch_norm_train`: with ``h = (x - mean) * inv_std`` and means over the batch,
    ``dx = scale * inv_std * (dy - mean(dy) - h * mean(dy * h))``, ``dscale = sum(dy * h)``, ``dshift = sum(dy)``.

    Args:
        dy: the gradient of y, of x's shape and dtype.
        x: that of the forward call.
        scale: the same.
        saved_mean, saved_inv_std: what `batch_norm_train` gave.
        shift: that of the forward call; read with an activation only, which it is then needed for.
        mode, layout: the same.
        activation: that of the forward call: dy is then the gradient of what it gave, which is not read but computed
            again from x.
        out: where dx goes; it may be dy or x.

    Returns:
        (dx, dscale, dshift), the last two of scale's shape and dtype.

    Raises:
        TypeError: integers, mixed libraries, parameters of another dtype.
        ValueError: as `batch_norm_train`; an activation without a shift.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, one = np.float32([[1], [3]]), np.ones(1, np.float32)
        >>> dx, dscale, dshift = numbaprims.batch_norm_backward(np.float32([[1], [2]]), x, one, 2 * one, one)
        >>> dx.ravel(), dscale, dshift
        (array([0., 0.], dtype=float32), array([1.], dtype=float32), array([3.], dtype=float32))

    References:
        Ioffe and Szegedy, Batch normalization, 2015, section 3.
    """
    ending = "" if activation is None else ending_of(activation)
    if not ending:
        return _batch_norm_backward.run((dy, x, scale, saved_mean, saved_inv_std, None), (mode, layout), (), out)
    if shift is None:
        raise ValueError("shift is None; with an activation it must be that of the forward call")
    return _batch_norm_backward.run((dy, x, scale, saved_mean, saved_inv_std, shift), (mode, layout, ending), (), out)


def batch_norm_backward_fixed(
    dy: Any, x: Any, scale: Any, mean: Any, var: Any, *, eps: float = 1e-5, mode: str = "spatial",
    layout: str = "NCHW", out: Any = None,
) -> Any:  # fmt: skip
    """(dx, dscale, dshift) of `batch_norm`, whose mean and variance do not follow x: what autograd takes of a network
    in inference mode.  Arguments are those of `batch_norm` and dy."""
    return _batch_norm_backward_fixed.run((dy, x, scale, mean, var), (mode, layout), (finite(eps, "eps", 0.0),), out)


def _example_call(problem: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    formula, _, ending = problem.formula.partition(ENDING)
    made = reduction.Example(problem)
    dtypes = {name: dtype for name, _, dtype in (word.split(":") for word in problem.inputs)}
    kept = [axis for axis in range(len(made.shape)) if axis not in made.axes]
    along = formula == "batch_norm_along"
    parameters = list(made.axes) if along else kept
    others = kept if along else list(made.axes)
    words: dict[str, Any] = {}
    if ending:
        words["activation"] = named_ending(problem.formula)
    if formula == "batch_norm":
        order, parameters = [*kept, *made.axes], kept[-1:]
    elif len(parameters) > 1:
        order, words["mode"] = [*others, *parameters], "per_activation"
    elif along:
        order, words["layout"] = [*others, *parameters], "NHWC"
    else:
        order = [others[0], *parameters, *others[1:]]
    shape = tuple(made.shape[axis] for axis in parameters)
    if "mode" in words:
        shape = (1, *shape)

    def rows() -> Any:
        x = made.permuted(order, problem.dtype)
        return x[None] if formula == "batch_norm" and len(kept) == 1 else x

    def parameter(name: str) -> Any:
        return examples.array(shape, dtypes.get(name, problem.dtype), low=0.5, high=2.0)

    if formula == "batch_norm_train":
        return formula, (rows(), parameter("scale"), parameter("shift")), words
    if formula == "batch_norm_train_running":
        names = ("scale", "shift", *_RUNNING)
        return "batch_norm_train", (rows(), *(parameter(name) for name in names)), words
    if formula == "batch_norm_backward":
        saved = ["scale", *_SAVED, *["shift"] * bool(ending)]
        return formula, (rows(), rows(), *(parameter(name) for name in saved)), words
    if formula == "batch_norm_backward_fixed":
        given = rows(), rows(), *(parameter(name) for name in ("scale", "mean", "var"))
        return batch_norm_backward_fixed, given, words
    return "batch_norm", (rows(), *(parameter(name) for name in _PARAMETERS)), words


PROBLEMS = problems(batch_norm, batch_norm_train, batch_norm_backward)
EXAMPLES = {"batch_norm": _example_call}
