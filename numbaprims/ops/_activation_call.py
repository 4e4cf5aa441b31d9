"""The road of an activation's call: fast path, checks, problem, launch."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy import ndarray

from numbaprims import arrays, settings
from numbaprims.dispatch import call
from numbaprims.dispatch.known import KnownCalls, launched
from numbaprims.ops._activation_problem import SPECIAL, Posed
from numbaprims.ops.activation_kinds import KINDS, resolve
from numbaprims.ops.epilogue import Activation, make_activation

FLOATS = ("f64", "f32", "f16", "bf16")
#: The arrays of a launch, in the order of its arguments.
ARRAYS = ("out", "x", "dy", "y", "weight", "gate", "dgate")
NO_PARAMETERS = (0.0, 0.0, 0.0)
#: Solvers of the sums that prelu's weight gradient is.
SUM_SOLVERS = ("channel_sums",)

_launchers = call.Launchers()
_get = _launchers.get
_known_calls = KnownCalls()
_known = _known_calls.get
_current = settings.current


def reads(kind: str) -> str:
    """What the gradient of a kernel's kind needs beside dy: "x", "y", or "" for nothing."""
    return KINDS[SPECIAL.get(kind, kind)].reads


def special(kind: str, p0: float = 0.0, p1: float = 0.0, p2: float = 0.0) -> tuple[str, float, float, float]:
    """A kind and its numbers as a kernel takes them: common numbers have kernels of their own."""
    if kind == "softplus" and p0 == 1.0 and p1 == 20.0:
        return "softplus_1", 0.0, 0.0, 0.0
    if kind == "power" and p2 == 2.0:
        return "power_2", p0, p1, 0.0
    return kind, p0, p1, p2


def kernel_of(activation: Activation) -> tuple[str, float, float, float]:
    """The same of an Activation."""
    return special(activation.kind, *activation.values())


# ---------------------------------------------------------------- the fast paths


def _known_call(key: Any, out: Any, given: tuple[Any, ...], numbers: tuple[float, float, float]) -> Any:
    """The result of a call whose arrays are as those of an earlier one, else None."""
    known = _known(key)
    if known is None:
        return None
    call_of, words, table = known
    found = call_of(words, out, given, numbers)
    return found if type(found) is not tuple else launched(table, found, given, numbers)


def forward(kind: str, x: Any, out: Any = None, p0: float = 0.0, p1: float = 0.0, p2: float = 0.0) -> Any:
    """y = kind(x), for the kinds of one array and up to three numbers."""
    state, numbers = _current(), (p0, p1, p2)
    key = kind, state.calls
    known = _known(key)
    if known is not None:  # `_known_call`, which is a call less
        call_of, words, table = known
        found = call_of(words, out, (x,), numbers)
        if found is not None:
            return found if type(found) is not tuple else launched(table, found, (x,), numbers)
    return run(pose(kind, "forward", {"x": x}, out), numbers, (key, out, (x,), (1,)))


def backward(kind: str, dy: Any, saved: Any, out: Any = None, p0: float = 0.0, p1: float = 0.0, p2: float = 0.0) -> Any:
    """dx from dy and from what the kind's gradient reads: x, y, or nothing (`saved` is then dy again)."""
    name = reads(kind)
    if not name:
        saved = dy
    key, numbers = (kind, "dx", _current().calls), (p0, p1, p2)
    found = _known_call(key, out, (dy, saved), numbers)
    if found is not None:
        return found
    inputs = {"dy": dy, name: saved} if name else {"dy": dy}
    return run(pose(kind, "backward", inputs, out), numbers, (key, out, (dy, saved), (2, 1 if name == "x" else 3)))


# ---------------------------------------------------------------- prelu and glu


def prelu_forward(x: Any, weight: Any, out: Any = None) -> Any:
    """prelu with one slope for all of x, or one for each channel."""
    storage = enter_weight(weight, x)
    if is_number(storage):
        return forward("prelu", x, out, _number(storage, x))
    posed = pose("prelu", "forward", {"x": x}, out, weight=storage)
    return run(posed, NO_PARAMETERS)


def prelu_backward(dy: Any, x: Any, weight: Any, out: Any = None) -> tuple[Any, Any]:
    """(dx, dweight)."""
    storage = enter_weight(weight, x)
    single = is_number(storage)
    posed = pose("prelu", "backward", {"dy": dy, "x": x}, out, weight=None if single else storage)
    if _current().trial is not None:
        bind(posed)  # what `explain` is asked for is dx
    # the weight's gradient first: dx may overwrite dy or x
    dweight = run(weight_gradient(posed, storage), NO_PARAMETERS)
    slope = _number(storage, x) if single else 0.0
    return run(posed, (slope, 0.0, 0.0)), dweight


def weight_gradient(posed: Posed, weight: ndarray) -> Posed:
    """The call that sums the gradient of prelu's weight, from the one that computes dx."""
    result, storage = posed.origin.empty(weight.shape, posed.dtype)
    inputs = {name: posed.inputs[name] for name in ("dy", "x")}
    return Posed("prelu", "weight", posed.dtype, posed.origin, inputs, result, storage)


def glu_forward(x: Any, axis: int, out: Any = None) -> Any:
    """The first half of an axis times the sigmoid of the second."""
    key = ("glu", axis, _current().calls)
    found = _known_call(key, out, (x, x), NO_PARAMETERS)
    if found is not None:
        return found
    return run(pose("glu", "forward", {"x": x}, out, axis=axis), NO_PARAMETERS, (key, out, (x, x), (1, 5)))


def glu_backward(dy: Any, x: Any, axis: int, out: Any = None) -> Any:
    """dx, of both halves."""
    return run(pose("glu", "backward", {"dy": dy, "x": x}, out, axis=axis), NO_PARAMETERS)


def enter_weight(weight: Any, x: Any) -> ndarray:
    """prelu's weight as storage of shape () or (C,), checked against x."""
    storage, dtype, library = arrays.enter(weight, "weight")
    _, x_dtype, x_library = arrays.enter(x, "x")
    if dtype != x_dtype or library is not x_library:
        arrays.require_same(x, "x", weight, "weight")
    if storage.size == 1:
        return storage
    if x.ndim >= 2 and storage.shape == (x.shape[1],):
        return storage
    channels = f"({x.shape[1]},) for one slope a channel (dimension 1 of x)" if x.ndim >= 2 else "of no other shape"
    raise ValueError(f"weight is a {arrays.describe(weight)}; it must be (1,) for one slope, or {channels}")


def is_number(weight: Any) -> bool:
    """Whether prelu's weight is one slope that can be read; on a GPU that would wait for it, so it stays an array."""
    return bool(weight.size == 1 and isinstance(weight, ndarray))


def _number(storage: ndarray, x: Any) -> float:
    from numbaprims.reference.convert import to_float64

    if storage.dtype.kind == "f":
        return float(storage.reshape(())[()])
    return float(to_float64(storage.reshape(1), arrays.enter(x, "x")[1])[0])


# ---------------------------------------------------------------- the checks


def pose(
    kind: str, direction: str, inputs: dict[str, Any], out: Any, *, axis: int | None = None,
    weight: ndarray | None = None,
) -> Posed:  # fmt: skip
    """Check a call and give its storage arrays; nothing has been written when it raises.

    The inputs come as the caller's arrays, the one of the result's shape first; prelu's weight comes checked.
    """
    storages: dict[str, ndarray] = {}
    first = dtype = library = None
    for name, x in inputs.items():
        storage, this, of = arrays.enter(x, name)
        if first is None:
            first, dtype, library = name, this, of
            if dtype not in FLOATS:
                raise TypeError(
                    f"{name} is a {arrays.describe(x)}; activations take float64, float32, float16, bfloat16"
                )
        elif this != dtype or of is not library:
            arrays.require_same(inputs[first], first, x, name)
        storages[name] = storage
    assert first is not None and dtype is not None and library is not None
    like = storages[first]
    if axis is not None:
        axis, shape = _glu_shape(inputs, storages, direction, axis)
    else:
        shape = like.shape
        for name, storage in storages.items():
            if storage.shape != shape:
                raise ValueError(
                    f"{first} is a {arrays.describe(inputs[first])} and {name} a "
                    f"{arrays.describe(inputs[name])}; they must have one shape"
                )
    if weight is not None:
        if weight.size == 1:
            spread = weight.reshape(())
        else:
            spread = weight.reshape(-1, *(1,) * (like.ndim - 2)) if like.ndim > 2 else weight
        storages["weight"] = np.broadcast_to(spread, like.shape)
    if out is None:
        # as NumPy's ufuncs and torch do: the result lies in memory as the first input does
        result, storage = library.empty_like(like, dtype) if shape == like.shape else library.empty(shape, dtype)
    else:
        result, storage = out, arrays.check_out(out, shape, dtype, library=library)
        # dx may overwrite glu's x: both halves of an element are read before either is written
        arrays.check_overlap(storage, [(x, name, name != "weight") for name, x in storages.items()])
    return Posed(kind, direction, dtype, library, storages, result, storage, axis)


def _glu_shape(
    inputs: dict[str, Any], storages: dict[str, ndarray], direction: str, axis: int
) -> tuple[int, tuple[int, ...]]:
    """(axis from 0, shape of the result) of a glu."""
    x = storages["x"]
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis} and x a {arrays.describe(inputs['x'])}; allowed is {-x.ndim} to {x.ndim - 1}")
    axis %= x.ndim
    if x.shape[axis] % 2:
        raise ValueError(f"x is a {arrays.describe(inputs['x'])}; glu halves axis {axis}, so its length must be even")
    half = (*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :])
    if direction == "forward":
        return axis, half
    if storages["dy"].shape != half:
        raise ValueError(
            f"dy is a {arrays.describe(inputs['dy'])} and x a {arrays.describe(inputs['x'])}; dy must have shape {half}"
        )
    return axis, x.shape


# ---------------------------------------------------------------- the launch


def bind(posed: Posed) -> call.Bound | None:
    """The launcher of a checked call; None where there is nothing to launch."""
    state = _current()
    if posed.out.size == 0 or not next(iter(posed.inputs.values())).size or state.device == "reference":
        if state.trial is not None:
            state.trial.choice(posed.problem())
        return None
    key = posed.key()
    bound = _get(key)
    if bound is None:
        with applicable(posed):
            made = call.bind(
                posed.problem(), posed.out.shape, posed.dtype, library=posed.origin,
                outputs=(0, ARRAYS.index("dgate")),
            )  # fmt: skip
            bound = _launchers.put(key, made)
    return bound


def run(posed: Posed, parameters: tuple[float, float, float], known: Any = None) -> Any:
    """Launch a checked call and give its result.

    `known` is what native code is told of it: its key, the caller's `out` and arrays, and their places in the launch.
    """
    inputs, out = posed.inputs, posed.out
    state, bound = _current(), bind(posed)
    if bound is None:
        if out.size == 0 or not next(iter(inputs.values())).size:
            if posed.direction == "weight":
                out.fill(0)
        else:
            from numbaprims.ops._activation_reference import compute

            compute(posed, parameters)
        return posed.result
    operands = dict(inputs, out=out)
    if posed.axis is not None:
        operands["gate"] = inputs["x"]
        if posed.direction == "backward":
            operands["dgate"] = out
    bound.launch(*[operands.get(name) for name in ARRAYS], f0=parameters[0], f1=parameters[1], f2=parameters[2])
    if state.verbose:
        call.log_call(bound)
    elif known is not None and posed.origin is arrays.NUMPY:
        key, given_out, given, places = known
        _known_calls.add(key, bound, [(0, posed.result), *zip(places, given, strict=True)], 1, given_out is None)
    return posed.result


def applicable(posed: Posed) -> Any:
    """Settings in which no solver is forced that is one for the other of the two problems of prelu's gradient.

    A forced solver that exists for neither is still refused, by the one that computes dx.
    """
    forced = dict(_current().algorithm).get("activation")
    sums = forced in SUM_SOLVERS
    if posed.kind != "prelu" or forced is None or forced == "naive" or sums == (posed.direction == "weight"):
        return contextlib.nullcontext()
    return settings.config(algorithm={stem: name for stem, name in _current().algorithm if stem != "activation"})


# ---------------------------------------------------------------- parameters


def number(kind: str, name: str, value: Any) -> float:
    """A parameter as a float; None is its default."""
    if type(value) is float:
        return value
    if value is None:
        value = KINDS[kind].parameters[name]
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} of {kind} is {value!r}; it must be a number") from None


def numbers(kind: str, **parameters: Any) -> tuple[float, ...]:
    """All parameters of a kind as floats, with the checks of the table."""
    return make_activation(kind, parameters).parameters


def gelu_kind(approximate: Any) -> str:
    """The kernel's name of a gelu."""
    return "gelu" if approximate == "none" else make_activation("gelu", {"approximate": approximate}).kind


def axis_of(axis: Any) -> int:
    """glu's axis as an int."""
    if type(axis) is int:
        return axis
    return resolve("glu", {"axis": axis})[1]["axis"]
