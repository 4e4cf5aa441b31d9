"""What torch's functions make of the elements of a tensor without computing: views and copies in another order."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from numbaprims.fusion import layers

_NAMES = (
    "chunk", "flatten", "flip", "index_select", "movedim", "narrow", "permute", "repeat_interleave", "reshape", "roll",
    "select", "split", "squeeze", "swapaxes", "transpose", "unbind", "unflatten", "unsqueeze",
)  # fmt: skip
#: What gives the elements of a tensor in another order or shape, mostly without a copy, and what asks for its sizes.
REARRANGING = (
    *_NAMES, *(getattr(torch, name) for name in _NAMES), "contiguous", "expand", "view", "size", "dim", getattr,
    operator.getitem, operator.floordiv, operator.mul, torch.nn.Flatten, torch.nn.Unflatten, torch.nn.functional.pad,
    torch._C._nn.pad,
)  # fmt: skip
#: Elements that lie side by side in what is copied by their numbers, at least.
_SHORTEST = 4


class Rearranging(NamedTuple):
    """What a function of tensors makes of one of them."""

    layer: Any
    source: int
    """Which of the tensors it is, or, of a view, what that is a view of."""
    view: Callable[[Any], Any] | None
    """The function of what it is a view of; None where it copies."""
    of_whole: bool = False
    """Whether it copies elements of what the tensor is a view of."""


def _gathered(y: Any, x: Any) -> Any:
    """The layers that give y of elements of the images x, by the numbers of runs of them; None where runs are short."""
    if y.ndim < 2 or x.ndim < 2:
        return None
    image, count = tuple(y.shape[1:]), x[0].numel()
    places = y.flatten(1) - x.flatten(1)[:, :1]
    first = places[0]
    if not torch.equal(places, first.expand_as(places)) or first.min() < 0 or first.max() >= count:
        return None
    for at in range(len(image)):
        run = math.prod(image[at:])
        begins = first.view(-1, run)[:, 0]
        whole = count % run == 0 and not (begins % run).any()
        if whole and torch.equal(first.view(-1, run), begins[:, None] + torch.arange(run)):
            kinds = layers.Reshape((count // run, run)), layers.Gather(begins // run), layers.Reshape(image)
            return [*kinds] if run >= _SHORTEST else None
    return None


def itself(x: Any) -> Any:
    return x


def rearranged(
    function: Callable[..., Any],
    sources: Sequence[tuple[tuple[int, ...], Callable[[Any], Any]]],
    image: tuple[int, ...],
    images: int,
    rows: int,
) -> Rearranging | None:
    """What a function gives for tensors of images, if that is a view of one or its elements in order.

    Each source is the shape of an image and the view of it that the function is given; `image` is that of the result.
    The function is tried on the numbers of elements of so many images. With `rows` it gives images and these in one
    dimension, which are two here.
    """
    first, whole = 1, list[Any]()  # 0 is what is put around an image
    for shape, _ in sources:
        count = images * math.prod(shape)
        whole.append(torch.arange(first, first + count).view(images, *shape))
        first += count
    given = [view(x) for x, (_, view) in zip(whole, sources, strict=True)]
    if rows:
        joined, function = function, lambda *x: joined(*x).unflatten(0, (-1, rows))
    try:
        y = function(*given)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):  # as where it names how many there are
        return None
    if tuple(y.shape) != (images, *image) or not y.numel():
        return None
    at = next((at for at, x in enumerate(whole) if y.flatten()[0] <= x.flatten()[-1]), 0)
    x, before = whole[at], sources[at][1]
    if y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
        if y.is_contiguous() and torch.equal(y.flatten(), given[at].flatten()):
            return Rearranging(layers.Reshape(image), at, None)
        found = _gathered(y, x)
        return None if found is None else Rearranging(found, at, None, True)
    if images > 1 and y.stride(0) != x[0].numel():
        return None
    others = [None if k == at else each for k, each in enumerate(given)]
    layer = layers.View(image, y.stride()[1:], y.storage_offset())
    return Rearranging(layer, at, lambda x: function(*(before(x) if each is None else each for each in others)))
