"""Functions of elements of several arrays that broadcast, by the names of NumPy and MIOpen."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.formulas.graph import (
    Node,
    apply,
    atan2,
    constant,
    equals,
    floor,
    fmod,
    is_nan,
    mad,
    magnitude,
    negative,
    position,
    power,
    select,
)
from numbaprims.formulas.quantized import QUANTIZED

#: Formulas that are named so: "map:add:row,along", "map:add.scaled:row,one,row".
MAP = "map:"


def _truth(where: Node) -> Node:
    return select(where, constant(1.0), 0.0)


def _of(x: Node) -> Node:
    """1 where it is other than 0."""
    return select(equals(x, 0.0), 0.0, constant(1.0))


def _largest(a: Node, b: Node) -> Node:
    return select(is_nan(b), b, select(b > a, b, a))


def _mod(a: Node, b: Node) -> Node:
    """What is left of a division, with the sign of the divisor; NaN where the quotient has more digits than twice those
    of its type."""
    # a - q b is exact for a rounded quotient q; one of more digits than its type leaves more than a divisor, once more
    rest = mad(negative(floor(a / b)), b, a)
    rest = mad(negative(floor(rest / b)), b, rest)
    rest = select(magnitude(rest) > magnitude(b), math.nan, rest)
    # the quotient may be rounded up to the next integer: then the rest is one divisor too small
    # a small dividend of the other sign is gone in -b; of an infinite divisor 0 times it is NaN
    rest = select(magnitude(a) < magnitude(b), a, rest)
    alike = equals(_truth(rest < 0.0), _truth(b < 0.0))
    return select(equals(rest, 0.0), rest, select(alike, rest, mad(rest, 1.0, b)))


def _floor_div(a: Node, b: Node) -> Node:
    """The integer that is not above a / b, by NumPy's rule."""
    rest = fmod(a, b)
    less = select(equals(rest, 0.0), 0.0, select(equals(_truth(rest < 0.0), _truth(b < 0.0)), 0.0, constant(1.0)))
    whole = mad(a, 1.0, negative(rest)) / b - less  # a may be a product
    near = floor(whole)
    near = select(whole - near > 0.5, near + 1.0, near)
    near = select(equals(whole, 0.0), (a / b) * 0.0, near)
    return select(equals(b, 0.0), a / b, near)


class Map(NamedTuple):
    """A function of elements."""

    function: Callable[..., Any]
    gives: str = ""
    """"bool"; else the type of its operands."""
    exact: bool = True
    """Whether it is exact of integers, but for their range."""


BINARY: dict[str, Map] = {
    "add": Map(lambda a, b: a + b),
    "sub": Map(lambda a, b: a - b),
    "mul": Map(lambda a, b: a * b),
    "div": Map(lambda a, b: a / b, exact=False),
    "min": Map(lambda a, b: select(is_nan(b), b, select(b < a, b, a))),
    "max": Map(_largest),
    "pow": Map(lambda a, b: power(a, b), exact=False),
    "mod": Map(_mod, exact=False),
    "fmod": Map(lambda a, b: fmod(a, b), exact=False),
    "floor_div": Map(_floor_div, exact=False),
    "atan2": Map(lambda a, b: atan2(a, b), exact=False),
    "equal": Map(lambda a, b: _truth(equals(a, b)), "bool"),
    "not_equal": Map(lambda a, b: select(equals(a, b), 0.0, constant(1.0)), "bool"),
    "less": Map(lambda a, b: _truth(a < b), "bool"),
    "less_equal": Map(lambda a, b: _truth(a <= b), "bool"),
    "greater": Map(lambda a, b: _truth(a > b), "bool"),
    "greater_equal": Map(lambda a, b: _truth(a >= b), "bool"),
    "logical_and": Map(lambda a, b: select(equals(a, 0.0), 0.0, _of(b)), "bool"),
    "logical_or": Map(lambda a, b: select(equals(a, 0.0), _of(b), 1.0), "bool"),
    "logical_xor": Map(lambda a, b: select(equals(a, 0.0), _of(b), select(equals(b, 0.0), 1.0, constant(0.0))), "bool"),
}
#: Of the bits of integers: those of 32 and 64 bits stand as floats of the same bits; "bitwise_and.i8" has numbers.
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")


def _bitwise(op: str, a: Node, b: Node, *, byte: str) -> Node:
    if not byte:
        return apply(op, a, b)
    return apply("low_byte", apply(op, apply("integer_bits", a), apply("integer_bits", b)), byte == "i8")


#: Of one array or of three: the number of arrays, then of numbers.
OTHERS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "where": (3, 0, lambda c, a, b: select(equals(c, 0.0), b, a)),
    "scale": (1, 1, lambda x, alpha: x * alpha),
    "cast": (1, 0, lambda x: x),
    "truth": (1, 0, _of),
    "isnan": (1, 0, lambda x: _truth(is_nan(x))),
    "isinf": (1, 0, lambda x: _truth(equals(magnitude(x), math.inf))),
    "isposinf": (1, 0, lambda x: _truth(equals(x, math.inf))),
    "isnever": (1, 0, lambda x: _truth(x < x)),
    "isneginf": (1, 0, lambda x: _truth(equals(x, -math.inf))),
    # the position makes it an element's value, -0 included
    "fill": (0, 1, lambda value: mad(position(), -0.0, value)),
    "fill_truth": (0, 1, lambda value: _of(mad(position(), -0.0, value))),
    **QUANTIZED,
}


def _scaled(own: Callable[..., Any], op: str, a: Node, b: Node, alpha1: Node, alpha2: Node) -> Any:
    if op in ("add", "sub"):
        return mad(a, alpha1, b * alpha2 if op == "add" else negative(b * alpha2))
    return own(a * alpha1, b * alpha2)


def map_of(name: str) -> tuple[Callable[..., Any], tuple[tuple[str, str], ...]]:
    """The function of a formula's name and its operands: ("a", "row"), ..., ("alpha", "number").

    "add.scaled" is op(alpha1 a, alpha2 b), with a third array + beta c.
    """
    _, word, kinds = name.split(":")
    arrays = tuple(zip("abcdef", kinds.split(","), strict=False)) if kinds else ()
    op, _, scaled = word.partition(".")
    if op in OTHERS:
        _, numbers, function = OTHERS[op]
        if scaled:  # "low_high": the range of what is quantised
            function = functools.partial(function, limits=tuple(map(float, scaled.split("_"))))
        return function, (*arrays, *(("alpha", "number"),) * numbers)
    if op in BITWISE:
        return functools.partial(_bitwise, op, byte=scaled), arrays
    own = BINARY[op].function
    if not scaled:
        return own, arrays
    count = len(arrays)

    def factored(*given: Node) -> Node:
        (a, b, *c), (alpha1, alpha2, *beta) = given[:count], given[count:]
        found: Node = _scaled(own, op, a, b, alpha1, alpha2)
        return mad(c[0], beta[0], found) if c else found

    names = ("alpha1", "alpha2", "beta")[:count]
    return factored, (*arrays, *((each, "number") for each in names))
