"""Shapes and strides as problems describe them."""

from __future__ import annotations

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
