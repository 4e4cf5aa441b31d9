"""Layers that compute nothing: elements of images in another order or shape, and values of no image."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.fusion.layer import Layer, values_of
from numbaprims.fusion.place import Place, Run, Shape, dense, is_dense
from numbaprims.ops.activation import activation
from numbaprims.ops.gather import gather_known
from numbaprims.shapes import per_dimension, sizes_of


class Rearranged(Layer):
    """Its result may lie in what it reads."""

    stays = "its result is what it reads, in another order or shape"
    views = True

    def view(self, x: np.ndarray) -> np.ndarray:
        """Of an array of the host, without touching an element."""
        raise TypeError(f"{type(self).__name__} views nothing")

    def bind(self, shape: Shape, place: Place) -> Run:
        def run(x: Any, *, out: Any = None) -> Any:
            y = viewed(self._readable(x), self.view)
            return y if out is None else activation(y, "identity", out=out)

        return run

    def _readable(self, x: Any) -> Any:
        return dense(x)


def viewed(x: Any, view: Callable[[np.ndarray], np.ndarray]) -> Any:
    """What a function of arrays of the host makes of an array of any library, over the same memory."""
    storage, dtype, library = arrays.enter(x, "x")
    found = view(storage) if isinstance(storage, np.ndarray) else storage.through(view)
    return library.over(x, found, dtype)


@dataclasses.dataclass(frozen=True, repr=False)
class Permute(Rearranged):
    """Dimensions in another order, as of `numpy.transpose`; that of images stays the first.  Nothing is copied.

    >>> Permute((0, 2, 3, 1))
    Permute(dims=(0, 2, 3, 1))
    """

    dims: Any

    def __post_init__(self) -> None:
        dims = sizes_of(self.dims, "dims")
        if sorted(dims) != list(range(len(dims))) or dims[:1] != (0,):
            raise ValueError(f"dims is {self.dims}; it must be 0 and then the dimensions of an image, each once")
        self._set(dims=dims)

    def view(self, x: np.ndarray) -> np.ndarray:
        if x.ndim != len(self.dims):
            raise ValueError(f"it takes {len(self.dims)} dimensions")
        return x.transpose(self.dims)

    def _readable(self, x: Any) -> Any:
        return x


@dataclasses.dataclass(frozen=True, repr=False)
class View(Rearranged):
    """The elements of each image by steps: (N, *shape), of which element (n, i, j, ...) is that in place
    ``offset + i * strides[0] + j * strides[1] + ...`` of image n, as if it lay without gaps.
    """

    shape: Any
    strides: Any
    offset: int = 0

    def __post_init__(self) -> None:
        shape, strides = sizes_of(self.shape, "shape"), sizes_of(self.strides, "strides")
        if len(shape) != len(strides):
            raise ValueError(f"shape is {shape} and strides {strides}; they must have one length")
        self._set(shape=shape, strides=strides, offset=per_dimension(self.offset, 1, "offset", 0)[0])

    def view(self, x: np.ndarray) -> np.ndarray:
        n, image, item = len(x), math.prod(x.shape[1:]), x.itemsize
        last = self.offset + sum((length - 1) * step for length, step in zip(self.shape, self.strides, strict=True))
        if math.prod(self.shape) and last >= image:
            raise ValueError(f"it reads element {last} of images that have {image}")
        flat = x.reshape(n, image)[:, min(self.offset, image) :]
        return as_strided(flat, (n, *self.shape), (image * item, *(step * item for step in self.strides)))


@dataclasses.dataclass(frozen=True, repr=False)
class Reshape(Rearranged):
    """(N, *shape), of the elements in their order; copied where they lie in another one.

    >>> Reshape((4, -1))
    Reshape(shape=(4, -1))
    """

    shape: Any
    views = False

    def __post_init__(self) -> None:
        shape = tuple(self.shape)
        sizes_of([each for each in shape if each != -1], "shape")
        if shape.count(-1) > 1:
            raise ValueError(f"shape is {shape}; one size may be -1")
        self._set(shape=shape)

    def view(self, x: np.ndarray) -> np.ndarray:
        image, known = math.prod(x.shape[1:]), math.prod(each for each in self.shape if each != -1)
        shape = tuple(image // max(known, 1) if each == -1 else each for each in self.shape)
        if math.prod(shape) != image:
            raise ValueError(f"images of {image} elements have no shape {self.shape}")
        return x.reshape((len(x), *shape))


class Flatten(Reshape):
    """(N, everything else)."""

    def __init__(self) -> None:
        super().__init__((-1,))

    def __repr__(self) -> str:
        return "Flatten()"


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Gather(Layer):
    """`numbaprims.gather` along the first dimension of images: ``y[n, j] = x[n, indices[j]]``."""

    indices: Any
    stays = "elements by their numbers are a launch of their own"

    def __post_init__(self) -> None:
        indices = arrays.values_of(self.indices, "indices")
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise TypeError(f"indices is a {arrays.describe(indices)}; it must be integers in one dimension")
        self._set(indices=indices.astype(np.int64))

    def bind(self, shape: Shape, place: Place) -> Run:
        size = shape[1] if len(shape) > 1 else 0
        if not ((-size <= self.indices) & (self.indices < size)).all():
            raise ValueError(f"its indices are for images of more than {size} elements")
        indices = registry.placed(place.library, self.indices, "i64")

        def run(x: Any, *, out: Any = None) -> Any:
            if out is None or is_dense(out):
                return gather_known(x, indices, 1, out)
            return activation(gather_known(x, indices, 1), "identity", out=out)

        return run


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Constant(Rearranged):
    """The same values for each image, whatever it reads: an embedding of positions, a token of a class."""

    values: Any
    """(*shape) of one image."""
    stays = "its values are known"

    def __post_init__(self) -> None:
        self._set(values=values_of(self.values, "values", *range(1, 6)))

    def bind(self, shape: Shape, place: Place) -> Run:
        values = place.array(self.values)

        def run(x: Any, *, out: Any = None) -> Any:
            shape = (len(x), *self.values.shape)
            y = viewed(values, lambda each: as_strided(each, shape, (0, *each.strides)))
            return y if out is None else activation(y, "identity", out=out)

        return run
