"""Rows of functions of windows: convolutions, pooling, resizing."""

from __future__ import annotations

from typing import Any

from numbaprims.jitted.rows import Row, each_dimension, said, shaped, spatial


def _pads(padding: Any) -> tuple[str, str]:
    """Before and after a dimension; of a word nothing: "valid", or one that the public call refuses."""
    if str(padding).isidentifier():
        return "0", "0"
    before, after = padding if isinstance(padding, list) and len(padding) == 2 else (padding, padding)
    return before, after


def pooled(types: dict[str, Any], dtype: str = "x.dtype") -> str:
    """The result of windows over x."""
    ndim, lengths = types["x"].ndim, {}
    dims = spatial(types, ndim)
    words = ("output_size", "kernel_size", "stride", "padding", "dilation")
    each = {name: each_dimension(types, name, len(dims)) for name in words}
    for i, d in enumerate(dims):
        output, kernel, stride, padding, dilation = (each[name][i] for name in words)
        stride = kernel if stride is None else stride
        if output is not None or kernel is None:
            lengths[d] = output or "1"
        elif types.get("padding") == "same":
            lengths[d] = f"windows_along(x.shape[{d}], 1, {stride}, 0, 0, 1, 0)"
        else:
            before, after = _pads(padding)
            windows = f"{kernel}, {stride}, {before}, {after}, {dilation}, ceil_mode_"
            lengths[d] = f"windows_along(x.shape[{d}], {windows})"
    return shaped("x", lengths, ndim, dtype)


def _places(types: dict[str, Any]) -> str:
    return pooled(types, "np.int64") if types.get("return_indices") else ""


def _spread(types: dict[str, Any]) -> str:
    """dx, of the shape of x or with the sizes that are given."""
    if types.get("x") is not None:
        return "np.empty(x.shape, dy.dtype)"
    ndim = types["dy"].ndim
    dims = spatial(types, ndim)
    sizes = each_dimension(types, "size", len(dims))
    return shaped("dy", {d: f"max({size}, 0)" for d, size in zip(dims, sizes, strict=True) if size}, ndim, "dy.dtype")


def _resized(types: dict[str, Any]) -> str:
    """The result of `resize`, with the sizes that are given."""
    ndim = types["x"].ndim
    dims = spatial(types, ndim)
    sizes = each_dimension(types, "size", len(dims))
    return shaped("x", {d: f"max({size}, 0)" for d, size in zip(dims, sizes, strict=True) if size}, ndim, "x.dtype")


def convolved(types: dict[str, Any], transposed: bool = False) -> str:
    """The result of a convolution of x, or of a gradient, which lies as that does."""
    x = "x" if "x" in types else "dy"
    ndim, weight = types[x].ndim, types["weight"]
    if ndim < 3 or weight.ndim != ndim:
        return f"np.empty(({'0, ' * max(ndim, 1)}), result_dtype)"  # refused by the public call
    dims = spatial(types, ndim)
    lengths = {ndim - 1 if dims[0] == 1 else 1: "weight.shape[1] * groups_" if transposed else "weight.shape[0]"}
    words = ("stride", "padding", "dilation", "output_padding")
    each = {name: each_dimension(types, name, len(dims)) for name in words}
    for i, d in enumerate(dims):
        stride, padding, dilation, more = (each[name][i] for name in words)
        before, after = _pads(padding)
        windows = f"{x}.shape[{d}], weight.shape[{i + 2}], {stride}, {before}, {after}, {dilation}"
        if transposed:
            lengths[d] = f"transposed_along({windows}, {more})"
        elif types.get("padding") == "same":
            lengths[d] = f"windows_along({x}.shape[{d}], 1, {stride}, 0, 0, 1, 0)"
        else:
            lengths[d] = f"windows_along({windows}, 0)"
    return _lying_as(x, types, shaped(x, lengths, ndim, "result_dtype"))


def _lying_as(name: str, types: dict[str, Any], made: str) -> str:
    """Of what does not lie in C order the channels may lie innermost, as torch's channels_last."""
    first = spatial(types, types[name].ndim)[0] == 2
    return f"channels_as({name}, {made})" if first and types[name].layout != "C" else made


def _dx(types: dict[str, Any]) -> str:
    made = said("input_shape", "dy.dtype")(types)
    return _lying_as("dy", types, made) if len(types.get("input_shape", ())) == types["dy"].ndim > 2 else made


def _dbias(types: dict[str, Any]) -> str:
    ndim = types["dy"].ndim
    channels = "1" if ndim < 2 else f"dy.shape[{ndim - 1 if spatial(types, ndim)[:1] == range(1, 2) else 1}]"
    return f"np.empty(({channels},), dy.dtype)"


# alpha other than 1 and beta other than 0 and 1 are other calls of these, as of gemm
_SCALED: dict[str, Any] = {"special": {"alpha": (1.0,), "beta": (0.0, 1.0)}}

_POOLING = {
    f"{name}{op}_pool{way}": (
        Row({"out": _spread}, optional=("x",)) if way else Row({"out": pooled, "=indices": _places})
    )
    for way in ("", "_backward") for name in ("", "adaptive_", "global_") for op in ("max", "avg")
}  # fmt: skip

WINDOW_ROWS: dict[str, Row] = {
    "conv": Row({"out": convolved}, **_SCALED),
    "conv_transpose": Row({"out": lambda types: convolved(types, transposed=True)}, windows=("output_padding",)),
    "conv_backward_data": Row({"out": _dx}, windows=("input_shape",), **_SCALED),
    "conv_backward_weight": Row({"out": said("kernel_shape", "dy.dtype")}, windows=("kernel_shape",), **_SCALED),
    "conv_transpose_backward_data": Row({"out": convolved}),
    "conv_transpose_backward_weight": Row(
        {"out": said("kernel_shape", "dy.dtype")}, windows=("kernel_shape",), **_SCALED
    ),
    "conv_backward_bias": Row({"out": _dbias}),
    "resize": Row({"out": _resized}, keyed=("cubic_coeff",), absent=("scale",)),
    "resize_backward": Row(
        {"out": said("shape", "dy.dtype")}, windows=("shape",), keyed=("cubic_coeff",), absent=("scale",)
    ),
    **_POOLING,
    "lp_pool": Row({"out": pooled}, keyed=("p",)),
    "lp_pool_backward": Row({"out": _spread}, keyed=("p",)),
}
