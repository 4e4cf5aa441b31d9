"""Draws of the primitives that are formulas, and of attention: their definition is run on float64."""

from typing import Any

import numpy as np
from helpers import PRECISION, assert_close

import numbaprims
from fuzzing.calls import Call, Draw, Operand


def _call(
    draw: Draw, stem: str, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], k: int,
    given: Any = lambda args, kwargs: (args, kwargs),
) -> Call:  # fmt: skip
    """The call, its first result and what checks that, by the definition of the drawn values."""

    def wide(x: Any) -> Any:
        if isinstance(x, Operand) and x.dtype in PRECISION:
            return np.asarray(x.values, np.float64)
        return getattr(x, "storage", x)

    wides, words = given(tuple(map(wide, args)), {name: wide(x) for name, x in kwargs.items()})
    with numbaprims.config(device="reference"):
        found = getattr(numbaprims, function)(*wides, **words)
    first = next(x for x in args if isinstance(x, Operand))
    expected = found[0] if isinstance(found, tuple) else found
    largest = max((float(np.abs(wide(x)).max(initial=0)) for x in args if isinstance(x, Operand)), default=0.0)
    scale = max(float(np.abs(expected).max(initial=0)), largest)

    def check(solver: str, storage: np.ndarray) -> None:
        assert_close(storage, expected, k=k, dtype=first.dtype, max_abs=scale, vacuous=True)

    return Call(stem, function, args, kwargs, draw.result(expected.shape, first.dtype), check, given=given)


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


def reduce(draw: Draw) -> Call:
    """A sum, a mean, a norm, the largest: results of x's type."""
    dtype, ndim = draw.dtype(), int(draw.one((1, 2, 2, 3, 4)))
    axis = int(draw.rng.integers(ndim))
    shape = _shape(draw, dtype, axis, ndim)
    op = str(draw.one(("sum", "mean", "max", "min", "amax", "norm1", "norm2", "logsumexp", "var", "std")))
    axes = draw.one((axis, axis - ndim, None, tuple(range(0, ndim, 2))))
    words = {"op": op, "axis": axes, "keepdims": draw.chance(2), "nan": str(draw.one(("propagate", "omit")))}
    return _call(draw, "reduce", "reduce", (_real(draw, shape, dtype),), words, 16 + int(np.prod(shape)))


def quantize(draw: Draw) -> Call:
    """To 8 bits, by one scale or one for each index of an axis: exactly what divisions in the type give."""
    dtype, ndim = draw.dtype(), int(draw.one((1, 2, 2, 3, 4)))
    axis = int(draw.rng.integers(ndim))
    shape, to = _shape(draw, dtype, axis, ndim), str(draw.one(("i8", "u8")))
    x, kind = _real(draw, shape, dtype), np.float64 if dtype == "f64" else np.float32
    low, high = (-128, 127) if to == "i8" else (0, 255)
    name, scale, own = {"i8": "int8", "u8": "uint8"}[to], 0.03, np.asarray(0.03, kind)
    words: dict[str, Any] = {"dtype": name}
    if draw.chance(2):
        given = draw.operand(draw.rng.uniform(0.01, 0.1, shape[axis]), "f32")
        own = given.values.astype(kind).reshape([-1 if at == axis else 1 for at in range(ndim)])
        scale, words = given, {"dtype": name, "axis": axis}
    expected = np.clip(np.rint(x.values.astype(kind) / own) + 7, low, high)

    def check(solver: str, storage: np.ndarray) -> None:
        np.testing.assert_array_equal(storage, expected)

    return Call("quantize", "quantize", (x, scale, 7), words, draw.result(shape, to), check)


def dropout(draw: Draw) -> Call:
    dtype, ndim = draw.dtype(), int(draw.one((1, 2, 2, 3, 4)))
    shape = _shape(draw, dtype, int(draw.rng.integers(ndim)), ndim)
    words = {"p": float(draw.one((0.0, 0.25, 0.5, 1.0))), "seed": int(draw.rng.integers(1 << 62)), "offset": 1 << 33}
    function = str(draw.one(("dropout", "dropout_backward")))
    return _call(draw, "random", function, (_real(draw, shape, dtype),), words, 4)


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


def norm(draw: Draw) -> Call:
    """A normalisation of one launch, or its gradient."""
    dtype, ndim = draw.dtype(), int(draw.one((2, 2, 3, 4)))
    kind, way = str(draw.one(("layer", "rms", "instance"))), str(draw.one(("", "_train", "_backward")))
    dims, layout = int(draw.rng.integers(1, ndim)), str(draw.one(("NCHW", "NHWC")))
    shape = _shape(draw, dtype, int(draw.rng.integers(ndim)), ndim)
    rows, words = (*shape[:-dims], *[1] * dims), {"normalized_dims": dims}
    of = shape[-dims:]
    if kind == "instance":
        channel = ndim - 1 if layout == "NHWC" else 1
        rows, of, words = (shape[0], shape[channel]), (shape[channel],), {"layout": layout}
    x, count = _real(draw, shape, dtype), 1 if kind == "rms" else 2
    parameters = [draw.operand(draw.rng.random(of) + 0.5, dtype) if draw.chance(2) else None for _ in range(count)]
    if kind == "instance" and way == "_backward":  # of one launch
        parameters[0] = None
    if draw.chance(2):
        words["activation"] = str(draw.one(("sigmoid", "gelu", "softplus", "silu")))
    k = 64 + 4 * int(np.prod(shape))
    if way != "_backward":
        return _call(draw, "norm", f"{kind}_norm{way}", (x, *parameters), {**words, "eps": 0.25}, k)
    if kind != "instance" and draw.chance(2):
        words["dsum"] = _real(draw, shape, dtype)
    if kind != "instance":
        parameters[0] = None
    saved = [draw.operand(draw.rng.random(rows) + 0.5, dtype) for _ in range(count)]
    args = (_real(draw, shape, dtype), x, parameters[0], *saved, *parameters[1:])
    return _call(draw, "norm", f"{kind}_norm_backward", args, words, k)


def pooling(draw: Draw) -> Call:
    dtype, rank = draw.dtype(), int(draw.one((1, 2, 2, 2, 3)))
    op, layout = str(draw.one(("max", "avg", "lp"))), str(draw.one(("NCHW", "NHWC")))
    size = [int(draw.rng.integers(1, 60 if draw.chance(2) else 9)) for _ in range(rank)]
    size[-1] = draw.size(dtype, 1)
    n, c = int(draw.one((1, 2))), draw.size(dtype, 1) if layout == "NHWC" else int(draw.one((1, 2, 3)))
    shape = (n, *size, c) if layout == "NHWC" else (n, c, *size)
    most = 12 if draw.chance(4) else 5
    kernel = tuple(int(draw.rng.integers(1, min(length, most) + 1)) for length in size)
    words: dict[str, Any] = {
        "stride": tuple(int(draw.rng.integers(1, 9 if draw.chance(6) else 4)) for _ in size), "layout": layout,
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


def attention(draw: Draw) -> Call:
    dtype, groups, share = draw.dtype(), int(draw.one((1, 1, 2, 3))), int(draw.one((1, 1, 2, 4)))
    rows, keys, width, values = (draw.size(dtype, 1) for _ in range(4))
    if draw.chance(3):
        keys = int(draw.rng.integers(1, 300))
    lead = (int(draw.one((1, 2))),) if draw.chance(2) else ()
    q = _real(draw, (*lead, groups * share, rows, width), dtype)
    k, v = (_real(draw, (*lead, groups, keys, n), dtype) for n in (width, values))
    words: dict[str, Any] = {"causal": draw.chance(3), "scale": 0.25}
    if draw.chance(2):
        shape = (rows if draw.chance(2) else 1, keys if draw.chance(4) else 1)
        words["mask"] = _real(draw, shape, dtype)
        if draw.chance(2):
            words["mask"] = Operand(draw.rng.random(shape) < 0.7, "bool", "C")
    function = str(draw.one(("attention", "attention_train")))
    return _call(draw, "attention", function, (q, k, v), words, 64 + 4 * (width + keys))


def rope(draw: Draw) -> Call:
    dtype, rng = draw.dtype(), draw.rng
    length, width = draw.size(dtype, 1), draw.size(dtype, 1) + 1
    lead = [(), (3,), (2, 3)][int(rng.integers(3))]
    half = int(rng.integers(1, width // 2 + 1))
    words: dict[str, Any] = {"interleaved": draw.chance(2)}
    rows = length
    if draw.chance(2):
        rows = int(rng.integers(1, 9))
        batch = lead[:-1] if draw.chance(2) else ()
        words["positions"] = rng.integers(0, rows, (*batch, length)).astype(np.int32 if draw.chance(2) else np.int64)
    cos, sin = (_real(draw, (rows, half), dtype) for _ in range(2))
    function = str(draw.one(("rope", "rope_backward")))
    return _call(draw, "rope", function, (_real(draw, (*lead, length, width), dtype), cos, sin), words, 8)


def scan(draw: Draw) -> Call:
    dtype, ndim = draw.dtype(), int(draw.one((1, 2, 2, 3, 4)))
    axis = int(draw.rng.integers(ndim))
    shape = _shape(draw, dtype, axis, ndim)
    words = {"exclusive": draw.chance(2), "reverse": draw.chance(2)}
    return _call(
        draw,
        "scan",
        str(draw.one(("cumsum", "cumsum", "cumprod"))),
        (_real(draw, shape, dtype), axis),
        words,
        64 + 4 * shape[axis],
    )


def topk(draw: Draw) -> Call:
    dtype, ndim = draw.dtype(), int(draw.one((1, 2, 2, 3)))
    axis = int(draw.rng.integers(ndim))
    shape = _shape(draw, dtype, axis, ndim)
    k = int(draw.rng.integers(1, shape[axis] + 1))
    return _call(draw, "topk", "topk", (_real(draw, shape, dtype), k, axis), {"largest": draw.chance(2)}, 1)


def ctc(draw: Draw) -> Call:
    dtype, rng = draw.dtype(), draw.rng
    steps, batch = int(rng.integers(1, 40)), int(rng.integers(1, 4))
    classes, labels = draw.size(dtype, 1), int(draw.one((0, 1, 5, 15, 16, 17, 33)))
    blank = int(rng.integers(classes))
    targets = (blank + rng.integers(1, max(2, classes), (batch, labels))) % classes
    counts = rng.integers(0, labels + 1, batch) if classes > 1 else np.zeros(batch, int)
    args = (
        _real(draw, (batch,), dtype), _real(draw, (steps, batch, classes), dtype), targets,
        rng.integers(0, steps + 1, batch), counts,
    )  # fmt: skip
    return _call(draw, "ctc", "ctc_loss_backward", args, {"blank": blank, "logits": draw.chance(2)}, 512)


def resize(draw: Draw) -> Call:
    """Any mode over one to three dimensions, or its gradient."""
    dtype, rank = draw.dtype(), int(draw.one((1, 2, 2, 3)))
    mode, layout = str(draw.one(("nearest", "nearest_exact", "linear", "cubic"))), str(draw.one(("NCHW", "NHWC")))
    source, to = ([max(1, draw.size(dtype, 1) // int(draw.one((1, 2)))) for _ in range(rank)] for _ in range(2))
    n, c = int(draw.one((0, 1, 2))), draw.size(dtype, 1)
    words: dict[str, Any] = {"mode": mode, "layout": layout}
    if not mode.startswith("nearest"):
        words |= {str(draw.one(("align_corners", "antialias"))): draw.chance(2)}
    shapes = [(n, *size, c) if layout == "NHWC" else (n, c, *size) for size in (source, to)]
    k = 64 + 8 * int(np.prod([max(1, -(-b // a)) for a, b in zip(source, to, strict=True)]))
    if draw.chance(2):
        return _call(draw, "resize", "resize_backward", (_real(draw, shapes[1], dtype), shapes[0]), words, 4 * k)
    return _call(draw, "resize", "resize", (_real(draw, shapes[0], dtype), tuple(to)), words, k)


def gather(draw: Draw) -> Call:
    """A pad, elements by indices, or the gradient of one."""
    dtype, ndim, rng = draw.dtype(), int(draw.one((2, 2, 3, 4))), draw.rng
    axis = int(rng.integers(ndim))
    shape = _shape(draw, dtype, axis, ndim)
    if draw.chance(2):
        taken = tuple(int(n) for n in rng.integers(1, 40, int(rng.integers(3))))
        indices = np.asarray(rng.integers(-shape[axis], shape[axis], taken)).astype(draw.one((np.int32, np.int64)))
        if draw.chance(2):
            return _call(draw, "gather", "gather", (_real(draw, shape, dtype), indices, axis), {}, 2)
        dy = _real(draw, (*shape[:axis], *taken, *shape[axis + 1 :]), dtype)
        return _call(draw, "gather", "gather_backward", (dy, indices, shape[axis], axis), {}, 2 + 2 * indices.size)
    mode = str(draw.one(("constant", "reflect", "edge", "wrap")))
    pads = tuple((int(rng.integers(-(size // 3), 12)), int(rng.integers(-(size // 3), 12))) for size in shape)
    if draw.chance(2):
        return _call(draw, "gather", "pad", (_real(draw, shape, dtype), pads, mode), {}, 2)
    dy = _real(draw, tuple(size + low + high for size, (low, high) in zip(shape, pads, strict=True)), dtype)
    return _call(draw, "gather", "pad_backward", (dy, shape, pads, mode), {}, 4096)
