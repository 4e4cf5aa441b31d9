"""Convolution and its gradients by definition. Floating-point inputs are computed in float64, integers exactly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from numbaprims.reference.activation import activation as apply_activation
from numbaprims.reference.convert import from_float64, to_float64
from numbaprims.reference.gemm import kind_and_parameters

Sizes = Sequence[int]


def _taps(kernel: Sizes) -> Iterator[Any]:
    return itertools.product(*map(range, kernel))


def _seen(tap: Sizes, y_size: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """The elements of a padded input that a tap sees, one for each output."""
    slices = (
        slice(t * d, t * d + (y - 1) * s + 1, s) for t, y, s, d in zip(tap, y_size, stride, dilation, strict=True)
    )
    return (..., *slices)


def _at(tap: Sizes) -> Any:
    """One tap of a weight."""
    return (..., *tap)


def _padded_size(y_size: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> tuple[int, ...]:
    return tuple((y - 1) * s + d * (t - 1) + 1 for y, t, s, d in zip(y_size, kernel, stride, dilation, strict=True))


def _pad(x: np.ndarray, before: Sizes, size: Sizes) -> np.ndarray:
    """x with zeros before and behind it (or cut behind), `size` large in its spatial dimensions."""
    padded = np.zeros((*x.shape[: x.ndim - len(size)], *size), x.dtype)
    kept = tuple(max(min(have, all_ - b), 0) for have, all_, b in zip(x.shape[-len(size) :], size, before, strict=True))
    target: Any = (..., *(slice(b, b + k) for b, k in zip(before, kept, strict=True)))
    source: Any = (..., *map(slice, kept))
    padded[target] = x[source]
    return padded


def _grouped(x: np.ndarray, groups: int, axis: int) -> np.ndarray:
    """x with an axis of channels cut in two: groups, and the channels of one."""
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])


def conv(
    x: np.ndarray, w: np.ndarray, y_size: Sizes, *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1
) -> np.ndarray:
    """y[n, k, p] = sum over c, r of x[n, c, p * stride - padding + r * dilation] * w[k, c, r], x being 0 outside.

    x (N, C, spatial...), w (K, C / groups, kernel...), `padding` before the first element; the result is
    (N, K, y_size...).
    """
    kernel = w.shape[2:]
    x = _pad(x, padding, _padded_size(y_size, kernel, stride, dilation))
    grouped, w = _grouped(x, groups, 1), _grouped(w, groups, 0)
    y = np.zeros((x.shape[0], groups, w.shape[1], *y_size), np.result_type(x, w))
    for tap in _taps(kernel):
        seen = grouped[_seen(tap, y_size, stride, dilation)]
        y += np.einsum("ngc...,gkc->ngk...", seen, w[_at(tap)])
    return y.reshape(x.shape[0], groups * w.shape[1], *y_size)


def conv_backward_data(
    dy: np.ndarray, w: np.ndarray, x_size: Sizes, *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1
) -> np.ndarray:
    """dx[n, c, h] = sum over k, p, r with p * stride - padding + r * dilation = h of dy[n, k, p] * w[k, c, r]."""
    kernel, y_size = w.shape[2:], dy.shape[2:]
    size = _padded_size(y_size, kernel, stride, dilation)
    dy, w = _grouped(dy, groups, 1), _grouped(w, groups, 0)
    dx = np.zeros((dy.shape[0], groups, w.shape[2], *size), np.result_type(dy, w))
    for tap in _taps(kernel):
        dx[_seen(tap, y_size, stride, dilation)] += np.einsum("ngk...,gkc->ngc...", dy, w[_at(tap)])
    dx = dx.reshape(dx.shape[0], groups * w.shape[2], *size)
    # the padding is cut off; what no window has reached is 0
    inner: Any = (..., *(slice(before, before + length) for before, length in zip(padding, x_size, strict=True)))
    return _pad(dx[inner], (0,) * len(x_size), x_size)


def conv_backward_weight(
    dy: np.ndarray, x: np.ndarray, kernel: Sizes, *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1
) -> np.ndarray:
    """dw[k, c, r] = sum over n, p of dy[n, k, p] * x[n, c, p * stride - padding + r * dilation]."""
    y_size = dy.shape[2:]
    x = _grouped(_pad(x, padding, _padded_size(y_size, kernel, stride, dilation)), groups, 1)
    dy = _grouped(dy, groups, 1)
    dw = np.zeros((groups, dy.shape[2], x.shape[2], *kernel), np.result_type(dy, x))
    pixels = int(np.prod(y_size))
    for tap in _taps(kernel):
        seen = x[_seen(tap, y_size, stride, dilation)].reshape(*x.shape[:3], pixels)
        dw[_at(tap)] = np.einsum("ngkp,ngcp->gkc", dy.reshape(*dy.shape[:3], pixels), seen)
    return dw.reshape(groups * dw.shape[1], *dw.shape[2:])


def conv_backward_bias(dy: np.ndarray) -> np.ndarray:
    """db[k] = sum over n and all positions of dy[n, k, ...]."""
    return dy.sum(axis=(0, *range(2, dy.ndim)))


def finish(
    y: np.ndarray, *, alpha: float = 1.0, beta: float = 0.0, c: np.ndarray | None = None,
    bias: np.ndarray | None = None, activation: Any = None,
) -> np.ndarray:  # fmt: skip
    """activation(alpha * y + beta * c + bias), the bias along the channels; `activation` a kind or a pair."""
    integers = y.dtype.kind in "iu"
    exact = np.int64 if integers else np.float64
    y = y * exact(alpha)
    if c is not None and beta != 0.0:
        y = y + exact(beta) * c.astype(exact)
    if bias is not None:
        y = y + bias.astype(exact).reshape(-1, *(1,) * (y.ndim - 2))
    if integers:
        y = y.astype(np.int32)
    if activation is not None:
        kind, parameters = (activation, {}) if isinstance(activation, str) else activation
        y = apply_activation(y, kind, **parameters)
    return y


def into(p: Any, storage: np.ndarray, given: Sequence[Any], numbers: Sequence[float]) -> None:
    """Compute a checked call by definition and round it into its result's storage.

    `given` are the arrays of a launch: two operands, c, bias, prepared weights, scales and zero points; `p` is the
    problem (`numbaprims.ops.conv`).
    """
    first, second, c, bias, _, extra = (*given, None, None, None, None, None)[:6]

    def values(array: Any, dtype: str, steps: Any, sizes: Any) -> np.ndarray:
        """The values of an array in the canonical order (n, c, d, h, w)."""
        view = np.lib.stride_tricks.as_strided(array, sizes, [step * array.itemsize for step in steps])
        return view.astype(np.int64) if dtype in ("i8", "u8", "i32") else to_float64(np.ascontiguousarray(view), dtype)

    x_sizes, w_sizes = (p.n, p.c, *p.x_size), (p.k, p.group_c, *p.kernel)
    y_sizes = (p.n, p.k, *p.y_size)
    s = p.strides
    window = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
    if p.direction == "bias":
        storage[...] = from_float64(conv_backward_bias(values(first, p.y_dtype, s.y, y_sizes)), p.w_dtype)
        return
    if p.direction == "forward":
        x, w = values(first, p.x_dtype, s.x, x_sizes), values(second, p.w_dtype, s.w, w_sizes)
        if extra is not None:
            x, w = x - int(numbers[5]), w - extra[1].astype(np.int64).reshape(-1, 1, 1, 1, 1)
        result, sizes, steps = conv(x, w, p.y_size, **window), y_sizes, s.y
    elif p.direction == "data":
        dy, w = values(first, p.y_dtype, s.y, y_sizes), values(second, p.w_dtype, s.w, w_sizes)
        result, sizes, steps = conv_backward_data(dy, w, p.x_size, **window), x_sizes, s.x
    else:
        dy, x = values(first, p.y_dtype, s.y, y_sizes), values(second, p.x_dtype, s.x, x_sizes)
        result, sizes, steps = conv_backward_weight(dy, x, p.kernel, **window), w_sizes, s.w
    result = finish(
        result,
        alpha=numbers[0],
        beta=numbers[1],
        c=None if c is None else values(c, p.out_dtype, s.c, sizes),
        bias=None if bias is None else values(bias, _bias_dtype(p), (s.bias,), bias.shape),
        activation=kind_and_parameters(p.activation),
    )
    if p.requantized:
        result = requantize(result, extra[0], extra[2], storage.dtype)
    target = np.lib.stride_tricks.as_strided(storage, sizes, [step * storage.itemsize for step in steps])
    target[...] = result if p.accumulate == "i32" else from_float64(result, p.out_dtype)


def _bias_dtype(problem: Any) -> str:
    return "i32" if problem.accumulate == "i32" else str(problem.in_dtype)


def requantize(sums: np.ndarray, multiplier: np.ndarray, zero: np.ndarray, dtype: Any) -> np.ndarray:
    """saturate(round(sums * multiplier[k]) + zero[k]): to the nearest, halves to even, in float32 as ONNX does."""
    shape = (-1, *(1,) * (sums.ndim - 2))
    limits = np.iinfo(dtype)
    scaled = np.rint(sums.astype(np.float32) * multiplier.astype(np.float32).reshape(shape))
    return np.clip(scaled + zero.reshape(shape), limits.min, limits.max).astype(dtype)
