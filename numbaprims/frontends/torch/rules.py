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
    Multilinear,
    Recorded,
    autocast,
    differentiable,
    reads,
    recorded,
    refuse_out,
    split_activation,
    written,
)

#: Devices on which `torch.autocast` lets an operator compute in float32.
EVERYWHERE, ON_GPUS, NOWHERE = ("cpu", "cuda"), ("cuda",), ()


@dataclasses.dataclass(eq=False)
class Rule:
    """A public function and its gradients."""

    name: str
    inputs: str
    """The arguments that are tensors, by name; the others are given to all functions of the rule as keywords."""
    results: str
    """What `forward` gives: the first has gradients, the others may be kept for them."""
    saves: str
    """Which of both `backward` and `again` take behind dy."""
    again: Callable[..., Any]
    """(dy, *saved, **others) -> the gradient of every input that has any, in functions with gradients."""
    backward: Callable[..., Any] | None = None
    """The same of the first input, or the first inputs; None for `<name>_backward` by the names of its arguments."""
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

    def __post_init__(self) -> None:
        self.compute = self.forward or by_name(self.name, self.inputs)
        self.gradient = self.backward or by_name(f"{self.name.removesuffix('_train')}_backward", f"dy {self.saves}")


def by_name(name: str, tensors: str) -> Callable[..., Any]:
    """(*tensors, **others) -> the public function of those that it has arguments for; the first goes by its place."""
    takes, names = inspect.signature(getattr(numbaprims, name)).parameters, tensors.split()[1:]

    def call(first: Any, *rest: Any, **others: Any) -> Any:
        given = {**dict(zip(names, rest, strict=True)), **others}
        return getattr(numbaprims, name)(first, **{key: value for key, value in given.items() if key in takes})

    return call


class RuleFunction(Recorded):
    """A function by its rule."""

    @staticmethod
    def forward(rule: Rule, others: dict[str, Any], *inputs: Any) -> Any:
        return rule.compute(*inputs, **others)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        rule, others, *given = inputs
        results = output if isinstance(output, tuple) else (output,)
        ctx.rule, ctx.count = rule, len(given)
        # tensors among the others, as targets and lengths, are kept as the inputs are: a change in place is noticed
        held = {name: x for name, x in others.items() if isinstance(x, torch.Tensor)}
        ctx.others, ctx.held = {name: x for name, x in others.items() if name not in held}, tuple(held)
        ctx.mark_non_differentiable(*results[1:])
        ctx.set_materialize_grads(False)
        known = dict(zip((rule.inputs + " " + rule.results).split(), (*given, *results), strict=False))
        ctx.save_for_backward(*held.values(), *(known[name] for name in rule.saves.split()))

    @staticmethod
    def backward(ctx: Any, dy: Any, *unused: Any) -> Any:
        rule: Rule = ctx.rule
        if dy is None:  # zeros, which nobody has made
            return (None,) * (2 + ctx.count)
        saved = ctx.saved_tensors  # once: checkpointing makes them again, and lets nobody read them twice
        others, saved = ctx.others | dict(zip(ctx.held, saved, strict=False)), saved[len(ctx.held) :]
        composed = recorded(dy, *saved) or any(ctx.needs_input_grad[2 + rule.covers :])
        found = (rule.again if composed else rule.gradient)(dy, *saved, **others)
        found = found if isinstance(found, tuple) else (found,)
        return None, None, *found[: ctx.count], *[None] * (ctx.count - len(found))


def through(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A rule's `again`: derivatives of a function (*saved, **others) that is composed of functions with gradients."""

    def again(dy: Any, *saved: Any, **others: Any) -> Any:
        create = torch.is_grad_enabled()
        needs = [isinstance(x, torch.Tensor) and x.requires_grad for x in saved]
        with torch.enable_grad():
            # a view each: one that is given twice, or computed from another, has gradients of its own
            own = [x.view_as(x) if need else x for x, need in zip(saved, needs, strict=True)]
            y = forward(*own, **others)
        wanted = [x for x, need in zip(own, needs, strict=True) if need]
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=create, allow_unused=True))
        return tuple(next(found) if need else None for need in needs)

    return again


def wrapped(rule: Rule) -> Callable[..., Any]:
    """The public function of a rule, with gradients."""
    original = getattr(numbaprims, rule.name)
    bound, names = binding(original), rule.inputs.split()

    @differentiable(original)
    def function(*args: Any, **words: Any) -> Any:
        if rule.float32 and any(map(torch.is_autocast_enabled, rule.float32)):
            args = tuple(wide(x, rule.float32) for x in args)
            words = {name: wide(x, rule.float32) for name, x in words.items()}
        if not recorded(*args, *words.values()):
            return written(getattr(numbaprims, rule.name)(*args, **words), words.get("out"))
        others = bound(args, words)
        refuse_out(others.pop("out", None))
        act = split_activation(others.pop("activation", None))
        if rule.activates:
            others["activation"], act = act, None
        tensors = [others.pop(name) for name in names]
        others |= {} if rule.also is None else rule.also(*tensors, **others)
        found = RuleFunction.apply(rule, others, *tensors)
        if isinstance(found, tuple) and rule.forward is not None:
            found = found[0]  # the public function gives no more
        return found if act is None else activations.activation(found, act[0], **act[1])

    return function


def adjoint(
    name: str, inputs: str, *, linear: Callable[..., Any] | None = None, backward: Callable[..., Any] | None = None,
    also: Callable[..., dict[str, Any]] | None = None,
) -> Rule:  # fmt: skip
    """The rule of a function that is linear in its first input, so that the gradient of its gradient is itself.

    `linear` is what of it gradients see, where it is more.
    """
    _, _, kept = inputs.partition(" ")
    compute = by_name(name, inputs)
    linear, backward = linear or compute, backward or by_name(f"{name}_backward", f"dy {kept}")

    def rule(forward: Callable[..., Any], gradient: Callable[..., Any], again: str) -> Rule:
        def applied(g: Any, *saved: Any, **others: Any) -> Any:
            return RuleFunction.apply(rules[again], others, g, *saved)

        return Rule(name, inputs, "y", kept, applied, gradient, forward=forward, also=also)

    rules = {"forward": rule(linear, backward, "backward"), "backward": rule(backward, linear, "forward")}
    return rule(compute, backward, "backward")


def binding(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """(args, words) -> all arguments of a call by name: what inspect's `bind` gives in 8 us."""
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    names = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}

    def bound(args: tuple[Any, ...], words: dict[str, Any]) -> dict[str, Any]:
        found = {**defaults, **dict(zip(names, args, strict=False)), **words}
        if len(args) > len(names) or len(found) != len(parameters) or not words.keys().isdisjoint(names[: len(args)]):
            signature.bind(*args, **words)  # raises
        return found

    return bound


def multilinear(
    name: str, inputs: str, *, cast: bool = True, also: Callable[..., dict[str, Any]] | None = None,
    **gradients: tuple[str, Callable[..., Any]],
) -> Callable[..., Any]:  # fmt: skip
    """A public function by its gradients, as `Multilinear` has them; beta multiplies the last input.

    `cast`: whether autocast does; `also`: (all arguments) -> those that change where gradients are recorded.
    """
    original = getattr(numbaprims, name)
    bound, names = binding(original), inputs.split()
    factors = [each for each in ("alpha", "beta") if each in inspect.signature(original).parameters]
    row = Multilinear(
        inputs, lambda *given, **others: getattr(numbaprims, name)(**dict(zip(names, given, strict=True)), **others),
        gradients, activations.gradient,
    )  # fmt: skip

    @differentiable(original)
    def function(*args: Any, **words: Any) -> Any:
        casts = cast and (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))
        if not casts and not recorded(*args, *words.values()):
            return written(getattr(numbaprims, name)(*args, **words), words.get("out"))
        given = bound(args, words)
        for factor in factors:
            given[factor] = float(given[factor])
        if given.get("beta") == 0.0:
            given[names[-1]] = None
        if casts:
            # what beta multiplies has the dtype of the result
            these = names[:-1] if given.get("out_dtype") is not None else names
            given |= zip(these, autocast(*(given[each] for each in these)), strict=True)
        if not recorded(*[given[each] for each in names]):
            return written(getattr(numbaprims, name)(**given), given.get("out"))
        refuse_out(given.pop("out", None))
        act = split_activation(given.pop("activation", None))
        given |= {} if also is None else also(**given)
        tensors = [given.pop(each) for each in names]
        if act is None:
            return row.apply(given, *tensors)
        if reads(act[0]) != "x":
            return row.apply(given | {"activation": act}, *tensors)
        # its gradient reads the sums, which the fused product does not keep
        return activations.activation(row.apply(given, *tensors), act[0], **act[1])

    return function


def wide(x: Any, devices: tuple[str, ...]) -> Any:
    """A tensor of less than float32 in float32, where autocast is on for its device."""
    halves = (torch.float16, torch.bfloat16)
    if isinstance(x, torch.Tensor) and x.dtype in halves and x.device.type in devices:
        return x.float() if torch.is_autocast_enabled(x.device.type) else x
    return x
