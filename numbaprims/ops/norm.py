"""Normalisations by the statistics of each sample: of its last dimensions, of channels, of groups of channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbaprims.arrays import check_overlap, describe, enter
from numbaprims.ops._docs import documented
from numbaprims.ops._ending import ending_of
from numbaprims.ops._norm_backward import backward, in_rows
from numbaprims.ops._norm_problem import STEPS, NormProblem as NormProblem, divided, example_call, last_of
from numbaprims.ops._numbers import finite
from numbaprims.ops.primitive import Joined, integer, problems

_FORWARD = """
Args:
    x: any strides; float64, float32, float16 or bfloat16, the last two computed in float32.
    normalized_dims: how many of the last dimensions are normalised together.
    groups: parts of the channels, each of which is normalised together; it divides their number.
    weight, bias: of x's dtype, or float32 beside halves; None for 1 and 0.
    eps: added to the mean square.
    residual: of x's shape and dtype; it is added before anything else.
    layout: "NCHW", or "NHWC" for channels behind the other dimensions, in any number of them.
    activation: a kind, or (kind, parameters), applied to y; those that `conv` fuses too.
    out: where y goes; it may be x itself.

Raises:
    TypeError: integers, mixed libraries, parameters of another dtype.
    ValueError: parameters of another shape, an eps that is not finite or below 0, nothing to take statistics of, an
        `out` that overlaps.
"""
_TRAINED = """
Args:
    x, weight, bias, residual: as there.
    normalized_dims, groups, eps, layout, activation, out: the same.
"""
_GRADIENT = """
Args:
    dy: the gradient of y, of x's shape and dtype.
    x: that of the forward call; with a residual the sum that it returned.
    weight: the same, or None.
    saved_mean, saved_inv_std, saved_inv_rms: what the forward call gave.
    bias: the same; read with an activation only, which it is then needed for.
    normalized_dims, groups, layout: the same.
    activation: that of the forward call: dy is then the gradient of what it gave, which is not read but computed
        again from x.
    dsum: the gradient of the returned sum, which is added to dx.
    out: where dx goes; it may be dy or x.

Raises:
    TypeError: integers, mixed libraries, parameters of another dtype.
    ValueError: shapes that do not go together, an `out` that overlaps.
"""


def _last(formula: str, arrays: tuple[Any, ...], dims: int, eps: float, activation: Any, out: Any) -> Any:
    return STEPS[formula](arrays, dims, ending=ending_of(activation), numbers=(finite(eps, "eps", 0.0),), out=out)


# ---------------------------------------------------------------- of the last dimensions


@documented(_FORWARD)
def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, normalized_dims: int = 1,
    residual: Any = None, activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Normalise the last dimensions: with mean and variance over them,
    ``y = (x - mean) / sqrt(var + eps) * weight + bias``.

    The variance is the mean of squared distances, exact for data far from 0 (mean 1e4, standard deviation 1).

    Args:
        weight, bias: of the shape of the last dimensions, of x's dtype, or float32 beside halves; None for 1 and 0.

    Returns:
        y, of x's shape, dtype and library; with a residual (y, x + residual).

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.layer_norm(np.float32([[1, 3], [2, 6]]), eps=0.0)
        array([[-1.,  1.],
               [-1.,  1.]], dtype=float32)

    References:
        Ba, Kiros and Hinton, Layer normalization, 2016; ONNX LayerNormalization, whose axis is
        ``x.ndim - normalized_dims``.
    """
    return _last("layer_norm", (x, residual, weight, bias), normalized_dims, eps, activation, out)


@documented(_FORWARD, _TRAINED)
def layer_norm_train(
    x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, normalized_dims: int = 1,
    residual: Any = None, activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """`layer_norm`, and what `layer_norm_backward` takes: ``mean`` and ``inv_std = 1 / sqrt(var + eps)``.

    Returns:
        (y, mean, inv_std), with a residual (y, mean, inv_std, x + residual); statistics have length 1 where they were
        taken, and are float32 beside halves.

    Example:
        >>> import numpy as np, numbaprims
        >>> y, mean, inv_std = numbaprims.layer_norm_train(np.float32([[1, 3], [2, 6]]), eps=0.0)
        >>> mean.ravel(), inv_std.ravel()
        (array([2., 4.], dtype=float32), array([1. , 0.5], dtype=float32))

    References:
        Ba, Kiros and Hinton, Layer normalization, 2016.
    """
    return _last("layer_norm_train", (x, residual, weight, bias), normalized_dims, eps, activation, out)


@documented(_GRADIENT)
def layer_norm_backward(
    dy: Any, x: Any, weight: Any, saved_mean: Any, saved_inv_std: Any, bias: Any = None, *,
    normalized_dims: int = 1, activation: Any = None, dsum: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Gradients of `layer_norm`: with ``h = (x - mean) * inv_std``, ``g = dy * weight`` and means over a row,
    ``dx = inv_std * (g - mean(g) - h * mean(g * h))``, ``dweight = sum(dy * h)``, ``dbias = sum(dy)`` over the rows.

    Returns:
        (dx, dweight, dbias), the last two of the weight's dtype, None without a weight.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, one = np.float32([[1, 3]]), np.ones(2, np.float32)
        >>> dx, dweight, dbias = numbaprims.layer_norm_backward(x, x, one, 2 * one[None, :1], one[None, :1])
        >>> dx, dweight, dbias
        (array([[0., 0.]], dtype=float32), array([-1.,  3.], dtype=float32), array([1., 3.], dtype=float32))

    References:
        Ba, Kiros and Hinton, Layer normalization, 2016.
    """
    arrays = dy, x, saved_mean, saved_inv_std
    dx, sums = backward("layer_norm", arrays, weight, bias, normalized_dims, activation, dsum, out)
    return dx, *(sums or (None, None))


@documented(_FORWARD)
def rms_norm(
    x: Any, weight: Any = None, *, eps: float = 1e-5, normalized_dims: int = 1, residual: Any = None,
    activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Divide the last dimensions by their root mean square: ``y = x / sqrt(mean(x**2) + eps) * weight``.

    Args:
        weight: of the shape of the last dimensions, of x's dtype, or float32 beside halves; None for 1.

    Returns:
        y, of x's shape, dtype and library; with a residual (y, x + residual).

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.rms_norm(np.float32([[1, 7]]), eps=0.0)
        array([[0.2, 1.4]], dtype=float32)

    References:
        Zhang and Sennrich, Root mean square layer normalization, 2019; ONNX RMSNormalization, onnxruntime's
        SimplifiedLayerNormalization.
    """
    return _last("rms_norm", (x, residual, weight), normalized_dims, eps, activation, out)


@documented(_FORWARD, _TRAINED)
def rms_norm_train(
    x: Any, weight: Any = None, *, eps: float = 1e-5, normalized_dims: int = 1, residual: Any = None,
    activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """`rms_norm`, and what `rms_norm_backward` takes: ``inv_rms = 1 / sqrt(mean(x**2) + eps)``.

    Returns:
        (y, inv_rms), with a residual (y, inv_rms, x + residual); inv_rms has length 1 where it was taken, and is
        float32 beside halves.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.rms_norm_train(np.float32([[1, 7]]), eps=0.0)[1]
        array([[0.2]], dtype=float32)

    References:
        Zhang and Sennrich, Root mean square layer normalization, 2019.
    """
    return _last("rms_norm_train", (x, residual, weight), normalized_dims, eps, activation, out)


@documented(_GRADIENT)
def rms_norm_backward(
    dy: Any, x: Any, weight: Any, saved_inv_rms: Any, *, normalized_dims: int = 1, activation: Any = None,
    dsum: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Gradients of `rms_norm`: with ``h = x * inv_rms``, ``g = dy * weight`` and means over a row,
    ``dx = inv_rms * (g - h * mean(g * h))``, ``dweight = sum(dy * h)`` over the rows.

    Returns:
        (dx, dweight), the last of the weight's dtype, None without a weight.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, one = np.float32([[1, 7]]), np.ones(2, np.float32)
        >>> dx, dweight = numbaprims.rms_norm_backward(x, x, one, np.float32([[0.2]]))
        >>> abs(dx).round(6), dweight.round(6)
        (array([[0., 0.]], dtype=float32), array([0.2, 9.8], dtype=float32))

    References:
        Zhang and Sennrich, Root mean square layer normalization, 2019.
    """
    dx, sums = backward("rms_norm", (dy, x, saved_inv_rms), weight, None, normalized_dims, activation, dsum, out)
    return dx, sums


# ---------------------------------------------------------------- of channels


@documented(_FORWARD)
def instance_norm(
    x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, layout: str = "NCHW", activation: Any = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Normalise each channel of each sample: with mean and variance over its positions,
    ``y = (x - mean) / sqrt(var + eps) * weight + bias``.

    Args:
        x: (N, C) with up to three dimensions behind C, any strides; float64, float32, float16 or bfloat16, the last two
            computed in float32.
        weight, bias: (C,), of x's dtype, or float32 beside halves; None for 1 and 0.

    Returns:
        y, of x's shape, dtype and library.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.instance_norm(np.float32([[[1, 3], [2, 6]]]), eps=0.0)
        array([[[-1.,  1.],
                [-1.,  1.]]], dtype=float32)

    References:
        Ulyanov, Vedaldi and Lempitsky, Instance normalization, 2016; ONNX InstanceNormalization.
    """
    return _instance("instance_norm", x, weight, bias, eps, layout, activation, out)


@documented(_FORWARD, _TRAINED)
def instance_norm_train(
    x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, layout: str = "NCHW", activation: Any = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """`instance_norm`, and what `instance_norm_backward` takes: ``mean`` and ``inv_std = 1 / sqrt(var + eps)``.

    Returns:
        (y, mean, inv_std): statistics (N, C), float32 beside halves.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.instance_norm_train(np.float32([[[1, 3], [2, 6]]]), eps=0.0)[1:]
        (array([[2., 4.]], dtype=float32), array([[1. , 0.5]], dtype=float32))

    References:
        Ulyanov, Vedaldi and Lempitsky, Instance normalization, 2016.
    """
    return _instance("instance_norm_train", x, weight, bias, eps, layout, activation, out)


def _instance(formula: str, x: Any, weight: Any, bias: Any, eps: float, layout: str, activation: Any, out: Any) -> Any:
    arrays, numbers = (x, None, weight, bias), (finite(eps, "eps", 0.0),)
    return STEPS[formula](arrays, layout, ending=ending_of(activation), numbers=numbers, out=out)


@documented(_GRADIENT)
def instance_norm_backward(
    dy: Any, x: Any, weight: Any, saved_mean: Any, saved_inv_std: Any, bias: Any = None, *, layout: str = "NCHW",
    activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Gradients of `instance_norm`: those of `layer_norm_backward`, means being over positions and sums over positions
    and samples.

    Returns:
        (dx, dweight, dbias), the last two of the weight's dtype, None without a weight.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, one = np.float32([[[1, 3]]]), np.ones(1, np.float32)
        >>> dx, dweight, dbias = numbaprims.instance_norm_backward(x, x, one, 2 * one[None], one[None])
        >>> dx, dweight, dbias
        (array([[[0., 0.]]], dtype=float32), array([2.], dtype=float32), array([4.], dtype=float32))

    References:
        Ulyanov, Vedaldi and Lempitsky, Instance normalization, 2016.
    """
    ending = ending_of(activation)
    arrays = dy, x, weight, saved_mean, saved_inv_std, bias if ending else None
    return _gradients(weight, _INSTANCE_BACKWARD(arrays, (layout, ending), (), out))


def _gradients(weight: Any, found: Any) -> tuple[Any, Any, Any]:
    return (found, None, None) if weight is None else found


def _summed(dx: Any, by_weight: Any, by_bias: Any, weight: Any) -> Any:
    return dx if weight is None else (dx, *STEPS["sample_sums"]((by_weight, by_bias, weight)))


def _instance_backward(given: Any, options: Any, out: Any) -> Any:
    (dy, x, weight, mean, inv_std, bias), (layout, ending) = given, options
    found = STEPS["instance_norm_backward"]((dy, x, mean, inv_std, weight, bias, None), layout, ending=ending, out=out)
    dx, by_weight, by_bias = found
    return _summed(dx, by_weight, by_bias, weight)


_GRADIENT_READS = "dy", "x", "weight", "saved_mean", "saved_inv_std", "bias"
_INSTANCE_BACKWARD = Joined("instance_norm_backward", _GRADIENT_READS, _instance_backward)


# ---------------------------------------------------------------- of groups of channels


@documented(_FORWARD)
def group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, layout: str = "NCHW",
    activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Normalise groups of channels of each sample: with mean and variance over the positions and channels of a group,
    ``y = (x - mean) / sqrt(var + eps) * weight + bias``.

    Args:
        x: (N, C) with up to three dimensions behind C, any strides; float64, float32, float16 or bfloat16, the last two
            computed in float32.
        weight, bias: (C,), of x's dtype, or float32 beside halves; None for 1 and 0.

    Returns:
        y, of x's shape, dtype and library.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.group_norm(np.float32([[1, 3, 2, 6]]), 2, eps=0.0)
        array([[-1.,  1., -1.,  1.]], dtype=float32)

    References:
        Wu and He, Group normalization, 2018; ONNX GroupNormalization.
    """
    return _group(x, groups, weight, bias, eps, layout, activation, out, "instance_norm")


@documented(_FORWARD, _TRAINED)
def group_norm_train(
    x: Any, groups: int, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, layout: str = "NCHW",
    activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """`group_norm`, and what `group_norm_backward` takes: ``mean`` and ``inv_std = 1 / sqrt(var + eps)``.

    Returns:
        (y, mean, inv_std): statistics (N, groups), float32 beside halves.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.group_norm_train(np.float32([[1, 3, 2, 6]]), 2, eps=0.0)[1:]
        (array([[2., 4.]], dtype=float32), array([[1. , 0.5]], dtype=float32))

    References:
        Wu and He, Group normalization, 2018.
    """
    return _group(x, groups, weight, bias, eps, layout, activation, out, "instance_norm_train")


def _channels(x: Any, layout: str) -> tuple[int, bool]:
    """(how many there are, whether they are last)."""
    shape = (x if type(x) is np.ndarray else enter(x, "x")[0]).shape
    last = last_of(shape, layout)
    return int(shape[-1 if last else 1]), last


def _by_pixels(step: str, x: Any, last: bool) -> str:
    """The last step: pixel by pixel where channels lie side by side."""
    storage = x if type(x) is np.ndarray else enter(x, "x")[0]
    beside = storage.ndim > 2 and storage.strides[-1 if last else 1] == storage.itemsize
    return f"{'pixel' if beside else 'group'}_{step}"


def _check_apart(out: Any, **others: Any) -> None:
    """`out` shares no memory with what only earlier steps read."""
    if out is not None:
        given = [(enter(x, name)[0], name, False) for name, x in others.items() if x is not None]
        check_overlap(enter(out, "out")[0], given)


def _group(
    x: Any, groups: int, weight: Any, bias: Any, eps: float, layout: str, activation: Any, out: Any, alone: str
) -> Any:
    """Where a group lies in one piece, in one launch. Else moments of channels become those of groups, so that vectors
    hold neighbouring channels."""
    channels, last = _channels(x, layout)
    groups = integer(groups, "groups")
    if groups == channels:
        return _instance(alone, x, weight, bias, eps, layout, activation, out)
    numbers = (finite(eps, "eps", 0.0),)
    if not last and math.prod(x.shape[2:]) > 1 and in_rows(x, weight, bias, out, host=False):
        step = STEPS[alone.replace("instance", "whole_group")]
        return step((x, None, weight, bias), groups, ending=ending_of(activation), numbers=numbers, out=out)
    _check_apart(out, weight=weight, bias=bias)
    moments = STEPS["channel_moments"]((x, weight, bias), layout, groups)
    origin = moments[0][:, :: max(1, channels // groups)]
    arrays = (*moments, origin, weight, bias)
    factor, shift, *saved = STEPS["group_factors"](arrays, groups, channels, numbers=numbers)
    y = STEPS[_by_pixels("apply", x, last)](
        (x, moments[0], factor, shift), layout, ending=ending_of(activation), out=out
    )
    return (y, *saved) if alone.endswith("train") else y


@documented(_GRADIENT)
def group_norm_backward(
    dy: Any, x: Any, groups: int, weight: Any, saved_mean: Any, saved_inv_std: Any, bias: Any = None, *,
    layout: str = "NCHW", activation: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Gradients of `group_norm`: those of `layer_norm_backward`, means being over positions and channels of a group and
    sums over positions and samples.

    Returns:
        (dx, dweight, dbias), the last two of the weight's dtype, None without a weight.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, one = np.float32([[1, 3]]), np.ones(2, np.float32)
        >>> dx, dweight, dbias = numbaprims.group_norm_backward(x, x, 1, one, 2 * one[None, :1], one[None, :1])
        >>> dx, dweight, dbias
        (array([[0., 0.]], dtype=float32), array([-1.,  3.], dtype=float32), array([1., 3.], dtype=float32))

    References:
        Wu and He, Group normalization, 2018.
    """
    ending = ending_of(activation)
    arrays = dy, x, weight, saved_mean, saved_inv_std, bias if ending else None
    return _gradients(weight, _GROUP_BACKWARD(arrays, (groups, layout, ending), (), out))


def _group_backward(given: Any, options: Any, out: Any) -> Any:
    (dy, x, weight, mean, inv_std, bias), (groups, layout, ending) = given, options
    channels, last = _channels(x, layout)
    groups = integer(groups, "groups")
    if groups == channels:
        return _instance_backward(given, (layout, ending), out)
    divided(channels, groups)
    for name, saved in (("saved_mean", mean), ("saved_inv_std", inv_std)):
        if enter(saved, name)[0].shape != (x.shape[0], groups):
            raise ValueError(f"{name} is a {describe(saved)}; it must be of shape {(x.shape[0], groups)}")
    _check_apart(out, weight=weight, saved_mean=mean, saved_inv_std=inv_std, bias=bias)
    centre, factor = STEPS["group_spread"]((mean, inv_std, weight), groups, channels)
    by_x, total = STEPS["group_sums"]((dy, x, centre, factor, bias, weight), layout, groups, ending=ending)
    positions = float(math.prod(x.shape) // max(1, x.shape[0] * channels))
    slope, shift, by_weight = STEPS["group_gradients"](
        (by_x, total, factor, inv_std), groups, channels, numbers=(positions,)
    )
    step = STEPS[_by_pixels("backward", x, last)]
    dx = step((dy, x, centre, factor, slope, shift, bias), layout, ending=ending, out=out)
    return _summed(dx, by_weight, total, weight)


_GROUP_BACKWARD = Joined("group_norm_backward", _GRADIENT_READS, _group_backward)


PROBLEMS = problems(
    layer_norm, layer_norm_train, layer_norm_backward, rms_norm, rms_norm_train, rms_norm_backward, instance_norm,
    instance_norm_train, instance_norm_backward, group_norm, group_norm_train, group_norm_backward,
)  # fmt: skip
EXAMPLES = {"norm": example_call}
