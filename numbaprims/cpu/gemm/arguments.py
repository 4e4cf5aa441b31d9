"""What gemm's kernels take, and how a problem is turned into it.

The work of a product is split into kernels that call one another by pointer, a block at a time: pack, multiply and
finish hold the vector code and are compiled for the types that each of them sees; the drivers (blocked.py) know
addresses and sizes only and are compiled once for all types.  Inlined into one another the same code took 4.3 s to
compile instead of 1.5 s, and once more for every combination of types.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.records import Record
from numbaprims.dtypes import DTYPES

# A whole product: out = act(alpha a b + beta c + bias).  Strides count elements: <matrix>_rs between rows, _cs
# between columns; <matrix>_size is an element in bytes.
# offsets: address of a row of OFFSETS for each product.
# pack_a, pack_b, multiply, finish: addresses of kernels; finish is 0 where nothing is left to do after the sums.
# sums_in_out: 1 where sums are kept in out itself, 0 where they need the workspace.
# kc, mc, nc: sizes of a block, k_blocks ... how many there are; group: columns of an nc block that one tile takes.
# k_group: how many neighbours in k one element of a panel holds (2 for bf16 pairs, 4 for int8 quadruples, else 1).
# k_extra: elements of k by which a panel of B is longer, for what it holds behind its groups.
# flip: what is added to bytes of A that are signed where dot products take unsigned ones, or the other way round; p0
# is the zero point of A where those are exact.
# factors: one for each column of a result that is requantised, which alpha and beta (its zero point) end otherwise.
# a_there, ends_there: whether tiles may take whole rows of A where they lie, and write whole sums to out.
# packed: the whole of B, packed by a plan; k block after k block, each with all panels of n.
ARGS = Arguments(
    arrays=("out", "a", "b", "c", "bias", "packed", "factors"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "m", "n", "k", "batch",
        "a_rs", "a_cs", "b_rs", "b_cs", "out_rs", "out_cs", "c_rs", "c_cs", "bias_step", "bias_axis", "has_c",
        "a_size", "b_size", "out_size", "c_size", "sum_size", "panel_size",
        "offsets", "activation", "pack_a", "pack_b", "multiply", "finish", "sums_in_out",
        "kc", "mc", "nc", "k_blocks", "m_blocks", "n_blocks", "groups", "group", "k_group", "k_extra", "flip",
        "mr", "nr", "a_there", "ends_there",
    ),
)  # fmt: skip
# Packed blocks, and sums that out cannot hold: B packed for all workers, everything by each for itself, or B alone for
# all.
SHARED = ARGS.with_regions(shared=("packed_b", "sums"), own=("packed_a",))
PRIVATE = ARGS.with_regions(own=("packed_a", "packed_b", "sums"))
COMMON = ARGS.with_regions(shared=("packed_b",), own=("packed_a", "sums"))

# The elements at which a product's matrices begin.
OFFSETS = Record("a", "b", "out", "c")

# Panels lo ... hi - 1 of a block: WIDTH rows of A (or columns of B) each, `width` of them in all.
PACK = Arguments(arrays=("panels", "source"), ints=("k", "width", "width_step", "k_step"))

# total[rows, columns] = or += A times B (first: 1 for =); total_step elements from row to row.  The steps of a and b
# are for matrices that are not packed; of dot products, `shift` times the sums of B's columns are added.
# Tiles write whole sums to `out`, rows `out_step` elements apart, where that is not 0.
MULTIPLY = Arguments(
    arrays=("a", "b", "total", "out"),
    ints=("rows", "columns", "k", "first", "total_step", "a_step", "a_k_step", "b_step", "shift", "out_step"),
)

# The same, and where `last` is set the end of the sums: a bias for each row, and what they are cut to.
MULTIPLY_ENDED = Arguments((*MULTIPLY.arrays, "bias"), ("low", "high"), (*MULTIPLY.ints, "last"))

# Rows lo ... hi - 1 of a block: out = act(alpha total + beta c + bias); the block begins at (i, j) of the product.
FINISH = Arguments(
    arrays=("out", "total", "c", "bias", "factors"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "columns", "total_step", "out_rs", "out_cs", "c_rs", "c_cs", "has_c", "bias_step", "bias_axis", "i", "j",
        "activation", "in_place",
    ),
)  # fmt: skip

BIAS_AXES = {"none": 0, "n": 1, "m": 2}


def bias_dtype(problem: Any) -> str:
    """The element type of a problem's bias."""
    return "i32" if problem.accumulate == "i32" else problem.a_dtype


def batch_offsets(problem: Any) -> np.ndarray:
    """int64 (batch, 4): the element at which each product's a, b, out and c begin."""
    offsets = np.tile(np.array(problem.strides.first, np.int64), (problem.batch, 1))
    if problem.batch_shape:
        index = np.indices(problem.batch_shape, np.int64).reshape(len(problem.batch_shape), -1)
        for column, strides in enumerate(problem.strides.batch):
            offsets[:, column] += np.asarray(strides, np.int64) @ index
    return offsets


def common_ints(problem: Any, offsets: np.ndarray, activation: int) -> dict[str, int]:
    """The integers that every solver sets; a solver adds its kernels and block sizes."""
    s = problem.strides
    size = {name: DTYPES[name].itemsize for name in (problem.a_dtype, problem.b_dtype, problem.out_dtype)}
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch,
        "a_rs": s.a[0], "a_cs": s.a[1], "b_rs": s.b[0], "b_cs": s.b[1],
        "out_rs": s.out[0], "out_cs": s.out[1], "c_rs": s.c[0], "c_cs": s.c[1],
        "bias_step": s.bias, "bias_axis": BIAS_AXES[problem.bias], "has_c": int(problem.has_c),
        "a_size": size[problem.a_dtype], "b_size": size[problem.b_dtype], "out_size": size[problem.out_dtype],
        "c_size": DTYPES[problem.c_dtype].itemsize, "sum_size": DTYPES[problem.accumulate].itemsize,
        "offsets": int(offsets.ctypes.data), "activation": activation,
    }  # fmt: skip
