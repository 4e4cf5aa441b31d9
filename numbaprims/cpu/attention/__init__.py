"""Attention by blocks of queries and keys, with an online softmax between the two products.

kernels   the way forward;  gradient   the way back;  decode   few queries;  solvers   which there are
"""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.attention.solvers import SOLVERS as SOLVERS, TWO, Flash, Sizes
from numbaprims.cpu.simd import lanes
from numbaprims.ops._attention_problem import AttentionProblem


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """Both ways of heads of 64 elements in float32, and one query."""
    machine, path = target.current(), "numbaprims.cpu.attention."
    W = lanes("f32", machine.vector_bytes)
    problem = AttentionProblem("f32", "inference", 1, 12, 12, 128, 128, 64, 64, False, "")
    z = Sizes(problem, machine, next(iter(Flash().configs(problem, machine))), W)
    return [
        (f"{path}kernels:make_forward", ("f32", "f32", "", z.MR, z.MV, TWO, W)),
        (f"{path}gradient:make_backward", ("f32", "f32", "", z.MR, z.MQ, TWO, W)),
        (f"{path}decode:make_decode", ("f32", "f32", "", 1, W)),
        (f"{path}decode:make_join", ("f32", "f32", W)),
    ]
