"""One autograd function for every primitive whose gradients are functions of their own: a `Rule` says which.

A rule's `backward` runs kernels and records nothing. Where a gradient is differentiated again, `again` gives it by
functions that autograd knows: second and higher derivatives cost more passes, and no formulas.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch import activations
from numbaprims.frontends.torch.recording import (
    Recorded,
    differentiable,
    recorded,
    refuse_out,
    split_activation,
    written,
)

#: Devices on which `torch.autocast` lets an operator compute in float32.
EVERYWHERE, ON_GPUS, NOWHERE = ("cpu", "cuda"), ("cuda",), ()


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """A public function and its gradients."""

    name: str
    inputs: str
    """The arguments that are tensors, by name; the others are given to all functions of the rule as keywords."""
    results: str
    """What `forward` gives: the first has gradients, the others may be kept for them."""
    saves: str
    """Which of both `backward` and `again` take behind dy."""
    backward: Callable[..., Any]
    """(dy, *saved, **others) -> the gradient of the first input, or those of the first inputs."""
    again: Callable[..., Any]
    """The same in functions with gradients, for every input that has any."""
    covers: int = 1
    """The inputs that `backward` gives a gradient for, the first ones."""
    forward: Callable[..., Any] | None = None
    """None for the public function, whose results are given out."""
    float32: tuple[str, ...] = NOWHERE
    """Devices where autocast has it computed in float32."""
    activates: bool = False
    """Whether the functions of the rule take an `activation` themselves."""
    also: Callable[..., dict[str, Any]] | None = None
    """(*inputs, **others) -> more keywords for the functions of the rule, so that inputs need not be kept."""


class RuleFunction(Recorded):
    """A function by its rule."""

    @staticmethod
    def forward(rule: Rule, others: dict[str, Any], *inputs: Any) -> Any:
        if rule.forward is not None:
            return rule.forward(*inputs, **others)
        return getattr(numbaprims, rule.name)(**dict(zip(rule.inputs.split(), inputs, strict=True)), **others)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        rule, others, *given = inputs
        results = output if isinstance(output, tuple) else (output,)
        ctx.rule, ctx.others, ctx.count = rule, others, len(given)
        ctx.mark_non_differentiable(*results[1:])
        ctx.set_materialize_grads(False)
        known = dict(zip((rule.inputs + " " + rule.results).split(), (*given, *results), strict=False))
        ctx.save_for_backward(*(known[name] for name in rule.saves.split()))

    @staticmethod
    def backward(ctx: Any, dy: Any, *unused: Any) -> Any:
        rule: Rule = ctx.rule
        if dy is None:  # zeros, which nobody has made
            return (None,) * (2 + ctx.count)
        composed = recorded(dy, *ctx.saved_tensors) or any(ctx.needs_input_grad[2 + rule.covers :])
        found = (rule.again if composed else rule.backward)(dy, *ctx.saved_tensors, **ctx.others)
        found = found if isinstance(found, tuple) else (found,)
        return None, None, *found[: ctx.count], *[None] * (ctx.count - len(found))


def through(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A rule's `again`: derivatives of a function (*saved, **others) that is composed of functions with gradients."""

    def again(dy: Any, *saved: Any, **others: Any) -> Any:
        create = torch.is_grad_enabled()
        with torch.enable_grad():
            y = forward(*saved, **others)
        wanted = [x for x in saved if isinstance(x, torch.Tensor) and x.requires_grad]
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=create, allow_unused=True))
        return tuple(next(found) if any(x is each for each in wanted) else None for x in saved)

    return again


def wrapped(rule: Rule) -> Callable[..., Any]:
    """The public function of a rule, with gradients."""
    original = getattr(numbaprims, rule.name)
    signature = inspect.signature(original)
    names = rule.inputs.split()

    @differentiable(original)
    def function(*args: Any, **words: Any) -> Any:
        if rule.float32 and any(map(torch.is_autocast_enabled, rule.float32)):
            args = tuple(wide(x, rule.float32) for x in args)
            words = {name: wide(x, rule.float32) for name, x in words.items()}
        if not recorded(*args, *words.values()):
            return written(getattr(numbaprims, rule.name)(*args, **words), words.get("out"))
        bound = signature.bind(*args, **words)
        bound.apply_defaults()
        refuse_out(bound.arguments.pop("out", None))
        act = split_activation(bound.arguments.pop("activation", None))
        if rule.activates:
            bound.arguments["activation"], act = act, None
        tensors = [bound.arguments.pop(name) for name in names]
        others = bound.arguments if rule.also is None else bound.arguments | rule.also(*tensors, **bound.arguments)
        found = RuleFunction.apply(rule, others, *tensors)
        if isinstance(found, tuple) and rule.forward is not None:
            found = found[0]  # the public function gives no more
        return found if act is None else activations.activation(found, act[0], **act[1])

    return function


def wide(x: Any, devices: tuple[str, ...]) -> Any:
    """A tensor of less than float32 in float32, where autocast is on for its device."""
    halves = (torch.float16, torch.bfloat16)
    if isinstance(x, torch.Tensor) and x.dtype in halves and x.device.type in devices:
        return x.float() if torch.is_autocast_enabled(x.device.type) else x
    return x
