"""dropout, dropout_backward, random_uniform and random_normal: functions of (seed, offset, place of the element)."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays, philox
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES, LONG_NAMES
from numbaprims.ops import examples
from numbaprims.ops._docs import documented
from numbaprims.ops._random_problem import RandomProblem, in_order
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems, scalar
from numbaprims.reference import random as reference
from numbaprims.shapes import element_strides, items_of

_double = struct.Struct("=d").unpack
_word = struct.Struct("=Q").pack


def as_number(value: Any, name: str) -> float:
    """The float64 that has the bits of a word: calls carry floats."""
    return float(_double(_word(philox.word64(value, name)))[0])


def of_number(number: float) -> int:
    """The word again."""
    return int.from_bytes(struct.pack("<d", number), "little")


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    kind, *scale = options  # of dropout alone, else with its dtype, start and size
    x = given.storages[0]

    def problem(outs: Sequence[Any]) -> Problem:
        (out,) = outs
        operands = [out, x] if kind == "dropout" else [out]
        loops, strides = in_order(x.shape, [element_strides(each) for each in operands])
        rows = all(steps[-1] == 1 for steps in strides)
        return RandomProblem(
            kind=kind,
            dtype=given.dtypes[0],  # type: ignore[arg-type]
            n=math.prod(loops),
            layout="strided" if not rows else "rows" if len(loops) > 1 else "contiguous",
            inner=loops[-1],
            in_place=bool(np.may_share_memory(out, x)),
            loops=loops,
            strides=strides,
            scale=tuple(scale[1:]) or (0.0, 1.0),
        )

    result = Result(x.shape, given.dtypes[0], like=0)  # type: ignore[arg-type]
    # random numbers overwrite an array that they do not read
    return Pose((result,), problem, (0, 1) if kind == "dropout" else (0, -1))


def _define(values: Any, options: Any, numbers: Any) -> Any:
    (x,), (kind, *scale) = values, options
    *p, seed, offset = numbers
    stream = of_number(seed), of_number(offset)
    if kind == "dropout":
        return reference.dropout(x, p[0], *stream)
    return getattr(reference, kind)(x.shape, *stream, *scale)


def _dropout_by(name: str, argument: str) -> Primitive:
    return Primitive(name, (argument,), _pose, _define, exact=(argument,))


_dropout, _dropout_backward = _dropout_by("dropout", "x"), _dropout_by("dropout_backward", "dy")
_uniform, _normal = (Primitive(name, ("out",), _pose, _define, exact=("out",)) for name in ("uniform", "normal"))


def _drop(primitive: Primitive, x: Any, p: float, seed: int, offset: int, out: Any) -> Any:
    p = scalar(p, "p")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p is {p!r}; a probability lies between 0 and 1")
    return primitive.run((x,), ("dropout",), (p, as_number(seed, "seed"), as_number(offset, "offset")), out)


def dropout(x: Any, p: float = 0.5, *, seed: int, offset: int = 0, out: Any = None) -> Any:
    """Drop elements at random: ``y = x * mask / (1 - p)``, the mask a function of seed, offset and place alone.

    Element `index`, in C order, is kept where word `index` of the stream (seed, offset) is at least ``p * 2**32``
    (`numbaprims.philox.dropout_mask`); what is dropped is multiplied by 0. No mask is stored: `dropout_backward` makes
    it again, the same for any strides, number of threads and device.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16, the last two computed in float32.
        p: the probability of an element to be dropped, 0 to 1.
        seed, offset: 0 to 2**64 - 1. Streams of another offset have no block of words in common.
        out: where y goes; it may be x itself, and otherwise shares no memory with x.

    Returns:
        y, of x's shape, dtype and library; a new array lies in memory as x does.

    Raises:
        TypeError: integers in x, a seed that is none, a p that is no number.
        ValueError: a p, seed or offset out of range; an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.dropout(np.ones((2, 4), np.float32), 0.5, seed=1)
        array([[2., 2., 2., 2.],
               [2., 2., 0., 2.]], dtype=float32)

    References:
        Srivastava et al., Dropout, 2014; Salmon, Moraes, Dror and Shaw, Parallel random numbers, 2011; ONNX Dropout.
    """
    return _drop(_dropout, x, p, seed, offset, out)


def dropout_backward(dy: Any, p: float = 0.5, *, seed: int, offset: int = 0, out: Any = None) -> Any:
    """Gradient of `dropout`, the same function of dy: ``dx = dy * mask / (1 - p)``.

    Args:
        dy: the gradient of y, as x of `dropout`.
        p, seed, offset: those of the forward pass.
        out: where dx goes; it may be dy itself.

    Returns:
        dx, as `dropout` gives y.

    Raises:
        TypeError, ValueError: as `dropout`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.dropout_backward(np.ones(8, np.float32), 0.5, seed=1)
        array([2., 2., 2., 2., 2., 2., 0., 2.], dtype=float32)
    """
    return _drop(_dropout_backward, dy, p, seed, offset, out)


_drawn = documented("""
Args:
    shape: of the result, or a count of elements; None: that of `out`.
    seed, offset: 0 to 2**64 - 1. Streams of another offset have no block of words in common.
    dtype: float64, float32, float16 or bfloat16; None: that of `out`, else float32.
    out: an array of any strides, or of a GPU, that is filled instead of a new one.

Returns:
    A new NumPy array, or `out`.

Raises:
    TypeError: a dtype that has no such numbers, a seed that is no integer.
    ValueError: a seed or offset out of range, bounds that are not finite, an `out` of another shape.
""")


#: What is rounded to infinity, and all beyond.
_BEYOND = {"f64": math.inf, "f32": 2.0**128 - 2.0**103, "f16": 65520.0, "bf16": 2.0**128 - 2.0**119}


def _lengths(shape: Any) -> tuple[int, ...]:
    given = (shape,) if isinstance(shape, (int, np.integer)) else items_of(shape, "shape")
    lengths = tuple(integer(length, "shape") for length in given)
    if min(lengths, default=0) < 0:
        raise ValueError(f"shape is {shape!r}; lengths are not below 0")
    return lengths


def _check_type(kind: str, name: str, out: Any) -> None:
    if name not in _uniform.dtypes:
        words = f"dtype is {LONG_NAMES[name]}" if out is None else f"out is a {arrays.describe(out)}"
        raise TypeError(f"{words}; random_{kind} takes {', '.join(LONG_NAMES[each] for each in _uniform.dtypes)}")


def _draw(
    kind: str, shape: Any, bounds: dict[str, float], stream: tuple[int, int], dtype: Any, out: Any
) -> Any:  # fmt: skip
    if out is None:
        if shape is None:
            raise ValueError("shape is None and so is out; one of them says how many numbers are drawn")
        name = arrays.dtype_name("float32" if dtype is None else dtype, "dtype")
        _check_type(kind, name, None)
        out = arrays.NUMPY.empty(_lengths(shape), name)[0]
    else:
        storage, name, _ = arrays.enter(out, "out")
        _check_type(kind, name, out)
        if shape is not None and _lengths(shape) != storage.shape:
            raise ValueError(f"shape is {shape!r} and out a {arrays.describe(out)}; they must be the same")
        if dtype is not None and arrays.dtype_name(dtype, "dtype") != name:
            raise TypeError(f"dtype is {dtype!r} and out a {arrays.describe(out)}; they must be the same")
    for each, value in bounds.items():
        own = DTYPES[name].accumulate if each == "high - low" else name  # it is rounded as part of a sum
        if not abs(value) < _BEYOND[own]:
            raise ValueError(f"{each} is {value!r}; it must be finite in {LONG_NAMES[own]}")
    scale = (bounds["low"], bounds["high - low"]) if kind == "uniform" else (bounds["mean"], bounds["std"])
    numbers = as_number(stream[0], "seed"), as_number(stream[1], "offset")
    primitive = _uniform if kind == "uniform" else _normal
    return primitive.run((out,), (kind, name, *scale), numbers, out)


@_drawn
def random_uniform(
    shape: Any = None, *, low: float = 0.0, high: float = 1.0, seed: int, offset: int = 0, dtype: Any = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Numbers that are evenly distributed from low to high: ``low + (high - low) * u`` with 0 <= u < 1.

    u is the highest bits of an element's word as a fraction, as many as the mantissa of its dtype holds
    (`numbaprims.philox.uniform`): the same on every device, as are the results where ``high - low`` is a power of 2
    and low is 0. `high` itself comes up only where the sum is rounded to it.

    Args:
        low, high: the bounds.

    Example:
        >>> import numbaprims
        >>> numbaprims.random_uniform(3, seed=1).round(4)
        array([0.8903, 0.8947, 0.5857], dtype=float32)
    """
    low, high = scalar(low, "low"), scalar(high, "high")
    return _draw("uniform", shape, {"low": low, "high": high, "high - low": high - low}, (seed, offset), dtype, out)


@_drawn
def random_normal(
    shape: Any = None, *, mean: float = 0.0, std: float = 1.0, seed: int, offset: int = 0, dtype: Any = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Numbers of a normal distribution: ``mean + std * z``, z by Box and Muller.

    Two words give two numbers, ``sqrt(-2 log u)`` times the cosine and the sine of a turn (`numbaprims.philox.normal`):
    within 4 units in the last place on every device.

    Args:
        mean, std: of the distribution.

    Example:
        >>> import numbaprims
        >>> numbaprims.random_normal((2, 2), seed=1).round(3)
        array([[ 0.38 , -0.296],
               [-0.249, -1.004]], dtype=float32)

    References:
        Box and Muller, A note on the generation of random normal deviates, 1958.
    """
    bounds = {"mean": scalar(mean, "mean"), "std": scalar(std, "std")}
    return _draw("normal", shape, bounds, (seed, offset), dtype, out)


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem
    gap = 0 if p.layout == "contiguous" else 8
    shape = (p.n,) if p.layout == "contiguous" else (max(1, p.n // max(1, p.inner)), p.inner)
    step = 2 if p.layout == "strided" else 1
    x = examples.array((*shape[:-1], step * shape[-1] + gap), p.dtype)[..., : step * shape[-1] : step]
    if p.kind == "dropout":
        return "dropout", (x,), {"seed": 1, "out": x if p.in_place else None}
    return f"random_{p.kind}", (), {"seed": 1, "out": x}


PROBLEMS = problems(dropout, dropout_backward, random_uniform, random_normal)
EXAMPLES = {"random": _example_call}
