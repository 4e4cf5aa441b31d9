"""Shapes and strides as problems describe them."""

from __future__ import annotations

from typing import Any

import numpy as np


def element_strides(x: np.ndarray) -> tuple[int, ...]:
    """Give the strides of an array in elements; storage views are aligned, so they are whole numbers."""
    size = x.itemsize
    return tuple(stride // size for stride in x.strides)


def may_overlap_itself(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Say whether two elements may share memory (strides in bytes); exact for slices and broadcasts.

    >>> may_overlap_itself((3, 4), (16, 4), 4), may_overlap_itself((3, 4), (0, 4), 4)
    (False, True)
    """
    if 0 in shape:
        return False
    reach = itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (size - 1)
    return False


def walk_order(rows: int, columns: int, row_stride: int, column_stride: int) -> str:
    """The order of a matrix as kernels walk it: "row", "column" or "strided".

    A step of -1 is one of 1 from the other end. A single column whose rows are side by side is a "column": as
    rows it would be vectors of one element.
    """
    if abs(column_stride) == 1 and columns > 1:
        return "row"
    if abs(row_stride) == 1 and rows > 1:
        return "column"
    return "row" if columns <= 1 else "strided"


# ---------------------------------------------------------------- convolution: layouts, windows, padding

# Layout names by number of spatial dimensions; NCHW and NHWC stand for their family at any rank.
_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


def channels_last(layout: object, rank: int) -> bool:
    """Say whether a layout keeps the channels last, for arrays of `rank` spatial dimensions.

    >>> channels_last("NCHW", 2), channels_last("NDHWC", 3), channels_last("NHWC", 1)
    (False, True, True)
    """
    if isinstance(layout, str) and layout in ("NCHW", _FIRST[rank]):
        return False
    if isinstance(layout, str) and layout in ("NHWC", _LAST[rank]):
        return True
    raise ValueError(f"layout is {layout!r}; for {rank} spatial dimensions it must be {_FIRST[rank]} or {_LAST[rank]}")


def per_dimension(value: object, rank: int, name: str, least: int) -> tuple[int, ...]:
    """One integer for each spatial dimension, from one integer or a sequence of them.

    >>> per_dimension(2, 3, "stride", 1), per_dimension((1, 2), 2, "dilation", 1)
    ((2, 2, 2), (1, 2))
    """
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(values) != rank:
        raise ValueError(f"{name} is {value!r}; it must be one integer, or {rank} of them")
    checked = []
    for item in values:
        if isinstance(item, bool) or not isinstance(item, (int, np.integer)):
            raise TypeError(f"{name} is {value!r}; it must be made of integers")
        if item < least:
            raise ValueError(f"{name} is {value!r}; it must be at least {least}")
        checked.append(int(item))
    return tuple(checked)


def items_of(shape: Any, name: str) -> tuple[Any, ...]:
    """The elements of a shape that a caller gives; TypeError, naming it, where it has none."""
    try:
        return tuple(shape)
    except TypeError:
        raise TypeError(f"{name} is {shape!r}; it must be a sequence of integers") from None


def sizes_of(shape: Any, name: str) -> tuple[int, ...]:
    """A shape that a caller gives, as integers; TypeError or ValueError, naming it, for what is none.

    >>> sizes_of([1, 2], "x_shape")
    (1, 2)
    """
    sizes = items_of(shape, name)
    return per_dimension(sizes, len(sizes), name, 0)


def window_extent(kernel: int, dilation: int) -> int:
    """How many inputs a dilated window spans."""
    return dilation * (kernel - 1) + 1


def sees_nothing(windows: int, length: int, kernel: int, stride: int, dilation: int, before: int) -> bool:
    """Whether one of so many windows has no element of the input, but those of its padding alone.

    >>> sees_nothing(1, 1, 2, 1, 2, 1), sees_nothing(2, 2, 2, 1, 2, 1)
    (True, False)
    """
    start = np.arange(windows) * stride - before
    first = start + np.maximum(-(start // dilation), 0) * dilation
    return bool((first >= np.minimum(start + window_extent(kernel, dilation), length)).any())


def resolve_padding(
    padding: object, sizes: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """(before, after) for each spatial dimension, from an integer, one for each dimension, pairs, "same" or "valid".

    "same" gives ceil(size / stride) outputs, the odd element of padding behind (ONNX's SAME_UPPER; with stride 1
    torch's "same").

    >>> resolve_padding("same", (5, 6), (3, 4), (1, 2), (1, 1)), resolve_padding(((0, 1), (2, 3)), (5, 6), (3, 3), (1, 1), (1, 1))
    (((1, 1), (1, 1)), ((0, 1), (2, 3)))
    """  # noqa: E501
    rank = len(sizes)
    if padding == "valid":
        return ((0, 0),) * rank
    if padding == "same":
        pairs = []
        for size, taps, step, gap in zip(sizes, kernel, stride, dilation, strict=True):
            total = max((-(-size // step) - 1) * step + window_extent(taps, gap) - size, 0)
            pairs.append((total // 2, total - total // 2))
        return tuple(pairs)
    if isinstance(padding, str):
        raise ValueError(f"padding is {padding!r}; as a word it must be 'same' or 'valid'")
    if isinstance(padding, (tuple, list)) and any(isinstance(item, (tuple, list)) for item in padding):
        if len(padding) != rank or not all(isinstance(item, (tuple, list)) and len(item) == 2 for item in padding):
            raise ValueError(f"padding is {padding!r}; as pairs it must hold {rank} of (before, after)")
        return tuple(per_dimension(item, 2, "padding", 0) for item in padding)  # type: ignore[misc]
    return tuple((value, value) for value in per_dimension(padding, rank, "padding", 0))


def output_size(size: int, kernel: int, stride: int, dilation: int, padding: tuple[int, int]) -> int:
    """Outputs of a convolution along one dimension: floor((size + padding - extent) / stride) + 1.

    >>> output_size(224, 7, 2, 1, (3, 3))
    112
    """
    return (size + sum(padding) - window_extent(kernel, dilation)) // stride + 1


def transposed_size(
    size: int, kernel: int, stride: int, dilation: int, padding: tuple[int, int], output_padding: int
) -> int:
    """Outputs of a transposed convolution along one dimension.

    >>> transposed_size(112, 7, 2, 1, (3, 3), 1)
    224
    """
    return (size - 1) * stride - sum(padding) + window_extent(kernel, dilation) + output_padding
