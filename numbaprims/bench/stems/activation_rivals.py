"""How other libraries compute each activation fastest into an output that exists already."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numbaprims.bench import rivals
from numbaprims.bench.operands import Operand

Call = Callable[[], Any]
#: Kinds that torch and NumPy have under the same name.
_SAME_NAME = (
    "exp2", "expm1", "log1p", "erf", "reciprocal", "rsqrt", "sign", "floor", "ceil", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "log2", "log10", "erfc", "neg", "abs", "exp", "log",
    "sqrt", "square", "tanh", "sigmoid", "round",
)  # fmt: skip
#: NumPy's ufuncs.
_UFUNCS = {
    **{kind: kind for kind in _SAME_NAME if kind not in ("erf", "erfc", "rsqrt", "sigmoid")},
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "neg": "negative",
    "round": "rint",
}

# Expressions of numexpr. Constants are variables of the array's dtype: literals would make it use float64.
NUMEXPR = {
    "identity": "x",
    "relu": "where(x > zero, x, zero)",
    "leaky_relu": "where(x > zero, x, slope*x)",
    "clipped_relu": "where(x > zero, where(x < alpha, x, alpha), zero)",
    "elu": "where(x > zero, x, alpha*expm1(x))",
    "selu": "selu_scale*where(x > zero, x, selu_alpha*expm1(x))",
    "celu": "where(x > zero, x, alpha*expm1(x/alpha))",
    "sigmoid": "one/(one + exp(-x))",
    "tanh": "tanh(x)",
    "softplus": "log1p(exp(x))",
    "softsign": "x/(one + abs(x))",
    "abs": "abs(x)",
    "power": "(alpha + beta*x)**2",
    "silu": "x/(one + exp(-x))",
    "mish": "x*tanh(log1p(exp(x)))",
    "hard_tanh": "where(x > min_val, where(x < max_val, x, max_val), min_val)",
    "clip": "where(x > low, where(x < high, x, high), low)",
    "exp": "exp(x)",
    "log": "log(x)",
    "sqrt": "sqrt(x)",
    "square": "x*x",
    "threshold": "where(x > threshold, x, value)",
}


def chain(*calls: Call) -> Call:
    """One call after another."""

    def run() -> None:
        for call in calls:
            call()

    return run


def numexpr_call(kind: str, x: np.ndarray, y: np.ndarray, parameters: dict[str, Any]) -> Call | None:
    """The compiled expression, without the parsing at every call; None where numexpr has no such function."""
    numexpr = rivals.load_rival("numexpr")
    if numexpr is None or kind not in NUMEXPR:
        return None
    from numbaprims.ops.activation_kinds import KINDS, SELU_ALPHA, SELU_SCALE

    constants: dict[str, Any] = {
        "zero": 0,
        "one": 1,
        "slope": 0.01,
        "selu_alpha": SELU_ALPHA,
        "selu_scale": SELU_SCALE,
    }
    constants |= {**KINDS[kind].parameters, **parameters}
    constants |= {"low": parameters.get("min"), "high": parameters.get("max")}  # min is a function of numexpr
    values = {name: x.dtype.type(value) for name, value in constants.items() if isinstance(value, (int, float))}
    values["x"] = x
    error = numexpr.validate(NUMEXPR[kind], values, {}, out=y, casting="same_kind")
    if error is not None:
        return None
    return lambda: numexpr.re_evaluate(values)


def numpy_call(kind: str, x: np.ndarray, y: np.ndarray, parameters: dict[str, Any]) -> Call | None:
    """NumPy's ufuncs, in place where there are several; None for kinds that it has no exp-like part for."""

    def steps(*calls: tuple[Any, ...]) -> Call:
        return chain(*(partial(ufunc, *operands, out=y) for ufunc, *operands in calls))

    zero, one = x.dtype.type(0), x.dtype.type(1)
    table: dict[str, Callable[[], Call]] = {
        "identity": lambda: lambda: np.copyto(y, x),
        "relu": lambda: lambda: np.maximum(x, zero, out=y),
        "clip": lambda: lambda: np.clip(x, parameters["min"], parameters["max"], out=y),
        "clipped_relu": lambda: lambda: np.clip(x, zero, x.dtype.type(6), out=y),
        "hard_tanh": lambda: lambda: np.clip(x, -one, one, out=y),
        "sigmoid": lambda: steps((np.negative, x), (np.exp, y), (np.add, y, one), (np.reciprocal, y)),
        "silu": lambda: steps((np.negative, x), (np.exp, y), (np.add, y, one), (np.divide, x, y)),
        "softplus": lambda: steps((np.exp, x), (np.log1p, y)),
        "softsign": lambda: steps((np.abs, x), (np.add, y, one), (np.divide, x, y)),
        "mish": lambda: steps((np.exp, x), (np.log1p, y), (np.tanh, y), (np.multiply, y, x)),
    }
    if kind in _UFUNCS:
        return partial(getattr(np, _UFUNCS[kind]), x, out=y)
    return table[kind]() if kind in table else None


def torch_call(kind: str, x: Operand, y: Operand, parameters: dict[str, Any]) -> Call | None:
    """torch's kernel through its `out=` form; the functions of torch._C._nn are those of nn.functional."""
    torch = rivals.load_rival("torch")
    if torch is None or x.dtype == "i8":
        return None
    t, out, nn = x.torch, y.torch, torch._C._nn

    p, approximate = parameters, parameters.get("approximate", "none")
    table: dict[str, Call] = {
        "identity": lambda: out.copy_(t),
        "relu": lambda: torch.clamp_min(t, 0, out=out),
        "leaky_relu": lambda: nn.leaky_relu(t, 0.01, out=out),
        "clipped_relu": lambda: nn.hardtanh(t, 0.0, 6.0, out=out),
        "elu": lambda: nn.elu(t, 1.0, out=out),
        "selu": lambda: nn.elu(t, 1.6732632423543772, 1.0507009873554805, out=out),
        "celu": lambda: nn.elu(t, 1.0, out=out),
        "softplus": lambda: nn.softplus(t, 1.0, 20.0, out=out),
        "softsign": chain(lambda: torch.abs(t, out=out), lambda: out.add_(1), lambda: torch.div(t, out, out=out)),
        "power": chain(
            lambda: torch.mul(t, p["beta"], out=out),
            lambda: out.add_(p["alpha"]),
            lambda: out.pow_(p["gamma"]),
        ),
        "gelu": lambda: nn.gelu(t, approximate=approximate, out=out),
        "silu": lambda: nn.silu(t, out=out),
        "mish": lambda: nn.mish(t, out=out),
        "hard_sigmoid": lambda: nn.hardsigmoid(t, out=out),
        "hard_swish": lambda: nn.hardswish(t, out=out),
        "hard_tanh": lambda: nn.hardtanh(t, -1.0, 1.0, out=out),
        "clip": lambda: torch.clamp(t, p["min"], p["max"], out=out),
        # its Python binding has no `out=`
        "threshold": partial(torch.ops.aten.threshold.out, t, p.get("threshold"), p.get("value"), out=out),
        "prelu": lambda: nn.leaky_relu(t, 0.25, out=out),
        "glu": lambda: nn.glu(t, -1, out=out),
        "log_sigmoid": lambda: torch.ops.aten.log_sigmoid.out(t, out=out),
        "shrink": lambda: torch.ops.aten.hardshrink.out(t, 0.5, out=out),
        "tanh_shrink": lambda: torch.sub(t, torch.tanh(t, out=out), out=out),
        "soft_shrink": lambda: nn.softshrink(t, 0.5, out=out),
        **{kind: partial(getattr(torch, kind), t, out=out) for kind in _SAME_NAME},
    }
    return table.get(kind)


def torch_backward(
    kind: str, dy: Operand, x: Operand, y: Operand, dx: Operand, parameters: dict[str, Any]
) -> Call | None:
    """torch's own gradient kernels, the ones that autograd runs, writing into a given gradient."""
    torch = rivals.load_rival("torch")
    if torch is None:
        return None
    aten, g, t, r, out = torch.ops.aten, dy.torch, x.torch, y.torch, dx.torch
    approximate = parameters.get("approximate", "none")
    table: dict[str, Call] = {
        "relu": lambda: aten.threshold_backward.grad_input(g, r, 0, grad_input=out),
        "leaky_relu": lambda: aten.leaky_relu_backward.grad_input(g, t, 0.01, False, grad_input=out),
        "clipped_relu": lambda: aten.hardtanh_backward.grad_input(g, t, 0.0, 6.0, grad_input=out),
        "elu": lambda: aten.elu_backward.grad_input(g, 1, 1, 1, False, t, grad_input=out),
        "selu": lambda: aten.elu_backward.grad_input(
            g, 1.6732632423543772, 1.0507009873554805, 1, False, t, grad_input=out
        ),
        "celu": lambda: aten.elu_backward.grad_input(g, 1, 1, 1, False, t, grad_input=out),
        "sigmoid": lambda: aten.sigmoid_backward.grad_input(g, r, grad_input=out),
        "tanh": lambda: aten.tanh_backward.grad_input(g, r, grad_input=out),
        "softplus": lambda: aten.softplus_backward.grad_input(g, t, 1, 20, grad_input=out),
        "gelu": lambda: aten.gelu_backward.grad_input(g, t, approximate=approximate, grad_input=out),
        "silu": lambda: aten.silu_backward.grad_input(g, t, grad_input=out),
        "glu": lambda: aten.glu_backward.grad_input(g, t, -1, grad_input=out),
        "hard_sigmoid": lambda: aten.hardsigmoid_backward.grad_input(g, t, grad_input=out),
        "hard_swish": lambda: aten.hardswish_backward.out(g, t, out=out),
        "hard_tanh": lambda: aten.hardtanh_backward.grad_input(g, t, -1.0, 1.0, grad_input=out),
        "exp": lambda: torch.mul(g, r, out=out),
        "log": lambda: torch.div(g, t, out=out),
        "threshold": lambda: aten.threshold_backward.grad_input(g, t, parameters["threshold"], grad_input=out),
    }
    return table.get(kind)
