"""Rank-1 update: `ger`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.ops import examples
from numbaprims.ops.primitive import Given, Pose, Result, problems
from numbaprims.ops.product import Product, scalar
from numbaprims.reference import ger as reference
from numbaprims.shapes import element_strides, walk_order


class Strides(NamedTuple):
    """Exact strides of one call, in elements; what `bind` needs beyond the problem."""

    x: int
    y: int
    a: tuple[int, int]
    out: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class GerProblem(Problem):
    """out = alpha x y^T + A, x (m), y (n); without A, out = alpha x y^T."""

    stem: ClassVar[str] = "ger"
    m: int
    n: int
    dtype: str
    order: str
    """Of out, whichever way it is walked: "row", "column" or "strided"."""
    has_a: bool
    a_along: bool
    """Whether A lies contiguous along the same dimension as out, or is not there."""
    strides: Strides = dataclasses.field(compare=False)
    in_place: bool = dataclasses.field(default=False, compare=False)
    """Whether A is out itself: kernels then need no address of A."""

    @property
    def empty(self) -> bool:
        return 0 in (self.m, self.n)

    def flops(self) -> float:
        return (2.0 if self.has_a else 1.0) * self.m * self.n

    def bytes_moved(self) -> float:
        matrices = 2 if self.has_a else 1
        return float((matrices * self.m * self.n + self.m + self.n) * arrays.DTYPES[self.dtype].itemsize)

    def roundings(self) -> int:
        return 3

    def bench_command(self) -> str:
        rows, columns = (self.n, self.m) if self.order == "column" else (self.m, self.n)
        return f"numbaprims bench ger --shapes {rows}x{columns} --dtype {self.dtype}"


def _pose(given: Given, in_place: bool) -> Pose:
    x, y, a = given.storages
    for at in (0, 1):
        if given.storages[at].ndim != 1:
            raise ValueError(f"{given.words(at)}; ger takes vectors: use gemm for matrices")
    m, n = shape = (x.shape[0], y.shape[0])
    if a is not None and a.shape != shape:
        raise ValueError(f"{given.words(2)}; x and y make a matrix {shape}")

    def problem(made: Any) -> GerProblem:
        steps: Any = (n, 1) if made[0] is None else element_strides(made[0])
        a_steps: Any = (0, 0) if a is None else element_strides(a)
        order = walk_order(m, n, *steps)
        along, length = (0, m) if order == "column" else (1, n)
        return GerProblem(
            m=m,
            n=n,
            dtype=given.dtypes[0],  # type: ignore[arg-type]
            order=order,
            has_a=a is not None,
            a_along=a is None or a_steps[along] == steps[along] or length <= 1,
            strides=Strides(element_strides(x)[0], element_strides(y)[0], a_steps, steps),
            in_place=in_place,
        )

    return Pose((Result(shape, given.dtypes[0]),), problem)  # type: ignore[arg-type]


def _define(values: Any, in_place: bool, numbers: Any) -> Any:
    x, y, a = values
    return reference.ger(x, y, a=a, alpha=numbers[0])


_ger = Product("ger", ("x", "y", "a"), _pose, _define, exact=("a",))
_run = _ger.run


def ger(x: Any, y: Any, *, a: Any = None, alpha: float = 1.0, out: Any = None) -> Any:
    """Update a matrix by the outer product of two vectors: ``out = alpha * x[:, None] * y[None, :] + a``.

    Args:
        x: (M,), any stride.
        y: (N,), any stride.
        a: (M, N), any strides; None stands for zeros.
        alpha: factor of the product.
        out: where the result goes; it may be exactly `a` (``ger(x, y, a=w, out=w)`` updates w), and otherwise share
            no memory with the inputs.

    Returns:
        (M, N) of the caller's library and dtype: float64, float32, float16 or bfloat16 (the last two are computed in
        float32). Without `out` it is a new array; `a` is not changed.

    Raises:
        TypeError: mixed libraries or dtypes, integers.
        ValueError: shapes that do not fit, an `out` that overlaps an input.

    Example:
        >>> import numpy as np, numbaprims
        >>> w = np.zeros((2, 3), np.float32)
        >>> numbaprims.ger(np.float32([1, 2]), np.float32([1, 10, 100]), a=w, alpha=-1.0, out=w)
        array([[  -1.,  -10., -100.],
               [  -2.,  -20., -200.]], dtype=float32)

    References:
        xGER of the BLAS; Zhang and Zhang, Optimized deep learning architectures with fast matrix operation kernels on
        parallel platform, 2013, algorithm 2 (solver ``row_block``).
    """
    if type(alpha) is not float:
        alpha = scalar(alpha, "alpha")
    return _run((x, y, a), a is not None and a is out, (alpha, 0.0, 0.0), out)


PROBLEMS = problems(ger)


def _walk(row_stride: int, column_stride: int, rows: int, columns: int) -> str:
    return walk_order(rows, columns, row_stride, column_stride)


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p, made = problem, {}
    if walk_order(p.m, p.n, p.n, 1) != p.order:
        made["out"] = examples.matrix(p.m, p.n, p.dtype, p.order, _walk)
    if p.has_a and p.a_along:
        made["a"] = examples.matrix(p.m, p.n, p.dtype, p.order, _walk)
    elif p.has_a:
        gaps = p.order != "strided"
        made["a"] = (
            examples.array((2 * p.m, 2 * p.n), p.dtype)[::2, ::2] if gaps else examples.array((p.m, p.n), p.dtype)
        )
    return "ger", (examples.vector(p.m, p.dtype), examples.vector(p.n, p.dtype)), made


EXAMPLES = {"ger": _example_call}
