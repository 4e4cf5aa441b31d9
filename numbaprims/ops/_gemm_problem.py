"""The problem that a matrix product poses: what is checked, and what the dispatcher is told."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy import ndarray

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.ops import examples
from numbaprims.ops.epilogue import Activation, resolve_activation

INTEGER_PAIRS = {("i8", "i8"), ("u8", "i8")}
FLOATS = ("f64", "f32", "f16", "bf16")


class Strides(NamedTuple):
    """Exact strides of one call, in elements; what `bind` needs beyond the problem."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    out: tuple[int, ...]
    c: tuple[int, ...]
    bias: int
    batch: tuple[tuple[int, ...], ...]
    """Strides of the batch dimensions of a, b, out, c."""
    first: tuple[int, int, int, int] = (0, 0, 0, 0)
    """The element at which the first product's a, b, out and c begin."""


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

    @property
    def empty(self) -> bool:
        return 0 in (self.batch, self.m, self.n)

    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    def bytes_moved(self) -> float:
        size = {name: arrays.DTYPES[name].itemsize for name in (self.a_dtype, self.b_dtype, self.out_dtype)}
        a = self.m * self.k * size[self.a_dtype]
        b = self.k * self.n * size[self.b_dtype]
        out = self.m * self.n * size[self.out_dtype] * (2 if self.has_c else 1)
        return float(self.batch * (a + b + out))

    def roundings(self) -> int:
        return 0 if self.accumulate == "i32" else self.k + 4  # alpha, beta, the bias, the activation

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


def example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    p, made = problem, {}
    lead = (p.batch,) if p.batch > 1 else ()
    if p.has_c:
        made["c"], made["beta"] = examples.array((*lead, p.m, p.n), p.out_dtype), 1.0
    if p.bias != "none":
        dtype = "i32" if (p.a_dtype, p.b_dtype) in INTEGER_PAIRS else p.a_dtype
        made["bias"] = examples.array((p.n,) if p.bias == "n" else (p.m, 1), dtype)
    if p.scaled:
        made["alpha"] = 0.5
    if _order(p.n, 1, p.m, p.n) != p.out_order:
        made["out"] = examples.matrix(p.m, p.n, p.out_dtype, p.out_order, _order, lead)
    args = (
        examples.matrix(p.m, p.k, p.a_dtype, p.a_order, _order, lead),
        examples.matrix(p.k, p.n, p.b_dtype, p.b_order, _order, lead),
    )
    return "gemm", args, {**made, "activation": examples.fused(p.activation.kind), "out_dtype": p.out_dtype}


class Posed(NamedTuple):
    """A checked call: the problem and the arrays as kernels take them."""

    problem: GemmProblem
    shape: tuple[int, ...]
    a: ndarray
    b: ndarray
    c: ndarray | None
    bias: ndarray | None
    out: ndarray | None
    origin: arrays.Library


def inputs_of(a: ndarray, b: ndarray, c: ndarray | None, bias: ndarray | None) -> list[tuple[ndarray, str, bool]]:
    """The inputs that out must not share memory with; it may be exactly c."""
    inputs = [(a, "a", False), (b, "b", False)]
    if c is not None:
        inputs.append((c, "c", True))
    if bias is not None:
        inputs.append((bias, "bias", False))
    return inputs


def scalar(value: Any, name: str) -> float:
    if isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; it must be a real number")
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


def pose(
    a: Any, b: Any, c: Any, alpha: float, beta: float, trans_a: bool, trans_b: bool, bias: Any, activation: Any,
    out: Any, out_dtype: Any,
) -> Posed:  # fmt: skip
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
    c_view = enter_c(c, beta, shape, result_dtype, library)
    bias_view, bias_axis = _enter_bias(bias, m, n, "i32" if integer else a_dtype, library)
    out_view = None
    if out is not None:
        out_view = arrays.check_out(out, shape, result_dtype, library=library)
        arrays.check_overlap(out_view, inputs_of(a, b, c_view, bias_view))
    problem = _problem(
        a, b, c_view, bias_view, bias_axis, out_view, shape, a_dtype, b_dtype, result_dtype, act, alpha != 1.0
    )
    return Posed(problem, shape, a, b, c_view, bias_view, out_view, library)


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


def enter_c(c: Any, beta: float, shape: tuple[int, ...], dtype: str, library: arrays.Library) -> ndarray | None:
    """What beta multiplies, in the shape of the result; None where beta is 0."""
    if beta == 0.0:
        return None  # as in BLAS: with beta 0, c is not read, and NaN in it does not spread
    if c is None:
        raise ValueError(f"beta is {beta} and c is not given; pass c, or leave beta 0")
    view, c_dtype, c_library = arrays.enter(c, "c")
    if c_library is not library or c_dtype != dtype:
        raise TypeError(f"c is a {arrays.describe(c)}; it must be a {arrays.LONG_NAMES[dtype]} {library.name} array")
    if view.shape == shape:
        return view  # broadcast_to would change the strides of dimensions of one element, and c=out must be known again
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
