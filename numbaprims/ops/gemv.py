"""Matrix-vector product: `gemv`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.ops import examples
from numbaprims.ops.primitive import Given, Pose, Result, problems
from numbaprims.ops.product import Product, factors, scalar as scalar
from numbaprims.reference import gemv as reference
from numbaprims.shapes import element_strides, walk_order


class Strides(NamedTuple):
    """Exact strides of one call, in elements; what `bind` needs beyond the problem."""

    a: tuple[int, int]
    """Of op(A): between rows, between columns."""
    x: int
    y: int
    out: int


@dataclasses.dataclass(frozen=True)
class GemvProblem(Problem):
    """out = alpha op(A) x + beta y, with op(A) (m, n)."""

    stem: ClassVar[str] = "gemv"
    m: int
    n: int
    dtype: str
    order: str
    """Of op(A), whichever way it is walked: "row", "column" (the transposed product of a C-ordered matrix) or
    "strided"."""
    x_unit: bool
    """Whether x lies side by side, or has one element."""
    has_y: bool
    strides: Strides = dataclasses.field(compare=False)

    @property
    def empty(self) -> bool:
        return self.m == 0

    def flops(self) -> float:
        return 2.0 * self.m * self.n

    def bytes_moved(self) -> float:
        vectors = self.n + self.m * (2 if self.has_y else 1)
        return float((self.m * self.n + vectors) * arrays.DTYPES[self.dtype].itemsize)

    def roundings(self) -> int:
        return self.n + 4

    def bench_command(self) -> str:
        # a column-ordered op(A) is what `trans` makes of a C-ordered matrix
        column = self.order == "column"
        rows, columns = (self.n, self.m) if column else (self.m, self.n)
        words = f"numbaprims bench gemv --shapes {rows}x{columns} --dtype {self.dtype}"
        return words + (" --trans-a" if column else "")


def _pose(given: Given, trans: Any) -> Pose:
    a, x, y = given.storages
    if a.ndim != 2:
        raise ValueError(f"{given.words(0)}; gemv takes one matrix (rows, columns): use gemm for a stack")
    if x.ndim != 1:
        raise ValueError(f"{given.words(1)}; gemv takes one vector: use gemm for several")
    m, n = a.shape[::-1] if trans else a.shape
    row, column = element_strides(a)[::-1] if trans else element_strides(a)
    if x.shape[0] != n:
        raise ValueError(
            f"op(a) is {m} x {n} and x has {x.shape[0]} elements; it must have as many as op(a) has "
            f"columns ({given.words(0)}, trans={bool(trans)})"
        )
    if y is not None and y.shape != (m,):
        raise ValueError(f"{given.words(2)}; the result has shape {(m,)}")

    def problem(made: Any) -> GemvProblem:
        step = element_strides(x)[0]
        strides = Strides(
            (row, column),
            step,
            0 if y is None else element_strides(y)[0],
            1 if made[0] is None else element_strides(made[0])[0],
        )
        return GemvProblem(
            m=m,
            n=n,
            dtype=given.dtypes[0],  # type: ignore[arg-type]
            order=walk_order(m, n, row, column),
            x_unit=step == 1 or n <= 1,
            has_y=y is not None,
            strides=strides,
        )

    return Pose((Result((m,), given.dtypes[0]),), problem)  # type: ignore[arg-type]


def _define(values: Any, trans: Any, numbers: Any) -> Any:
    a, x, y = values
    return reference.gemv(a, x, y=y, alpha=numbers[0], beta=numbers[1], trans=bool(trans))


_gemv = Product("gemv", ("a", "x", "y"), _pose, _define, exact=("y",))
_run = _gemv.run


def gemv(
    a: Any,
    x: Any,
    *,
    y: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans: bool = False,
    out: Any = None,
) -> Any:
    """Multiply a matrix with a vector: ``out = alpha * op(a) @ x + beta * y``.

    Args:
        a: (M, N), any strides, read without a copy.
        x: (N,), or (M,) with `trans`; any stride.
        y: (M,), or (N,) with `trans`; needed when `beta` is not 0, not read when it is.
        alpha: factor of the product.
        beta: factor of `y`.
        trans: multiply with the transpose of `a`.
        out: where the result goes; it may be exactly `y`, and otherwise share no memory with the inputs.

    Returns:
        (M,), or (N,) with `trans`, of the caller's library and dtype: float64, float32, float16 or bfloat16
        (the last two are summed in float32). Its bits don't depend on the number of threads.

    Raises:
        TypeError: mixed libraries or dtypes, integers.
        ValueError: shapes that do not fit, `beta` without `y`, an `out` that overlaps an input.

    Example:
        >>> import numpy as np, numbaprims
        >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
        >>> numbaprims.gemv(a, np.ones(3, np.float32))
        array([ 3., 12.], dtype=float32)
        >>> numbaprims.gemv(a, np.ones(2, np.float32), trans=True)
        array([3., 5., 7.], dtype=float32)

    References:
        xGEMV of the BLAS; Zhang and Zhang, Optimized deep learning architectures with fast matrix operation
        kernels on parallel platform, 2013, algorithm 1 (solver ``row_block``).
    """
    if type(alpha) is not float or type(beta) is not float or beta != 0.0:
        alpha, beta, y = factors(alpha, beta, y, "y")
        if beta != 0.0:
            return _run((a, x, y), trans, (alpha, beta, 0.0), out)
    # as in BLAS: with beta 0, y is not read, and NaN in it does not spread
    return _run((a, x, None), trans, (alpha, beta, 0.0), out)


PROBLEMS = problems(gemv)


def _walk(row_stride: int, column_stride: int, rows: int, columns: int) -> str:
    return walk_order(rows, columns, row_stride, column_stride)


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem
    added = {"y": examples.vector(p.m, p.dtype), "beta": 1.0} if p.has_y else {}
    matrix = examples.matrix(p.m, p.n, p.dtype, p.order, _walk)
    return "gemv", (matrix, examples.vector(p.n, p.dtype, unit=p.x_unit)), added


EXAMPLES = {"gemv": _example_call}
