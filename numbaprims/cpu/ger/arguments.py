"""What every ger kernel takes, and how a problem is turned into it."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.simd import Arguments

# out = alpha x y^T + A, m x n, walked along contiguous rows wherever there are such. Starts, steps and strides count
# elements (out_rs between rows, out_cs between columns). The matrix is cut into tiles of `height` rows and `width`
# columns, `across` of them side by side. Where y does not lie side by side it is packed into packed_y
# (packs 1). With in_place, A is out, and the array a may be missing.
ARGS = Arguments(
    arrays=("out", "x", "y", "a"),
    floats=("alpha",),
    ints=(
        "m", "n", "out_start", "out_rs", "out_cs", "a_start", "a_rs", "a_cs", "x_start", "x_step", "y_start", "y_step",
        "packs", "has_a", "in_place", "height", "width", "across",
    ),
    shared=("packed_y",),
)  # fmt: skip


def walk(problem: Any) -> tuple[dict[str, int], bool]:
    """Give the integers of a problem transposed such that rows of out are contiguous, and whether x and y were swapped.

    A contiguous column makes the transposed problem, out^T = alpha y x^T + A^T; a step of -1 is walked from the other
    end.
    """
    s = problem.strides
    swapped = problem.order == "column"
    ints = {
        "m": problem.m, "n": problem.n, "out_start": 0, "out_rs": s.out[0], "out_cs": s.out[1], "a_start": 0,
        "a_rs": s.a[0], "a_cs": s.a[1], "x_start": 0, "x_step": s.x, "y_start": 0, "y_step": s.y, "packs": 0,
        "has_a": int(problem.has_a), "in_place": int(problem.in_place),
    }  # fmt: skip
    if swapped:
        pairs = (("m", "n"), ("out_rs", "out_cs"), ("a_rs", "a_cs"), ("x_step", "y_step"))
        ints |= {one: ints[other] for pair in pairs for one, other in (pair, pair[::-1])}
    if problem.order != "strided" and ints["out_cs"] == -1:
        last = ints["n"] - 1
        ints |= {"out_start": -last, "out_cs": 1, "a_start": last * ints["a_cs"], "a_cs": -ints["a_cs"]}
        ints |= {"y_start": last * ints["y_step"], "y_step": -ints["y_step"]}
    return ints, swapped
