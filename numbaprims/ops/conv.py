"""Convolution in one to three dimensions: forward, its three gradients, and the transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays, settings
from numbaprims.dispatch import call
from numbaprims.ops._conv_example import example
from numbaprims.ops._conv_pose import Ending, Window, enter_two, geometry, pose, pose_bias, transposed_geometry
from numbaprims.ops._conv_problem import ConvProblem, Posed
from numbaprims.ops._gemm_problem import scalar

_launchers = call.Launchers()


def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    algorithm: str = "auto",
    out: Any = None,
    out_dtype: Any = None,
) -> Any:
    """Convolve (cross-correlate) in one, two or three dimensions, by the rank of the arrays.

    ``out[n, k, p, q] = activation(alpha * sum over c, r, s of x[n, c, p * stride - padding + r * dilation, ...]
    * weight[k, c, r, s] + beta * c[n, k, p, q] + bias[k])``, x being 0 outside of itself.

    Args:
        x: (N, C, H, W), or (N, C, W), or (N, C, D, H, W); with channels last, (N, H, W, C). Any strides.
        weight: (K, C / groups, R, S) in every layout, with as many dimensions as `x`; any strides.
        bias: (K,) or None.
        stride: one integer, or one for each spatial dimension.
        padding: one integer, one for each dimension, pairs (before, after), "same" (ceil(size / stride) outputs,
            the odd element behind) or "valid".
        dilation: one integer, or one for each spatial dimension.
        groups: number of blocks of channels that do not see one another; C for a depthwise convolution.
        layout: "NCHW" (also NCW, NCDHW) or "NHWC" (NWC, NDHWC).
        activation: as in `numbaprims.gemm`.
        alpha: factor of the convolution.
        beta: factor of `c`.
        c: broadcastable to the result; needed when `beta` is not 0, not read when it is.
        algorithm: "auto" or the name of a solver (``numbaprims.explain("conv", x, weight)`` lists them).
        out: where the result goes; it may be exactly `c`, and otherwise share no memory with the inputs.
        out_dtype: dtype of the result; by default that of the inputs, int32 for int8.

    Returns:
        (N, K, P, Q) of the caller's library, P = floor((H + padding - dilation * (R - 1) - 1) / stride) + 1. It lies
        as `x` does: channels_last for channels_last. float16 and bfloat16 are summed in float32, int8 x int8 and
        uint8 x int8 exactly in int32 (alpha 1, beta 0 or 1, activation None or relu).

    Raises:
        TypeError: mixed libraries or dtypes, unknown dtypes.
        ValueError: shapes that do not fit, `beta` without `c`, an `out` that overlaps an input, a solver that does
            not exist or refuses.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.ones((1, 1, 3, 3), np.float32)
        >>> numbaprims.conv(x, np.ones((1, 1, 3, 3), np.float32), padding=1)[0, 0]
        array([[4., 6., 4.],
               [6., 9., 6.],
               [4., 6., 4.]], dtype=float32)

    References:
        Khan et al., MIOpen: An open source library for deep learning primitives, 2019, section IV.A.
    """
    ending = Ending(bias, activation, scalar(alpha, "alpha"), scalar(beta, "beta"), c, out, out_dtype)
    window = Window(stride, padding, dilation, groups, layout)
    return _call("forward", (x, weight), ("x", "weight"), None, window, ending, algorithm)


def conv_backward_data(
    dy: Any,
    weight: Any,
    input_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Gradient of `conv` by its input.

    ``dx[n, c, h] = alpha * sum over k, r of dy[n, k, p] * weight[k, c, r] + beta * c``, over the p and r with
    p * stride - padding + r * dilation = h.

    Args:
        dy: (N, K, P, Q), the gradient of conv's result; float64, float32, float16 or bfloat16.
        weight: (K, C / groups, R, S).
        input_shape: the shape of conv's `x`, in `layout`; several sizes lead to one size of `dy`.
        stride: as given to `conv`; so are `padding`, `dilation`, `groups`, `layout`.
        padding: as given to `conv`.
        dilation: as given to `conv`.
        groups: as given to `conv`.
        layout: as given to `conv`.
        alpha: factor of the gradient.
        beta: factor of `c`: with ``c=out, beta=1.0`` the gradient is added to what is there.
        c: broadcastable to the result.
        algorithm: as in `conv`.
        out: where the result goes; it may be exactly `c`.

    Returns:
        An array of shape `input_shape`, library and dtype of `dy`.

    Raises:
        TypeError, ValueError: as `conv`; also where `dy` is not of the shape that `input_shape` leads to.

    Example:
        >>> import numpy as np, numbaprims
        >>> dy, w = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
        >>> numbaprims.conv_backward_data(dy, w, (1, 1, 3, 3))[0, 0]
        array([[1., 2., 1.],
               [2., 4., 2.],
               [1., 2., 1.]], dtype=float32)
    """
    ending = Ending(None, None, scalar(alpha, "alpha"), scalar(beta, "beta"), c, out)
    window = Window(stride, padding, dilation, groups, layout)
    return _call("data", (dy, weight), ("dy", "weight"), tuple(input_shape), window, ending, algorithm)


def conv_backward_weight(
    dy: Any,
    x: Any,
    kernel_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Gradient of `conv` by its weight.

    ``dw[k, c, r] = alpha * sum over n, p of dy[n, k, p] * x[n, c, p * stride - padding + r * dilation] + beta * c``.

    Args:
        dy: (N, K, P, Q), the gradient of conv's result; float64, float32, float16 or bfloat16.
        x: conv's input.
        kernel_shape: the shape of the weight, (K, C / groups, R, S).
        stride: as given to `conv`; so are `padding`, `dilation`, `groups`, `layout`.
        padding: as given to `conv`.
        dilation: as given to `conv`.
        groups: as given to `conv`.
        layout: as given to `conv`.
        alpha: factor of the gradient.
        beta: factor of `c`: with ``c=out, beta=1.0`` the gradient is added to what is there.
        c: broadcastable to the result.
        algorithm: as in `conv`.
        out: where the result goes; it may be exactly `c`.

    Returns:
        An array of shape `kernel_shape`, library and dtype of `dy`. Sums are cut into pieces that depend on the
        sizes only: the same bits for any number of threads.

    Raises:
        TypeError, ValueError: as `conv`; also where `dy` is not of the shape that `x` and `kernel_shape` lead to.

    Example:
        >>> import numpy as np, numbaprims
        >>> dy, x = np.ones((1, 1, 2, 2), np.float32), np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
        >>> numbaprims.conv_backward_weight(dy, x, (1, 1, 2, 2))[0, 0]
        array([[ 8., 12.],
               [20., 24.]], dtype=float32)
    """
    ending = Ending(None, None, scalar(alpha, "alpha"), scalar(beta, "beta"), c, out)
    window = Window(stride, padding, dilation, groups, layout)
    return _call("weight", (dy, x), ("dy", "x"), tuple(kernel_shape), window, ending, algorithm)


def conv_backward_bias(dy: Any, *, layout: str = "NCHW", out: Any = None) -> Any:
    """Gradient of `conv` by its bias: ``db[k] = sum over n, p, q of dy[n, k, p, q]``.

    Args:
        dy: (N, K, P, Q) in `layout`; float64, float32, float16 (summed in float32) or bfloat16.
        layout: as in `conv`.
        out: (K,), where the result goes.

    Returns:
        (K,), library and dtype of `dy`.

    Raises:
        TypeError, ValueError: as `conv`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.conv_backward_bias(np.ones((2, 3, 4, 4), np.float32))
        array([32., 32., 32.], dtype=float32)
    """
    return _run(pose_bias(dy, layout, out), out, 1.0, 0.0)


def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Any = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: Any = None,
    algorithm: str = "auto",
    out: Any = None,
) -> Any:
    """Transposed convolution: the data gradient of a convolution, with `x` in the place of its result.

    ``out[n, k, p * stride - padding + r * dilation] += x[n, c, p] * weight[c, k, r]``, then bias and activation.

    Args:
        x: (N, C, H, W), as in `conv`.
        weight: (C, K / groups, R, S), as in `torch.nn.functional.conv_transpose2d`.
        bias: (K,) or None.
        stride: how far apart the inputs lie in the result.
        padding: what is cut off the result: an integer, one for each dimension, or pairs (before, after).
        output_padding: added behind the result; smaller than stride or dilation.
        dilation: as in `conv`.
        groups: as in `conv`.
        layout: as in `conv`.
        activation: as in `conv`.
        algorithm: as in `conv`.
        out: where the result goes.

    Returns:
        (N, K, P, Q), P = (H - 1) * stride - padding + dilation * (R - 1) + 1 + output_padding.

    Raises:
        TypeError, ValueError: as `conv`.

    Example:
        >>> import numpy as np, numbaprims
        >>> x, w = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
        >>> numbaprims.conv_transpose(x, w, stride=2).shape
        (1, 1, 4, 4)
    """
    operands = enter_two(x, "x", weight, "weight")
    shape = transposed_geometry(
        operands[0].shape, operands[2].shape, Window(stride, padding, dilation, groups, layout), output_padding
    )
    with forced(algorithm):
        return _run(pose("data", shape, operands, Ending(bias, activation, out=out)), out, 1.0, 0.0)


def conv_transpose_backward_data(dy: Any, weight: Any, **arguments: Any) -> Any:
    """Gradient of `conv_transpose` by its input, which is `conv` of `dy` with the same weight.

    Args:
        dy: the gradient of conv_transpose's result.
        weight: (C, K / groups, R, S).
        **arguments: stride, padding, dilation, groups, layout, algorithm, out as in `conv`.

    Returns:
        (N, C, H, W).

    Raises:
        TypeError, ValueError: as `conv`.

    Example:
        >>> import numpy as np, numbaprims
        >>> dy, w = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 2, 2), np.float32)
        >>> numbaprims.conv_transpose_backward_data(dy, w, stride=2)[0, 0]
        array([[4., 4.],
               [4., 4.]], dtype=float32)
    """
    return conv(dy, weight, **arguments)


def conv_transpose_backward_weight(dy: Any, x: Any, kernel_shape: Sequence[int], **arguments: Any) -> Any:
    """Gradient of `conv_transpose` by its weight: that of `conv` with the two arrays in each other's place.

    Args:
        dy: the gradient of conv_transpose's result.
        x: conv_transpose's input.
        kernel_shape: (C, K / groups, R, S).
        **arguments: stride, padding, dilation, groups, layout, algorithm, alpha, beta, c, out as in
            `conv_backward_weight`.

    Returns:
        An array of shape `kernel_shape`.

    Raises:
        TypeError, ValueError: as `conv_backward_weight`.

    Example:
        >>> import numpy as np, numbaprims
        >>> dy, x = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 2, 2), np.float32)
        >>> numbaprims.conv_transpose_backward_weight(dy, x, (1, 1, 2, 2), stride=2)[0, 0]
        array([[4., 4.],
               [4., 4.]], dtype=float32)
    """
    return conv_backward_weight(x, dy, kernel_shape, **arguments)


# ---------------------------------------------------------------- the road to a launcher


def forced(algorithm: Any) -> Any:
    """The settings under which one solver is forced, on top of those that are in force."""
    known = dict(settings.current().algorithm or {})
    if algorithm == "auto":
        return settings.config()
    return settings.config(algorithm={**known, "conv": algorithm})


def pose_call(
    direction: str, operands: tuple[Any, Any], names: tuple[str, str], target: tuple[int, ...] | None, window: Window,
    ending: Ending,
) -> Posed:  # fmt: skip
    """Check a call in any direction; `target` is the shape of the result of a gradient."""
    entered = enter_two(operands[0], names[0], operands[1], names[1])
    if direction == "forward":
        shape = geometry(entered[0].shape, entered[2].shape, window)
    else:
        assert target is not None
        x_shape, w_shape = (target, entered[2].shape) if direction == "data" else (entered[2].shape, target)
        shape = geometry(x_shape, w_shape, window, "input_shape" if direction == "data" else "x")
        if entered[0].shape != shape.shape("y"):
            raise ValueError(
                f"dy is a {arrays.describe(operands[0])}; the convolution of {tuple(x_shape)} with {tuple(w_shape)} "
                f"gives {shape.shape('y')}"
            )
    return pose(direction, shape, entered, ending)


def _call(
    direction: str, operands: tuple[Any, Any], names: tuple[str, str], target: tuple[int, ...] | None, window: Window,
    ending: Ending, algorithm: str,
) -> Any:  # fmt: skip
    seen = _seen(direction, operands, names, target, window, ending, algorithm)
    bound = None if seen is None else _launchers.get(seen[0])
    if seen is not None and bound is not None:
        # the same kinds of arrays were checked before: only what differs between arrays of one kind is left
        first, second, bias, c, storage = seen[1]
        if storage is None:
            result, storage = new_result(seen[2], bound.shape, bound.dtype, bound.extra)
        else:
            result = ending.out
            if not storage.flags.writeable:
                raise ValueError("out is read-only; give a writable array")
            posed = Posed(bound.problem, (), False, first, second, c, bias, storage, None, seen[2])
            arrays.check_overlap(storage, posed.inputs())
        p = bound.problem.activation.values()
        bound.launch(storage, first, second, c, bias, f0=ending.alpha, f1=ending.beta, f2=p[0], f3=p[1], f4=p[2])
        if settings.current().verbose:
            call.log_call(bound)
        return result
    posed = pose_call(direction, operands, names, target, window, ending)
    with forced(algorithm):
        return _run(posed, ending.out, ending.alpha, ending.beta, None if seen is None else seen[0])


def _seen(
    direction: str, operands: tuple[Any, Any], names: tuple[str, str], target: Any, window: Window, ending: Ending,
    algorithm: str,
) -> tuple[Any, list[Any], arrays.Library] | None:  # fmt: skip
    """The key of a call, its arrays' storage and their library; None where the call has to be looked at in full (an
    activation with parameters, mixed libraries, arguments that cannot be looked up)."""
    if not (ending.activation is None or isinstance(ending.activation, str)):
        return None
    views: list[Any] = []
    parts: list[Any] = []
    library: Any = None
    c = ending.c if ending.beta != 0.0 else None
    for value, name in zip((*operands, ending.bias, c, ending.out), (*names, "bias", "c", "out"), strict=True):
        if value is None:
            views.append(None)
            parts.append(None)
            continue
        view, dtype, of = arrays.enter(value, name)
        if library is not None and of is not library:
            return None
        library = of
        views.append(view)
        parts += (view.shape, view.strides, dtype)
    if views[3] is not None:
        return None  # c may be broadcast, which changes the storage that the launcher takes
    key = (
        direction, *parts, target, window, ending.alpha == 1.0, ending.beta, ending.activation, ending.out_dtype,
        algorithm, settings.key(), library,
    )  # fmt: skip
    try:
        hash(key)
    except TypeError:  # a list among the window's numbers
        return None
    return key, views, library


def new_result(library: arrays.Library, shape: tuple[int, ...], dtype: str, last: bool) -> tuple[Any, Any]:
    """A result and its storage; `last` keeps the channels of a channels-first shape behind."""
    if not last:
        return library.empty(shape, dtype)
    result, storage = library.empty((shape[0], *shape[2:], shape[1]), dtype)
    axes = (0, len(shape) - 1, *range(1, len(shape) - 1))
    return (result.permute(axes) if hasattr(result, "permute") else result.transpose(axes)), storage


def _run(posed: Posed, out: Any, alpha: float, beta: float, seen: Any = None, x_zero: float = 0.0) -> Any:
    """Run a checked call."""
    problem, state = posed.problem, settings.current()
    if posed.out is None:
        result, storage = new_result(posed.library, posed.shape, problem.out_dtype, posed.last)
    else:
        result, storage = out, posed.out
    if storage.size == 0:
        return result
    if state.device == "reference":
        from numbaprims.reference import conv as reference

        reference.into(posed, alpha, beta, x_zero, storage)
        return result
    full_key = (problem.key(), problem.strides, state.key, posed.library.place)
    bound = _launchers.get(full_key)
    if bound is None or bound.problem.activation.parameters != problem.activation.parameters:
        bound = call.bind(problem, posed.shape, problem.out_dtype, library=posed.library, extra=posed.last)
        _launchers.put(full_key, bound)
    aligned = all(not isinstance(x, np.ndarray) or x.flags.aligned for x in (posed.first, posed.second, posed.bias))
    if seen is not None and aligned:
        _launchers.put(seen, bound)
    launch(bound, posed, storage, alpha, beta, x_zero)
    if state.verbose:
        call.log_call(bound)
    return result


def launch(
    bound: call.Bound, posed: Posed, storage: Any, alpha: float, beta: float, x_zero: float, packed: Any = None
) -> None:  # fmt: skip
    """Run a bound solver on a call's arrays: result, both operands, c, bias, packed weights, quantisation."""
    p = posed.problem.activation.values()
    bound.launch(
        storage, posed.first, posed.second, posed.c, posed.bias, packed, posed.extra,
        f0=alpha, f1=beta, f2=p[0], f3=p[1], f4=p[2], f5=x_zero,
    )  # fmt: skip


# ---------------------------------------------------------------- what explain and find ask


def _forward_problem(x: Any, weight: Any, bias: Any = None, **arguments: Any) -> ConvProblem:
    window, ending = _split(arguments)
    return pose_call("forward", (x, weight), ("x", "weight"), None, window, ending._replace(bias=bias)).problem


def _data_problem(dy: Any, weight: Any, input_shape: Any, **arguments: Any) -> ConvProblem:
    window, ending = _split(arguments)
    return pose_call("data", (dy, weight), ("dy", "weight"), tuple(input_shape), window, ending).problem


def _weight_problem(dy: Any, x: Any, kernel_shape: Any, **arguments: Any) -> ConvProblem:
    window, ending = _split(arguments)
    return pose_call("weight", (dy, x), ("dy", "x"), tuple(kernel_shape), window, ending).problem


def _bias_problem(dy: Any, *, layout: str = "NCHW", out: Any = None) -> ConvProblem:
    return pose_bias(dy, layout, out).problem


def _transpose_problem(x: Any, weight: Any, bias: Any = None, **arguments: Any) -> ConvProblem:
    more = arguments.pop("output_padding", 0)
    window, ending = _split(arguments)
    operands = enter_two(x, "x", weight, "weight")
    shape = transposed_geometry(operands[0].shape, operands[2].shape, window, more)
    return pose("data", shape, operands, ending._replace(bias=bias)).problem


def _split(arguments: dict[str, Any]) -> tuple[Window, Ending]:
    """The keywords of a call, sorted by what they are about.

    Raises:
        TypeError: an unknown keyword.
    """
    arguments = {name: value for name, value in arguments.items() if name != "algorithm"}
    window = {name: arguments.pop(name) for name in Window._fields if name in arguments}
    return Window(**window), Ending(**arguments)


PROBLEMS = {
    "conv": _forward_problem,
    "conv_backward_data": _data_problem,
    "conv_backward_weight": _weight_problem,
    "conv_backward_bias": _bias_problem,
    "conv_transpose": _transpose_problem,
}
EXAMPLES = {"conv": example}


def _plan(x_shape: Sequence[int], weight: Any, **arguments: Any) -> Any:
    from numbaprims.ops import conv_plan

    return conv_plan.plan(x_shape, weight, **arguments)


def _find(x: Any, weight: Any, *args: Any, **arguments: Any) -> Any:
    """``numbaprims.find("conv", x, weight, ...)``."""
    from numbaprims.dispatch.find import find

    return find("conv", x, weight, *args, **arguments)


conv.plan = _plan  # type: ignore[attr-defined]
conv.find = _find  # type: ignore[attr-defined]
