"""Matrix-vector product: `gemv`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy import ndarray

from numbaprims import arrays, settings
from numbaprims.dispatch import call
from numbaprims.dispatch.known import KnownCalls
from numbaprims.dispatch.problem import Problem
from numbaprims.ops import examples
from numbaprims.shapes import element_strides, walk_order

FLOATS = ("f64", "f32", "f16", "bf16")


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


_launchers = call.Launchers()
_known_calls = KnownCalls()
_known = _known_calls.get
_ndarray = ndarray
_empty = np.empty
_current = settings.current


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
    if beta == 0.0:
        y = None  # as in BLAS: with beta 0, y is not read, and NaN in it does not spread
    state = _current()
    if y is None and type(alpha) is float and type(beta) is float:
        known = _known((trans, state.key))
        if known is not None and not state.verbose:
            if out is not None:
                if known[0](known[1], out, a, x, alpha, 0.0, 0.0):
                    return out
            elif type(a) is _ndarray and a.ndim == 2:
                result = _empty(a.shape[1 if trans else 0], a.dtype)
                if known[0](known[1], result, a, x, alpha, 0.0, 0.0):
                    return result
    if type(a) is not _ndarray or type(x) is not _ndarray or type(alpha) is not float or type(beta) is not float:
        return _gemv(a, x, y, alpha, beta, trans, out, None)
    dtype = a.dtype
    if x.dtype is not dtype:
        return _gemv(a, x, y, alpha, beta, trans, out, None)
    key: Any
    if out is None:
        key = (dtype, a.shape, a.strides, x.shape, x.strides, trans, state.key)
    elif type(out) is _ndarray and out.dtype is dtype:
        key = (dtype, a.shape, a.strides, x.shape, x.strides, trans, state.key, out.shape, out.strides)
    else:
        return _gemv(a, x, y, alpha, beta, trans, out, None)
    if y is not None:
        if type(y) is not _ndarray or y.dtype is not dtype:
            return _gemv(a, x, y, alpha, beta, trans, out, None)
        key = (key, y.shape, y.strides)
    bound = _launchers.get(key)
    if bound is None:
        return _gemv(a, x, y, alpha, beta, trans, out, key)
    if out is None:
        out = _empty(bound.shape, dtype)
    elif not may_write(out, a, x) or not (y is None or y is out or may_write(out, y, y)):
        return _gemv(a, x, y, alpha, beta, trans, out, None)
    bound.launch(out, a, x, y, None, None, None, alpha, beta)
    if state.verbose:
        call.log_call(bound)
    elif not bound.known and y is None:
        _known_calls.add((trans, state.key), bound, ((0, out), (1, a), (2, x)))
    return out


def may_write(out: ndarray, first: ndarray, second: ndarray) -> bool:
    """Whether `out`, known to have the right type, shape and strides, can be written with no further check.

    Arrays that own their memory share none: 0.1 us to see, where `np.may_share_memory` takes 0.25 us.
    """
    flags = out.flags
    if not flags.behaved:
        return False
    if flags.owndata and first.flags.owndata and second.flags.owndata:
        return out is not first and out is not second
    return not np.may_share_memory(out, first) and not np.may_share_memory(out, second)


def _bind(posed: _Posed, shape: tuple[int, ...]) -> call.Bound:
    return call.bind(_problem(posed, _strides(posed)), shape, posed.dtype, library=posed.origin)


class _Posed(NamedTuple):
    """A checked call: the storage of its arrays."""

    a: ndarray
    """op(A): transposed already."""
    x: ndarray
    y: ndarray | None
    out: ndarray | None
    dtype: str
    origin: arrays.Library


def _gemv(a: Any, x: Any, y: Any, alpha: Any, beta: Any, trans: bool, out: Any, key: Any) -> Any:
    alpha, beta = scalar(alpha, "alpha"), scalar(beta, "beta")
    state = settings.current()
    views, parts = enter_all((a, "a"), (x, "x"), (y if beta != 0.0 else None, "y"), (out, "out"))
    seen = (parts, bool(trans), state.key)
    bound = _launchers.get(seen)
    if bound is not None:
        # the same kinds of arrays were checked before; only what differs between arrays of one kind is left
        storage = views[3]
        if storage is None:
            result, storage = parts[1].empty(bound.shape, bound.dtype)
        else:
            result = out
        if (
            storage is not views[3]
            or may_write(storage, views[0], views[1])
            and (views[2] is None or y is out or may_write(storage, views[2], views[2]))
        ):
            bound.launch(storage, views[0], views[1], views[2], None, None, None, alpha, beta)
            if state.verbose:
                call.log_call(bound)
            return result
    posed = _pose(a, x, y, beta, trans, out)
    shape = (posed.a.shape[0],)
    if posed.out is None:
        result, storage = posed.origin.empty(shape, posed.dtype)
    else:
        result, storage = out, posed.out
    if storage.size == 0:
        return result
    if state.device == "reference":
        _reference(posed, alpha, beta, storage)
        return result
    if bound is None:
        bound = _launchers.put(seen, _bind(posed, shape))
    # the first-level key stands for arrays that need no conversion: NumPy's own, aligned
    if key is not None and a.flags.aligned and x.flags.aligned and (y is None or y.flags.aligned):
        _launchers.put(key, bound)
    bound.launch(storage, posed.a, posed.x, posed.y, None, None, None, alpha, beta)
    if state.verbose:
        call.log_call(bound)
    return result


def enter_all(*given: tuple[Any, str]) -> tuple[list[Any], tuple[Any, ...]]:
    """The storage of the arrays of a call, None for those that are not given, and all that tells their kinds apart.

    The library of the first array is the second part.
    """
    views: list[Any] = []
    parts: list[Any] = []
    for x, name in given:
        if x is None:
            views.append(None)
            parts.append(None)
        else:
            view, dtype, library = arrays.enter(x, name)
            views.append(view)
            parts += (dtype, library, view.shape, view.strides)
    return views, tuple(parts)


def scalar(value: Any, name: str) -> float:
    """The value of a factor as a float; TypeError, naming it, where it is not a real number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; it must be a real number") from None


def _pose(a: Any, x: Any, y: Any, beta: float, trans: bool, out: Any) -> _Posed:
    matrix, dtype, library = arrays.enter(a, "a")
    vector, x_dtype, x_library = arrays.enter(x, "x")
    if library is not x_library or dtype != x_dtype:
        arrays.require_same(a, "a", x, "x")
    if dtype not in FLOATS:
        raise TypeError(f"a is a {arrays.describe(a)}; gemv takes float64, float32, float16 and bfloat16")
    if matrix.ndim != 2:
        raise ValueError(f"a is a {arrays.describe(a)}; gemv takes one matrix (rows, columns): use gemm for a stack")
    if vector.ndim != 1:
        raise ValueError(f"x is a {arrays.describe(x)}; gemv takes one vector: use gemm for several")
    if trans:
        matrix = matrix.T
    m, n = matrix.shape
    if vector.shape[0] != n:
        raise ValueError(
            f"op(a) is {m} x {n} and x has {vector.shape[0]} elements; it must have as many as op(a) has "
            f"columns (a is a {arrays.describe(a)}, trans={bool(trans)})"
        )
    added = None
    if beta != 0.0:
        if y is None:
            raise ValueError(f"beta is {beta} and y is not given; pass y, or leave beta 0")
        added, y_dtype, y_library = arrays.enter(y, "y")
        if library is not y_library or dtype != y_dtype:
            arrays.require_same(a, "a", y, "y")
        if added.shape != (m,):
            raise ValueError(f"y is a {arrays.describe(y)}; the result has shape {(m,)}")
    target = None
    if out is not None:
        target = arrays.check_out(out, (m,), dtype, library=library)
        inputs: list[tuple[ndarray, str, bool]] = [(matrix, "a", False), (vector, "x", False)]
        if added is not None:
            inputs.append((added, "y", True))
        arrays.check_overlap(target, inputs)
    return _Posed(matrix, vector, added, target, dtype, library)


def _strides(posed: _Posed) -> Strides:
    row, column = element_strides(posed.a)
    return Strides(
        (row, column),
        element_strides(posed.x)[0],
        0 if posed.y is None else element_strides(posed.y)[0],
        1 if posed.out is None else element_strides(posed.out)[0],
    )


def _problem(posed: _Posed, strides: Strides) -> GemvProblem:
    m, n = posed.a.shape
    row, column = strides.a
    return GemvProblem(
        m=m,
        n=n,
        dtype=posed.dtype,
        order=walk_order(m, n, row, column),
        x_unit=strides.x == 1 or n <= 1,
        has_y=posed.y is not None,
        strides=strides,
    )


def _reference(posed: _Posed, alpha: float, beta: float, storage: ndarray) -> None:
    """``config(device="reference")``: the float64 definition, past the dispatcher."""
    from numbaprims.reference import gemv as reference
    from numbaprims.reference.convert import from_float64, to_float64

    added = None if posed.y is None else to_float64(posed.y, posed.dtype)
    a, x = to_float64(posed.a, posed.dtype), to_float64(posed.x, posed.dtype)
    storage[...] = from_float64(reference.gemv(a, x, y=added, alpha=alpha, beta=beta), posed.dtype)


def _gemv_problem(
    a: Any,
    x: Any,
    *,
    y: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans: bool = False,
    out: Any = None,
) -> GemvProblem:
    posed = _pose(a, x, y, scalar(beta, "beta"), trans, out)
    return _problem(posed, _strides(posed))


PROBLEMS = {"gemv": _gemv_problem}


def _walk(row_stride: int, column_stride: int, rows: int, columns: int) -> str:
    return walk_order(rows, columns, row_stride, column_stride)


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem
    added = {"y": examples.vector(p.m, p.dtype), "beta": 1.0} if p.has_y else {}
    matrix = examples.matrix(p.m, p.n, p.dtype, p.order, _walk)
    return "gemv", (matrix, examples.vector(p.n, p.dtype, unit=p.x_unit)), added


EXAMPLES = {"gemv": _example_call}
