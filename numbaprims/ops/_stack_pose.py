"""Calls of stacks and of their gradients: what is checked, and how arrays lie."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np

from numbaprims.dtypes import DTYPES, LONG_NAMES
from numbaprims.ops._stack_problem import StackProblem
from numbaprims.ops.activation_kinds import KINDS
from numbaprims.ops.primitive import Given
from numbaprims.shapes import channels_last, element_strides, sees_nothing
from numbaprims.stacks.operations import NUMBERS, WINDOWS, Operation, Size, Window, parse, steps_of

#: Element-wise operations -> the parameters of a channel.
_POINTWISE = {
    **NUMBERS,
    **{kind: sum(name != "approximate" for name in KINDS[kind].parameters) for kind in KINDS if kind != "glu"},
    "gelu_tanh": 0, "softplus_1": 0, "power_2": 2,
}  # fmt: skip
#: Arrays that a stack may add.
MOST_ADDED = 4
INPUTS = ("x", "parameters", *(f"added[{k}]" for k in range(MOST_ADDED)))
NONE = (None,) * MOST_ADDED


def canonical(values: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Sizes or strides over (n, c, height, width)."""
    return (values[0], values[3], values[1], values[2]) if channels_last(layout, 2) else values


def shape_of(n: int, c: int, size: Size, layout: str) -> tuple[int, ...]:
    """The shape of an image."""
    return (n, *size, c) if channels_last(layout, 2) else (n, c, *size)


def channels_second(x: Any, layout: str) -> Any:
    """An image as (n, c, height, width)."""
    return np.moveaxis(x, -1, 1) if channels_last(layout, 2) else x


def back(x: Any, layout: str) -> Any:
    """The same in its layout."""
    return np.moveaxis(x, 1, -1) if channels_last(layout, 2) else x


def _lies(shape: tuple[int, ...], strides: tuple[int, ...]) -> set[str]:
    """The layout words of an array, its shape and strides over (n, c, height, width)."""
    _, c, h, w = shape
    words = set()
    if (w == 1 or strides[3] == 1) and (h == 1 or strides[2] == w):
        words.add("channels_first")
    if (c == 1 or strides[1] == 1) and (w == 1 or strides[3] == c) and (h == 1 or strides[2] == w * c):
        words.add("channels_last")
    return words


def added_sizes(operations: Sequence[Operation], size: Size) -> list[Size]:
    """Height and width of each array that is added."""
    found = []
    for each in operations:
        if isinstance(each, Window):
            size = each.out_size(size)
        elif each.kind == "add":
            found.append(size)
    return found


@functools.cache
def has_windows(texts: tuple[str, ...]) -> bool:
    """Whether an operation of these is a window."""
    return any(isinstance(parse(text), Window) for text in texts)


def check_added(added: Sequence[Any]) -> None:
    """ValueError for more arrays than a stack adds, TypeError for what is no sequence of them."""
    if not hasattr(added, "__len__"):
        raise TypeError(f"added is {added!r}; it must be a sequence of arrays")
    if len(added) > MOST_ADDED:
        raise ValueError(f"{len(added)} arrays to be added; a stack takes at most {MOST_ADDED}")


def too_deep(texts: Sequence[str]) -> ValueError:
    """The error of more operations than formulas are traced through within Python's limit of recursion."""
    return ValueError(f"operations has {len(texts)} elements, too many for one kernel; give some of them to each call")


class Images:
    """What operations make of x; `first` is its place among the arrays, in front of those of `INPUTS`."""

    def __init__(self, given: Given, operations: Sequence[Operation], layout: str, first: int = 0) -> None:
        x, parameters, *added = given.storages[first:]
        if x.ndim != 4:
            raise ValueError(
                f"{given.words(first)}; a stack takes images (N, C, H, W), or (N, H, W, C) with layout='NHWC'"
            )
        self.operations, self.layout, self.last = operations, layout, channels_last(layout, 2)
        self.n, self.c, h, w = canonical(x.shape, layout)
        self.dtype: Any = given.dtypes[first]
        self.size = self.out = (h, w)
        self._check_operations()
        self.shape = shape_of(self.n, self.c, self.out, layout)
        """Of the result."""
        self._check_parameters(given, first + 1, parameters)
        wanted = added_sizes(operations, self.size)
        self.added = [at for at, each in enumerate(added) if each is not None]
        if len(self.added) != len(wanted):
            raise ValueError(f"{len(self.added)} arrays are given to be added; these operations add {len(wanted)}")
        for at, place in zip(self.added, wanted, strict=True):
            shape = shape_of(self.n, self.c, place, layout)
            if added[at].shape != shape:
                raise ValueError(f"{given.words(first + 2 + at)}; it is added where the shape is {shape}")

    def _check_operations(self) -> None:
        if not self.operations:
            raise ValueError("operations is empty; there must be one at least")
        for each in self.operations:
            if not isinstance(each, Window):
                if each.kind not in _POINTWISE:
                    raise ValueError(f"operations hold {each}; there is no such operation and no such activation")
                if each.numbers != _POINTWISE[each.kind]:
                    raise ValueError(f"operations hold {each}; {each.kind} takes numbers={_POINTWISE[each.kind]}")
                continue
            if each.op not in WINDOWS:
                raise ValueError(f"operations hold {each}; a window is one of {', '.join(WINDOWS)}")
            if min(*each.kernel, *each.stride, *each.dilation) < 1:
                raise ValueError(f"operations hold {each}; kernel, stride and dilation must be at least 1")
            before, self.out = self.out, each.out_size(self.out)
            pads = zip((*each.before, *each.after), (*each.extents, *each.extents), strict=True)
            if any(not 0 <= pad <= extent // 2 for pad, extent in pads):
                raise ValueError(
                    f"a window {each.kernel} is padded by {each.before}, {each.after}; at most by its half"
                )
            if min(self.out) < 1 and min(self.size) > 0:
                raise ValueError(f"a window of {each.kernel} slides over {before}; nothing is left")
            along = zip(self.out, before, each.kernel, each.stride, each.dilation, each.before, strict=True)
            if each.op != "depthwise" and any(starmap(sees_nothing, along)):
                raise ValueError(f"operations hold {each}; over {before} a window would have no element")

    def _check_parameters(self, given: Given, at: int, parameters: Any) -> None:
        numbers = sum(each.numbers for each in self.operations)
        if not numbers:
            if parameters is not None:
                raise ValueError(f"{given.words(at)}; these operations take none")
            return
        accumulate = DTYPES[self.dtype].accumulate
        if parameters is None:
            raise ValueError(f"parameters is None; these operations take {numbers} for each of {self.c} channels")
        if parameters.shape != (self.c, numbers):
            raise ValueError(f"{given.words(at)}; these operations take shape {(self.c, numbers)}")
        if given.dtypes[at] != accumulate:
            raise TypeError(
                f"{given.words(at)}; with x of {LONG_NAMES[self.dtype]} it must be {LONG_NAMES[accumulate]}"
            )

    def strides(self, image: Any) -> tuple[int, ...]:
        """Of an image, over (n, c, height, width)."""
        return canonical(element_strides(image), self.layout)

    def problem(self, images: Sequence[Any], strides: tuple[Any, ...], **more: Any) -> StackProblem:
        """The problem, its arrays being of these strides."""
        lie = {"channels_first", "channels_last"}
        for each in images:
            lie &= _lies(canonical(each.shape, self.layout), self.strides(each))
        return StackProblem(
            self.dtype, self.n, self.c, self.size, tuple(step.text for step in steps_of(self.operations)),
            min(lie, default="strided"), strides=strides, **more,
        )  # fmt: skip


def lies_over(made: Sequence[Any], inputs: Sequence[Any]) -> bool:
    """Whether the first result lies where an input does."""
    first = made[0]
    if isinstance(first, np.ndarray):
        return any(np.may_share_memory(first, each) for each in inputs)
    return any(first is each for each in inputs)
