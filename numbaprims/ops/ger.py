"""Rank-1 update: `ger`."""

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
from numbaprims.ops.gemv import FLOATS, enter_all, may_write, scalar
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


_launchers = call.Launchers()
_known_calls = KnownCalls()
_known = _known_calls.get
_ndarray = ndarray
_empty = np.empty
_current = settings.current


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
    state = _current()
    if (a is None or a is out) and type(alpha) is float:
        known = _known((a is None, state.key))
        if known is not None and not state.verbose:
            if out is not None:
                if known[0](known[1], out, x, y, alpha, 0.0, 0.0):
                    return out
            elif type(x) is _ndarray and type(y) is _ndarray:
                result = _empty(x.shape + y.shape, x.dtype)
                if known[0](known[1], result, x, y, alpha, 0.0, 0.0):
                    return result
    if type(x) is not _ndarray or type(y) is not _ndarray or type(alpha) is not float:
        return _ger(x, y, a, alpha, out, None)
    dtype = x.dtype
    if y.dtype is not dtype:
        return _ger(x, y, a, alpha, out, None)
    key: Any
    if out is None:
        key = (dtype, x.shape, x.strides, y.shape, y.strides, state.key)
    elif type(out) is _ndarray and out.dtype is dtype:
        key = (dtype, x.shape, x.strides, y.shape, y.strides, state.key, out.shape, out.strides, a is out)
    else:
        return _ger(x, y, a, alpha, out, None)
    if a is not None and a is not out:
        if type(a) is not _ndarray or a.dtype is not dtype:
            return _ger(x, y, a, alpha, out, None)
        key = (key, a.shape, a.strides)
    bound = _launchers.get(key)
    if bound is None:
        return _ger(x, y, a, alpha, out, key)
    if out is None:
        out = _empty(bound.shape, dtype)
    elif not may_write(out, x, y) or not (a is None or a is out or may_write(out, a, a)):
        return _ger(x, y, a, alpha, out, None)
    bound.launch(out, x, y, a, None, None, None, alpha)
    if state.verbose:
        call.log_call(bound)
    elif not bound.known and (a is None or a is out):
        _known_calls.add((a is None, state.key), bound, ((0, out), (1, x), (2, y)))
    return out


def _bind(posed: _Posed, shape: tuple[int, ...]) -> call.Bound:
    return call.bind(_problem(posed, _strides(posed)), shape, posed.dtype, library=posed.origin)


class _Posed(NamedTuple):
    """A checked call: the storage of its arrays."""

    x: ndarray
    y: ndarray
    a: ndarray | None
    out: ndarray | None
    dtype: str
    origin: arrays.Library


def _ger(x: Any, y: Any, a: Any, alpha: Any, out: Any, key: Any) -> Any:
    alpha = scalar(alpha, "alpha")
    state = settings.current()
    views, parts = enter_all((x, "x"), (y, "y"), (None if a is out else a, "a"), (out, "out"))
    seen = (parts, a is out, state.key)
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
            and (views[2] is None or may_write(storage, views[2], views[2]))
        ):
            old = storage if a is out else views[2]
            bound.launch(storage, views[0], views[1], old, None, None, None, alpha)
            if state.verbose:
                call.log_call(bound)
            return result
    posed = _pose(x, y, a, out)
    shape = (posed.x.shape[0], posed.y.shape[0])
    if posed.out is None:
        result, storage = posed.origin.empty(shape, posed.dtype)
    else:
        result, storage = out, posed.out
    if storage.size == 0:
        return result
    if state.device == "reference":
        _reference(posed, alpha, storage)
        return result
    if bound is None:
        bound = _launchers.put(seen, _bind(posed, shape))
    # the first-level key stands for arrays that need no conversion: NumPy's own, aligned
    if key is not None and x.flags.aligned and y.flags.aligned and (a is None or a.flags.aligned):
        _launchers.put(key, bound)
    bound.launch(storage, posed.x, posed.y, posed.a, None, None, None, alpha)
    if state.verbose:
        call.log_call(bound)
    return result


def _pose(x: Any, y: Any, a: Any, out: Any) -> _Posed:
    column, dtype, library = arrays.enter(x, "x")
    row, y_dtype, y_library = arrays.enter(y, "y")
    if library is not y_library or dtype != y_dtype:
        arrays.require_same(x, "x", y, "y")
    if dtype not in FLOATS:
        raise TypeError(f"x is a {arrays.describe(x)}; ger takes float64, float32, float16 and bfloat16")
    for vector, name, given in ((column, "x", x), (row, "y", y)):
        if vector.ndim != 1:
            raise ValueError(f"{name} is a {arrays.describe(given)}; ger takes vectors: use gemm for matrices")
    shape = (column.shape[0], row.shape[0])
    added = None
    if a is not None:
        added, a_dtype, a_library = arrays.enter(a, "a")
        if library is not a_library or dtype != a_dtype:
            arrays.require_same(x, "x", a, "a")
        if added.shape != shape:
            raise ValueError(f"a is a {arrays.describe(a)}; x and y make a matrix {shape}")
    target = None
    if out is not None:
        target = arrays.check_out(out, shape, dtype, library=library)
        inputs: list[tuple[ndarray, str, bool]] = [(column, "x", False), (row, "y", False)]
        if added is not None:
            inputs.append((added, "a", True))
        arrays.check_overlap(target, inputs)
        if a is out:
            added = target  # of one array of halves there are two views by now, and in place is what is one
    return _Posed(column, row, added, target, dtype, library)


def _matrix_strides(a: ndarray) -> tuple[int, int]:
    row, column = element_strides(a)
    return row, column


def _strides(posed: _Posed) -> Strides:
    return Strides(
        element_strides(posed.x)[0],
        element_strides(posed.y)[0],
        (0, 0) if posed.a is None else _matrix_strides(posed.a),
        (posed.y.shape[0], 1) if posed.out is None else _matrix_strides(posed.out),
    )


def _problem(posed: _Posed, strides: Strides) -> GerProblem:
    m, n = posed.x.shape[0], posed.y.shape[0]
    order = walk_order(m, n, *strides.out)
    along = (strides.a[0], strides.out[0]) if order == "column" else (strides.a[1], strides.out[1])
    length = m if order == "column" else n
    return GerProblem(
        m=m,
        n=n,
        dtype=posed.dtype,
        order=order,
        has_a=posed.a is not None,
        a_along=posed.a is None or along[0] == along[1] or length <= 1,
        strides=strides,
        in_place=posed.a is not None and posed.a is posed.out,
    )


def _reference(posed: _Posed, alpha: float, storage: ndarray) -> None:
    """``config(device="reference")``: the float64 definition, past the dispatcher."""
    from numbaprims.reference import ger as reference
    from numbaprims.reference.convert import from_float64, to_float64

    a = None if posed.a is None else to_float64(posed.a, posed.dtype)
    x, y = to_float64(posed.x, posed.dtype), to_float64(posed.y, posed.dtype)
    storage[...] = from_float64(reference.ger(x, y, a=a, alpha=alpha), posed.dtype)


def _ger_problem(x: Any, y: Any, *, a: Any = None, alpha: float = 1.0, out: Any = None) -> GerProblem:
    posed = _pose(x, y, a, out)
    return _problem(posed, _strides(posed))


PROBLEMS = {"ger": _ger_problem}


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
