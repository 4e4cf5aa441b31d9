"""Layer, root mean square, instance and group normalisation: formulas whose operands may be missing.

A name says which of the operands in brackets there are: "layer_norm/weight/bias".  Results in brackets are there with
an operand.  For an operand that is missing a function gets None; it gives its results by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.formulas.graph import (
    Node,
    length,
    mad,
    moments,
    negative,
    position,
    reciprocal,
    reduce_mean,
    reduce_sum,
    select,
    sqrt,
)

Words = tuple[tuple[str, str], ...]


class Definition(NamedTuple):
    """A function of nodes by name, the words of what it takes and gives."""

    function: Callable[..., dict[str, Node]]
    operands: tuple[str, ...]
    results: tuple[str, ...]


DEFINITIONS: dict[str, Definition] = {}
#: Results that are there where an operand is.
_COMES_WITH = {"sum": "residual", "dbias": "by_bias"}


def _form(name: str, operands: str, results: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        DEFINITIONS[name] = Definition(function, tuple(operands.split()), tuple(results.split()))
        return function

    return add


def known(name: str) -> bool:
    """Whether it is a formula of this module."""
    return name.partition("/")[0] in DEFINITIONS


def named(name: str) -> tuple[Callable[..., Any], Words, Words]:
    """(function, operands, results) of a formula."""
    base, *taken = name.split("/")
    definition = DEFINITIONS[base]

    def words(every: tuple[str, ...], there: Callable[[str], bool]) -> Words:
        pairs = ((word, word.strip("[]").partition(":")) for word in every)
        return tuple((name, kind) for word, (name, _, kind) in pairs if word[0] != "[" or there(name))

    operands = words(definition.operands, taken.__contains__)
    results = words(definition.results, lambda name: _COMES_WITH[name] in taken)

    def function(*given: Any) -> tuple[Node, ...]:
        found = definition.function(**dict(zip((name for name, _ in operands), given, strict=True)))
        return tuple(found[name] for name, _ in results)

    return function, operands, results


def optional(name: str) -> tuple[str, ...]:
    """The operands that a formula may do without."""
    return tuple(word[1:].partition(":")[0] for word in DEFINITIONS[name].operands if word[0] == "[")


def behind(name: str) -> bool:
    """Whether it is a gradient that may begin with that of an activation: a function of y in the place of dy."""
    return known(name) and "dy:row" in DEFINITIONS[name.partition("/")[0]].operands


def _affine(normal: Node, weight: Node | None, bias: Node | None) -> Node:
    if bias is not None:
        return mad(normal, 1.0 if weight is None else weight, bias)
    return normal if weight is None else normal * weight


def _each(uniform: Node) -> Node:
    """A value of the row as one of each of its elements."""
    return select(position() >= 0.0, uniform, 0.0)


# ---------------------------------------------------------------- by the statistics of a row


_NORMAL = "x:row [residual:row] [weight:{0}] [bias:{0}] eps:number"
_TRAINED = "y:row mean:one inv_std:one [sum:row]"


@_form("layer_norm", _NORMAL.format("along"), "y:row [sum:row]")
@_form("layer_norm_train", _NORMAL.format("along"), _TRAINED)
def _layer_norm(
    x: Node, eps: Node, residual: Node | None = None, weight: Node | None = None, bias: Node | None = None
) -> dict[str, Node]:
    x = x if residual is None else x + residual
    anchor, rest, var = moments(x)
    inv = reciprocal(sqrt(var + eps))
    y = _affine(mad(x - anchor, inv, negative(rest) * inv), weight, bias)
    return {"y": y, "mean": anchor + rest, "inv_std": inv, "sum": x}


@_form("whole_group_norm", _NORMAL.format("run"), "y:row")
@_form("whole_group_norm_train", _NORMAL.format("run"), "y:row mean:one inv_std:one")
@_form("instance_norm", _NORMAL.format("one"), "y:row [sum:row]")
@_form("instance_norm_train", _NORMAL.format("one"), _TRAINED)
def _instance_norm(
    x: Node, eps: Node, residual: Node | None = None, weight: Node | None = None, bias: Node | None = None
) -> dict[str, Node]:
    x = x if residual is None else x + residual
    anchor, rest, var = moments(x)
    inv = reciprocal(sqrt(var + eps))
    factor = inv if weight is None else inv * weight
    shift = negative(rest) * factor if bias is None else mad(negative(rest), factor, bias)
    return {"y": mad(x - anchor, factor, shift), "mean": anchor + rest, "inv_std": inv, "sum": x}


@_form("rms_norm", "x:row [residual:row] [weight:along] eps:number", "y:row [sum:row]")
@_form("rms_norm_train", "x:row [residual:row] [weight:along] eps:number", "y:row inv_rms:one [sum:row]")
def _rms_norm(x: Node, eps: Node, residual: Node | None = None, weight: Node | None = None) -> dict[str, Node]:
    x = x if residual is None else x + residual
    inv = reciprocal(sqrt(reduce_mean(x * x) + eps))
    return {"y": _affine(x * inv, weight, None), "inv_rms": inv, "sum": x}


# ---------------------------------------------------------------- gradients

_BACKWARD = "dy:row x:row mean:one inv_std:one [weight:{0}] [bias:{0}] [dsum:row]"


def _through(dy: Any, normal: Callable[[], Node], weight: Node | None, bias: Node | None) -> Node:
    """dy; or that of an activation behind the norm, of y, which is computed again, not written and read."""
    return dy(_affine(normal(), weight, bias)) if callable(dy) else dy


@_form("layer_norm_backward", _BACKWARD.format("along"), "dx:row")
@_form("layer_norm_gradient", _BACKWARD.format("along"), "dx:row by_weight:column by_bias:column")
def _layer_norm_backward(
    dy: Any, x: Node, mean: Node, inv_std: Node, weight: Node | None = None, bias: Node | None = None,
    dsum: Node | None = None,
) -> dict[str, Node]:  # fmt: skip
    d = x - mean
    dy = _through(dy, lambda: d * inv_std, weight, bias)
    g = dy if weight is None else dy * weight
    each = negative(inv_std) / length()
    apart = mad(d, reduce_sum(g * d) * (inv_std * inv_std) * each, reduce_sum(g) * each)
    dx = mad(g, inv_std, apart if dsum is None else apart + dsum)
    return {"dx": dx, "by_weight": dy * (d * inv_std), "by_bias": dy}


@_form("instance_norm_backward", _BACKWARD.format("one"), "dx:row by_weight:one by_bias:one")
def _instance_norm_backward(
    dy: Any, x: Node, mean: Node, inv_std: Node, weight: Node | None = None, bias: Node | None = None,
    dsum: Node | None = None,
) -> dict[str, Node]:  # fmt: skip
    """The gradients of parameters are those of each sample."""
    d = x - mean
    dy = _through(dy, lambda: d * inv_std, weight, bias)
    dbias, dweight = reduce_sum(dy), reduce_sum(dy * d) * inv_std
    factor = inv_std if weight is None else inv_std * weight
    each = negative(factor) / length()
    apart = mad(d, dweight * inv_std * each, dbias * each)
    return {"dx": mad(dy, factor, apart if dsum is None else apart + dsum), "by_weight": dweight, "by_bias": dbias}


@_form("layer_norm_sums", "dy:row x:row mean:along inv_std:along [weight:one] [bias:one]", "dweight:one dbias:one")
def _layer_norm_sums(
    dy: Any, x: Node, mean: Node, inv_std: Node, weight: Node | None = None, bias: Node | None = None
) -> dict[str, Node]:
    """The gradients of parameters: what is a row here is a column of x."""
    normal = (x - mean) * inv_std
    dy = _through(dy, lambda: normal, weight, bias)
    return {"dweight": reduce_sum(dy * normal), "dbias": reduce_sum(dy)}


@_form("rms_norm_gradient", "dy:row x:row inv_rms:one [weight:along] [dsum:row]", "dx:row by_weight:column")
@_form("rms_norm_backward", "dy:row x:row inv_rms:one [weight:along] [dsum:row]", "dx:row")
def _rms_norm_backward(
    dy: Any, x: Node, inv_rms: Node, weight: Node | None = None, dsum: Node | None = None
) -> dict[str, Node]:
    dy = _through(dy, lambda: x * inv_rms, weight, None)
    g = dy if weight is None else dy * weight
    factor = reduce_sum(g * x) * (inv_rms * inv_rms) * (negative(inv_rms) / length())
    dx = mad(g, inv_rms, x * factor if dsum is None else mad(x, factor, dsum))
    return {"dx": dx, "by_weight": dy * (x * inv_rms)}


@_form("rms_norm_sums", "dy:row x:row inv_rms:along [weight:one]", "dweight:one")
def _rms_norm_sums(dy: Any, x: Node, inv_rms: Node, weight: Node | None = None) -> dict[str, Node]:
    normal = x * inv_rms
    return {"dweight": reduce_sum(_through(dy, lambda: normal, weight, None) * normal)}


# ---------------------------------------------------------------- groups of channels: of moments of channels


@_form("channel_moments", "x:row", "anchor:one rest:one var:one")
def _channel_moments(x: Node) -> dict[str, Node]:
    anchor, rest, var = moments(x)
    return {"anchor": anchor, "rest": rest, "var": var}


@_form(
    "group_factors", "anchor:row rest:row var:row origin:one [weight:row] [bias:row] eps:number",
    "factor:row shift:row mean:one inv_std:one",
)  # fmt: skip
def _group_factors(
    anchor: Node, rest: Node, var: Node, origin: Node, eps: Node, weight: Node | None = None, bias: Node | None = None
) -> dict[str, Node]:
    """A row is a group, its elements channels: y = (x - anchor) * factor + shift.

    All distances are from numbers near the data, the anchors of channels and of the group's first one: means of 1e4 in
    float32 would spoil the variance.
    """
    d = (anchor - origin) + rest
    near, further, apart = moments(d)
    middle = near + further
    inv = reciprocal(sqrt((apart + reduce_mean(var)) + eps))
    factor = _each(inv) if weight is None else weight * inv
    off = (anchor - origin) - middle
    shift = off * factor if bias is None else mad(off, factor, bias)
    return {"factor": factor, "shift": shift, "mean": origin + middle, "inv_std": inv}


@_form("group_apply", "x:row anchor:one factor:one shift:one", "y:row")
@_form("pixel_apply", "x:row anchor:row factor:row shift:row", "y:row")
def _group_apply(x: Node, anchor: Node, factor: Node, shift: Node) -> dict[str, Node]:
    return {"y": mad(x - anchor, factor, shift)}


@_form("group_spread", "mean:one inv_std:one [weight:row]", "centre:row factor:row")
def _group_spread(mean: Node, inv_std: Node, weight: Node | None = None) -> dict[str, Node]:
    """Of groups to their channels."""
    return {"centre": _each(mean), "factor": _each(inv_std) if weight is None else weight * inv_std}


@_form("group_sums", "dy:row x:row centre:one factor:one [bias:one]", "by_x:one total:one")
def _group_sums(dy: Any, x: Node, centre: Node, factor: Node, bias: Node | None = None) -> dict[str, Node]:
    d = x - centre
    dy = _through(dy, lambda: d, factor, bias)
    return {"by_x": reduce_sum(dy * d), "total": reduce_sum(dy)}


@_form(
    "group_gradients", "by_x:row total:row factor:row inv_std:one positions:number",
    "slope:row shift:row by_weight:row",
)  # fmt: skip
def _group_gradients(by_x: Node, total: Node, factor: Node, inv_std: Node, positions: Node) -> dict[str, Node]:
    """dx = dy * factor + (x - centre) * slope + shift; the weight's gradient of each sample."""
    each = reciprocal(negative(length() * positions))
    slope = reduce_sum(by_x * factor) * (inv_std * inv_std) * each
    return {"slope": _each(slope), "shift": _each(reduce_sum(total * factor) * each), "by_weight": by_x * inv_std}


@_form("pixel_backward", "dy:row x:row centre:row factor:row slope:row shift:row [bias:along]", "dx:row")
@_form("group_backward", "dy:row x:row centre:one factor:one slope:one shift:one [bias:one]", "dx:row")
def _group_backward(
    dy: Any, x: Node, centre: Node, factor: Node, slope: Node, shift: Node, bias: Node | None = None
) -> dict[str, Node]:
    d = x - centre
    dy = _through(dy, lambda: d, factor, bias)
    return {"dx": mad(dy, factor, mad(d, slope, shift))}


@_form("sample_sums", "by_weight:row [by_bias:row] [weight:one]", "dweight:one [dbias:one]")
def _sample_sums(by_weight: Node, by_bias: Node | None = None, weight: Node | None = None) -> dict[str, Node]:
    """Gradients of parameters from those of each sample, or block of rows; of the weight only the type is wanted."""
    return {"dweight": reduce_sum(by_weight)} | ({} if by_bias is None else {"dbias": reduce_sum(by_bias)})
