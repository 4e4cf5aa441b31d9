"""The one Activation type, shared by the activation stem and by every primitive that fuses one in its epilogue."""

from __future__ import annotations

import dataclasses
from typing import Any

from numbaprims.ops.activation_kinds import KINDS, resolve

# prelu brings an array and glu changes the shape: neither is a function of one element and a few numbers.
NOT_FUSED = ("prelu", "glu")


@dataclasses.dataclass(frozen=True)
class Activation:
    """A kind and its parameters.  The kind changes code; the parameters are run-time scalars."""

    kind: str
    """A name of `KINDS`; gelu with the tanh approximation is "gelu_tanh"."""
    parameters: tuple[float, ...] = dataclasses.field(default=(), compare=False)

    def values(self) -> tuple[float, float, float]:
        """The parameters as kernels take them: three floats, in the order of the table of kinds."""
        padded = (*self.parameters, 0.0, 0.0, 0.0)
        return padded[0], padded[1], padded[2]


IDENTITY = Activation("identity")


def make_activation(kind: str, parameters: dict[str, Any]) -> Activation:
    """An Activation of a kind and its named parameters, defaults filled in.

    Raises:
        ValueError, TypeError: as `resolve`.
    """
    name, full = resolve(kind, parameters)
    if name == "gelu":
        return Activation("gelu_tanh" if full["approximate"] == "tanh" else "gelu")
    return Activation(name, tuple(float(full[key]) for key in KINDS[name].parameters if key not in ("weight", "axis")))


def resolve_activation(activation: Any) -> Activation:
    """The `activation=` argument of a fused primitive: None, a kind, or (kind, parameters)."""
    if activation is None:
        return IDENTITY
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        kind = activation
        parameters: dict[str, Any] = {}
    elif isinstance(activation, tuple) and len(activation) == 2 and isinstance(activation[1], dict):
        kind, parameters = activation
    else:
        raise TypeError(
            f"activation is {activation!r}; it must be None, the name of a kind, or a pair of a name and a dict of "
            "its parameters"
        )
    try:
        resolved = make_activation(kind, parameters)
    except (TypeError, ValueError) as error:
        raise type(error)(f"activation: {error}") from None
    if resolved.kind in NOT_FUSED:
        raise ValueError(f"activation {kind!r} cannot be fused; apply numbaprims.{kind} to the result")
    return resolved


_known: dict[Any, tuple[str, tuple[float, ...]]] = {}


def fused(activation: Any) -> tuple[str, tuple[float, ...]]:
    """The kind of an `activation=` argument and its parameters, which are numbers of the call: one at least."""
    known = _known.get(activation) if activation is None or type(activation) is str else None
    if known is None:
        resolved = resolve_activation(activation)
        known = resolved.kind, resolved.parameters or (0.0,)
        if activation is None or type(activation) is str:
            _known[activation] = known
    return known
