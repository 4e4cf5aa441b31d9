"""What every gemv kernel takes, and how a problem is turned into it."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.simd import Arguments
from numbaprims.dtypes import DTYPES

# out = alpha op(A) x + beta y, op(A) m x n. Starts, steps and strides count elements (a_rs between rows
# of op(A)). The product is cut into `blocks` of `tile` outputs and `chunks` of `length` terms; tile t is
# the block t % blocks of the chunk t // blocks. With `combine`, chunk c keeps its sums at sums[c * m].
# With `packs`, x, which does not lie side by side, is packed into packed_x.
ARGS = Arguments(
    arrays=("out", "a", "x", "y"),
    floats=("alpha", "beta"),
    ints=(
        "m", "n", "a_start", "a_rs", "a_cs", "x_start", "x_step", "y_start", "y_step", "out_start",
        "out_step", "has_y", "packs", "tile", "blocks", "length", "chunks", "combine",
    ),
    shared=("sums", "packed_x"),
)  # fmt: skip


def walk(problem: Any) -> dict[str, int]:
    """Give the integers of a problem, its steps of -1 turned around.

    Then contiguous rows or columns are walked forwards, and what goes with them (x, or y and out) backwards.
    """
    s = problem.strides
    ints = {
        "m": problem.m, "n": problem.n, "a_start": 0, "a_rs": s.a[0], "a_cs": s.a[1], "x_start": 0,
        "x_step": s.x, "y_start": 0, "y_step": s.y if problem.has_y else 1, "out_start": 0, "out_step": s.out,
        "has_y": int(problem.has_y), "packs": 0,
    }  # fmt: skip
    if problem.order == "row" and s.a[1] == -1:
        last = problem.n - 1
        ints |= {"a_start": -last, "a_cs": 1, "x_start": last * s.x, "x_step": -s.x}
    elif problem.order == "column" and s.a[0] == -1:
        last = problem.m - 1
        ints |= {"a_start": -last, "a_rs": 1, "y_start": last * s.y, "y_step": -s.y}
        ints |= {"out_start": last * s.out, "out_step": -s.out}
    return ints


def accumulate(dtype: str) -> str:
    """The type in which the products of a storage type are summed."""
    return DTYPES[dtype].accumulate
