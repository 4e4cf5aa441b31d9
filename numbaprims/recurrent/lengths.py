"""Sequences of several lengths in one batch: sorted from long to short, and packed without what pads them.

In a batch sorted by length the sequences that are live at a step stand in front, so a step is one matrix of
`batch_sizes[t]` rows, and all steps below one another are the packed rows (MIOpen's order, and that of torch's
PackedSequence).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from numbaprims import arrays


@dataclasses.dataclass(frozen=True, eq=False)
class Lengths:
    """Where the steps of each sequence of a batch lie, in a padded array and packed.

    Row j of step t, packed, is `offsets[t] + j`, and belongs to sequence `order[j]` of the batch.

    Args:
        lengths: (N,) int64, in the order of the batch.
        steps: T, of the padded array.
        order: (N,) int64, the sequences from the longest to the shortest.

    Example:
        >>> of = Lengths.of([2, 7, 5], steps=8)
        >>> of.order, of.batch_sizes, of.offsets
        (array([1, 2, 0]), array([3, 3, 2, 2, 2, 1, 1]), array([ 0,  3,  6,  8, 10, 12, 13, 14]))
        >>> of.rows()[:8]  # in a padded (8, 3, features)
        array([1, 2, 0, 4, 5, 3, 7, 8])
    """

    lengths: np.ndarray
    steps: int
    order: np.ndarray
    inverse: np.ndarray = dataclasses.field(init=False)
    """(N,) int64: where each sequence of the batch stands in the sorted one."""
    batch_sizes: np.ndarray = dataclasses.field(init=False)
    """(longest,) int64: the sequences that are live at each step, as in torch without steps of none."""
    offsets: np.ndarray = dataclasses.field(init=False)
    """(longest + 1,) int64: the first packed row of each step, and behind the last one their number."""

    def __post_init__(self) -> None:
        longest = int(self.lengths.max(initial=0))
        ended = np.bincount(self.lengths).cumsum()[:longest]
        batch_sizes = (len(self.lengths) - ended).astype(np.int64)
        offsets = np.concatenate(([0], batch_sizes.cumsum())).astype(np.int64)
        for name, value in (("inverse", _inverse(self.order)), ("batch_sizes", batch_sizes), ("offsets", offsets)):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, lengths: Any, steps: int, batch: int | None = None) -> Lengths:
        """Sort lengths from long to short; equal ones keep their order.

        Args:
            lengths: (N,) integers from 0 to `steps`, in any order.
            steps: T, of the padded array.
            batch: N, where it must be a given one.

        Raises:
            TypeError: no integers.
            ValueError: not one dimension of `batch` elements, a length out of range.
        """
        found = _integers(lengths, "lengths")
        if batch is not None and len(found) != batch:
            raise ValueError(f"lengths has {len(found)} elements for a batch of {batch}")
        wrong = np.flatnonzero((found < 0) | (found > steps))
        if wrong.size:
            raise ValueError(f"lengths[{wrong[0]}] is {found[wrong[0]]}; with {steps} steps it must be 0 to {steps}")
        return cls(found, steps, np.argsort(-found, kind="stable"))

    @classmethod
    def from_packed(
        cls, data: Any, batch_sizes: Any, sorted_indices: Any = None, unsorted_indices: Any = None, *,
        name: str = "data",
    ) -> Lengths:  # fmt: skip
        """The lengths of a packed sequence, given by the four fields of torch's PackedSequence.

        Args:
            data: the packed rows, (sum of batch_sizes, ...).
            batch_sizes: (T,) positive integers that never grow.
            sorted_indices: (N,), the sequences from the longest to the shortest; None where they are in that order.
            unsorted_indices: (N,), its inverse; found where it is None.
            name: what errors call the rows.

        Raises:
            TypeError: no integers.
            ValueError: fields that contradict each other.
        """
        sizes = _integers(batch_sizes, "batch_sizes")
        if (sizes < 1).any() or (np.diff(sizes) > 0).any():
            raise ValueError(f"batch_sizes is {sizes.tolist()}; they must be positive and never grow")
        if len(data) != sizes.sum():
            raise ValueError(f"{name} has {len(data)} rows; batch_sizes say {sizes.sum()}")
        batch = int(sizes[0]) if len(sizes) else 0
        order = np.arange(batch) if sorted_indices is None else _integers(sorted_indices, "sorted_indices")
        if not np.array_equal(np.sort(order), np.arange(batch)):
            raise ValueError(f"sorted_indices is {order.tolist()}; it must order {batch} sequences")
        if unsorted_indices is not None:
            back = _integers(unsorted_indices, "unsorted_indices")
            if not np.array_equal(back, _inverse(order)):
                raise ValueError(f"unsorted_indices is {back.tolist()}; the inverse of sorted_indices is another")
        lengths = np.empty(batch, np.int64)
        lengths[order] = (sizes[:, None] > np.arange(batch)).sum(0)
        return cls(lengths, len(sizes), order)

    def rows(self, batch_first: bool = False) -> np.ndarray:
        """(packed rows,) int64: where each stands among the rows of a padded (T, N, ...), or (N, T, ...)."""
        step = np.repeat(np.arange(len(self.batch_sizes)), self.batch_sizes)
        sequence = self.order[np.arange(len(step)) - self.offsets[step]]
        return sequence * self.steps + step if batch_first else step * len(self.lengths) + sequence

    def pack(self, padded: np.ndarray, batch_first: bool = False) -> np.ndarray:
        """The packed rows of a padded array."""
        return padded.reshape(self.steps * len(self.lengths), *padded.shape[2:])[self.rows(batch_first)]

    def pad(self, packed: np.ndarray, batch_first: bool = False) -> np.ndarray:
        """The padded array of packed rows: zero behind the end of a sequence."""
        shape = (self.steps, len(self.lengths))
        padded = np.zeros((*(shape[::-1] if batch_first else shape), *packed.shape[1:]), packed.dtype)
        padded.reshape(math.prod(shape), *packed.shape[1:])[self.rows(batch_first)] = packed
        return padded


def _inverse(order: np.ndarray) -> np.ndarray:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def _integers(values: Any, name: str) -> np.ndarray:
    """(n,) int64 of the host."""
    found = arrays.values_of(values, name)
    if found.ndim != 1:
        raise ValueError(f"{name} has shape {found.shape}; it must have one dimension")
    if found.dtype.kind not in "iu" and found.size:
        raise TypeError(f"{name} is of {found.dtype}; it must be integers")
    return found.astype(np.int64)
