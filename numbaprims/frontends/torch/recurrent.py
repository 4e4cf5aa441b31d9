"""Recurrent networks with gradients of any order.

A recorded call keeps what `lstm_train` and its like leave for the gradient, and one call of `lstm_backward` gives the
gradients of x, the first states and all weights. Where a gradient is differentiated again, the network is run once
more, step by step, by functions that have gradients themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

import numbaprims
from numbaprims.frontends.torch.recording import Recorded, autocast, differentiable, recorded, refuse_out, written
from numbaprims.frontends.torch.recurrent_steps import run
from numbaprims.ops.rnn import RnnReserve
from numbaprims.recurrent.parts import RnnPart
from numbaprims.recurrent.weights import RnnWeights

_PART = len(RnnPart._fields)
#: Results of a recorded call behind those of the public function: what the gradient reads.
_KEPT = 6


class _How(NamedTuple):
    """A call without its tensors."""

    cell: str
    weights: RnnWeights
    words: dict[str, Any]

    def network(self, arrays: Sequence[Any]) -> RnnWeights:
        """The weights with other arrays in the place of their own."""
        if all(a is b for a, b in zip(arrays, _arrays(self.weights), strict=True)):
            return self.weights
        return _of_arrays(self.weights, arrays)


def _arrays(weights: RnnWeights) -> list[Any]:
    return [array for part in weights.parts for array in part]


def _parts(arrays: Sequence[Any]) -> tuple[RnnPart, ...]:
    return tuple(RnnPart(*arrays[k : k + _PART]) for k in range(0, len(arrays), _PART))


def _of_arrays(weights: RnnWeights, arrays: Sequence[Any]) -> RnnWeights:
    return RnnWeights(weights.cell, _parts(arrays), weights.directions, weights.reset_after, weights.skip_input)


class RnnFunction(Recorded):
    """y, h_n, of an LSTM c_n, and what the gradient reads."""

    @staticmethod
    def forward(how: _How, x: Any, h0: Any, c0: Any, *arrays: Any) -> Any:
        states = (h0, c0) if how.cell == "lstm" else (h0,)
        *found, r = getattr(numbaprims, f"{how.cell}_train")(x, how.network(arrays), *states, **how.words)
        return *found, (r.options, r.numbers), r.tables, r.random, r.gates, r.saved, r.states

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.how, *given = inputs
        ctx.count = len(output) - _KEPT
        ctx.plain, *kept = output[ctx.count :]
        ctx.mark_non_differentiable(*(each for each in kept if each is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept, *given)

    @staticmethod
    def backward(ctx: Any, *errors: Any) -> Any:
        needs, errors = ctx.needs_input_grad[1:], errors[: ctx.count]
        if all(error is None for error in errors):
            return (None,) * (1 + len(needs))
        held = ctx.saved_tensors
        kept, given = held[: _KEPT - 1], held[_KEPT - 1 :]
        if recorded(*errors, *given):
            return None, *_again(ctx.how, errors, given, needs)
        x, _, _, *arrays = given
        reserve = _reserve(x, ctx.how.network(arrays), ctx.plain, *kept)
        dx, dh0, *dc0, parts = getattr(numbaprims, f"{ctx.how.cell}_backward")(*errors, reserve)
        found = (dx, dh0, *(dc0 or [None]), *(each for part in parts for each in part))
        return None, *(each if need else None for each, need in zip(found, needs, strict=True))


def _reserve(
    x: Any, weights: RnnWeights, plain: Any, tables: Any, random: Any, gates: Any, saved: Any, states: Any
) -> RnnReserve:
    options, numbers = plain
    return RnnReserve(x, weights, options, tables, random, numbers, gates, saved, states)


def _again(how: _How, errors: Sequence[Any], given: Sequence[Any], needs: Sequence[bool]) -> tuple[Any, ...]:
    """The gradients, recorded themselves."""
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        # a view each: a tensor that is given twice has two gradients
        own = [x.view_as(x) if need else x for x, need in zip(given, needs, strict=True)]
        x, h0, c0, *arrays = own
        results = run(x, how.weights, _parts(arrays), h0, c0, **how.words)
    pairs = [(y, dy) for y, dy in zip(results, errors, strict=True) if dy is not None]
    wanted = [x for x, need in zip(own, needs, strict=True) if need]
    ys, dys = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(ys, wanted, dys, create_graph=create, allow_unused=True))
    return tuple(next(found) if need else None for need in needs)


def _wrapped(name: str) -> Callable[..., Any]:
    """A public function with gradients."""
    original = getattr(numbaprims, name)
    signature = inspect.signature(original)
    cell, _, train = name.partition("_")

    @differentiable(original)
    def function(*args: Any, **words: Any) -> Any:
        bound = signature.bind(*args, **words)
        given = bound.arguments
        weights = given["weights"]
        if not isinstance(weights, RnnWeights):
            return getattr(numbaprims, name)(**given)  # which refuses it
        own = _arrays(weights)
        given["x"], h0, c0, *arrays = autocast(given["x"], given.get("h0"), given.get("c0"), *own)
        given |= {key: value for key, value in (("h0", h0), ("c0", c0)) if key in given}
        if any(a is not b for a, b in zip(arrays, own, strict=True)):
            given["weights"] = weights = _of_arrays(weights, arrays)
        if not recorded(given["x"], h0, c0, *arrays):
            return written(getattr(numbaprims, name)(**given), given.get("out"))
        x, *_ = (given.pop(key, None) for key in ("x", "weights", "h0", "c0"))
        refuse_out(given.pop("out", None))
        if given.pop("clip", None) is not None:
            raise TypeError("clip is given and an input requires grad; leave clip away, or call under torch.no_grad()")
        found = RnnFunction.apply(_How(cell, weights, dict(given)), x, h0, c0, *arrays)
        results, kept = found[:-_KEPT], found[-_KEPT:]
        return (*results, _reserve(x.detach(), weights, *kept)) if train else results

    return function


lstm, lstm_train = _wrapped("lstm"), _wrapped("lstm_train")
gru, gru_train = _wrapped("gru"), _wrapped("gru_train")
rnn, rnn_train = _wrapped("rnn"), _wrapped("rnn_train")
