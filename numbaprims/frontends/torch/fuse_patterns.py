"""Layers that models write out in torch's functions: RMS norms, gelu by tanh."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from numbaprims.fusion import layers

# (function or method, its operands and keywords in order); a text is a name that stands for one thing everywhere
_RMS = ("mul", "x", ("rsqrt", ("add", ("mean", ("pow", "x", 2), -1, True), "eps")))
_CUBIC = ("add", "x", ("mul", 0.044715, ("pow", "x", 3)))
_TANH = ("add", 1.0, ("tanh", ("mul", math.sqrt(2 / math.pi), _CUBIC)))
_PATTERNS: dict[str, list[Any]] = {
    "rms_norm": [("mul", "weight", _RMS), _RMS],
    "gelu": [("mul", ("mul", 0.5, "x"), _TANH), ("mul", "x", ("mul", 0.5, _TANH))],
}
_COMMUTE = ("add", "mul")


def pattern(
    n: Any, itself: Callable[[Any], Any], known: Callable[[Any], Any], images: dict[Any, tuple[int, ...]]
) -> Any:
    """(the layer that a node is the last of, the node that it reads), None where it is none.

    `itself` gives the node that another one only repeats, `known` the values of constants; `images` are shapes.
    """
    if not isinstance(n, torch.fx.Node):
        return None
    for kind, shapes in _PATTERNS.items():
        for shape in shapes:
            named: dict[str, Any] = {}
            if _matches(n, shape, itself, named):
                x = named.pop("x")
                layer = _layer(kind, known(named), images.get(x))
                if layer is not None:
                    return layer, x
    return None


def _matches(n: Any, shape: Any, itself: Callable[[Any], Any], named: dict[str, Any]) -> bool:
    n = itself(n)
    if isinstance(shape, str):
        return named.setdefault(shape, n) is n or (not isinstance(n, torch.fx.Node) and named[shape] == n)
    if not isinstance(shape, tuple):
        return isinstance(n, (int, float)) and math.isclose(n, shape, rel_tol=1e-6)
    name, *wanted = shape
    if not isinstance(n, torch.fx.Node) or getattr(n.target, "__name__", n.target) != name:
        return False
    given = [*n.args, *n.kwargs.values()]
    for order in [given, given[::-1]][: 1 + (name in _COMMUTE)]:
        tried = dict(named)
        if len(order) == len(wanted) and all(map(lambda a, b: _matches(a, b, itself, tried), order, wanted)):
            named.update(tried)
            return True
    return False


def _layer(kind: str, named: dict[str, Any], x: Any) -> Any:
    """The layer of a kind, of images x; None where what stands in it is not known."""
    if x is None:
        return None
    if kind == "gelu":
        return layers.Activation("gelu", approximate="tanh")
    weight, eps = named.get("weight"), named["eps"]
    known = isinstance(eps, (int, float)) and (weight is None or isinstance(weight, torch.Tensor))
    return layers.RMSNorm(weight, eps) if known and (weight is None or tuple(weight.shape) == x[-1:]) else None
