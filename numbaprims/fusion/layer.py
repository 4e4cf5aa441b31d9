"""What every description of a layer has, and the checks of its arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dtypes import FLOATS
from numbaprims.fusion.place import Found, Place, Run, Shape
from numbaprims.reference.convert import to_float64
from numbaprims.shapes import per_dimension, resolve_padding


def values_of(x: Any, name: str, *ndims: int) -> np.ndarray:
    """A copy of an argument's values on the host: float64 of float64, float32 (exact) of the others."""
    storage, dtype, library = arrays.enter(x if hasattr(x, "shape") else np.asarray(x, np.float64), name)
    if dtype not in FLOATS:
        raise TypeError(f"{name} is a {arrays.describe(x)}; it must be of floating point")
    if library.device != "cpu":
        raise TypeError(f"{name} is a {arrays.describe(x)} on {library.device}; layers are described on the host")
    if storage.ndim not in ndims:
        raise ValueError(f"{name} is a {arrays.describe(x)}; it must have {' or '.join(map(str, ndims))} dimensions")
    values = to_float64(storage, dtype).astype(np.float64 if dtype == "f64" else np.float32)
    values.flags.writeable = False
    return values


def check_integers(layer: Any, *names: str) -> None:
    """Raise unless each is an integer from 1 on, or a sequence of them; None is a default."""
    for name in names:
        value = getattr(layer, name)
        if value is not None:
            per_dimension(value, len(value) if isinstance(value, (tuple, list)) else 1, name, 1)


def check_padding(value: Any) -> None:
    ones = (1,) * (len(value) if isinstance(value, (tuple, list)) else 1)
    resolve_padding(value, ones, ones, ones, ones)


class Layer:
    """One layer; subclasses are frozen dataclasses."""

    stays = ""
    """Why it joins no stack; empty if it does."""
    own = True
    """Whether a public function of its own computes it."""
    reads: int | None = 1
    """How many values it reads as a step of a `Wired`; None: any number."""
    passes = False
    """Whether it gives its input unchanged."""
    takes_activation = False
    """Whether it applies the activation behind it."""
    views = False
    """Whether its result lies in memory that there is: nothing is launched."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def bind(self, shape: Shape, place: Place) -> Run:
        """The public function that computes the layer alone, for inputs of a shape (with any number of images)."""
        raise TypeError(f"{self!r} is bound by its graph")

    def operation(self, shape: Shape, place: Place) -> Found | str:
        """What it is in a stack, or why it is nothing there."""
        return self.stays

    def affine(self) -> tuple[Any, Any] | None:
        """(factor, shift) of each channel, in float64, if that is what it computes."""
        return None

    def __repr__(self) -> str:
        words = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                words.append(f"{field.name}={'x'.join(map(str, value.shape)) if value.size != 1 else value.item()}")
            elif value is not None and value != field.default:
                words.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(words)})"
