"""Softmax, batch normalisation, cross entropy: formulas with reductions, by name.

An operand is "name:kind": "row", an element of each row; "along", one row that all rows share; "one", a value of each
row; "number", one of the call.  Arrays stand before numbers.  A target is the index of a class, as a float.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.formulas import maps, norms, quantized, stacks, tensor
from numbaprims.formulas.graph import (
    Graph,
    Node,
    at_least,
    constant,
    equals,
    exp,
    exp_of_negative,
    exp_sum,
    length,
    log,
    mad,
    moments,
    negative,
    position,
    reciprocal,
    reduce_first,
    reduce_mean,
    reduce_sum,
    select,
    sqrt,
)


class Formula(NamedTuple):
    """A function of nodes, and what it takes and gives: (name, kind) of each."""

    function: Callable[..., Any]
    operands: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, str], ...]


FORMULAS: dict[str, Formula] = {name: Formula(*each) for name, each in quantized.REDUCED.items()}


def formula(operands: str, results: str, name: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a formula by the name of its function, or by one of its own."""

    def kinds(text: str) -> tuple[tuple[str, str], ...]:
        words = (word.partition(":") for word in text.split())
        return tuple((name, kind) for name, _, kind in words)

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        FORMULAS[name or function.__name__] = Formula(function, kinds(operands), kinds(results))
        return function

    return add


def named(name: str) -> Formula:
    """The formula of a name."""
    if name.startswith(maps.MAP):
        return Formula(*maps.map_of(name), (("y", "row"),))
    if name.startswith(tensor.REDUCE):
        return Formula(tensor.reduction(name), (("x", "row"),), (("y", "one"),))
    if name.startswith(stacks.GRADIENT):
        gradient = stacks.Gradient.parse(name)
        return Formula(gradient.run, gradient.operands, gradient.results)
    if name.startswith(stacks.PREFIX):
        return Formula(functools.partial(stacks.run, name), stacks.operands_of(name), (("y", "row"),))
    if stacks.ENDING in name:
        base, kind, numbers = stacks.parse_ended(name)
        known = _BEHIND[base] if base in _BEHIND else named(base)

        def through(dy: Node, *operands: Node) -> tuple[Node, ...]:
            def gradient(y: Node) -> Node:
                return stacks.gradient(kind, dy, y, *map(constant, numbers))

            found: tuple[Node, ...] = known.function(gradient, *operands)
            return found

        def function(*operands: Node) -> tuple[Node, ...]:
            found = known.function(*operands)
            y, *more = found if isinstance(found, tuple) else (found,)
            return stacks.activation(kind, y, *map(constant, numbers)), *more

        return known._replace(function=through if base in _BEHIND or norms.behind(base) else function)
    return Formula(*norms.named(name)) if norms.known(name) else FORMULAS[name]


@functools.cache
def graph_of(name: str, online: bool = False) -> Graph:
    """The graph of a formula; `online`: sums of exponentials in one pass."""
    return Graph(*named(name), online)


# ---------------------------------------------------------------- softmax


@formula("x:row", "y:row")
def softmax(x: Node) -> Node:
    top, total = exp_sum(x)
    # a division for each element costs 20 to 35 %
    return exp_of_negative(x - top) * reciprocal(total)


@formula("x:row", "y:row")
def hardmax(x: Node) -> Node:
    return select(equals(position(), reduce_first(x)[1]), constant(1.0), 0.0)


@formula("x:row", "y:row")
def log_softmax(x: Node) -> Node:
    top, total = exp_sum(x)
    return (x - top) - log(total)


@formula("dy:row y:row", "dx:row")
def softmax_backward(dy: Node, y: Node) -> Node:
    return y * (dy - reduce_sum(dy * y))


@formula("dy:row y:row", "dx:row")
def log_softmax_backward(dy: Node, y: Node) -> Node:
    return mad(exp(y), negative(reduce_sum(dy)), dy)


@formula("x:row", "sum:one")
def total(x: Node) -> Node:
    return reduce_sum(x)


@formula("x:row dy:row", "dweight:one")
def prelu_weight_gradient(x: Node, dy: Node) -> Node:
    return reduce_sum(select(x > 0.0, 0.0, x * dy))


@formula("x:row count:row", "mean:one")
def weighted_mean(x: Node, count: Node) -> Node:
    """Of terms that were multiplied by what they count."""
    return reduce_sum(x) / reduce_sum(count)


@formula("dy:one count:row", "g:one")
def weighted_mean_backward(dy: Node, count: Node) -> Node:
    return dy / reduce_sum(count)


# ---------------------------------------------------------------- batch normalisation: a row is a channel


@formula("x:row scale:one shift:one mean:one var:one eps:number", "y:row")
def batch_norm(x: Node, scale: Node, shift: Node, mean: Node, var: Node, eps: Node) -> Node:
    return mad(x - mean, reciprocal(sqrt(var + eps)) * scale, shift)


# where parameters lie beside one another, in rows of channels
formula("x:row scale:along shift:along mean:along var:along eps:number", "y:row", "batch_norm_along")(batch_norm)


@formula("scale:row var:row eps:number", "factor:row")
def batch_norm_factor(scale: Node, var: Node, eps: Node) -> Node:
    return reciprocal(sqrt(var + eps)) * scale


@formula("x:row factor:along shift:along mean:along", "y:row")
def batch_norm_factored(x: Node, factor: Node, shift: Node, mean: Node) -> Node:
    return mad(x - mean, factor, shift)


def _moments(x: Node, scale: Node, shift: Node, eps: Node) -> tuple[Node, ...]:
    """(anchor, factor, offset, mean, inverse standard deviation, variance); y = (x - anchor) factor + offset."""
    anchor, rest, var = moments(x)
    inv = reciprocal(sqrt(var + eps))
    factor = inv * scale
    return anchor, factor, mad(negative(rest), factor, shift), anchor + rest, inv, var


@formula("x:row factor:along offset:along anchor:along", "y:row")
def batch_norm_trained(x: Node, factor: Node, offset: Node, anchor: Node) -> Node:
    return mad(x - anchor, factor, offset)


@formula("x:row scale:one shift:one eps:number", "anchor:one factor:one offset:one mean:one inv_std:one")
def batch_norm_moments(x: Node, scale: Node, shift: Node, eps: Node) -> tuple[Node, ...]:
    return _moments(x, scale, shift, eps)[:5]


@formula("x:row scale:one shift:one eps:number", "y:row mean:one inv_std:one")
def batch_norm_train(x: Node, scale: Node, shift: Node, eps: Node) -> tuple[Node, ...]:
    anchor, factor, offset, mean, inv, _ = _moments(x, scale, shift, eps)
    return batch_norm_trained(x, factor, offset, anchor), mean, inv


_RUNNING = "x:row scale:one shift:one running_mean:one running_var:one momentum:number eps:number"


@formula(_RUNNING, "anchor:one factor:one offset:one mean:one inv_std:one new_mean:one new_var:one")
def batch_norm_moments_running(
    x: Node, scale: Node, shift: Node, running_mean: Node, running_var: Node, momentum: Node, eps: Node
) -> tuple[Node, ...]:
    *found, mean, inv, var = _moments(x, scale, shift, eps)
    stays, n = 1.0 - momentum, length()
    unbiased = var * (n / at_least(n - 1.0, 1.0))
    running = mad(running_mean, stays, momentum * mean), mad(running_var, stays, momentum * unbiased)
    return *found, mean, inv, *running


@formula(_RUNNING, "y:row mean:one inv_std:one new_mean:one new_var:one")
def batch_norm_train_running(x: Node, *operands: Node) -> tuple[Node, ...]:
    anchor, factor, offset, *more = batch_norm_moments_running(x, *operands)
    return batch_norm_trained(x, factor, offset, anchor), *more


@formula("dy:row x:row saved_mean:along factor:along slope:along offset:along", "dx:row")
def batch_norm_dx(dy: Node, x: Node, mean: Node, factor: Node, slope: Node, offset: Node) -> Node:
    return mad(dy, factor, mad(x - mean, slope, offset))


@formula(
    "dy:row x:row scale:one saved_mean:one saved_inv_std:one",
    "factor:one slope:one offset:one dscale:one dshift:one",
)
def batch_norm_sums(dy: Node, x: Node, scale: Node, mean: Node, inv: Node) -> tuple[Node, ...]:
    dshift, dscale = reduce_sum(dy), reduce_sum(dy * (x - mean)) * inv
    factor = scale * inv
    each = negative(factor) / length()
    return factor, dscale * inv * each, dshift * each, dscale, dshift


@formula("dy:row x:row scale:one saved_mean:one saved_inv_std:one", "dx:row dscale:one dshift:one")
def batch_norm_backward(dy: Node, x: Node, scale: Node, mean: Node, inv: Node) -> tuple[Node, ...]:
    factor, slope, offset, *sums = batch_norm_sums(dy, x, scale, mean, inv)
    return batch_norm_dx(dy, x, mean, factor, slope, offset), *sums


#: Formulas whose rows have a dear value in common: the formula of that one, and what is left with it as an operand.
PREPARED = {"batch_norm_along": ("batch_norm_factor", "batch_norm_factored")}
#: Formulas of rows that lie across: what is known of each row, and the result from it, along the elements of all rows.
FINISHED = {
    "batch_norm_train": ("batch_norm_moments", "batch_norm_trained"),
    "batch_norm_train_running": ("batch_norm_moments_running", "batch_norm_trained"),
    "batch_norm_backward": ("batch_norm_sums", "batch_norm_dx"),
}


def _batch_norm_backward_behind(
    gradient: Callable[[Node], Node], x: Node, scale: Node, mean: Node, inv: Node, shift: Node
) -> tuple[Node, ...]:
    """Of an activation behind the batch norm, whose gradient at y is given: y is computed again, which saves to read it
    and to write its gradient."""
    found: tuple[Node, ...] = batch_norm_backward(gradient(mad(x - mean, scale * inv, shift)), x, scale, mean, inv)
    return found


@formula("dy:row x:row scale:one mean:one var:one eps:number", "dx:row dscale:one dshift:one")
def batch_norm_backward_fixed(dy: Node, x: Node, scale: Node, mean: Node, var: Node, eps: Node) -> tuple[Node, ...]:
    """Of `batch_norm`, whose mean and variance do not follow x."""
    inv = reciprocal(sqrt(var + eps))
    return dy * (scale * inv), reduce_sum(dy * (x - mean)) * inv, reduce_sum(dy)


#: Gradients that may begin with that of an activation -> the formula of what its gradient gives, and their operands.
_BEHIND = {
    "batch_norm_backward": Formula(
        _batch_norm_backward_behind,
        (*FORMULAS["batch_norm_backward"].operands, ("shift", "one")),
        FORMULAS["batch_norm_backward"].results,
    )
}


# ---------------------------------------------------------------- cross entropy: a row has an element for each class

# A gradient takes the top of a row and the sum of exponentials below it: the logarithm of all of them, one number, has
# no more digits behind the point than the top, and they are those of the gradient.


def _picked(x: Node, target: Node) -> Node:
    """The element of the target's class; 0 where there is no such class."""
    return reduce_sum(select(equals(position(), target), x, 0.0))


def _of_shares(x: Node, top: Node, total: Node, q: Node) -> Node:
    """The loss of classes that count q each."""
    return mad(reduce_sum(q), log(total), negative(reduce_sum((x - top) * q)))


# Losses of classes take the same numbers, those without smoothing too.
_HARD = "x:row target:one smoothing:number ignore:number", "loss:one count:one top:one sum:one"
_HARD_WEIGHTED = "x:row target:one weight:along smoothing:number ignore:number", _HARD[1]


@formula(*_HARD)
def cross_entropy(x: Node, target: Node, smoothing: Node, ignore: Node) -> tuple[Node, ...]:
    """Without smoothing, which asks for another pass, and for losses that may be infinite."""
    top, total = exp_sum(x)
    ignored = equals(target, ignore)
    loss = log(total) - (_picked(x, target) - top)
    return select(ignored, 0.0, loss), select(ignored, 0.0, constant(1.0)), top, total


@formula(*_HARD_WEIGHTED)
def cross_entropy_weighted(x: Node, target: Node, weight: Node, smoothing: Node, ignore: Node) -> tuple[Node, ...]:
    loss, _, top, total = cross_entropy(x, target, smoothing, ignore)
    own = select(equals(target, ignore), 0.0, _picked(weight, target))
    return own * loss, own, top, total


def _smoothed(found: tuple[Node, ...], even: Node, target: Node, smoothing: Node, ignore: Node) -> tuple[Node, ...]:
    """The loss of the target and that of all classes alike, weighted."""
    loss, *more = found
    return mad(select(equals(target, ignore), 0.0, even), smoothing, loss * (1.0 - smoothing)), *more


@formula(*_HARD)
def cross_entropy_smooth(x: Node, target: Node, smoothing: Node, ignore: Node) -> tuple[Node, ...]:
    *_, top, total = found = cross_entropy(x, target, smoothing, ignore)
    return _smoothed(found, log(total) - reduce_mean(x - top), target, smoothing, ignore)


@formula(*_HARD_WEIGHTED)
def cross_entropy_smooth_weighted(
    x: Node, target: Node, weight: Node, smoothing: Node, ignore: Node
) -> tuple[Node, ...]:
    *_, top, total = found = cross_entropy_weighted(x, target, weight, smoothing, ignore)
    return _smoothed(found, _of_shares(x, top, total, weight) / length(), target, smoothing, ignore)


@formula("x:row target:row smoothing:number", "loss:one count:one top:one sum:one")
def cross_entropy_soft(x: Node, target: Node, smoothing: Node) -> tuple[Node, ...]:
    top, total = exp_sum(x)
    q = mad(target, 1.0 - smoothing, smoothing / length())
    return _of_shares(x, top, total, q), constant(1.0), top, total


@formula("x:row target:row weight:along smoothing:number", "loss:one count:one top:one sum:one")
def cross_entropy_soft_weighted(x: Node, target: Node, weight: Node, smoothing: Node) -> tuple[Node, ...]:
    top, total = exp_sum(x)
    q = mad(target, 1.0 - smoothing, smoothing / length()) * weight
    return _of_shares(x, top, total, q), constant(1.0), top, total


@formula("x:row target:one top:one sum:one g:one smoothing:number ignore:number", "dx:row")
def cross_entropy_backward(
    x: Node, target: Node, top: Node, total: Node, g: Node, smoothing: Node, ignore: Node
) -> Node:
    even = smoothing / length()
    wanted = select(equals(position(), target), even + (1.0 - smoothing), even)
    return mad(exp_of_negative(x - top), reciprocal(total), negative(wanted)) * select(equals(target, ignore), 0.0, g)


@formula("x:row target:one top:one sum:one g:one weight:along smoothing:number ignore:number", "dx:row")
def cross_entropy_weighted_backward(
    x: Node, target: Node, top: Node, total: Node, g: Node, weight: Node, smoothing: Node, ignore: Node
) -> Node:
    even = smoothing / length()
    own = _picked(weight, target) * (1.0 - smoothing)
    wanted = mad(weight, even, select(equals(position(), target), own, 0.0))
    share = mad(reduce_sum(weight), even, own)
    return mad(exp_of_negative(x - top), share / total, negative(wanted)) * select(equals(target, ignore), 0.0, g)


@formula("x:row target:row top:one sum:one g:one smoothing:number", "dx:row")
def cross_entropy_soft_backward(x: Node, target: Node, top: Node, total: Node, g: Node, smoothing: Node) -> Node:
    q = mad(target, 1.0 - smoothing, smoothing / length())
    return mad(exp_of_negative(x - top), reduce_sum(q) / total, negative(q)) * g


@formula("x:row target:row top:one sum:one g:one weight:along smoothing:number", "dx:row")
def cross_entropy_soft_weighted_backward(
    x: Node, target: Node, top: Node, total: Node, g: Node, weight: Node, smoothing: Node
) -> Node:
    q = mad(target, 1.0 - smoothing, smoothing / length()) * weight
    return mad(exp_of_negative(x - top), reduce_sum(q) / total, negative(q)) * g


@formula("x:row target:one ignore:number", "loss:one count:one")
def nll_loss(x: Node, target: Node, ignore: Node) -> tuple[Node, ...]:
    """x: logarithms of probabilities."""
    ignored = equals(target, ignore)
    counts = select(ignored, 0.0, constant(1.0))
    return select(ignored, 0.0, negative(_picked(x, target))), counts


@formula("x:row target:one weight:along ignore:number", "loss:one count:one")
def nll_loss_weighted(x: Node, target: Node, weight: Node, ignore: Node) -> tuple[Node, ...]:
    own, ignored = _picked(weight, target), equals(target, ignore)
    return select(ignored, 0.0, negative(_picked(x, target)) * own), select(ignored, 0.0, own)


@formula("target:one g:one ignore:number", "dx:row")
def nll_loss_backward(target: Node, g: Node, ignore: Node) -> Node:
    taken = select(equals(target, ignore), 0.0, negative(g))
    return select(equals(position(), target), taken, 0.0)


@formula("target:one g:one weight:along ignore:number", "dx:row")
def nll_loss_weighted_backward(target: Node, g: Node, weight: Node, ignore: Node) -> Node:
    taken = select(equals(target, ignore), 0.0, negative(g))
    return select(equals(position(), target), weight * taken, 0.0)
