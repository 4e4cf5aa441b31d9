"""Shapes and strides as problems describe them."""

from __future__ import annotations

from typing import Any

import numpy as np


def element_strides(x: np.ndarray) -> tuple[int, ...]:
    """Give the strides of an array in elements; storage views are aligned, so they are whole numbers."""
    size = x.itemsize
    return tuple(stride // size for stride in x.strides)


def order(rows: int, columns: int, row_stride: int, column_stride: int) -> str:
    """Say how a (rows, columns) matrix lies in memory, its strides given in elements.

    "row": a row is contiguous; "column": a column is; "strided": neither. A dimension of one element has no
    stride to speak of and fits any order, "row" first.

    >>> order(4, 5, 5, 1), order(4, 5, 1, 4), order(4, 5, 10, 2), order(4, 1, 7, 7)
    ('row', 'column', 'strided', 'row')
    """
    if column_stride == 1 or columns <= 1:
        return "row"
    if row_stride == 1 or rows <= 1:
        return "column"
    return "strided"


def unit(length: int, stride: int) -> bool:
    """Say whether a vector's elements lie side by side (one of a single element always does)."""
    return stride == 1 or length <= 1


def broadcast_batch(a: Any, a_name: str, b: Any, b_name: str) -> tuple[int, ...]:
    """Give the common shape of the leading dimensions of two stacks of matrices; ValueError where none is."""
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"the leading dimensions {tuple(a.shape[:-2])} of {a_name} and {tuple(b.shape[:-2])} of {b_name} "
            "do not broadcast"
        ) from None


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
