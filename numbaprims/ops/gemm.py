"""Matrix product: `gemm`, `linear`, and the plan that keeps B packed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from numbaprims import arrays, settings
from numbaprims.dispatch import call
from numbaprims.dispatch.known import KnownCalls
from numbaprims.ops._gemm_problem import GemmProblem, Posed, example_call, inputs_of, pose, scalar
from numbaprims.ops.gemv import may_write

_launchers = call.Launchers()
_known_calls = KnownCalls()
_known = _known_calls.get
_ndarray = ndarray
_empty = np.empty
_current = settings.current


def gemm(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: Any = None,
    activation: Any = None,
    out: Any = None,
    out_dtype: Any = None,
) -> Any:
    """Multiply matrices: ``out = activation(alpha * op(a) @ op(b) + beta * c + bias)``.

    Args:
        a: (..., M, K), or (..., K, M) with `trans_a`; any strides, read without a copy.
        b: (..., K, N), or (..., N, K) with `trans_b`; leading dimensions broadcast against those of `a`.
        c: broadcastable to (..., M, N); needed when `beta` is not 0, not read when it is.
        alpha: factor of the product.
        beta: factor of `c`.
        trans_a: read the last two dimensions of `a` swapped.
        trans_b: the same for `b`.
        bias: (N,) or (1, N), one value a column; or (M, 1), one value a row.
        activation: None, the name of a kind ("relu"), or a pair of a name and its parameters
            (``("leaky_relu", {"negative_slope": 0.1})``); see `numbaprims.activation`.
        out: where the result goes; it may be exactly `c`, and otherwise share no memory with the inputs.
        out_dtype: dtype of the result; by default that of the inputs, int32 for int8 products.

    Returns:
        (..., M, N) of the caller's library. float64, float32, float16 and bfloat16 inputs (the last two are summed
        in float32), int8 x int8 and uint8 x int8 (summed exactly in int32, alpha 1 and beta 0 or 1).

    Raises:
        TypeError: mixed libraries or dtypes, unknown dtypes.
        ValueError: shapes that do not fit, `beta` without `c`, an `out` that overlaps an input.

    Example:
        >>> import numpy as np, numbaprims
        >>> a = np.ones((2, 3), np.float32)
        >>> numbaprims.gemm(a, a, trans_b=True)
        array([[3., 3.],
               [3., 3.]], dtype=float32)

    References:
        Goto and van de Geijn, Anatomy of high-performance matrix multiplication, TOMS 34(3), 2008.
    """
    key: Any = None
    if (
        type(a) is _ndarray and type(b) is _ndarray and out_dtype is None
        and type(alpha) is float and type(beta) is float and (out is None or type(out) is _ndarray)
    ):  # fmt: skip
        state = _current()
        kind = (trans_a, trans_b, alpha == 1.0, state.key)
        if beta == 0.0:
            c = None  # as in BLAS: it is not read
        plain = beta == 0.0 and bias is None and activation is None
        if plain:
            known = _known(kind)
            if known is not None and not state.verbose:
                if out is not None:
                    if known[0](known[1], out, a, b, alpha, 0.0, 0.0):
                        return out
                elif a.ndim == 2 and b.ndim == 2 and a.dtype.kind == "f":
                    result = _empty((a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]), a.dtype)
                    if known[0](known[1], result, a, b, alpha, 0.0, 0.0):
                        return result
        key = (
            a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, kind,
            None if out is None else (out.shape, out.strides, out.dtype),
            None if plain else _extras(c, bias, beta, activation),
        )  # fmt: skip
        bound = None if key[-1] is _NOT_KEPT else _launchers.get(key)
        if bound is not None and (out is None or _fast_out(out, a, b, c, bias)):
            result = _empty(bound.shape, bound.extra) if out is None else out
            if plain:
                bound.launch(result, a, b, f0=alpha)
            else:
                p = bound.problem.activation.values()
                bound.launch(result, a, b, c, bias, f0=alpha, f1=beta, f2=p[0], f3=p[1], f4=p[2])
            if state.verbose:
                call.log_call(bound)
            elif plain and not bound.known:
                _known_calls.add(kind, bound, ((0, result), (1, a), (2, b)))
            return result
        if key[-1] is _NOT_KEPT:
            key = None
    return _gemm(a, b, c, alpha, beta, trans_a, trans_b, bias, activation, out, out_dtype, key)


_NOT_KEPT = object()


def _extras(c: Any, bias: Any, beta: float, activation: Any) -> Any:
    """The part of a call's key that says what is added to the product; `_NOT_KEPT` for other than NumPy's arrays and
    plain names of activations."""
    if not (c is None or type(c) is _ndarray) or not (bias is None or type(bias) is _ndarray):
        return _NOT_KEPT
    if activation is not None and type(activation) is not str:
        return _NOT_KEPT
    return (
        beta == 0.0, activation, None if c is None else (c.shape, c.strides, c.dtype),
        None if bias is None else (bias.shape, bias.strides, bias.dtype),
    )  # fmt: skip


def _fast_out(out: Any, a: ndarray, b: ndarray, c: ndarray | None, bias: ndarray | None) -> bool:
    """Whether `out`, of the right type, shape and strides already, can be written with no further check."""
    return (
        may_write(out, a, b)
        and (c is None or c is out or may_write(out, c, c))
        and (bias is None or may_write(out, bias, bias))
    )


def _gemm(
    a: Any,
    b: Any,
    c: Any,
    alpha: float,
    beta: float,
    trans_a: bool,
    trans_b: bool,
    bias: Any,
    activation: Any,
    out: Any,
    out_dtype: Any,
    key: Any,
) -> Any:
    alpha, beta = scalar(alpha, "alpha"), scalar(beta, "beta")
    given = (a, b, c if beta != 0.0 else None, bias, out)
    seen = _seen(given, trans_a, trans_b, alpha, beta, activation, out_dtype)
    bound = None if seen is None else _launchers.get(seen[0])
    if seen is not None and bound is not None:
        # the same kinds of arrays were checked before: only what differs between arrays of one kind is left
        views, library = seen[1], seen[2]
        storage = views[4]
        if storage is None:
            result, storage = library.empty(bound.shape, bound.dtype)
        else:
            result = out
            arrays.check_writable(out, storage)
            arrays.check_overlap(storage, inputs_of(*views[:4]))
        p = bound.problem.activation.values()
        bound.launch(storage, *views[:4], f0=alpha, f1=beta, f2=p[0], f3=p[1], f4=p[2])
        if settings.current().verbose:
            call.log_call(bound)
        return result
    posed = pose(a, b, c, alpha, beta, trans_a, trans_b, bias, activation, out, out_dtype)
    problem, state = posed.problem, settings.current()
    if posed.out is None:
        result, storage = posed.origin.empty(posed.shape, problem.out_dtype)
    else:
        result, storage = out, posed.out
    if storage.size == 0:
        return result
    if state.device == "reference":
        _reference(posed, alpha, beta, storage)
        return result
    # with the shape: a stack of matrices and the matrix of all their rows are one problem
    full_key = (problem.key(), problem.batch_shape, problem.strides, posed.shape, state.key, posed.origin.place)
    bound = _launchers.get(full_key)
    if bound is None or bound.problem.activation.parameters != problem.activation.parameters:
        extra = getattr(result, "dtype", None)
        bound = call.bind(problem, posed.shape, problem.out_dtype, library=posed.origin, extra=extra)
        _launchers.put(full_key, bound)
    # a first-level key stands for arrays that need no copy: aligned ones
    if all(x is None or not isinstance(x, ndarray) or x.flags.aligned for x in given):
        if seen is not None:
            _launchers.put(seen[0], bound)
        if key is not None and posed.origin is arrays.NUMPY:
            _launchers.put(key, bound)
    p = problem.activation.values()
    bound.launch(storage, posed.a, posed.b, posed.c, posed.bias, f0=alpha, f1=beta, f2=p[0], f3=p[1], f4=p[2])
    if state.verbose:
        call.log_call(bound)
    return result


def _seen(
    given: tuple[Any, ...],
    trans_a: bool,
    trans_b: bool,
    alpha: float,
    beta: float,
    activation: Any,
    out_dtype: Any,
) -> tuple[Any, list[Any], arrays.Library] | None:
    """The key of a call whose arrays are of any library, its arrays' storage, and the library; None where the call
    has to be looked at in full (an activation with parameters, mixed libraries)."""
    views: list[Any] = []
    parts: list[Any] = []
    library = None
    for x, name in zip(given, ("a", "b", "c", "bias", "out"), strict=True):
        if x is None:
            views.append(None)
            parts.append(None)
            continue
        view, dtype, of = arrays.enter(x, name)
        if library is not None and of is not library:
            return None
        library = of
        views.append(view)
        parts += (view.shape, view.strides, dtype)
    if not (activation is None or isinstance(activation, str)) or library is None:
        return None
    key = (
        "seen", *parts, trans_a, trans_b, alpha == 1.0, beta == 0.0, activation, out_dtype, settings.key(), library,
    )  # fmt: skip
    return key, views, library


def _reference(posed: Posed, alpha: float, beta: float, storage: ndarray) -> None:
    """``config(device="reference")``: the float64 definition, past the dispatcher."""
    from numbaprims.reference import gemm as reference

    reference.into(posed, alpha, beta, storage)


def linear(x: Any, weight: Any, bias: Any = None, *, activation: Any = None, out: Any = None) -> Any:
    """Apply a dense layer: ``out = activation(x @ weight.T + bias)``.

    Args:
        x: (..., K).
        weight: (N, K), as in `torch.nn.functional.linear`.
        bias: (N,) or None.
        activation: as in `gemm`.
        out: (..., N), where the result goes.

    Returns:
        (..., N), same library and dtype as `x`.

    Raises:
        TypeError, ValueError: as `gemm`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.linear(np.ones((2, 3), np.float32), np.ones((1, 3), np.float32))
        array([[3.],
               [3.]], dtype=float32)
    """
    rows, result = _rows(x, out)
    result = gemm(rows, weight, trans_b=True, bias=bias, activation=activation, out=result)
    return out if out is not None else result if rows is x else result[0]


def _rows(x: Any, out: Any) -> tuple[Any, Any]:
    """linear's x and out as gemm takes them: a vector is a row."""
    if getattr(x, "ndim", 2) != 1:
        return x, out
    return x[None, :], None if out is None else out[None, :]


def _gemm_problem(
    a: Any, b: Any, *, c: Any = None, alpha: float = 1.0, beta: float = 0.0, trans_a: bool = False,
    trans_b: bool = False, bias: Any = None, activation: Any = None, out: Any = None, out_dtype: Any = None,
) -> GemmProblem:  # fmt: skip
    return pose(a, b, c, alpha, beta, trans_a, trans_b, bias, activation, out, out_dtype).problem


def _linear_problem(x: Any, weight: Any, bias: Any = None, *, activation: Any = None, out: Any = None) -> GemmProblem:
    rows, result = _rows(x, out)
    return _gemm_problem(rows, weight, trans_b=True, bias=bias, activation=activation, out=result)


PROBLEMS = {"gemm": _gemm_problem, "linear": _linear_problem}
EXAMPLES = {"gemm": example_call}


def _plan(b: Any, **arguments: Any) -> Any:
    from numbaprims.ops import gemm_plan

    return gemm_plan.plan(b, **arguments)


gemm.plan = _plan  # type: ignore[attr-defined]
