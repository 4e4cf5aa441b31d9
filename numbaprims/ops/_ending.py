"""Activations behind a normalisation, as the ends of formulas' names; their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.formulas.stacks import ENDING, ended, parse_ended
from numbaprims.ops._activation_call import kernel_of
from numbaprims.ops._activation_reference import named_parameters
from numbaprims.ops.epilogue import resolve_activation
from numbaprims.reference.activation import activation, activation_backward

_ENDINGS: dict[str, str] = {}
#: Kinds whose kernels take other numbers than the call's parameters.
_COUNTS = {"gelu_tanh": 0, "softplus_1": 0, "power_2": 2}


def ending_of(activation: Any) -> str:
    """An activation as the end of a formula's name; "" for none."""
    if activation is None:
        return ""
    known = _ENDINGS.get(activation) if type(activation) is str else None
    if known is None:
        kind, p0, p1, p2 = kernel_of(resolve_activation(activation))
        count = _COUNTS.get(kind, len(named_parameters(kind, (p0, p1, p2))[1]))
        known = "" if kind == "identity" else ended("", kind, (p0, p1, p2)[:count])[1:]
        if type(activation) is str:
            _ENDINGS[activation] = known
    return known


def named_ending(formula: str) -> tuple[str, dict[str, Any]]:
    """The activation at the end of a formula's name as an argument."""
    _, kind, numbers = parse_ended(formula)
    p0, p1, p2, *_ = (*numbers, 0.0, 0.0, 0.0)
    return named_parameters(kind, (p0, p1, p2))


def define_ending(y: Any, ending: str = "") -> Any:
    """The definition of an activation of y."""
    if not ending:
        return y
    name, words = named_ending(f"{ENDING}{ending}")
    return activation(y, name, **words)


def define_gradient(dy: Any, y: Callable[[], Any], ending: str) -> Any:
    """That of its gradient, of what it took."""
    if not ending:
        return dy
    name, words = named_ending(f"{ENDING}{ending}")
    return activation_backward(dy, y(), name, **words)
