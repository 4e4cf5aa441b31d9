"""Rotary position embedding: `rope`, its gradient, and tables of cosines and sines."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dtypes import DTYPES
from numbaprims.ops import examples
from numbaprims.ops._docs import documented
from numbaprims.ops._rope_problem import RopeProblem as RopeProblem
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems, scalar, truth
from numbaprims.reference import rope as reference
from numbaprims.reference.convert import from_float64
from numbaprims.shapes import element_strides

_INTEGERS = ("i64", "i32")


def _lead(given: Given, at: int, batch: tuple[int, ...], behind: tuple[int, ...]) -> tuple[int, ...]:
    """An array's strides over (*batch, length, ...), its shape being that or `behind` alone."""
    shape, steps = given.storages[at].shape, element_strides(given.storages[at])
    if shape not in (behind, (*batch, *behind)):
        raise ValueError(
            f"{given.words(at)}; beside x {given.storages[0].shape} it must be {behind}"
            + (f" or {(*batch, *behind)}" if batch else "")
        )
    return (*(0,) * (len(batch) + len(behind) - len(shape)), *steps)


def _pose(inverse: bool, given: Given, options: tuple[Any, ...]) -> Pose:
    interleaved, dims = options
    x, cos, sin, places = given.storages
    dtype, cache, other, places_type = given.dtypes
    assert dtype is not None and cache is not None
    if x.ndim < 2:
        raise ValueError(f"{given.words(0)}; it must be (..., heads, length, width), or (length, width)")
    if cache not in (dtype, DTYPES[dtype].accumulate) or other != cache:
        raise TypeError(f"{given.words(1)} and {given.words(2)}; they must be of x's type, or float32 beside 16 bits")
    if places is not None and places_type not in _INTEGERS:
        raise TypeError(f"{given.words(3)}; it must be int64 or int32")
    *batch, heads, length, width = (1,) * (x.ndim < 3) + x.shape
    half = cos.shape[-1] if cos.ndim else 0
    if dims is not None and dims != 2 * half:
        raise ValueError(f"rotary_dims is {dims} and {given.words(1)}; it must be twice its last dimension")
    if 2 * half > width:
        raise ValueError(f"{given.words(1)}; a row of x has {width} elements, which is less than {2 * half}")
    if sin.shape != cos.shape:
        raise ValueError(f"{given.words(2)}; it must have the shape of cos {cos.shape}")
    lead = tuple(batch)
    where: tuple[int, ...] = (0,)
    if places is None:
        tables = [_lead(given, at, lead, (length, half)) for at in (1, 2)]
        limit = length
    else:
        if cos.ndim != 2:
            raise ValueError(f"{given.words(1)}; beside positions it must be (rows, {half})")
        where, limit = _lead(given, 3, lead, (length,)), cos.shape[0]
        if not limit and x.size:
            raise ValueError(f"{given.words(1)}; there is no row for any position")
        # from row to row of a table is said by positions: the kernel multiplies
        tables = [(*(0,) * len(batch), *element_strides(each)) for each in (cos, sin)]

    def over_heads(steps: Sequence[int]) -> tuple[int, ...]:
        return (*steps[:-2], 0, *steps[-2:])

    def problem(made: Sequence[Any]) -> RopeProblem:
        own = [(0,) * (x.ndim < 3) + tuple(element_strides(each)) for each in (*made, x)]
        strides = [*own, *map(over_heads, tables)]
        if places is not None:
            strides.append(over_heads((*where, 0)))
        shared = not any(step for steps in (*tables, where) for step in steps[: len(batch)])
        even = all(steps[-1] == 1 for steps in own) and (half < 2 or all(steps[-1] == 1 for steps in tables))
        return RopeProblem(
            dtype, cache, math.prod(batch), heads, length, width, half, places_type or "", limit,
            shared or math.prod(batch) < 2, interleaved, inverse, "rows" if even or width == 1 else "strided",
            lead, tuple(strides),
        )  # fmt: skip

    return Pose((Result(x.shape, dtype, like=0),), problem)


def _define(inverse: bool, values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    x, cos, sin, places = values
    return reference.rotate(x, cos, sin, places, options[0], inverse)


_rope, _rope_backward = (
    Primitive(
        name, (x, "cos", "sin", "positions"), functools.partial(_pose, inverse), functools.partial(_define, inverse),
        others=("cos", "sin", "positions"), exact=(x,), required=3,
    )
    for name, x, inverse in (("rope", "x", False), ("rope_backward", "dy", True))
)  # fmt: skip


def _options(cos: Any, positions: Any, interleaved: bool, rotary_dims: int | None) -> tuple[Any, ...]:
    """What chooses a problem; positions of the host are looked at."""
    if positions is not None:
        places, dtype, _ = arrays.enter(positions, "positions")
        rows = arrays.enter(cos, "cos")[0].shape[0] if getattr(cos, "ndim", 0) else 0
        if isinstance(places, np.ndarray) and dtype in _INTEGERS and places.size:
            low, high = int(places.min()), int(places.max())
            if low < 0 or high >= rows:
                raise ValueError(f"positions holds {low if low < 0 else high}; cos has rows from 0 to {rows - 1}")
    return truth(interleaved, "interleaved"), None if rotary_dims is None else integer(rotary_dims, "rotary_dims")


_COMMON = """
Args:
    cos: cosines of the angles, (length, pairs), or (..., length, pairs); with positions (rows, pairs). Of x's type,
        or float32 beside float16 and bfloat16.
    sin: sines, of cos's shape and type.
    positions: int64 or int32 (length,) or (..., length): the row of cos and sin that each row of x takes.
    interleaved: False: element i is a pair with element i + pairs (GPT-NeoX, Llama); True: 2 i with 2 i + 1 (the
        paper's, GPT-J).
    rotary_dims: twice the pairs, for those who want it checked; elements behind them stay as they are.
    out: where the result goes; it may be the first array.
Raises:
    TypeError: integers, mixed libraries, cos or sin of another type, positions that are no integers.
    ValueError: shapes that do not go together, a position without a row (on a GPU it takes the nearest row), an
        `out` of another shape, or one that overlaps.
References:
    Su et al., RoFormer: Enhanced transformer with rotary position embedding, 2021, equation 34; ONNX RotaryEmbedding.
"""


@documented(_COMMON)
def rope(
    x: Any, cos: Any, sin: Any, *, positions: Any = None, interleaved: bool = False, rotary_dims: int | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Turn pairs of elements by the angles of their positions: ``y1 = x1 cos - x2 sin, y2 = x1 sin + x2 cos``.

    Args:
        x: (..., heads, length, width) or (length, width), of any strides; float64, float32, float16 or bfloat16,
            the last two computed in float32.

    Returns:
        y, of x's shape, dtype and library; a new array lies in memory as x does.

    Example:
        >>> import numpy as np, numbaprims
        >>> cos, sin = numbaprims.rope_frequencies(3, 2, dtype="float64")
        >>> numbaprims.rope(np.float64([[1, 0], [1, 0], [1, 0]]), cos, sin).round(4).tolist()
        [[1.0, 0.0], [0.5403, 0.8415], [-0.4161, 0.9093]]
    """
    return _rope.run((x, cos, sin, positions), _options(cos, positions, interleaved, rotary_dims), (), out)


@documented(_COMMON)
def rope_backward(
    dy: Any, cos: Any, sin: Any, *, positions: Any = None, interleaved: bool = False, rotary_dims: int | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Gradient of `rope` by x, which turns back: ``dx1 = dy1 cos + dy2 sin, dx2 = dy2 cos - dy1 sin``.

    Args:
        dy: the gradient of y, of its shape.

    Returns:
        dx, of dy's shape, dtype and library.

    Example:
        >>> import numpy as np, numbaprims
        >>> cos, sin = numbaprims.rope_frequencies(2, 2)
        >>> y = numbaprims.rope(np.float32([[1, 0], [3, 4]]), cos, sin)
        >>> numbaprims.rope_backward(y, cos, sin).round(4).tolist()
        [[1.0, 0.0], [3.0, 4.0]]
    """
    return _rope_backward.run((dy, cos, sin, positions), _options(cos, positions, interleaved, rotary_dims), (), out)


def rope_frequencies(length: int, dims: int, *, base: float = 10000.0, dtype: Any = "float32") -> tuple[Any, Any]:
    """Tables for `rope`: ``cos(m base**(-2 i / dims))`` and sin of it, for position m and pair i.

    Args:
        length: positions, from 0.
        dims: elements of a row that are turned, an even number.
        base: of the geometric progression of the frequencies.
        dtype: a name or a dtype; angles are computed in float64 and rounded once.

    Returns:
        (cos, sin), NumPy arrays (length, dims / 2).

    Raises:
        TypeError: a dtype that is no float NumPy has.
        ValueError: a negative length, an odd or negative dims, a base that is not positive.

    Example:
        >>> import numbaprims
        >>> cos, sin = numbaprims.rope_frequencies(2, 4)
        >>> sin.round(4).tolist()
        [[0.0, 0.0], [0.8414999842643738, 0.009999999776482582]]

    References:
        Su et al., RoFormer, 2021, equation 15; base 10000 as in Vaswani et al., Attention is all you need, 2017.
    """
    length, dims, base = integer(length, "length"), integer(dims, "dims"), scalar(base, "base")
    name = arrays.dtype_name(dtype, "dtype")
    if length < 0 or dims < 0 or dims % 2 or not base > 0:
        raise ValueError(
            f"length is {length}, dims {dims}, base {base}; dims must be even, none negative, base above 0"
        )
    if name not in ("f64", "f32", "f16"):
        raise TypeError(f"dtype is {dtype!r}; it must be float64, float32 or float16")
    found = reference.angles(length, dims, base)
    return from_float64(np.cos(found), name), from_float64(np.sin(found), name)


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem
    shape = (p.batch, p.heads, p.length, p.width)
    x = examples.array((*shape[:-1], 2 * p.width + 2) if p.layout == "strided" else shape, p.dtype)
    if p.layout == "strided":
        x = x[..., :-2:2]
    lead = () if p.shared else (p.batch,)
    rows = (p.limit,) if p.places else (*lead, p.length)
    cos, sin = (examples.array((*rows, p.half), p.cache) for _ in range(2))
    words: dict[str, Any] = {"interleaved": p.interleaved}
    if p.places:
        spread = np.resize(np.arange(p.limit), (*lead, p.length))
        words["positions"] = spread.astype(np.int64 if p.places == "i64" else np.int32)
    return "rope_backward" if p.inverse else "rope", (x, cos, sin), words


PROBLEMS = problems(rope, rope_backward)
EXAMPLES = {"rope": _example_call}
