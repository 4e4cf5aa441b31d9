"""How modules in the place of torch's are made: subclasses of its classes, of their names, that compute by ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def twin(name: str, by: str, own: type) -> Any:
    """The subclass of ``torch.nn.<name>`` that computes as `own` does, by the functions of ours that `by` names."""
    words = {"__module__": own.__module__, "__doc__": f"`torch.nn.{name}` by `numbaprims.{by}`.\n{own.__doc__ or ''}"}
    return type(name, (own, getattr(torch.nn, name)), words)


def by_rank(name: str, by: str, own: type) -> tuple[Any, Any, Any]:
    """The same for one, two and three spatial dimensions."""
    one, two, three = (twin(f"{name}{rank}d", by, own) for rank in (1, 2, 3))
    return one, two, three


class Activated:
    """A module whose `activation`, an argument of its own, is applied in the same pass."""

    activation: Any = None  # of modules that were torch's

    def __init__(self, *args: Any, activation: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation


def batched(function: Callable[..., Any], x: Any, rank: int, *args: Any, **words: Any) -> Any:
    """A function of a batch (N, C, ...), of `rank` spatial dimensions, of such a batch or of one sample."""
    if x.ndim != rank + 1:
        return function(x, *args, **words)
    found = function(x[None], *args, **words)
    return tuple(y[0] for y in found) if isinstance(found, tuple) else found[0]
