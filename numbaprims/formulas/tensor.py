"""Reductions of an array to one value a row, by the names of NumPy and MIOpen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from numbaprims.formulas.graph import (
    Node,
    constant,
    equals,
    exp,
    is_nan,
    log,
    magnitude,
    moments,
    negative,
    reduce_first,
    reduce_max,
    reduce_mean,
    reduce_product,
    reduce_sum,
    reduce_top,
    select,
    sqrt,
)

_NOTHING = -math.inf
#: Formulas that are named so: "reduce:sum", "reduce:sum:omit".
REDUCE = "reduce:"


class Reduction(NamedTuple):
    """A function of a row."""

    function: Callable[[Node], Node]
    omit: float | Callable[[Node], Node]
    """The same where NaN is left out, or what stands for NaN then."""
    gives: str = ""
    """"place": the index of an element; "bool"; else the type of x."""
    empty: bool = True
    """Whether it has a value of no elements."""


def _count(x: Node) -> Node:
    """How many elements are no NaN."""
    return reduce_sum(select(is_nan(x), 0.0, constant(1.0)))


def _mean(x: Node) -> Node:
    return reduce_sum(select(is_nan(x), 0.0, x)) / _count(x)


def _variance(x: Node) -> Node:
    d = select(is_nan(x), 0.0, x - _mean(x))
    return reduce_sum(d * d) / _count(x)


def _any_left(x: Node, found: Node) -> Node:
    """NaN where all elements are."""
    return select(equals(_count(x), 0.0), math.nan, found)


def _first(x: Node) -> Node:
    """The index of the first largest element, or of the first NaN."""
    return reduce_first(x)[1]


def _log_sum_exp(x: Node) -> Node:
    top = reduce_top(x)
    # of an infinite one the exponentials say what comes: inf - inf would be NaN
    shift = select(magnitude(top) < math.inf, top, 0.0)
    return shift + log(reduce_sum(exp(x - shift)))


def _least(reduced: Callable[[Node], Node]) -> Callable[[Node], Node]:
    return lambda x: negative(reduced(negative(x)))


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(reduce_sum, 0.0),
    "mean": Reduction(reduce_mean, _mean),
    "prod": Reduction(reduce_product, 1.0),
    "min": Reduction(_least(reduce_max), lambda x: _any_left(x, _least(reduce_top)(x)), empty=False),
    "max": Reduction(reduce_max, lambda x: _any_left(x, reduce_top(x)), empty=False),
    "amax": Reduction(
        lambda x: reduce_max(magnitude(x)), lambda x: _any_left(x, reduce_top(magnitude(x))), empty=False
    ),
    "norm1": Reduction(lambda x: reduce_sum(magnitude(x)), 0.0),
    "norm2": Reduction(lambda x: sqrt(reduce_sum(x * x)), 0.0),
    "sum_square": Reduction(lambda x: reduce_sum(x * x), 0.0),
    "log_sum": Reduction(lambda x: log(reduce_sum(x)), 0.0),
    "logsumexp": Reduction(_log_sum_exp, _NOTHING),
    "argmin": Reduction(lambda x: _first(negative(x)), math.inf, "place", empty=False),
    "argmax": Reduction(_first, _NOTHING, "place", empty=False),
    "any": Reduction(lambda x: reduce_max(select(equals(x, 0.0), 0.0, constant(1.0))), 0.0, "bool"),
    "all": Reduction(lambda x: negative(reduce_max(select(equals(x, 0.0), 0.0, constant(-1.0)))), 1.0, "bool"),
    "var": Reduction(lambda x: moments(x)[2], _variance),
    "std": Reduction(lambda x: sqrt(moments(x)[2]), lambda x: sqrt(_variance(x))),
}


def reduction(name: str) -> Callable[[Node], Node]:
    """The function of a row that a formula's name says."""
    _, op, nan = f"{name}:".split(":")[:3]
    found = REDUCTIONS[op]
    if not nan:
        return found.function
    omit = found.omit
    return omit if callable(omit) else lambda x: found.function(select(is_nan(x), omit, x))
