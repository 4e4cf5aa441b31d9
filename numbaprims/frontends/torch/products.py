"""Products of matrices and vectors with gradients, which are such products again: any order of derivative works."""

from __future__ import annotations

from typing import Any, NamedTuple

import numbaprims
from numbaprims.frontends.torch import activations
from numbaprims.frontends.torch.recording import (
    Recorded,
    autocast,
    differentiable,
    of_dtype,
    reads,
    recorded,
    refuse_out,
    scaled,
    split_activation,
    sum_to,
    written,
)


class _Gemm(NamedTuple):
    """The arguments of a gemm that are no tensors."""

    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    activation: tuple[str, dict[str, Any]] | None
    out_dtype: Any


class GemmFunction(Recorded):
    """activation(alpha op(a) op(b) + beta c + bias), for activations whose gradient reads the result."""

    @staticmethod
    def forward(a: Any, b: Any, c: Any, bias: Any, how: _Gemm) -> Any:
        return numbaprims.gemm(a, b, c=c, bias=bias, **how._asdict())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, c, bias, how = inputs
        need_a, need_b = ctx.needs_input_grad[:2]
        ctx.how, ctx.dtype = how, a.dtype
        ctx.shapes = [None if x is None else x.shape for x in (a, b, c, bias)]
        y = output if how.activation is not None and reads(how.activation[0]) == "y" else None
        ctx.save_for_backward(a if need_b else None, b if need_a else None, y)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        how: _Gemm = ctx.how
        a, b, y = ctx.saved_tensors
        need_a, need_b, need_c, need_bias, _ = ctx.needs_input_grad
        a_shape, b_shape, c_shape, bias_shape = ctx.shapes
        dz = dy if how.activation is None else activations.gradient(dy, y, *how.activation)
        dc = sum_to(dz, c_shape, how.beta) if need_c else None
        dz = of_dtype(dz, ctx.dtype)
        da = sum_to(_towards_a(dz, b, how), a_shape) if need_a else None
        db = sum_to(_towards_b(dz, a, how, len(b_shape)), b_shape) if need_b else None
        dbias = sum_to(dz, bias_shape) if need_bias else None
        return da, db, dc, dbias, None


def _towards_a(dz: Any, b: Any, how: _Gemm) -> Any:
    if how.trans_a:
        return gemm(b, dz, trans_a=how.trans_b, trans_b=True, alpha=how.alpha)
    return gemm(dz, b, trans_b=not how.trans_b, alpha=how.alpha)


def _towards_b(dz: Any, a: Any, how: _Gemm, b_rank: int) -> Any:
    trans_a = how.trans_a
    if b_rank == 2 and dz.ndim > 2 and not trans_a:
        # one b for many products: their rows below one another, and no sum over products afterwards
        dz, a = dz.reshape(-1, dz.shape[-1]), a.reshape(-1, a.shape[-1])
    if how.trans_b:
        return gemm(dz, a, trans_a=True, trans_b=trans_a, alpha=how.alpha)
    return gemm(a, dz, trans_a=not trans_a, alpha=how.alpha)


@differentiable(numbaprims.gemm)
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
    if beta == 0.0:
        c = None
    a, b, bias = autocast(a, b, bias)
    if c is not None and out_dtype is None:
        (c,) = autocast(c)
    how = _Gemm(float(alpha), float(beta), bool(trans_a), bool(trans_b), activation, out_dtype)
    if not recorded(a, b, c, bias):
        return written(numbaprims.gemm(a, b, c=c, bias=bias, out=out, **how._asdict()), out)
    refuse_out(out)
    act = split_activation(activation)
    if act is not None and reads(act[0]) == "x":
        # its gradient reads the sums, which the fused product does not keep
        return activations.activation(
            GemmFunction.apply(a, b, c, bias, how._replace(activation=None)), act[0], **act[1]
        )
    return GemmFunction.apply(a, b, c, bias, how._replace(activation=act))


@differentiable(numbaprims.linear)
def linear(x: Any, weight: Any, bias: Any = None, *, activation: Any = None, out: Any = None) -> Any:
    if not recorded(x, weight, bias):
        x, weight, bias = autocast(x, weight, bias)
        return written(numbaprims.linear(x, weight, bias, activation=activation, out=out), out)
    refuse_out(out)
    if x.ndim == 1:
        return gemm(x[None, :], weight, trans_b=True, bias=bias, activation=activation)[0]
    return gemm(x, weight, trans_b=True, bias=bias, activation=activation)


# ---------------------------------------------------------------- with vectors


class GemvFunction(Recorded):
    """alpha op(a) x + beta y."""

    @staticmethod
    def forward(a: Any, x: Any, y: Any, alpha: float, beta: float, trans: bool) -> Any:
        return numbaprims.gemv(a, x, y=y, alpha=alpha, beta=beta, trans=trans)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, x, _, *ctx.how = inputs
        need_a, need_x = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if need_x else None, x if need_a else None)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        alpha, beta, trans = ctx.how
        a, x = ctx.saved_tensors
        need_a, need_x, need_y = ctx.needs_input_grad[:3]
        da = (ger(x, dy, alpha=alpha) if trans else ger(dy, x, alpha=alpha)) if need_a else None
        dx = gemv(a, dy, trans=not trans, alpha=alpha) if need_x else None
        return da, dx, scaled(dy, beta) if need_y else None, None, None, None


@differentiable(numbaprims.gemv)
def gemv(
    a: Any, x: Any, *, y: Any = None, alpha: float = 1.0, beta: float = 0.0, trans: bool = False, out: Any = None
) -> Any:
    if beta == 0.0:
        y = None
    a, x, y = autocast(a, x, y)
    alpha, beta = float(alpha), float(beta)
    if not recorded(a, x, y):
        return written(numbaprims.gemv(a, x, y=y, alpha=alpha, beta=beta, trans=trans, out=out), out)
    refuse_out(out)
    return GemvFunction.apply(a, x, y, alpha, beta, bool(trans))


class GerFunction(Recorded):
    """alpha x y^T + a."""

    @staticmethod
    def forward(x: Any, y: Any, a: Any, alpha: float) -> Any:
        return numbaprims.ger(x, y, a=a, alpha=alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, y, _, ctx.alpha = inputs
        need_x, need_y = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if need_y else None, y if need_x else None)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, y = ctx.saved_tensors
        need_x, need_y, need_a, _ = ctx.needs_input_grad
        return (
            gemv(dy, y, alpha=ctx.alpha) if need_x else None,
            gemv(dy, x, trans=True, alpha=ctx.alpha) if need_y else None,
            dy if need_a else None,
            None,
        )


@differentiable(numbaprims.ger)
def ger(x: Any, y: Any, *, a: Any = None, alpha: float = 1.0, out: Any = None) -> Any:
    x, y, a = autocast(x, y, a)
    alpha = float(alpha)
    if not recorded(x, y, a):
        return written(numbaprims.ger(x, y, a=a, alpha=alpha, out=out), out)
    refuse_out(out)
    return GerFunction.apply(x, y, a, alpha)
