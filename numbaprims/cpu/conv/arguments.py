"""What a convolution's kernels take: the arrays, a few integers, and the address of a table with the geometry."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.records import Record
from numbaprims.dtypes import DTYPES

# out = act(alpha sums + beta c + bias[channel]).  first, second: x and w forward, dy and w for the data gradient, dy
# and x for the weight's.  packed: weights that a plan has prepared, or null.
# extra: float32 [3][K] for integers: factors of the sums, zero points of the weight, zero points of the result.
# x_zero: what the padding of integers holds.
# geometry: address of the int64 words of `geometry_table`.
ARGS = Arguments(
    arrays=("out", "first", "second", "c", "bias", "packed", "extra"),
    floats=("alpha", "beta", "p0", "p1", "p2", "x_zero"),
    ints=("geometry", "activation", "has_c", "has_bias", "bias_step", "tiles"),
)

# Names of the table's words, in their order: sizes, then strides in elements.  group_c and group_k are channels of x
# and y in one group; triples are depth, height, width.
GEOMETRY = Record(
    "n", "c", "k", "groups", "group_c", "group_k",
    "x_d", "x_h", "x_w", "k_d", "k_h", "k_w", "y_d", "y_h", "y_w",
    "stride_d", "stride_h", "stride_w", "dilation_d", "dilation_h", "dilation_w", "pad_d", "pad_h", "pad_w",
    "xs_n", "xs_c", "xs_d", "xs_h", "xs_w",
    "ws_k", "ws_c", "ws_d", "ws_h", "ws_w",
    "ys_n", "ys_k", "ys_d", "ys_h", "ys_w",
    "cs_n", "cs_k", "cs_d", "cs_h", "cs_w",
)  # fmt: skip


def geometry_table(problem: Any) -> np.ndarray:
    """The words of GEOMETRY for a problem."""
    p, s = problem, problem.strides
    words = (
        p.n, p.c, p.k, p.groups, p.group_c, p.group_k,
        *p.x_size, *p.kernel, *p.y_size, *p.stride, *p.dilation, *p.padding,
        *s.x, *s.w, *s.y, *s.c,
    )  # fmt: skip
    assert len(words) == GEOMETRY.words
    return np.array(words, np.int64)


def bias_dtype(problem: Any) -> str:
    """The element type of a problem's bias."""
    return "i32" if problem.accumulate == "i32" else str(problem.in_dtype)


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return DTYPES[dtype].itemsize
