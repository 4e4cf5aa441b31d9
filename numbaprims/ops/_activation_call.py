"""The road of activations: a `Primitive` for each set of arrays, whose option is a kernel's kind, or ("glu", axis)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from numbaprims import arrays, settings
from numbaprims.dtypes import FLOATS, LONG_NAMES
from numbaprims.ops._activation_problem import SPECIAL, ActivationProblem, make_problem
from numbaprims.ops._activation_reference import define
from numbaprims.ops.activation_kinds import KINDS, checked, resolve
from numbaprims.ops.epilogue import Activation, make_activation
from numbaprims.ops.primitive import Given, Pose, Primitive, Result

#: The inputs of a launch and their places.
_PLACES = {"x": 1, "dy": 2, "y": 3, "weight": 4}
#: Solvers of the sums that prelu's weight gradient is.
SUM_SOLVERS = ("channel_sums",)


def kernel_of(activation: Activation) -> tuple[str, tuple[float, ...]]:
    """A kind and its numbers as a kernel takes them: common numbers have kernels of their own."""
    kind, numbers = activation.kind, activation.parameters
    if kind == "softplus" and numbers == (1.0, 20.0):
        return "softplus_1", ()
    if kind == "power" and numbers[2] == 2.0:
        return "power_2", numbers[:2]
    return kind, numbers


# ---------------------------------------------------------------- the descriptors


def _pose(direction: str, given: Given, options: Any) -> Pose:
    kind, axis = options if type(options) is tuple else (options, None)
    dtype, like = given.dtypes[0], given.storages[0]
    if dtype not in FLOATS:
        raise TypeError(f"{given.words(0)}; activations take float64, float32, float16, bfloat16")
    inputs = dict(zip(given.names, given.storages, strict=True))
    weight, shape = inputs.pop("weight", None), like.shape
    if axis is not None:
        axis, shape = _glu_shape(given, axis)
    else:
        for at, x in enumerate(inputs.values()):
            if x.shape != shape:
                raise ValueError(f"{given.words(0)} and {given.words(at).replace(' is', '', 1)}; "
                                 "they must have one shape")  # fmt: skip
    # as NumPy's ufuncs and torch do: a result of its shape lies in memory as the first input does
    result = Result(shape, dtype, 0 if shape == like.shape else None)
    if direction == "weight":
        result = Result(weight.shape, dtype)
    elif weight is not None:
        inputs["weight"] = _spread(given, weight, like)
    slots = (0, *(_PLACES[name] if name in inputs else -1 for name in given.names))

    def problem(made: Sequence[Any]) -> ActivationProblem:
        return make_problem(kind, direction, dtype, made[0], inputs, axis)

    return Pose((result,), problem, slots)


def _spread(given: Given, weight: Any, like: Any) -> Any:
    """prelu's weight over the shape of x."""
    channels = like.ndim >= 2 and weight.shape == (like.shape[1],)
    if weight.size != 1 and not channels:
        words = (
            f"({like.shape[1]},) for one slope a channel (dimension 1 of x)" if like.ndim >= 2 else "of no other shape"
        )
        raise ValueError(f"{given.words(len(given.names) - 1)}; it must be (1,) for one slope, or {words}")
    return np.broadcast_to(weight.reshape(-1, *(1,) * (like.ndim - 2)) if channels else weight.reshape(()), like.shape)


def _glu_shape(given: Given, axis: int) -> tuple[int, tuple[int, ...]]:
    """(axis from 0, shape of the result) of a glu."""
    at = given.names.index("x")
    x, words = given.storages[at], given.words(at)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis} and {words.replace(' is', '', 1)}; allowed is {-x.ndim} to {x.ndim - 1}")
    axis %= x.ndim
    if x.shape[axis] % 2:
        raise ValueError(f"{words}; glu halves axis {axis}, so its length must be even")
    half = (*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :])
    if at == 0:
        return axis, half
    if given.storages[0].shape != half:
        raise ValueError(f"{given.words(0)} and {words.replace(' is', '', 1)}; dy must have shape {half}")
    return axis, x.shape


def _primitive(direction: str, *names: str) -> Primitive:
    # dx may overwrite glu's x: both halves of an element are read before either is written
    exact = tuple(name for name in names if name != "weight" and direction != "weight")
    pose, reference = functools.partial(_pose, direction), functools.partial(define, direction, names)
    return Primitive(
        "activation", names, pose, reference, dtypes=tuple(LONG_NAMES), exact=exact, required=len(names)
    )  # fmt: skip


FORWARD = _primitive("forward", "x")
BACKWARD = {name: _primitive("backward", *("dy", name)[: 1 + bool(name)]) for name in ("x", "y", "")}
_PRELU, _PRELU_BACKWARD = _primitive("forward", "x", "weight"), _primitive("backward", "dy", "x", "weight")
_PRELU_WEIGHT = _primitive("weight", "dy", "x", "weight")
#: ``reads(kind, "x")``: what the gradient of a kernel's kind needs beside dy: "x", "y", or "" for nothing.
reads = {kind: KINDS[SPECIAL.get(kind, kind)].reads for kind in (*KINDS, *SPECIAL)}.get
_gradients = {name: primitive.run for name, primitive in BACKWARD.items()}
#: ``forward((x,), kind, numbers, out)``: y, for the kinds of one array and up to three numbers.
forward = FORWARD.run


def backward(kind: Any, dy: Any, saved: Any, out: Any = None, numbers: tuple[float, ...] = ()) -> Any:
    """dx from dy and from what the kind's gradient reads."""
    name = reads(kind, "x")
    return _gradients[name]((dy, saved) if name else (dy,), kind, numbers, out)


# ---------------------------------------------------------------- prelu


def prelu_forward(x: Any, weight: Any, out: Any = None) -> Any:
    """prelu with one slope for all of x, or one for each channel."""
    slope = _slope(weight, x)
    return _PRELU.run((x, weight), "prelu", (), out) if slope is None else forward((x,), "prelu", (slope,), out)


def prelu_backward(dy: Any, x: Any, weight: Any, out: Any = None, dweight: Any = None) -> tuple[Any, Any]:
    """(dx, dweight)."""
    slope = _slope(weight, x)
    primitive, given = (BACKWARD["x"], (dy, x)) if slope is not None else (_PRELU_BACKWARD, (dy, x, weight))
    dx = functools.partial(primitive.run, given, "prelu", () if slope is None else (slope,), out)
    trial = settings.current().trial
    if trial is not None and trial.asks:
        dx()  # what `explain` is asked for
    # the weight's gradient first: dx may overwrite dy or x
    with _applicable(sums=True):
        dweight = _PRELU_WEIGHT.run((dy, x, weight), "prelu", (), dweight)
    with _applicable(sums=False):
        return dx(), dweight


def _slope(weight: Any, x: Any) -> float | None:
    """prelu's weight that is one number and can be read; on a GPU that would wait for it, so it stays an array."""
    storage, dtype, library = arrays.enter(weight, "weight")
    if storage.size != 1 or not isinstance(storage, ndarray):
        return None
    if (dtype, library) != arrays.enter(x, "x")[1:]:
        arrays.require_same(x, "x", weight, "weight")
    from numbaprims.reference.convert import to_float64

    return float(to_float64(storage.reshape(1), dtype)[0])


def _applicable(*, sums: bool) -> Any:
    """Settings in which no solver is forced that is one for the other of the two problems of prelu's gradient.

    A forced solver that exists for neither is still refused, by the one that computes dx.
    """
    algorithm = settings.current().algorithm
    forced = dict(algorithm).get("activation")
    if forced in (None, "naive") or sums == (forced in SUM_SOLVERS):
        return contextlib.nullcontext()
    return settings.config(algorithm={stem: name for stem, name in algorithm if stem != "activation"})


# ---------------------------------------------------------------- parameters


def number(kind: str, name: str, value: Any) -> float:
    """A parameter as a float; None is its default."""
    if type(value) is float and value == value:
        return value
    if value is None:
        value = KINDS[kind].parameters[name]
    return float(checked(kind, name, value))


def numbers(kind: str, **parameters: Any) -> tuple[float, ...]:
    """All parameters of a kind as floats, with the checks of the table."""
    return make_activation(kind, parameters).parameters


def kernel(kind: str, **parameters: Any) -> tuple[str, tuple[float, ...]]:
    """What a kernel takes for a kind and its parameters."""
    return kernel_of(make_activation(kind, parameters))


def gelu_kind(approximate: Any) -> str:
    """The kernel's name of a gelu."""
    exact = type(approximate) is str and approximate == "none"
    return "gelu" if exact else make_activation("gelu", {"approximate": approximate}).kind


def glu_kind(axis: Any) -> tuple[str, int]:
    """The option of a glu."""
    return "glu", axis if type(axis) is int else resolve("glu", {"axis": axis})[1]["axis"]
