"""Rows of functions of quantised integers. Their scales and zero points choose what Python makes of them: factors, zero
terms, tables."""

from __future__ import annotations

from typing import Any

from numbaprims.jitted.rows import Made, Row, broadcast, like, matrices
from numbaprims.jitted.windows import convolved, pooled
from numbaprims.ops.activation_kinds import KINDS

#: Parameters of activations.
_PARAMETERS = tuple(dict.fromkeys(word for kind in KINDS.values() for word in kind.parameters))


def _given(*names: str) -> dict[str, Any]:
    """Scales and zero points of these arrays and of the result."""
    zeros = tuple(f"{name}_zero_point" for name in names)
    return {"keyed": (*(f"{name}_scale" for name in (*names, "y")), *zeros, "y_zero_point"), "optional": zeros}


def _products(types: dict[str, Any]) -> str:
    return matrices(types, f"a.shape[{types['a'].ndim - 2}]", f"b.shape[{types['b'].ndim - 1}]")


def _averages(types: dict[str, Any]) -> str:
    return pooled(types, "result_dtype")


def _each(types: dict[str, Any], name: str) -> str:
    """What a number, or an array of them, is looked up in."""
    return f"({name}_,)" if isinstance(types[name], str) else name


def _factors(types: dict[str, Any]) -> str:
    arrays = [name for name in ("b_scale", "a_zero_point", "b_zero_point") if hasattr(types[name], "ndim")]
    if arrays != ["b_scale"] or types["b"].ndim < 1:
        return ""
    return f"factors_of(b.shape[{types['b'].ndim - 1}], a_scale_, b_scale, y_scale_)"


def _filters(types: dict[str, Any]) -> str:
    x, weight, zeros = types["x"], types["weight"], [types[f"{name}_zero_point"] for name in ("x", "weight")]
    bounds = {"int8": "-128, 127", "uint8": "0, 255"}.get(str(x.dtype))
    wholes = (each.startswith("np.int64") if isinstance(each, str) else "int" in str(each.dtype) for each in zeros)
    if bounds is None or str(weight.dtype) != "int8" or weight.ndim < 1 or not all(wholes):
        return "np.empty((3, 0), np.float32), -1"
    given = "x_scale" in types
    x_scale, y_scale, y_zero = ("x_scale_", "y_scale_", "y_zero_point_") if given else ("1.0", "1.0", "0")
    w_scale = _each(types, "weight_scale") if given else "(1.0,)"
    w_zero = _each(types, "weight_zero_point")
    return f"filters_of(weight.shape[0], {bounds}, {x_scale}, {w_scale}, {y_scale}, x_zero_point_, {w_zero}, {y_zero})"


_WEIGHTS = ("weight_scale", "weight_zero_point")
_matrices = _given("a", "b") | {"either": ("a_zero_point", "b_zero_point", "b_scale"), "constants": True}
_by_columns = Made("factors", "float32", 1, "=refused", ("a_scale", "b_scale", "y_scale"), _factors)
_by_filters = Made("extra", "float32", 2, "weight_zeros", ("x_scale", *_WEIGHTS, "y_scale"), _filters)
_activations = _given("x") | {"keyed": (*_given("x")["keyed"], *_PARAMETERS), "left": _PARAMETERS}
_filtered = Row({"out": convolved}, keyed=(*_given("x")["keyed"], *_WEIGHTS), either=_WEIGHTS, made=_by_filters)

QUANTIZED_ROWS: dict[str, Row] = {
    "qlinear_add": Row({"out": broadcast("a", "b", dtype="result_dtype")}, **_given("a", "b")),
    "qlinear_activation": Row({"out": like("x", ", result_dtype")}, **_activations),
    "qlinear_global_avg_pool": Row({"out": _averages}, **_given("x")),
    "qlinear_avg_pool": Row({"out": _averages}, **_given("x")),
    "gemm_integer": Row({"out": _products}, **_matrices),
    "qlinear_gemm": Row({"out": _products}, **_matrices, made=_by_columns),
    "conv_integer": _filtered,
    "qlinear_conv": _filtered,
}
