"""Draws of the primitives that are formulas: softmax and its kin, batch normalisation, pooling."""

from typing import Any

import numpy as np
from helpers import assert_close

import numbaprims
from fuzzing.calls import Call, Draw, Operand


def _call(draw: Draw, stem: str, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], k: int) -> Call:
    """The call, its first result and what checks that, by the definition of the drawn values."""

    def wide(x: Any) -> Any:
        return x.values.astype(np.float64) if isinstance(x, Operand) and x.dtype != "i64" else getattr(x, "storage", x)

    with numbaprims.config(device="reference"):
        found = getattr(numbaprims, function)(*map(wide, args), **{name: wide(x) for name, x in kwargs.items()})
    first = next(x for x in args if isinstance(x, Operand))
    expected = found[0] if isinstance(found, tuple) else found
    largest = max((float(np.abs(wide(x)).max(initial=0)) for x in args if isinstance(x, Operand)), default=0.0)
    scale = max(float(np.abs(expected).max(initial=0)), largest)

    def check(solver: str, storage: np.ndarray) -> None:
        assert_close(storage, expected, k=k, dtype=first.dtype, max_abs=scale, vacuous=True)

    return Call(stem, function, args, kwargs, draw.result(expected.shape, first.dtype), check)


def _real(draw: Draw, shape: tuple[int, ...], dtype: str) -> Operand:
    return draw.operand(draw.rng.standard_normal(shape), dtype)


def _shape(draw: Draw, dtype: str, axis: int, ndim: int) -> tuple[int, ...]:
    """One dimension around a vector, or long; the others are few, or around a vector too."""
    shape = [int(draw.one((1, 2, 3, 5))) for _ in range(ndim)]
    shape[axis] = draw.size(dtype, 1) * (40 if draw.chance(8) else 1)
    other = int(draw.rng.integers(ndim))
    if other != axis and draw.chance(2):
        shape[other] = draw.size(dtype, 1)
    return tuple(shape)


def softmax(draw: Draw) -> Call:
    dtype, ndim = draw.dtype(), int(draw.one((1, 2, 2, 3, 4)))
    axis = int(draw.rng.integers(ndim))
    function = str(
        draw.one(("softmax", "log_softmax", "softmax_backward", "log_softmax_backward", "nll_loss_backward"))
    )
    if function == "nll_loss_backward":
        shape = _shape(draw, dtype, 1, max(2, ndim))
        rows = (shape[0], *shape[2:])
        classes = draw.rng.integers(0, shape[1], rows)
        args = (_real(draw, rows, dtype), _real(draw, shape, dtype), Operand(classes, "i64", "C"))
        return _call(draw, "softmax", function, args, {"reduction": "none"}, 4)
    shape = _shape(draw, dtype, axis, ndim)
    arrays = 2 if function.endswith("backward") else 1
    args = tuple(_real(draw, shape, dtype) for _ in range(arrays))
    return _call(draw, "softmax", function, args, {"axis": axis - ndim if draw.chance(2) else axis}, 16 + shape[axis])


def batch_norm(draw: Draw) -> Call:
    dtype, ndim = draw.dtype(), int(draw.one((2, 3, 4, 5)))
    function = str(draw.one(("batch_norm", "batch_norm_train", "batch_norm_backward")))
    mode, layout = str(draw.one(("spatial", "spatial", "per_activation"))), str(draw.one(("NCHW", "NHWC")))
    if function == "batch_norm":  # of one launch
        mode, layout, ndim = "spatial", "NCHW", max(3, ndim)
    shape = _shape(draw, dtype, int(draw.rng.integers(ndim)), ndim)
    of = (1, *shape[1:]) if mode == "per_activation" else (shape[-1 if layout == "NHWC" else 1],)
    x = _real(draw, shape, dtype)
    parameters = [draw.operand(draw.rng.random(of) + 0.5, dtype) for _ in range(4)]
    words = {"mode": mode, "layout": layout, "eps": 0.25}
    k = 64 + 4 * int(np.prod(shape))
    if function == "batch_norm_backward":
        del words["eps"]
        count = 3
        if draw.chance(2):
            words["activation"], count = str(draw.one(("sigmoid", "gelu", "softplus", "silu"))), 4
        return _call(draw, "batch_norm", function, (_real(draw, shape, dtype), x, *parameters[:count]), words, k)
    given = parameters if function == "batch_norm" or draw.chance(2) else parameters[:2]
    return _call(draw, "batch_norm", function, (x, *given), words, k)


def pooling(draw: Draw) -> Call:
    dtype, rank = draw.dtype(), int(draw.one((1, 2, 2, 2, 3)))
    op, layout = str(draw.one(("max", "avg", "lp"))), str(draw.one(("NCHW", "NHWC")))
    size = [int(draw.rng.integers(1, 9)) for _ in range(rank)]
    size[-1] = draw.size(dtype, 1) + 1
    n, c = int(draw.one((1, 2))), draw.size(dtype, 1) if layout == "NHWC" else int(draw.one((1, 2, 3)))
    shape = (n, *size, c) if layout == "NHWC" else (n, c, *size)
    kernel = tuple(int(draw.rng.integers(1, min(length, 5) + 1)) for length in size)
    words: dict[str, Any] = {
        "stride": tuple(int(draw.rng.integers(1, 4)) for _ in size), "layout": layout,
        "padding": tuple(int(draw.rng.integers(0, k // 2 + 1)) for k in kernel), "ceil_mode": draw.chance(3),
    }  # fmt: skip
    if op == "avg":
        words["count_include_pad"] = draw.chance(2)
    x = _real(draw, shape, dtype)
    if draw.chance(2):
        return _call(draw, "pooling", f"{op}_pool", (x, kernel), words, 64)
    with numbaprims.config(device="reference"):
        y = getattr(numbaprims, f"{op}_pool")(x.values, kernel, **words)
    dy = _real(draw, y.shape, dtype)
    if op == "avg":
        return _call(draw, "pooling", "avg_pool_backward", (dy, tuple(size), kernel), words, 256)
    if op == "max":
        return _call(draw, "pooling", "max_pool_backward", (dy, x, kernel), words, 256)
    return _call(draw, "pooling", "lp_pool_backward", (dy, x, draw.operand(y, dtype), kernel), words, 1024)
