"""Matrix product: `gemm`, `linear`, and the plan that keeps B packed."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy import ndarray

from numbaprims import arrays, settings
from numbaprims.dispatch import call
from numbaprims.dispatch.problem import Problem
from numbaprims.ops.epilogue import Activation, resolve_activation

INTEGER_PAIRS = {("i8", "i8"), ("u8", "i8")}
FLOATS = ("f64", "f32", "f16", "bf16")


class Strides(NamedTuple):
    """Exact strides of one call, in elements; what `bind` needs beyond the problem."""

    a: tuple[int, int]
    b: tuple[int, int]
    out: tuple[int, int]
    c: tuple[int, int]
    bias: int
    batch: tuple[tuple[int, ...], ...]
    """Strides of the batch dimensions of a, b, out, c."""


@dataclasses.dataclass(frozen=True)
class GemmProblem(Problem):
    """out = activation(alpha op(A) op(B) + beta C + bias), A (m, k), B (k, n), once for each of `batch`."""

    stem: ClassVar[str] = "gemm"
    m: int
    n: int
    k: int
    batch: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    a_order: str
    """"row" (k is contiguous), "column" (m is contiguous) or "strided"; transposition is a change of order."""
    b_order: str
    out_order: str
    has_c: bool
    bias: str
    """"none", "n" (one value a column) or "m" (one value a row)."""
    activation: Activation
    scaled: bool
    """Whether alpha is anything but 1, which costs one more pass over the block of sums in the caches."""
    batch_shape: tuple[int, ...] = dataclasses.field(compare=False)
    strides: Strides = dataclasses.field(compare=False)

    @property
    def accumulate(self) -> str:
        """The type in which products are summed."""
        return arrays.DTYPES[self.a_dtype].accumulate

    @property
    def ends(self) -> bool:
        """Whether something is to be done once the sums are complete."""
        return self.scaled or self.has_c or self.bias != "none" or self.activation.kind != "identity"

    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    def bytes_moved(self) -> float:
        size = {name: arrays.DTYPES[name].itemsize for name in (self.a_dtype, self.b_dtype, self.out_dtype)}
        a = self.m * self.k * size[self.a_dtype]
        b = self.k * self.n * size[self.b_dtype]
        out = self.m * self.n * size[self.out_dtype] * (2 if self.has_c else 1)
        return float(self.batch * (a + b + out))

    def bench_command(self) -> str:
        words = [f"numbaprims bench gemm --shapes {self.m}x{self.n}x{self.k}"]
        dtype = {"i8": "int8", "u8": "int8"}.get(self.a_dtype, self.a_dtype)
        words.append(f"--dtype {dtype}")
        if self.batch > 1:
            words.append(f"--batch {self.batch}")
        if self.a_order == "column":
            words.append("--trans-a")
        if self.b_order == "column":
            words.append("--trans-b")
        if self.bias != "none":
            words.append("--bias")
        if self.activation.kind != "identity":
            words.append(f"--activation {self.activation.kind}")
        return " ".join(words)


class _Posed(NamedTuple):
    """A checked call: the problem and the arrays as kernels take them."""

    problem: GemmProblem
    shape: tuple[int, ...]
    a: ndarray
    b: ndarray
    c: ndarray | None
    bias: ndarray | None
    out: ndarray | None
    library: arrays.Library


_launchers = call.Launchers()
_ndarray = ndarray
_empty = np.empty


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
    if (
        type(a) is _ndarray
        and type(b) is _ndarray
        and c is None
        and bias is None
        and activation is None
        and out_dtype is None
        and beta == 0.0
    ):
        key: Any = (
            a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, trans_a, trans_b, settings.key(), alpha == 1.0,
            None if out is None else (type(out), out.shape, out.strides, out.dtype),
        )  # fmt: skip
        bound = _launchers.get(key)
        if bound is not None and (out is None or _fast_out(out, a, b)):
            result = _empty(bound.shape, bound.extra) if out is None else out
            bound.launch(result, a, b, f0=alpha)
            if settings.current().verbose:
                call.log_call(bound)
            return result
    else:
        key = None
    return _gemm(a, b, c, alpha, beta, trans_a, trans_b, bias, activation, out, out_dtype, key)


def _fast_out(out: Any, a: ndarray, b: ndarray) -> bool:
    """Whether `out`, of the right type, shape and strides already, can be written with no further check."""
    return out.flags.writeable and not np.may_share_memory(out, a) and not np.may_share_memory(out, b)


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
    alpha, beta = _scalar(alpha, "alpha"), _scalar(beta, "beta")
    posed = _pose(a, b, c, alpha, beta, trans_a, trans_b, bias, activation, out, out_dtype)
    problem, state = posed.problem, settings.current()
    if posed.out is None:
        result, storage = posed.library.empty(posed.shape, problem.out_dtype)
    else:
        result, storage = out, posed.out
    if storage.size == 0:
        return result
    if state.device == "reference":
        _reference(posed, alpha, beta, storage)
        return result
    full_key = (problem.key(), problem.batch_shape, problem.strides, state.key)
    bound = _launchers.get(full_key)
    if bound is None:
        extra = getattr(result, "dtype", None)
        bound = _launchers.put(full_key, call.bind(problem, posed.shape, problem.out_dtype, extra=extra))
    # the first-level key stands for arrays that need no conversion: NumPy's own, aligned, native
    if key is not None and posed.library is arrays.NUMPY and a.flags.aligned and b.flags.aligned:
        _launchers.put(key, bound)
    p = problem.activation.values()
    bound.launch(storage, posed.a, posed.b, posed.c, posed.bias, f0=alpha, f1=beta, f2=p[0], f3=p[1], f4=p[2])
    if state.verbose:
        call.log_call(bound)
    return result


def _scalar(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; it must be a real number") from None


def _order(row_stride: int, column_stride: int, rows: int, columns: int) -> str:
    """How a (rows, columns) matrix lies in memory; a dimension of one element fits any order."""
    if column_stride == 1 or columns == 1:
        return "row"
    if row_stride == 1 or rows == 1:
        return "column"
    return "strided"


def _pose(
    a: Any, b: Any, c: Any, alpha: float, beta: float, trans_a: bool, trans_b: bool, bias: Any, activation: Any,
    out: Any, out_dtype: Any,
) -> _Posed:  # fmt: skip
    given_a, given_b = a, b
    a, a_dtype, library = arrays.enter(a, "a")
    b, b_dtype, b_library = arrays.enter(b, "b")
    integer = (a_dtype, b_dtype) in INTEGER_PAIRS
    if library is not b_library or (a_dtype != b_dtype and not integer):
        arrays.require_same(given_a, "a", given_b, "b")
    if not integer and a_dtype not in FLOATS:
        raise TypeError(
            f"a is a {arrays.describe(given_a)} and b a {arrays.describe(given_b)}; gemm takes float64, float32, "
            "float16, bfloat16, int8 x int8 and uint8 x int8"
        )
    for x, name, given in ((a, "a", given_a), (b, "b", given_b)):
        if x.ndim < 2:
            raise ValueError(
                f"{name} is a {arrays.describe(given)}; gemm takes matrices (..., rows, columns): use gemv for a "
                f"vector, or {name}[None, :]"
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
            f"op(b) (a is a {arrays.describe(given_a)}, b a {arrays.describe(given_b)}, trans_a={bool(trans_a)}, "
            f"trans_b={bool(trans_b)})"
        )
    try:
        batch_shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"the leading dimensions {a.shape[:-2]} of a and {b.shape[:-2]} of b do not broadcast"
        ) from None
    shape = (*batch_shape, m, n)
    result_dtype = _result_dtype(a_dtype, integer, out_dtype)
    act = resolve_activation(activation)
    if integer and (alpha != 1.0 or beta not in (0.0, 1.0)):
        raise ValueError(f"alpha={alpha} and beta={beta}; integer products take alpha 1 and beta 0 or 1")
    if integer and act.kind not in ("identity", "relu"):
        raise ValueError(f"activation {act.kind!r}; integer products take None or 'relu'")
    c_view = _enter_c(c, beta, shape, result_dtype, library)
    bias_view, bias_axis = _enter_bias(bias, m, n, "i32" if integer else a_dtype, library)
    out_view = None
    if out is not None:
        out_view = arrays.check_out(out, shape, result_dtype, library=library)
        inputs: list[tuple[ndarray, str, bool]] = [(a, "a", False), (b, "b", False)]
        if c_view is not None:
            inputs.append((c_view, "c", True))
        if bias_view is not None:
            inputs.append((bias_view, "bias", False))
        arrays.check_overlap(out_view, inputs)
    problem = _problem(
        a, b, c_view, bias_view, bias_axis, out_view, shape, a_dtype, b_dtype, result_dtype, act, alpha != 1.0
    )
    return _Posed(problem, shape, a, b, c_view, bias_view, out_view, library)


def _result_dtype(a_dtype: str, integer: bool, out_dtype: Any) -> str:
    natural = "i32" if integer else a_dtype
    if out_dtype is None:
        return natural
    wanted = arrays.dtype_name(out_dtype)
    # a half-precision product may be kept in the float32 it was summed in
    allowed = {natural, arrays.DTYPES[a_dtype].accumulate}
    if wanted not in allowed:
        names = " or ".join(sorted(arrays.LONG_NAMES[name] for name in allowed))
        raise TypeError(f"out_dtype is {out_dtype!r}; for {arrays.LONG_NAMES[a_dtype]} it may be {names}")
    return wanted


def _enter_c(
    c: Any, beta: float, shape: tuple[int, ...], dtype: str, library: arrays.Library
) -> ndarray | None:
    if beta == 0.0:
        return None  # as in BLAS: with beta 0, c is not read, and NaN in it does not spread
    if c is None:
        raise ValueError(f"beta is {beta} and c is not given; pass c, or leave beta 0")
    view, c_dtype, c_library = arrays.enter(c, "c")
    if c_library is not library or c_dtype != dtype:
        raise TypeError(
            f"c is a {arrays.describe(c)}; it must be a {arrays.LONG_NAMES[dtype]} {library.name} array"
        )
    try:
        return np.broadcast_to(view, shape)
    except ValueError:
        raise ValueError(f"c is a {arrays.describe(c)}; it must broadcast to the result's {shape}") from None


def _enter_bias(bias: Any, m: int, n: int, dtype: str, library: arrays.Library) -> tuple[ndarray | None, str]:
    if bias is None:
        return None, "none"
    view, bias_dtype, bias_library = arrays.enter(bias, "bias")
    if bias_library is not library or bias_dtype != dtype:
        raise TypeError(
            f"bias is a {arrays.describe(bias)}; it must be a {arrays.LONG_NAMES[dtype]} {library.name} array"
        )
    if view.shape == (n,):
        return view, "n"
    if view.shape == (1, n):
        return view[0], "n"
    if view.shape == (m, 1):
        return view[:, 0], "m"
    raise ValueError(f"bias is a {arrays.describe(bias)}; it must be ({n},), (1, {n}) or ({m}, 1)")


def _problem(
    a: ndarray, b: ndarray, c: ndarray | None, bias: ndarray | None, bias_axis: str, out: ndarray | None,
    shape: tuple[int, ...], a_dtype: str, b_dtype: str, out_dtype: str, act: Activation,
    scaled: bool,
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
            0 if length == 1 else stride // size
            for length, stride in zip(x.shape[:-2], x.strides[:-2], strict=True)
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
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        out_dtype=out_dtype,
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


def _reference(posed: _Posed, alpha: float, beta: float, storage: ndarray) -> None:
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
    if getattr(x, "ndim", 2) == 1:
        result = gemm(
            x[None, :], weight, trans_b=True, bias=bias, activation=activation,
            out=None if out is None else out[None, :],
        )  # fmt: skip
        return result[0] if out is None else out
    return gemm(x, weight, trans_b=True, bias=bias, activation=activation, out=out)


def _gemm_problem(
    a: Any, b: Any, *, c: Any = None, alpha: float = 1.0, beta: float = 0.0, trans_a: bool = False,
    trans_b: bool = False, bias: Any = None, activation: Any = None, out: Any = None, out_dtype: Any = None,
) -> GemmProblem:  # fmt: skip
    return _pose(a, b, c, alpha, beta, trans_a, trans_b, bias, activation, out, out_dtype).problem


def _linear_problem(
    x: Any, weight: Any, bias: Any = None, *, activation: Any = None, out: Any = None
) -> GemmProblem:
    return _gemm_problem(x, weight, trans_b=True, bias=bias, activation=activation, out=out)


PROBLEMS = {"gemm": _gemm_problem, "linear": _linear_problem}


def _plan(b: Any, **arguments: Any) -> Any:
    from numbaprims.ops import gemm_plan

    return gemm_plan.plan(b, **arguments)


gemm.plan = _plan  # type: ignore[attr-defined]
