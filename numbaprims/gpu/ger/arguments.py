"""How a ger problem is turned into the numbers that its kernels take."""

from __future__ import annotations

from typing import Any


def walk(problem: Any) -> tuple[dict[str, int], bool]:
    """Give the integers of a problem transposed such that rows of out are contiguous, and whether x and y were swapped.

    Starts, steps and strides count elements.  A contiguous column makes the transposed problem, out^T = alpha y x^T +
    A^T; a step of -1 is walked from the other end.
    """
    s = problem.strides
    swapped = problem.order == "column"
    ints = {
        "m": problem.m, "n": problem.n, "out_start": 0, "out_rs": s.out[0], "out_cs": s.out[1], "a_start": 0,
        "a_rs": s.a[0], "a_cs": s.a[1], "x_step": s.x, "y_start": 0, "y_step": s.y,
    }  # fmt: skip
    if swapped:
        pairs = (("m", "n"), ("out_rs", "out_cs"), ("a_rs", "a_cs"), ("x_step", "y_step"))
        ints |= {one: ints[other] for pair in pairs for one, other in (pair, pair[::-1])}
    if problem.order != "strided" and ints["out_cs"] == -1:
        last = ints["n"] - 1
        ints |= {"out_start": -last, "out_cs": 1, "a_start": last * ints["a_cs"], "a_cs": -ints["a_cs"]}
        ints |= {"y_start": last * ints["y_step"], "y_step": -ints["y_step"]}
    return ints, swapped
