"""From a convolution's arguments to its launcher: the road that all of its functions take."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims import arrays, settings
from numbaprims.dispatch import call
from numbaprims.ops._conv_pose import Ending, Window, enter_two, geometry, pose, pose_bias
from numbaprims.ops._conv_problem import Posed

launchers = call.Launchers()


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


def call_conv(
    direction: str, operands: tuple[Any, Any], names: tuple[str, str], target: tuple[int, ...] | None, window: Window,
    ending: Ending, algorithm: str,
) -> Any:  # fmt: skip
    seen = _seen(direction, operands, names, target, window, ending, algorithm)
    bound = None if seen is None else launchers.get(seen[0])
    if seen is not None and bound is not None:
        # the same kinds of arrays were checked before: only what differs between arrays of one kind is left
        first, second, bias, c, storage = seen[1]
        if storage is None:
            result, storage = new_result(seen[2], bound.shape, bound.dtype, bound.extra)
        else:
            result = ending.out
            arrays.check_writable(ending.out, storage)
            posed = Posed(bound.problem, (), False, first, second, c, bias, storage, None, seen[2])
            arrays.check_overlap(storage, posed.inputs())
        p = bound.problem.activation.values()
        bound.launch(storage, first, second, c, bias, f0=ending.alpha, f1=ending.beta, f2=p[0], f3=p[1], f4=p[2])
        if settings.current().verbose:
            call.log_call(bound)
        return result
    posed = pose_call(direction, operands, names, target, window, ending)
    with forced(algorithm):
        return run(posed, ending.out, ending.alpha, ending.beta, None if seen is None else seen[0])


def call_bias(dy: Any, layout: str, out: Any) -> Any:
    """The gradient of a bias; a kind of array that was checked before is not looked at again."""
    if out is not None or not isinstance(layout, str):
        return run(pose_bias(dy, layout, out), out, 1.0, 0.0)
    view, dtype, library = arrays.enter(dy, "dy")
    seen = ("bias", view.shape, view.strides, dtype, layout, settings.key(), library)
    bound = launchers.get(seen)
    if bound is None:
        return run(pose_bias(dy, layout, None), None, 1.0, 0.0, seen)
    result, storage = library.empty(bound.shape, bound.dtype)
    bound.launch(storage, view, view, f0=1.0)
    if settings.current().verbose:
        call.log_call(bound)
    return result


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


def run(posed: Posed, out: Any, alpha: float, beta: float, seen: Any = None, x_zero: float = 0.0) -> Any:
    """Run a checked call."""
    problem, state = posed.problem, settings.current()
    if posed.out is None:
        result, storage = new_result(posed.origin, posed.shape, problem.out_dtype, posed.last)
    else:
        result, storage = out, posed.out
    if storage.size == 0:
        return result
    if state.device == "reference":
        from numbaprims.reference import conv as reference

        reference.into(posed, alpha, beta, x_zero, storage)
        return result
    full_key = (problem.key(), problem.strides, state.key, posed.origin.place)
    bound = launchers.get(full_key)
    if bound is None or bound.problem.activation.parameters != problem.activation.parameters:
        bound = call.bind(problem, posed.shape, problem.out_dtype, library=posed.origin, extra=posed.last)
        launchers.put(full_key, bound)
    aligned = all(not isinstance(x, np.ndarray) or x.flags.aligned for x in (posed.first, posed.second, posed.bias))
    if seen is not None and aligned:
        launchers.put(seen, bound)
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
