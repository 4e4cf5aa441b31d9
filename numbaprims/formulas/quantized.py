"""Quantised integers: y = saturate(round(x / scale) + zero point), halves to even, and back; sums of two of them.

Results are stored as integers, which saturates; the range of 4 bits, and one that a rectifier cuts, is in `limits`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.formulas.graph import (
    Node,
    apply,
    at_least,
    at_most,
    constant,
    equals,
    floor,
    mad,
    magnitude,
    nearest,
    negative,
    quantized,
    quotients,
    reciprocal,
    reduce_max,
    reduce_sum,
    reduce_top,
    rounded,
    select,
)

Limits = tuple[float, ...]
#: How far two numbers lie around the reciprocal of a scale: what lies between is more than its rounding and that of a
#: quotient, down to 2**-128, of which float32 holds 2**-149.
AROUND = 2.0**-21
LARGEST = 3.4028234663852886e38
#: How scales and zero points are given -> arrays of a formula with them.
WAYS = {"": 1, "_by": 2, "_at": 3}


def _within(y: Node, limits: Limits) -> Node:
    return at_least(at_most(y, limits[1]), limits[0]) if limits else y


def _quantize(x: Node, scale: Node, zero: Any = 0.0, limits: Limits = ()) -> Node:
    if not limits and scale.uniform:
        inverse = reciprocal(scale)  # infinite of what is below 2**-128: then nothing lies between the two
        finite = _within(inverse, (-LARGEST, LARGEST))
        return quotients(x, scale, finite * (1.0 - AROUND), inverse * (1.0 + AROUND), zero)
    if not limits:
        return quantized(x / scale, zero)
    found = nearest(x / scale)
    return _within(select(equals(found, found), found, 0.0) + zero, limits)


def _nibble(x: Node) -> Node:
    """An integer of 4 bits as what it is in the lower half of a byte."""
    return select(x < 0.0, x + 16.0, x)


def _quantize_lone(x: Node, scale: Node, zero: Any, limits: Limits = ()) -> Node:
    """The lower half of a byte whose upper one is empty."""
    return _nibble(_quantize(x, scale, zero, limits))


def _quantize_pair(*given: Node, limits: Limits = ()) -> Node:
    """(even, odd elements; scale and zero point, or those of each): a byte, the first in its lower half."""
    a, b, *more = given
    s, t, y, z = {2: [0, 0, 1, 1], 3: [0, 1, 2, 2], 4: [0, 1, 2, 3]}[len(more)]
    lower = _nibble(_quantize(a, more[s], more[y], limits))
    return mad(_nibble(_quantize(b, more[t], more[z], limits)), 16.0, lower)


def _dequantize(x: Node, scale: Node, zero: Any) -> Node:
    return (x - zero) * scale


def _half(of: Callable[[Node], Node]) -> Callable[..., Node]:
    def dequantize(x: Node, scale: Node, zero: Any, limits: Limits = ()) -> Node:
        half = of(x)
        if limits[0] < 0:
            half = select(half > limits[1], half - 16.0, half)
        return _dequantize(half, scale, zero)

    return dequantize


def _lower(x: Node) -> Node:
    return mad(floor(x * 0.0625), -16.0, x)


def _upper(x: Node) -> Node:
    return floor(x * 0.0625)


def _add(a: Node, b: Node, factor_a: Node, factor_b: Node, fixed: Node, limits: Limits = ()) -> Node:
    """What is left of both scales and zero points is `fixed`, which is added before rounding."""
    return rounded(_within(mad(a, factor_a, mad(b, factor_b, fixed)), limits))


def _requantize(total: Node, factor: Node, zero: Node, limits: Limits = ()) -> Node:
    return quantized(total * factor, zero) if not limits else _within(nearest(total * factor) + zero, limits)


#: Name -> the number of arrays, then of numbers, and the function, as in `maps`.  Of pairs, arrays are the elements of
#: even indices and those of odd ones; "_by" has scales as an array, "_at" zero points too.
QUANTIZED: dict[str, tuple[int, int, Callable[..., Any]]] = {
    **{
        f"{name}{way}": (arrays, 3 - arrays, function)
        for name, function in (("quantize", _quantize), ("quantize_lone", _quantize_lone))
        for way, arrays in WAYS.items()
    },
    "quantize_pair": (2, 2, _quantize_pair),
    "quantize_pair_by": (4, 1, _quantize_pair),
    "quantize_pair_at": (6, 0, _quantize_pair),
    **{
        f"dequantize{part}{way}": (arrays, 3 - arrays, function)
        for part, function in (("", _dequantize), ("_lower", _half(_lower)), ("_upper", _half(_upper)))
        for way, arrays in WAYS.items()
    },
    "qlinear_add": (2, 3, _add),
    "requantize": (1, 2, _requantize),
    "requantize_by": (2, 1, _requantize),
    # what a table gives is its solver's
    "lookup": (1, 1, lambda x, table: x + table),
    # x - 128, by bits: as bytes where these are vectors' lanes
    "signed": (1, 0, lambda x: _flipped(x)),
}


def _flipped(x: Node) -> Node:
    sign = apply("integer_bits", constant(128.0))
    return apply("low_byte", apply("bitwise_xor", apply("integer_bits", x), sign), True)


def _scale_of(width: Node, steps: float) -> Node:
    """Of a range; 1 of one that is empty."""
    scale = width / steps
    return select(equals(scale, 0.0), 1.0, scale)


def dynamic_quantize(x: Node) -> tuple[Node, Node, Node]:
    """To 0 ... 255, over the range of a row and 0."""
    above, below = at_least(reduce_max(x), 0.0), at_least(reduce_top(negative(x)), 0.0)  # NaN is in the other
    scale = _scale_of(above + below, 255.0)
    zero = nearest(below / scale)
    return _quantize(x, scale, zero), scale, zero


def dynamic_quantize_symmetric(x: Node) -> tuple[Node, Node, Node]:
    """To -127 ... 127, by the largest magnitude of a row."""
    scale = _scale_of(reduce_max(magnitude(x)), 127.0)
    return _quantize(x, scale), scale, constant(0.0)


def integer_sum(x: Node) -> Node:
    """What zero points are multiplied by."""
    return reduce_sum(x)


def qlinear_mean(x: Node, factor: Node, fixed: Node, zero: Node) -> Node:
    """The sum of a row, less its zero points, by a factor that holds both scales and the row's length."""
    return quantized((reduce_sum(x) + fixed) * factor, zero)


_DYNAMIC = (("x", "row"),), (("y", "row"), ("scale", "one"), ("zero_point", "one"))
#: Formulas with reductions: name -> function, operands, results.
REDUCED: dict[str, tuple[Callable[..., Any], tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]] = {
    "dynamic_quantize": (dynamic_quantize, *_DYNAMIC),
    "dynamic_quantize_symmetric": (dynamic_quantize_symmetric, *_DYNAMIC),
    "qlinear_mean": (
        qlinear_mean,
        (("x", "row"), ("factor", "number"), ("fixed", "number"), ("zero", "number")),
        (("y", "one"),),
    ),  # fmt: skip
    "integer_sum": (integer_sum, (("x", "row"),), (("y", "one"),)),
}
