"""Functions of torch that `fuse` calls as they are, as a module calls them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch.fx

#: Operators of Python's that write to their first operand.
IN_PLACE = {getattr(operator, f"i{name}") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}


@dataclasses.dataclass(frozen=True)
class Value:
    """A place in the list of what an expression is given and has computed; no tuple, whose elements are looked at."""

    at: int


class Expression:
    """``expression(*tensors)``: torch's functions and methods one after another, as a module calls them."""

    def __init__(self, steps: list[tuple[str, Any, Any, Any]]) -> None:
        self.steps = steps

    def __call__(self, *values: Any) -> Any:
        known = list(values)
        for kind, target, args, words in self.steps:
            args, words = (torch.fx.node.map_aggregate(each, lambda x: _given(x, known)) for each in (args, words))
            function = getattr(args[0], target) if kind == "call_method" else target
            known.append(function(*(args[1:] if kind == "call_method" else args), **words))
        return known[-1]

    def __repr__(self) -> str:
        targets = (target for _, target, *_ in self.steps)
        return ", ".join(each if isinstance(each, str) else getattr(each, "__name__", repr(each)) for each in targets)


def _given(x: Any, known: list[Any]) -> Any:
    return known[x.at] if isinstance(x, Value) else x


@dataclasses.dataclass(frozen=True, repr=False)
class Constant:
    """A parameter that a function reads, or what was computed of parameters alone."""

    value: Any

    def __call__(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return f"constant {tuple(getattr(self.value, 'shape', ()))}"


@dataclasses.dataclass(frozen=True, repr=False)
class Copied:
    """A function that writes to its first operand, of a copy of that: what is in place in the type of the operand."""

    function: Callable[..., Any]

    def __call__(self, x: Any, other: Any) -> Any:
        return self.function(x.clone(), other)

    def __repr__(self) -> str:
        return self.function.__name__
