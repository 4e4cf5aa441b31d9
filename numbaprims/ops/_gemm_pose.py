"""What is checked of a matrix product's arguments, how they become a `GemmProblem`, and what runs it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from numbaprims.ops._gemm_problem import GemmProblem, Strides, _order
from numbaprims.ops.epilogue import Activation
from numbaprims.ops.primitive import Given, Pose, Result
from numbaprims.ops.product import Product, broadcast, check_integers, of_dtype, operand_dtype, result_dtype
from numbaprims.reference import gemm as reference
from numbaprims.reference.quantize import requantize

_TAKES = "gemm takes float64, float32, float16, bfloat16, int8 x int8 and uint8 x int8"


class Requantized(NamedTuple):
    """In the place of `out_dtype`: integers of 8 bits. The numbers are then a factor, the zero points of result and a.

    Factors of columns are a sixth array.
    """

    dtype: str


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    trans_a, trans_b, unscaled, _, kind, out_dtype = options
    (a, b, *_), (one, other, *_) = given.storages, given.names
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
            f"op({one}) is {m} x {k} and op({other}) {b.shape[-2]} x {n}; the columns of op({one}) must be as many as "
            f"the rows of op({other}) ({given.words(0)}, {given.words(1)}, trans_a={bool(trans_a)}, "
            f"trans_b={bool(trans_b)})"
        )
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except (ValueError, RuntimeError):  # the latter of more than 32 dimensions
        raise ValueError(
            f"the leading dimensions {a.shape[:-2]} of {one} and {b.shape[:-2]} of {other} do not broadcast"
        ) from None
    shape = (*lead, m, n)
    if type(out_dtype) is Requantized:
        wanted = out_dtype.dtype
    else:
        wanted = result_dtype(dtype, out_dtype)
        if integer:
            check_integers(given.numbers, kind)
    c = broadcast(given, 2, shape, "i32" if integer else wanted)
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


GEMM = Product("gemm", ("a", "b", "c", "bias"), _pose, _define, dtypes=None, exact=("c",))
LINEAR = Product("linear", ("x", "weight", "c", "bias"), _pose, _define, dtypes=None)


def _define_integers(values: Any, options: Any, numbers: Any) -> Any:
    a, b, c, bias, _, factors = values
    form, (one, zero, a_zero) = options[5], numbers
    total = reference.gemm(a.astype(np.int64) - int(a_zero), b, c=c, beta=1.0, bias=bias)
    return total if form is None else requantize(total, one if factors is None else factors, zero, form.dtype)


_PLACES = ("a", "b", "c", "bias", "packed", "factors")
#: Of integers: the third number is the zero point of a.
INTEGERS = Product("gemm_integer", _PLACES, _pose, _define_integers, dtypes=None)
REQUANTIZED = Product("qlinear_gemm", _PLACES, _pose, _define_integers, dtypes=None)
#: What 32-bit sums are requantised to -> the options of the call.
INTEGER_OPTIONS = {
    dtype: (False, False, True, True, "identity", None if dtype is None else Requantized(dtype))
    for dtype in (None, "i8", "u8")
}
