"""Quantisation and the layers of quantised networks, against onnxruntime's operators of integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender
from numbaprims.bench.onnx_model import MICROSOFT, Node
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours

#: gemm: a row of m elements by (m, n), a fully connected layer; gemm64: 64 rows. Both have a plan, as rivals pack
#: weights of a model when it is loaded.
KINDS = ("quantize", "dequantize", "dynamic", "add", "global_avg", "sigmoid", "max", "gemm", "gemm64")
#: A tolerance of one step of 255: rivals may add what rounds otherwise.
_STEP = 1 << 34
_SCALE = np.float32(0.02)
_ZERO = 100


def ours(case: Case, draw: Draw) -> Ours:
    """Our call, into an array of its own."""
    kind, m, n = case["kind"], case["m"], case["n"]
    zero, quarter = np.uint8(_ZERO), np.float32(0.25)
    whole: Callable[[np.ndarray], np.ndarray] = lambda values: values  # noqa: E731
    if kind in ("quantize", "dynamic"):
        x, out = draw((m, n), -2.0, 2.0), Operand.empty((m, n), "u8")
        if kind == "quantize":
            call: Any = partial(numbaprims.quantize, x.ours, _SCALE, zero, out=out.ours)
            return Ours(call, {"x": x}, lambda v: _rounded(v[0] / _SCALE, _ZERO), whole, _STEP, out)
        call = partial(numbaprims.dynamic_quantize, x.ours, out=out.ours)
        return Ours(call, {"x": x}, _dynamic, whole, _STEP, out)
    if kind.startswith("gemm"):
        a, b = _bytes(draw, (int(kind[4:] or 1), m)), _bytes(draw, (m, n), -127, 128, "i8")
        out = Operand.empty((a.storage.shape[0], n), "u8")
        plan = numbaprims.qlinear_gemm.plan(_SCALE, 3, b.ours, _SCALE, np.float32(m / 32), zero)
        factor = float(_SCALE) ** 2 / (m / 32)
        return Ours(
            partial(plan, a.ours, out=out.ours), {"a": a, "b": b},
            lambda v: _rounded((v[0].astype(float) - 3) @ v[1].astype(float) * factor, _ZERO), whole, _STEP, out,
            posed=partial(numbaprims.gemm, a.ours, b.ours),
        )  # fmt: skip
    x = _bytes(draw, (m, n))
    if kind == "dequantize":
        out = Operand.empty((m, n), "f32")
        call = partial(numbaprims.dequantize, x.ours, _SCALE, zero, out=out.ours)
        return Ours(call, {"x": x}, lambda v: (v[0].astype(float) - _ZERO) * float(_SCALE), whole, 1, out)
    if kind == "add":
        b, out = _bytes(draw, (m, n)), Operand.empty((m, n), "u8")
        call = partial(numbaprims.qlinear_add, x.ours, _SCALE, zero, b.ours, quarter, zero, quarter, zero, out=out.ours)
        return Ours(call, {"x": x, "b": b}, _sum, whole, _STEP, out)
    if kind == "global_avg":
        out, image = Operand.empty((1, m, 1), "u8"), x.ours.reshape(1, m, n)
        call = partial(
            numbaprims.qlinear_global_avg_pool, image, _SCALE, zero, _SCALE, zero, layout="NCW", out=out.ours
        )
        mean = lambda v: np.rint(v[0].astype(float).mean(1)).reshape(1, m, 1)  # noqa: E731
        return Ours(call, {"x": x}, mean, whole, _STEP, out, bound="read")
    if kind == "max":
        side = int(n**0.5)
        image = x.ours[:, : side * side].reshape(1, m, side, side)
        out = Operand.empty((1, m, (side + 1) // 2, (side + 1) // 2), "u8")
        call = partial(numbaprims.max_pool, image, 3, stride=2, padding=1, out=out.ours)
        return Ours(call, {"x": x}, lambda v: _maxima(v[0], side), whole, 1, out)
    out = Operand.empty((m, n), "u8")
    call = partial(
        numbaprims.qlinear_activation, x.ours, "sigmoid", _SCALE, zero, np.float32(1 / 256), np.uint8(0), out=out.ours
    )
    sigmoid = lambda v: _rounded(256 / (1 + np.exp(-(v[0].astype(float) - _ZERO) * float(_SCALE))), 0)  # noqa: E731
    return Ours(call, {"x": x}, sigmoid, whole, _STEP, out)


def _bytes(draw: Draw, shape: tuple[int, ...], low: int = 0, high: int = 256, dtype: str = "u8") -> Operand:
    return Operand.of(draw(shape, low, high, "i64").storage, dtype)


def _rounded(x: Any, zero: float) -> Any:
    return np.clip(np.rint(x) + zero, 0, 255)


def _dynamic(values: list[np.ndarray]) -> Any:
    low, high = min(0.0, float(values[0].min())), max(0.0, float(values[0].max()))
    scale = np.float32(high - low) / np.float32(255)
    return _rounded(values[0] / scale, np.rint(-low / scale))


def _sum(values: list[np.ndarray]) -> Any:
    a, b = (value.astype(float) - _ZERO for value in values)
    return _rounded((a * float(_SCALE) + b * 0.25) / 0.25, _ZERO)


def _maxima(x: np.ndarray, side: int) -> np.ndarray:
    image = x[:, : side * side].reshape(1, len(x), side, side)
    size = (side + 1) // 2
    wide = np.zeros((1, len(x), 2 * size + 1, 2 * size + 1), x.dtype)
    wide[:, :, 1 : side + 1, 1 : side + 1] = image
    taps = [wide[:, :, r : r + 2 * size : 2, s : s + 2 * size : 2] for r in range(3) for s in range(3)]
    return np.max(taps, axis=0)


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    kind, m, n = case["kind"], case["m"], case["n"]
    zero, quarter = np.uint8(_ZERO), np.float32(0.25)
    x, *more = (each.storage for each in p.reads.values())
    names = "x", "xs", "xz", "ys", "yz"
    own: dict[str, Any] = {"xs": _SCALE, "xz": zero, "ys": _SCALE, "yz": zero}
    shape: tuple[int, ...] = (m, n)
    dtype: Any = np.uint8
    if kind in ("quantize", "dequantize"):
        operator, dtype = (f"{kind.capitalize()}Linear", np.uint8 if kind == "quantize" else np.float32)
        nodes = [Node(operator, ("x", "xs", "xz"), "y", {})]
        own = {"xs": _SCALE, "xz": zero}
    elif kind == "dynamic":
        nodes, own = [Node("DynamicQuantizeLinear", ("x",), "y scale zero", {})], {}
    elif kind == "add":
        order = ("x", "xs", "xz", "b", "bs", "bz", "ys", "yz")
        own |= {"b": more[0], "bs": quarter, "bz": zero, "ys": quarter}
        nodes = [Node("QLinearAdd", order, "y", {}, MICROSOFT)]
    elif kind == "global_avg":
        x, shape = x.reshape(1, m, n), (1, m, 1)
        nodes = [Node("QLinearGlobalAveragePool", names, "y", {"channels_last": 0}, MICROSOFT)]
    elif kind == "max":
        side = int(n**0.5)
        x, shape = np.ascontiguousarray(x[:, : side * side]).reshape(1, m, side, side), (1, m, *[(side + 1) // 2] * 2)
        window = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
        nodes, own = [Node("MaxPool", ("x",), "y", window)], {}
    elif kind == "sigmoid":
        own |= {"ys": np.float32(1 / 256), "yz": np.uint8(0)}
        nodes = [Node("QLinearSigmoid", names, "y", {}, MICROSOFT)]
    else:
        order = ("x", "xs", "xz", "b", "bs", "bz", "ys", "yz")
        own |= {"xz": np.uint8(3), "b": more[0], "bs": _SCALE, "bz": np.int8(0), "ys": np.float32(m / 32)}
        nodes, shape = [Node("QLinearMatMul", order, "y", {})], (len(x), n)
    constants = {name: np.asarray(value) for name, value in own.items()}
    return shared.onnxruntime(nodes, x, shape, threads, constants=constants, dtype=dtype)


cases = shared.cases("quantize", [("m", "n")], KINDS)  # m channels of n pixels
memory = shared.memory(lambda c: 6 * c["m"] * c["n"])
workload = shared.workload(ours, onnxruntime=_onnxruntime)
