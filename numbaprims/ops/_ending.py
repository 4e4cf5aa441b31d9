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


def ending_of(activation: Any) -> str:
    """An activation as the end of a formula's name; "" for none."""
    if activation is None:
        return ""
    known = _ENDINGS.get(activation) if type(activation) is str else None
    if known is None:
        kind, numbers = kernel_of(resolve_activation(activation))
        known = "" if kind == "identity" else ended("", kind, numbers)[1:]
        if type(activation) is str:
            _ENDINGS[activation] = known
    return known


def named_ending(formula: str) -> tuple[str, dict[str, Any]]:
    """The activation at the end of a formula's name as an argument."""
    _, kind, numbers = parse_ended(formula)
    return named_parameters(kind, numbers)


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
