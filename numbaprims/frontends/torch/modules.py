"""How modules in the place of torch's are made: subclasses of its classes, of their names, that compute by ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from numbaprims.frontends.torch.products import linear

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def twin(name: str, by: str, own: type) -> Any:
    """The subclass of ``torch.nn.<name>`` that computes as `own` does, by the functions of ours that `by` names."""
    words = {"__module__": own.__module__, "__doc__": f"`torch.nn.{name}` by `numbaprims.{by}`.\n{own.__doc__ or ''}"}
    return type(name, (own, getattr(torch.nn, name)), words)


def by_rank(name: str, by: str, own: type) -> tuple[Any, Any, Any]:
    """The same for one, two and three spatial dimensions."""
    one, two, three = (twin(f"{name}{rank}d", by, own) for rank in (1, 2, 3))
    return one, two, three


def hooked(module: Any) -> bool:
    """Whether a call of a module does more than the `forward` of its class: it has hooks, as weight norm and pruning
    have that compute the weight before each call, or a `forward` of its own."""
    own = vars(module)
    return "forward" in own or any(map(own.get, _HOOKS))


class Activated:
    """A module whose `activation`, an argument of its own, is applied in the same pass."""

    activation: Any = None  # of modules that were torch's

    def __init__(self, *args: Any, activation: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation


class Linear(Activated, torch.nn.Linear):
    """`torch.nn.Linear` by `numbaprims.linear`; `activation` is applied in the same pass.

    Example:
        >>> import torch
        >>> Linear(3, 2, activation="relu")(torch.ones(4, 3)).shape
        torch.Size([4, 2])
    """

    def forward(self, input: Any) -> Any:
        return linear(input, self.weight, self.bias, activation=self.activation)


def batched(function: Callable[..., Any], x: Any, rank: int, *args: Any, **words: Any) -> Any:
    """A function of a batch (N, C, ...), of `rank` spatial dimensions, of such a batch or of one sample."""
    if x.ndim != rank + 1:
        return function(x, *args, **words)
    found = function(x[None], *args, **words)
    return tuple(y[0] for y in found) if isinstance(found, tuple) else found[0]
