"""Products of matrices and vectors with gradients, which are such products again: any order of derivative works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numbaprims
from numbaprims.frontends.torch.recording import autocast, differentiable, recorded, refuse_out, scaled, sum_to, written
from numbaprims.frontends.torch.rules import multilinear


def _towards_a(g: Any, b: Any, *, shape: Any, alpha: float, trans_a: bool, trans_b: bool, **others: Any) -> Any:
    if trans_a:
        return sum_to(gemm(b, g, trans_a=trans_b, trans_b=True, alpha=alpha), shape)
    return sum_to(gemm(g, b, trans_b=not trans_b, alpha=alpha), shape)


def _towards_b(g: Any, a: Any, *, shape: Any, alpha: float, trans_a: bool, trans_b: bool, **others: Any) -> Any:
    if len(shape) == 2 and g.ndim > 2 and not trans_a:
        # one b for many products: their rows below one another, and no sum over products afterwards
        g, a = g.reshape(-1, g.shape[-1]), a.reshape(-1, a.shape[-1])
    if trans_b:
        return sum_to(gemm(g, a, trans_a=True, trans_b=trans_a, alpha=alpha), shape)
    return sum_to(gemm(a, g, trans_a=not trans_a, alpha=alpha), shape)


gemm = multilinear(
    "gemm", "a b bias c", a=("b", _towards_a), b=("a", _towards_b),
    bias=("", lambda g, *, shape, **others: sum_to(g, shape)),
    c=("", lambda g, *, shape, beta, **others: sum_to(g, shape, beta)),
)  # fmt: skip
gemv: Callable[..., Any] = multilinear(
    "gemv", "a x y",
    a=("x", lambda g, x, *, alpha, trans, **others: ger(*((x, g) if trans else (g, x)), alpha=alpha)),
    x=("a", lambda g, a, *, alpha, trans, **others: gemv(a, g, trans=not trans, alpha=alpha)),
    y=("", lambda g, *, beta, **others: scaled(g, beta)),
)  # fmt: skip
ger: Callable[..., Any] = multilinear(
    "ger", "x y a",
    x=("y", lambda g, y, *, alpha, **others: gemv(g, y, alpha=alpha)),
    y=("x", lambda g, x, *, alpha, **others: gemv(g, x, trans=True, alpha=alpha)),
    a=("", lambda g, **others: g),
)  # fmt: skip


@differentiable(numbaprims.linear)
def linear(x: Any, weight: Any, bias: Any = None, *, activation: Any = None, out: Any = None) -> Any:
    if not recorded(x, weight, bias):
        x, weight, bias = autocast(x, weight, bias)
        return written(numbaprims.linear(x, weight, bias, activation=activation, out=out), out)
    refuse_out(out)
    if x.ndim == 1:
        return gemm(x[None, :], weight, trans_b=True, bias=bias, activation=activation)[0]
    return gemm(x, weight, trans_b=True, bias=bias, activation=activation)
