"""Parts of reductions of two runs of elements become those of one, over any machine's `Value`s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numbaprims.formulas import value
from numbaprims.formulas.graph import COMMON, PARTS
from numbaprims.formulas.value import mad as mad_of, select as select_of


def shares(count: Any, count_b: Any, table: Mapping[str, Callable[..., Any]]) -> tuple[Any, Any]:
    """What `merge` takes of the numbers of elements of two runs: the second's share, and its product with the first's.

    The first has 0, and `identity` as its parts, to begin with.
    """
    inverse = table["reciprocal"](count + count_b)
    share = count_b * inverse
    return share, share * (count * inverse)


def merge(
    kind: str,
    share: Any,
    both: Any,
    parts: Sequence[Any],
    parts_b: Sequence[Any],
    table: Mapping[str, Callable[..., Any]],
) -> list[Any]:
    """The parts of a reduction of two runs of elements as one's, over a machine's `Value`s; see `shares`."""
    if kind == "sum":
        return [parts[0] + parts_b[0]]
    if kind == "product":
        return [parts[0] * parts_b[0]]
    if kind in ("max", "top"):
        return [larger(kind, parts[0], parts_b[0])]
    if kind == "exp_sum":
        shrink = table["exp_of_negative"]
        (top, total), (top_b, total_b) = parts, parts_b
        highest = larger("top", top, top_b)
        return [highest, mad_of(total, shrink(top - highest), total_b * shrink(top_b - highest))]
    if kind == "first":
        return first_of(parts, parts_b, table.get("sooner", value.at_most))
    # Chan's update. The anchor stays that of the first run, and the rest follows: the difference of two means of 1e4
    # in float32 spoiled the variance (2.6e-4 instead of 2e-6).
    (anchor, rest, var), (anchor_b, rest_b, var_b) = parts, parts_b
    anchor = select_of(both > 0.0, anchor, anchor_b)
    d = (anchor_b - anchor) + (rest_b - rest)
    return [anchor, mad_of(d, share, rest), mad_of(d * d, both, mad_of(var_b - var, share, var))]


def larger(kind: str, a: Any, b: Any) -> Any:
    """The larger of two Values, a being of a reduction "max" or "top" that b continues."""
    found = select_of(b > a, b, a)
    return select_of(COMMON["is_nan"](b), b, found) if kind == "max" else found


def first_of(
    parts: Sequence[Any], parts_b: Sequence[Any], earlier: Callable[[Any, Any], Any] = value.at_most
) -> list[Any]:
    """The parts of "first" of two, in any order; `earlier` of two places is theirs who say how these are held."""
    (a, place), (b, place_b) = parts, parts_b
    bad, bad_b, sooner = COMMON["is_nan"](a), COMMON["is_nan"](b), earlier(place, place_b)
    found = select_of(b > a, place_b, select_of(a.equals(b), sooner, place))
    found = select_of(bad, select_of(bad_b, sooner, place), select_of(bad_b, place_b, found))
    return [larger("max", a, b), found]


def identity(kind: str, lowest: float) -> list[float]:
    """The parts of no elements; `lowest` is the smallest finite number."""
    # exp(-inf - -inf) would be NaN, of which a row that begins with -inf could not get rid
    known = {"sum": [0.0], "product": [1.0], "exp_sum": [lowest, 0.0], "moments": [0.0] * 3}
    # a row of -inf only has its first at 0, which nothing larger has taken the place of
    return known.get(kind) or [float("-inf"), 0.0][: PARTS[kind]]


def moments_of(anchor: Any, inverse: Any, total: Any, squares: Any) -> list[Any]:
    """The parts of "moments" from 1 / count and the sums of x - anchor and of (x - anchor)**2.

    The squared distance of the mean of m elements of n from that of all is at most n / m variances, so what cancels
    below is bounded whatever the data, if a run is some hundred times as long as what its anchor is the mean of.
    """
    rest = total * inverse
    return [anchor, rest, value.at_least(mad_of(rest, value.negative(rest), squares * inverse), 0.0)]
