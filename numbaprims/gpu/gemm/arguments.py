"""What the kernels of a matrix product take, and how a problem becomes it.

Every kernel of the folder begins with the same parameters, in the order of `COMMON`; it adds its own after them::

    def kernel(
        out, a, b, c, bias, offsets,
        m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, activation, flags, alpha, beta, p0, p1, p2,
        ...
    ):

Strides count elements: `_rs` between rows, `_cs` between columns, `_bs` between the products of a batch.  A batch whose
strides are not one number for each operand (broadcast inside) comes as a table, `offsets`: int64 [batch][4], where each
product begins in a, b, out, c; without one, `offsets` is 0.

They are 6 pointers, 13 int64, 7 int32 and 5 floats, 200 bytes of the kernel's constant bank: reading one costs nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import REGISTER, STORAGE
from numbaprims.gpu.gemm.activations import activation_code
from numbaprims.gpu.jit import types

BIAS_AXES = {"none": 0, "n": 1, "m": 2}
#: Bits of `flags`: rows of out (of c) have unit stride and begin where a vector may be stored (loaded), as many
#: elements as sums make 16 bytes; `offsets` is there.
OUT_VECTORS, C_VECTORS, OFFSETS = 1, 2, 4
INT32_MAX = 2**31 - 1


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The next multiple of b."""
    return ceil_div(a, b) * b


def bias_dtype(a_dtype: str) -> str:
    """The element type of a bias."""
    return "i32" if DTYPES[a_dtype].accumulate == "i32" else a_dtype


def scalar_type(acc: str) -> Any:
    """The type of alpha, beta and an activation's parameters."""
    return types.float64 if acc == "f64" else types.float32


def common_types(a: str, b: str, out: str, acc: str) -> tuple[Any, ...]:
    """The types of the common parameters, for a kernel's signature."""

    def pointer(dtype: str) -> Any:
        return types.CPointer(STORAGE[dtype])

    return (
        pointer(out), pointer(a), pointer(b), pointer(out), pointer(bias_dtype(a)), types.CPointer(types.int64),
        *(types.int32,) * 3, *(types.int64,) * 13, *(types.int32,) * 4, *(scalar_type(acc),) * 5,
    )  # fmt: skip


class Batch(NamedTuple):
    """Where the products of a batch lie."""

    strides: tuple[int, int, int, int]
    """Elements from one product to the next in a, b, out, c."""
    offsets: np.ndarray | None
    """int64 (batch, 4) where no such number exists."""


def batch_of(problem: Any) -> Batch:
    """The batch of a problem: strides where its dimensions follow one another evenly, else a table."""
    shape = problem.batch_shape
    strides = problem.strides.batch
    kept = [axis for axis, length in enumerate(shape) if length > 1]
    merges = all(
        steps[first] == steps[second] * shape[second]
        for steps in strides
        for first, second in zip(kept, kept[1:], strict=False)
    )
    if merges:
        last = kept[-1] if kept else None
        return Batch(tuple(0 if last is None else int(steps[last]) for steps in strides), None)  # type: ignore[arg-type]
    index = np.indices(shape, np.int64).reshape(len(shape), -1)
    table = np.empty((problem.batch, 4), np.int64)
    for column, steps in enumerate(strides):
        table[:, column] = np.asarray(steps, np.int64) @ index
    return Batch((0, 0, 0, 0), table)


def common_ints(problem: Any, batch: Batch) -> tuple[int, ...]:
    """The integers of COMMON in their order, from m to activation; `vectors` is for the launch to say.

    A dimension of one element has step 0: the rows of a tile that are not there are copied too, 0 bytes each, and
    their addresses must be as aligned as the others.
    """
    s = problem.strides
    m, n, k = (int(length > 1) for length in (problem.m, problem.n, problem.k))
    return (
        problem.m, problem.n, problem.k, s.a[0] * m, s.a[1] * k, s.b[0] * k, s.b[1] * n,
        s.out[0], s.out[1], s.c[0], s.c[1], s.bias,
        *batch.strides, int(problem.has_c), BIAS_AXES[problem.bias],
        activation_code(problem.activation.kind),
    )  # fmt: skip


def vector_length(acc: str) -> int:
    """Sums in 16 bytes."""
    return 16 // DTYPES[acc].itemsize


def is_aligned(pointer: int, strides: tuple[int, ...], element: int, nbytes: int) -> bool:
    """Whether `nbytes` may be read at every multiple of the strides (in elements of `element` bytes) from a pointer."""
    return pointer % nbytes == 0 and all(stride * element % nbytes == 0 for stride in strides)


def batch_steps(problem: Any, operand: int) -> tuple[int, ...]:
    """All strides between products of one operand (0 a, 1 b, 2 out, 3 c), for `is_aligned`."""
    return tuple(
        step for step, length in zip(problem.strides.batch[operand], problem.batch_shape, strict=True) if length > 1
    )


def rows_aligned(problem: Any, operand: int, pointer: int, nbytes: int) -> bool:
    """Whether rows of out (2) or c (3) that begin at `pointer` have unit stride and take `nbytes` at once."""
    rows, columns = (problem.strides.out, problem.strides.c)[operand - 2]
    steps = (rows if problem.m > 1 else 0, *batch_steps(problem, operand))
    return bool(columns == 1) and is_aligned(pointer, steps, DTYPES[problem.out_dtype].itemsize, nbytes)


def out_vectors(problem: Any, out: int, c: int) -> int:
    """`vectors` for the pointers of one launch."""
    nbytes = vector_length(problem.accumulate) * DTYPES[problem.out_dtype].itemsize
    own = rows_aligned(problem, 2, out, nbytes), rows_aligned(problem, 3, c, nbytes)
    return own[0] * OUT_VECTORS | own[1] * C_VECTORS


def fits_int32(problem: Any) -> bool:
    """Whether m, n and k may be int32."""
    return max(problem.m, problem.n, problem.k) <= INT32_MAX - 4096


def register_type(dtype: str) -> Any:
    """What an element is computed in."""
    return REGISTER[dtype]
