"""What a layer is bound to, and how operations are called there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.dtypes import DTYPES
from numbaprims.ops.activation import activation
from numbaprims.ops.stack import stack
from numbaprims.ops.tensor import cast
from numbaprims.reference.convert import from_float64
from numbaprims.stacks.operations import Operation

Shape = tuple[int, ...]
Run = Callable[..., Any]
"""``run(x, *more, out=None)``"""
Found = tuple[Operation, list[np.ndarray]]
"""An operation and its parameters, each (C,) or one number."""


class Place(NamedTuple):
    """What a layer is bound to."""

    dtype: str
    library: Any
    layout: str

    @property
    def accumulate(self) -> str:
        return DTYPES[self.dtype].accumulate

    def array(self, values: np.ndarray, dtype: str | None = None) -> Any:
        """An array of the library with values rounded to `dtype`."""
        dtype = dtype or self.dtype
        return registry.placed(self.library, np.ascontiguousarray(from_float64(values, dtype)), dtype)

    def parameters(self, values: np.ndarray) -> Any:
        """The parameters (C, numbers) of a stack; where channels lie side by side, those of neighbours do, too."""
        if self.layout == "NHWC" and self.library.device == "cpu":
            return self.array(values.T, self.accumulate).T
        return self.array(values, self.accumulate)


def channel_axis(shape: Shape, layout: str) -> int:
    """The dimension of channels; images without one beside N and C keep them there."""
    return len(shape) - 1 if layout == "NHWC" else 1


def is_dense(x: Any) -> bool:
    """Whether it has no gaps, so that a reshape is a view."""
    return bool(arrays.enter(x, "x")[0].flags.c_contiguous)


def dense(x: Any) -> Any:
    """An array without gaps: itself, or what a call copies, since a joined program does so too, and Python does not."""
    if is_dense(x):
        return x
    storage, dtype, library = arrays.enter(x, "x")
    return cast(x, dtype, out=library.empty(storage.shape, dtype)[0])


def run_operations(
    operations: tuple[Operation, ...], parameters: np.ndarray | None, shape: Shape, place: Place, **words: int
) -> Run:
    """A call of `numbaprims.stack`.  `parameters` is storage of the type that is computed in.  Arrays that are no
    images become images of one row, since an element-wise operation takes any."""
    texts = tuple(each.text for each in operations)
    given = None if parameters is None else place.parameters(parameters)

    def run(x: Any, *added: Any, out: Any = None) -> Any:
        return stack(x, texts, given, added=added, layout=place.layout, out=out, **words)

    if len(shape) == 4:
        return run
    c = shape[channel_axis(shape, place.layout)]
    image = (1, -1, c) if place.layout == "NHWC" else (c, 1, -1)

    def reshaped(x: Any, *added: Any, out: Any = None) -> Any:
        if 0 in x.shape:
            return activation(x, "identity", out=out)
        images = [dense(each).reshape((x.shape[0], *image)) for each in (x, *added)]
        y = run(*images).reshape(x.shape)
        return y if out is None else activation(y, "identity", out=out)

    return reshaped


def pack(columns: list[np.ndarray], shape: Shape, place: Place) -> np.ndarray | None:
    """Parameters as a stack takes them: (C, numbers), rounded to the type that is computed in."""
    if not columns:
        return None
    c = shape[channel_axis(shape, place.layout)]
    for each in columns:
        if each.size not in (1, c):
            raise ValueError(f"it has parameters of {each.size} channels and its input {c}")
    return from_float64(np.stack([np.broadcast_to(each, (c,)) for each in columns], axis=1), place.accumulate)
