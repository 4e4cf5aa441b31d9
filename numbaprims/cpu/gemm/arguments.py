"""What every gemm kernel takes, and how a problem is turned into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.simd.arguments import Arguments

# out = act(alpha a b + beta c + bias); strides count elements: <matrix>_rs between rows, _cs between columns.
# offsets: address of int64[batch][4], where each product begins in a, b, out, c.
# sums_in_out: 1 where sums are kept in out itself, 0 where they need the workspace (another type, no unit stride).
# kc, mc, nc: sizes of a block, k_blocks ... how many there are; group: columns of an nc block that one tile takes.
# finish: 1 where something is left to do once the sums are complete.
# shared_bytes, worker_bytes, a_bytes, b_bytes, sums_at: the workspace, all in bytes.
ARGS = Arguments(
    arrays=("out", "a", "b", "c", "bias", "spare0", "spare1", "workspace"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "m", "n", "k", "batch",
        "a_rs", "a_cs", "b_rs", "b_cs", "out_rs", "out_cs", "c_rs", "c_cs", "bias_step", "bias_axis", "has_c",
        "offsets", "activation", "sums_in_out",
        "kc", "mc", "nc", "k_blocks", "m_blocks", "n_blocks", "groups", "group", "finish",
        "shared_bytes", "worker_bytes", "a_bytes", "b_bytes", "sums_at",
    ),
)  # fmt: skip


def argument_types(problem: Any) -> Any:
    """The kernels' argument type for a problem's element types."""
    bias = "i32" if problem.accumulate == "i32" else problem.a_dtype
    return ARGS.types(
        out=problem.out_dtype, a=problem.a_dtype, b=problem.b_dtype, c=problem.out_dtype, bias=bias
    )


BIAS_AXES = {"none": 0, "n": 1, "m": 2}


def batch_offsets(problem: Any) -> np.ndarray:
    """int64 (batch, 4): the element at which each product's a, b, out and c begin."""
    offsets = np.zeros((problem.batch, 4), np.int64)
    if problem.batch_shape:
        index = np.indices(problem.batch_shape, np.int64).reshape(len(problem.batch_shape), -1)
        for column, strides in enumerate(problem.strides.batch):
            offsets[:, column] = np.asarray(strides, np.int64) @ index
    return offsets


def common_ints(problem: Any, offsets: np.ndarray, activation: int) -> dict[str, int]:
    """The integers that every solver sets; a solver adds its block sizes."""
    s = problem.strides
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch,
        "a_rs": s.a[0], "a_cs": s.a[1], "b_rs": s.b[0], "b_cs": s.b[1],
        "out_rs": s.out[0], "out_cs": s.out[1], "c_rs": s.c[0], "c_cs": s.c[1],
        "bias_step": s.bias, "bias_axis": BIAS_AXES[problem.bias], "has_c": int(problem.has_c),
        "offsets": int(offsets.ctypes.data), "activation": activation,
    }  # fmt: skip


def int_words(values: dict[str, int]) -> list[int]:
    """The integers in the order of ARGS, zero where a solver has no use for one."""
    unknown = set(values) - set(ARGS.ints)
    assert not unknown, unknown
    return [values.get(name, 0) for name in ARGS.ints]
