"""The problem of attention: softmax(scale q k^T + mask) v, head by head."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES

#: Arrays of a launch, and of one of the gradient.
OUT, LSE, Q, K, V, MASK = range(6)
DQ, DK, DV, DOUT, B_Q, B_K, B_V, B_OUT, B_LSE, B_MASK = range(10)
#: Columns of the table of places (`AttentionProblem.places`).
FORWARD = ("out", "lse", "q", "k", "v", "mask")
BACKWARD = ("dq", "dk", "dv", "dout", "q", "k", "v", "out", "lse", "mask")


@dataclasses.dataclass(frozen=True)
class AttentionProblem(Problem):
    """``out = softmax(scale q k^T + mask) v`` of every query head, or its gradient.

    q (batch, heads, rows, width), k (batch, groups, keys, width), v (batch, groups, keys, values); query head h reads
    head h // (heads / groups) of k and v.  The mask broadcasts to (batch, heads, rows, keys).
    """

    stem: ClassVar[str] = "attention"
    dtype: str
    way: str
    """"inference", "train" (with the logarithms of the sums) or "backward"."""
    batch: int
    heads: int
    groups: int
    """Heads of k and v."""
    rows: int
    keys: int
    width: int
    values: int
    causal: bool
    mask: str
    """"bool", "float", or "" for none."""
    batch_shape: tuple[int, ...] = dataclasses.field(compare=False, default=())
    strides: tuple[tuple[int, ...], ...] = dataclasses.field(compare=False, default=())
    """Of each array of the launch, in elements over (*batch_shape, heads, rows, columns); () for one that is not
    there."""

    @property
    def names(self) -> tuple[str, ...]:
        return BACKWARD if self.way == "backward" else FORWARD

    def lies(self, name: str) -> tuple[int, int]:
        """An array's steps from row to row and from column to column."""
        found = self.strides[self.names.index(name)]
        return (found[-2], found[-1]) if found else (0, 0)

    def places(self) -> np.ndarray:
        """int64 (batch * heads, arrays): the element at which each head of each array begins."""
        share = self.heads // self.groups
        index = np.indices((*self.batch_shape, self.heads), np.int64).reshape(len(self.batch_shape) + 1, -1)
        table = np.zeros((self.batch * self.heads, len(self.names)), np.int64)
        for column, (name, strides) in enumerate(zip(self.names, self.strides, strict=True)):
            if strides:
                at = index.copy()
                if name in ("k", "v", "dk", "dv"):
                    at[-1] //= share
                table[:, column] = np.asarray(strides[:-2], np.int64) @ at
        return table

    @property
    def empty(self) -> bool:
        return 0 in (self.batch, self.heads, self.rows, self.keys, self.width, self.values)

    @property
    def pairs(self) -> float:
        """Pairs of a query row and a key that takes part, of a head."""
        if not self.causal:
            return float(self.rows * self.keys)
        few = min(self.rows, self.keys)
        return few * (few + 1) / 2 + float(self.rows - few) * self.keys

    def flops(self) -> float:
        """Of the products: two forward, five backward."""
        each = self.width + self.values
        if self.way == "backward":
            each = 3 * self.width + 2 * self.values
        return 2.0 * self.batch * self.heads * self.pairs * each

    def bytes_moved(self) -> float:
        item, both = DTYPES[self.dtype].itemsize, 2 if self.way == "backward" else 1
        rows = self.heads * self.rows * (self.width + self.values)
        return float(both * item * self.batch * (rows + self.groups * self.keys * (self.width + self.values)))

    def roundings(self) -> int:
        # the exponential turns an absolute error of a score into a relative one
        return 16 + 2 * self.width + self.keys + (2 * self.rows if self.way == "backward" else 0)

    def bench_command(self) -> str:
        words = f"numbaprims bench attention --dtype {self.dtype}"
        sizes = (self.batch, self.heads, self.groups, self.rows, self.keys, self.width)
        words += f" --shapes {'x'.join(map(str, sizes))}"
        kind = "causal" if self.causal else "full"
        if self.mask and not self.causal:  # all rows of a head share it, or each has its own
            kind = "windows" if self.lies("mask")[0] else "padded"
        return f"{words} --kind {kind}" + " --backward" * (self.way == "backward")


def default_scale(width: int) -> float:
    return 1.0 / math.sqrt(width) if width else 1.0
