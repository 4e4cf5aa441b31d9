"""Matrix product: `gemm`, `linear`, and the plan that keeps B packed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from numbaprims import settings
from numbaprims.ops._gemm_problem import GemmProblem, Strides, _order, example_call
from numbaprims.ops.epilogue import Activation, fused
from numbaprims.ops.primitive import Given, Pose, Result, problems
from numbaprims.ops.product import (
    Product,
    broadcast,
    check_integers,
    factors,
    launch_known,
    of_dtype,
    operand_dtype,
    result_dtype,
)
from numbaprims.reference import gemm as reference

_TAKES = "gemm takes float64, float32, float16, bfloat16, int8 x int8 and uint8 x int8"


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    trans_a, trans_b, unscaled, _, kind, out_dtype = options
    a, b, *_ = given.storages
    dtype, integer = operand_dtype(given, True, _TAKES)
    for at in (0, 1):
        if given.storages[at].ndim < 2:
            raise ValueError(
                f"{given.words(at)}; gemm takes matrices (..., rows, columns): use gemv for a vector, or "
                f"{given.names[at]}[None, :]"
            )
    if trans_a:
        a = a.swapaxes(-1, -2)
    if trans_b:
        b = b.swapaxes(-1, -2)
    m, k = a.shape[-2:]
    n = b.shape[-1]
    if b.shape[-2] != k:
        raise ValueError(
            f"op(a) is {m} x {k} and op(b) {b.shape[-2]} x {n}; the columns of op(a) must be as many as the rows of "
            f"op(b) ({given.words(0)}, {given.words(1)}, trans_a={bool(trans_a)}, trans_b={bool(trans_b)})"
        )
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"the leading dimensions {a.shape[:-2]} of a and {b.shape[:-2]} of b do not broadcast"
        ) from None
    shape = (*lead, m, n)
    wanted = result_dtype(dtype, out_dtype)
    if integer:
        check_integers(given.numbers, kind)
    c = broadcast(given, 2, shape, wanted)
    bias, axis = _bias(given, m, n, "i32" if integer else dtype)
    activation = Activation(kind, given.numbers[2:])

    def problem(made: Any) -> GemmProblem:
        return _problem(a, b, c, bias, axis, made[0], shape, (*given.dtypes[:2], wanted), activation, not unscaled)

    return Pose((Result(shape, wanted),), problem)


def _bias(given: Given, m: int, n: int, dtype: str) -> tuple[Any, str]:
    """The bias as a vector, and along which dimension it lies."""
    if given.storages[3] is None:
        return None, "none"
    view = of_dtype(given, 3, dtype)
    if view.shape == (n,):
        return view, "n"
    if view.shape == (1, n):
        return view[0], "n"
    if view.shape == (m, 1):
        return view[:, 0], "m"
    raise ValueError(f"{given.words(3)}; it must be ({n},), (1, {n}) or ({m}, 1)")


def _problem(
    a: ndarray, b: ndarray, c: ndarray | None, bias: ndarray | None, bias_axis: str, out: ndarray | None,
    shape: tuple[int, ...], dtypes: Any, act: Activation, scaled: bool,
) -> GemmProblem:  # fmt: skip
    m, k = a.shape[-2:]
    n = b.shape[-1]
    batch_shape = shape[:-2]
    rank = len(batch_shape)

    def steps(x: ndarray) -> tuple[int, ...]:
        """Strides in elements over the broadcast batch dimensions, then rows and columns."""
        size = x.itemsize
        missing = rank - (x.ndim - 2)
        lead = [
            0 if length == 1 else stride // size for length, stride in zip(x.shape[:-2], x.strides[:-2], strict=True)
        ]
        return (*(0,) * missing, *lead, x.strides[-2] // size, x.strides[-1] // size)

    sa, sb = steps(a), steps(b)
    if out is None:
        so = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    else:
        so = steps(out)
    sc = (0,) * len(shape) if c is None else steps(c)
    # A batch whose B is shared and whose rows follow one another evenly in A, C and out is one taller product.
    while batch_shape and all(s == 0 for s in sb[: len(batch_shape)]) and bias_axis != "m":
        rows = m
        if rows > 1 and any(s[-3] != rows * s[-2] for s in (sa, so, *((sc,) if c is not None else ()))):
            break
        if rows == 1:
            sa, so, sc = ((*s[:-2], s[-3], s[-1]) for s in (sa, so, sc))
        m *= batch_shape[-1]
        batch_shape = batch_shape[:-1]
        sa, so, sc, sb = ((*s[:-3], *s[-2:]) for s in (sa, so, sc, sb))
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=int(np.prod(batch_shape, dtype=np.int64)),
        a_dtype=dtypes[0],
        b_dtype=dtypes[1],
        out_dtype=dtypes[2],
        a_order=_order(sa[-2], sa[-1], m, k),
        b_order=_order(sb[-2], sb[-1], k, n),
        out_order=_order(so[-2], so[-1], m, n),
        has_c=c is not None,
        bias=bias_axis,
        activation=act,
        scaled=scaled,
        batch_shape=batch_shape,
        strides=Strides(
            sa[-2:],
            sb[-2:],
            so[-2:],
            sc[-2:],
            0 if bias is None else bias.strides[0] // bias.itemsize,
            (sa[:-2], sb[:-2], so[:-2], sc[:-2]),
        ),  # fmt: skip
    )


def _define(values: Any, options: Any, numbers: Any) -> Any:
    a, b, c, bias = values
    trans_a, trans_b, _, _, kind, _ = options
    return reference.gemm(
        a, b, c=c, alpha=numbers[0], beta=numbers[1], trans_a=trans_a, trans_b=trans_b, bias=bias,
        activation=reference.kind_and_parameters(Activation(kind, numbers[2:])),
    )  # fmt: skip


_gemm = Product("gemm", ("a", "b", "c", "bias"), _pose, _define, dtypes=None, exact=("c",))
_known, _run = _gemm.known, _gemm.run
_ndarray = ndarray
_empty = np.empty
_INT32 = np.dtype(np.int32)
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
    if beta != 0.0 or type(alpha) is not float or type(beta) is not float:
        alpha, beta, c = factors(alpha, beta, c, "c")
    kind = None
    if beta == 0.0:
        c = None  # as in BLAS: it is not read
        if bias is None and activation is None and out_dtype is None:
            state = _current()
            kind = (trans_a, trans_b, alpha == 1.0, state.key)
            known = _known(kind)
            if known is not None and not state.verbose:
                if out is not None:
                    found = known[0](known[1], out, a, b, alpha, 0.0, 0.0)
                    if found:
                        return out if found == 1 else launch_known(known, found, (out, a, b), alpha)
                elif type(a) is _ndarray and type(b) is _ndarray and a.ndim == 2 and b.ndim == 2:
                    dtype = a.dtype if a.dtype.kind == "f" else _INT32
                    result = _empty((a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]), dtype)
                    found = known[0](known[1], result, a, b, alpha, 0.0, 0.0)
                    if found:
                        return result if found == 1 else launch_known(known, found, (result, a, b), alpha)
    word, values = fused(activation)
    options = trans_a, trans_b, alpha == 1.0, beta in (0.0, 1.0), word, out_dtype
    return _run((a, b, c, bias), options, (alpha, beta, *values), out, kind)


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
    if getattr(x, "ndim", 2) != 1:
        return gemm(x, weight, trans_b=True, bias=bias, activation=activation, out=out)
    # a vector is a row
    result = gemm(
        x[None, :], weight, trans_b=True, bias=bias, activation=activation, out=None if out is None else out[None, :]
    )
    return result[0] if out is None else out


PROBLEMS = problems(gemm, linear)
EXAMPLES = {"gemm": example_call}


def _plan(b: Any, **arguments: Any) -> Any:
    from numbaprims.ops import gemm_plan

    return gemm_plan.plan(b, **arguments)


gemm.plan = _plan  # type: ignore[attr-defined]
