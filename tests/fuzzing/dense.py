"""Draws of gemm, linear, gemv, ger and the activations."""

from typing import Any

import numpy as np
from helpers import assert_close
from test_activation import PARAMETERS, check_backward, check_forward

import numbaprims
from fuzzing.calls import Call, Draw, exactly
from numbaprims.ops.activation_kinds import ALIASES, KINDS
from numbaprims.reference import (
    activation as activation_reference,
    gemm as gemm_reference,
    gemv as gemv_reference,
    ger as ger_reference,
)

INTEGERS = ("i8", "u8")


def _scalars(draw: Draw, dtype: str) -> tuple[float, float]:
    """alpha and beta that keep sums exact."""
    if dtype in INTEGERS:
        return 1.0, float(draw.one((0, 0, 1)))
    return float(draw.one((1, 1, 2, -1, 0))), float(draw.one((0, 0, 1, 2)))


def gemm(draw: Draw) -> Call:
    """Products, batches of them, linear, and their plans."""
    if draw.chance(4):
        return _linear(draw)
    dtype = draw.dtype("i8")
    dtype_b = dtype if dtype != "i8" else str(draw.one(INTEGERS)) if draw.chance(4) else "i8"
    dtype_b = "i8" if dtype == "i8" else dtype_b
    stored = "i32" if dtype in INTEGERS else dtype
    m, n, k = (draw.size(dtype) for _ in range(3))
    trans_a, trans_b = draw.chance(3), draw.chance(3)
    batch: tuple[int, ...] = ()
    lead_a: tuple[int, ...] = ()
    lead_b: tuple[int, ...] = ()
    if draw.chance(4):
        batch = tuple(draw.one((0, 1, 2, 3)) for _ in range(draw.one((1, 2))))
        lead_a = tuple(draw.one((size, 1)) for size in batch)
        lead_b = tuple(b if a == 1 else draw.one((b, 1)) for a, b in zip(lead_a, batch, strict=True))
    a = draw.operand(draw.integers((*lead_a, *((k, m) if trans_a else (m, k))), dtype, k), dtype)
    b = draw.operand(draw.integers((*lead_b, *((n, k) if trans_b else (k, n))), dtype_b, k), dtype_b)
    alpha, beta = _scalars(draw, dtype)
    kwargs: dict[str, Any] = {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b}
    out = draw.result((*batch, m, n), stored)
    in_place = ""
    c = bias = None
    if beta:
        c = draw.operand(draw.integers((*batch, m, n), stored, 4), stored)
        if draw.chance(3):
            out, in_place = out._replace(storage=_filled(out.storage, c.storage)), "c"
        else:
            kwargs["c"] = c
    if draw.chance(3):
        shape = draw.one(((n,), (m, 1)))
        bias = kwargs["bias"] = draw.operand(draw.integers(shape, stored, 4), stored)
    activation = kwargs["activation"] = draw.one((None, None, "relu"))
    expected = gemm_reference.gemm(
        a.values, b.values, c=None if c is None else c.values, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b,
        bias=None if bias is None else bias.values, activation=activation,
    )  # fmt: skip
    plan = None
    if not (trans_a or beta or lead_b) and b.layout != "unaligned":
        plan = _gemm_plan
    return Call("gemm", "gemm", (a, b), kwargs, out, exactly(expected, stored), plan, in_place)


def _gemm_plan(args: Any, kwargs: Any) -> Any:
    taken = {name: value for name, value in kwargs.items() if name in ("trans_b", "alpha", "bias", "activation")}
    return numbaprims.gemm.plan(args[1], **taken), args[:1]


def _filled(storage: np.ndarray, values: np.ndarray) -> np.ndarray:
    storage[...] = values
    return storage


def _linear(draw: Draw) -> Call:
    dtype = draw.dtype()
    lead = tuple(draw.one((0, 1, 2, 3, 5)) for _ in range(draw.one((1, 1, 0, 2))))
    n, k = draw.size(dtype), draw.size(dtype)
    x = draw.operand(draw.integers((*lead, k), dtype, k), dtype)
    weight = draw.operand(draw.integers((n, k), dtype, k), dtype)
    bias = draw.operand(draw.integers((n,), dtype, 4), dtype) if draw.chance(2) else None
    activation = draw.one((None, "relu"))
    expected = gemm_reference.gemm(
        x.values.reshape(int(np.prod(lead)), k), weight.values, trans_b=True, activation=activation,
        bias=None if bias is None else bias.values,
    ).reshape(*lead, n)  # fmt: skip
    kwargs = {"bias": bias, "activation": activation}
    return Call("gemm", "linear", (x, weight), kwargs, draw.result((*lead, n), dtype), exactly(expected, dtype))


def gemv(draw: Draw) -> Call:
    dtype = draw.dtype()
    m, n, trans = draw.size(dtype), draw.size(dtype), draw.chance(2)
    if draw.chance(6):
        n *= 40  # several chunks of a row
    alpha, beta = _scalars(draw, dtype)
    a = draw.operand(draw.integers((n, m) if trans else (m, n), dtype, n), dtype)
    x = draw.operand(draw.integers((n,), dtype, n), dtype)
    y = draw.operand(draw.integers((m,), dtype, 4), dtype) if beta or draw.chance(3) else None
    out = draw.result((m,), dtype)
    kwargs: dict[str, Any] = {"alpha": alpha, "beta": beta, "trans": trans, "y": y}
    in_place = ""
    if y is not None and draw.chance(3):
        out, in_place = out._replace(storage=_filled(out.storage, y.storage)), "y"
        del kwargs["y"]
    expected = gemv_reference.gemv(
        a.values, x.values, y=None if y is None else y.values, alpha=alpha, beta=beta, trans=trans
    )
    return Call("gemv", "gemv", (a, x), kwargs, out, exactly(expected, dtype), None, in_place)


def ger(draw: Draw) -> Call:
    dtype = draw.dtype()
    m, n = draw.size(dtype), draw.size(dtype)
    x, y = (draw.operand(draw.integers((size,), dtype, 4), dtype) for size in (m, n))
    a = draw.operand(draw.integers((m, n), dtype, 4), dtype) if draw.chance(2) else None
    out = draw.result((m, n), dtype)
    alpha = float(draw.one((1, -1, 2)))
    kwargs: dict[str, Any] = {"alpha": alpha, "a": a}
    in_place = ""
    if a is not None and draw.chance(2):
        out, in_place = out._replace(storage=_filled(out.storage, a.storage)), "a"
        del kwargs["a"]
    expected = ger_reference.ger(x.values, y.values, a=None if a is None else a.values, alpha=alpha)
    return Call("ger", "ger", (x, y), kwargs, out, exactly(expected, dtype), None, in_place)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 60.0, -60.0, 3.0, -3.0, 1e-30])


def _real(draw: Draw, shape: tuple[int, ...]) -> np.ndarray:
    values = 3 * draw.rng.standard_normal(shape)
    if draw.chance(2) and values.size:
        at = draw.rng.integers(values.size, size=1 + values.size // 8)
        values.ravel()[at] = draw.rng.choice(SPECIAL, at.size)
    return values


def activation(draw: Draw) -> Call:
    """Every kind, forward and backward."""
    kind = str(draw.one([*KINDS, *ALIASES]))
    name = ALIASES.get(kind, (kind, {}))[0]
    dtype = draw.dtype()
    shape = tuple(draw.one((0, 1, 2, 3, 5)) for _ in range(draw.one((0, 0, 1, 2, 3))))
    if draw.chance(12):
        shape = ()
    else:
        shape += (draw.size(dtype) * int(draw.one((1, 1, 4, 9))),)
    parameters = dict(draw.one(PARAMETERS.get(kind, [{}])))
    backward = draw.chance(2)
    if name == "glu":
        return _glu(draw, dtype, shape or (2,), backward)
    if name == "prelu":
        return _prelu(draw, dtype, shape, backward)
    x = draw.operand(_real(draw, shape), dtype)
    suffix = "_backward" if backward else ""
    out = draw.result(shape, dtype)
    if not backward:

        def check(solver: str, storage: np.ndarray) -> None:
            with np.errstate(all="ignore"):
                check_forward(storage, x.values, dtype, name, _full(kind, parameters))

        return Call("activation", kind, (x,), parameters, out, check)
    dy = draw.operand(draw.rng.standard_normal(shape), dtype)
    with np.errstate(all="ignore"):
        y = activation_reference.activation(x.values, name, **_full(kind, parameters))
        saved = draw.operand(y, dtype)
        if saved.layout == "broadcast":
            saved = saved._replace(storage=saved.storage.copy())
            x = x._replace(storage=np.broadcast_to(x.storage[:1], shape)) if shape and shape[0] else x

    def check_gradient(solver: str, storage: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            check_backward(storage, dy.values, x.values, saved.values, dtype, name, _full(kind, parameters))

    read = {"x": x, "y": saved, "": None}[KINDS[name].reads]
    args = (dy,) if read is None else (dy, read)
    return Call("activation", kind + suffix, args, parameters, out, check_gradient)


def _full(kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {**ALIASES[kind][1], **parameters} if kind in ALIASES else parameters


def _glu(draw: Draw, dtype: str, shape: tuple[int, ...], backward: bool) -> Call:
    axis = int(draw.rng.integers(len(shape)))
    half = shape
    shape = tuple(2 * size if at == axis else size for at, size in enumerate(shape))
    x = draw.operand(3 * draw.rng.standard_normal(shape), dtype)
    kwargs = {"axis": axis - len(shape) if draw.chance(2) else axis}
    if not backward:
        return Call(
            "activation", "glu", (x,), kwargs, draw.result(half, dtype),
            lambda solver, storage: check_forward(storage, x.values, dtype, "glu", kwargs),
        )  # fmt: skip
    dy = draw.operand(draw.rng.standard_normal(half), dtype)

    def check(solver: str, storage: np.ndarray) -> None:
        if not storage.size:
            return
        twice = np.concatenate([dy.values, dy.values], axis)
        want = activation_reference.activation_backward(dy.values, x.values, "glu", **kwargs)
        assert_close(storage, want, k=40, dtype=dtype, max_abs=np.abs(twice) * (1 + np.abs(x.values)) + 1, vacuous=True)

    return Call("activation", "glu_backward", (dy, x), kwargs, draw.result(shape, dtype), check)


def _prelu(draw: Draw, dtype: str, shape: tuple[int, ...], backward: bool) -> Call:
    channels = shape[1] if len(shape) > 1 and draw.chance(2) else 1
    x = draw.operand(draw.integers(shape, dtype, 8), dtype)
    weight = draw.operand(draw.integers((channels,), dtype, 2**12), dtype)
    out = draw.result(shape, dtype)
    if not backward:
        expected = activation_reference.activation(x.values, "prelu", weight=weight.values)
        return Call("activation", "prelu", (x, weight), {}, out, exactly(expected, dtype))
    dy = draw.operand(draw.integers(shape, dtype, 2**12), dtype)
    dx, dweight = activation_reference.activation_backward(dy.values, x.values, "prelu", weight=weight.values)

    def more(result: Any) -> None:
        assert_close(result[1], dweight, k=1, max_abs=np.abs(dweight).max(initial=1.0), vacuous=True)

    return Call("activation", "prelu_backward", (dy, x, weight), {}, out, exactly(dx, dtype), more=more)
