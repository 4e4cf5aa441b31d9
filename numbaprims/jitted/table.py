"""The one table of what compiles inside `@njit`: public function -> how its call is posed from types and shapes.

A function's arguments are told apart by their names. What is left to say of one is how its results are allocated, and
which values of its numbers choose another kernel or are refused (all others are run-time scalars of one record).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.jitted.moves import MOVE_ROWS, dtype_of
from numbaprims.jitted.quantized import QUANTIZED_ROWS
from numbaprims.jitted.rows import Made, Row, broadcast, each_of, like, lying_like, matrices, shaped
from numbaprims.jitted.windows import WINDOW_ROWS
from numbaprims.ops.activation_kinds import ALIASES, KINDS
from numbaprims.shapes import channels_last


def _gemm(types: dict[str, Any]) -> str:
    a, b = types["a"].ndim, types["b"].ndim
    rows = f"(a.shape[{a - 1}] if trans_a_ else a.shape[{a - 2}])"
    return matrices(types, rows, f"(b.shape[{b - 2}] if trans_b_ else b.shape[{b - 1}])")


def _linear(types: dict[str, Any]) -> str:
    x, weight = types["x"], types["weight"]
    if x.ndim < 1 or weight.ndim != 2:
        return f"np.empty(({'0, ' * max(x.ndim, 1)}), x.dtype)"
    lead = [f"x.shape[{d}]" for d in range(x.ndim - 1)]
    return f"np.empty(({', '.join([*lead, 'weight.shape[0]'])},), result_dtype)"


def _gemv(types: dict[str, Any]) -> str:
    if types["a"].ndim != 2:
        return "np.empty((0,), a.dtype)"
    return "np.empty((a.shape[1] if trans_ else a.shape[0],), a.dtype)"


def _ger(types: dict[str, Any]) -> str:
    return "np.empty((x.size, y.size), x.dtype)"


def _glu(types: dict[str, Any]) -> str:
    ndim = types["x"].ndim
    if ndim == 0:
        return "np.empty((), x.dtype)"
    lengths = [f"(x.shape[{d}] // 2 if axis_ == {d} or axis_ == {d - ndim} else x.shape[{d}])" for d in range(ndim)]
    return f"np.empty(({', '.join(lengths)},), x.dtype)"


# ---------------------------------------------------------------- softmax, losses, batch norm


def _rows(types: dict[str, Any]) -> str:
    """A number for each row of classes."""
    return f"np.empty(({''.join(f'x.shape[{d}], ' for d in range(types['x'].ndim) if d != 1)}), x.dtype)"


def _loss(types: dict[str, Any]) -> str:
    return _rows(types) if types["reduction"] == "none" else "np.empty((), x.dtype)"


def _hard(types: dict[str, Any]) -> bool:
    """Whether the target is a class, and not probabilities."""
    return str(types["target"].dtype).startswith("int")


def _smoothing(types: dict[str, Any]) -> tuple[str, ...]:
    return ("label_smoothing",)


def _classes(types: dict[str, Any]) -> list[str]:
    """A record is made on classes of zeros."""
    if not _hard(types) or types["x"].ndim < 2:
        return []
    return [
        "for class_ in target.flat:",
        "    if (class_ < 0 or class_ >= x.shape[1]) and class_ != ignore_index_:",
        "        raise ValueError(f'target holds {class_}; x has classes from 0 to {x.shape[1] - 1}')",
    ]


def _losses(numbers: Callable[[dict[str, Any]], tuple[str, ...]], **more: Any) -> tuple[Row, Row]:
    """A loss and its gradient."""
    more |= {"numbers": numbers, "checks": _classes}
    return Row({"=loss": _loss}, **more), Row({"out": lying_like("x")}, **more)


def _momentum(types: dict[str, Any]) -> tuple[str, ...]:
    return ("momentum", "eps") if "running_mean" in types else ("eps",)


_cross_entropy, _cross_entropy_backward = _losses(
    _smoothing, special={"label_smoothing": (0.0,)}, conditions=("1 if 0.0 <= label_smoothing_ <= 1.0 else 0",)
)
_nll_loss, _nll_loss_backward = _losses(lambda types: ())


def _statistic(types: dict[str, Any]) -> str:
    """Of the last dimensions."""
    ndim = types["x"].ndim
    words = (f"(1 if {d} >= {ndim} - normalized_dims_ else x.shape[{d}])" for d in range(ndim))
    return f"np.empty(({', '.join(words)},), x.dtype)" if ndim else "np.empty((), x.dtype)"


def _of_groups(types: dict[str, Any], groups: str = "groups_") -> str:
    return f"np.empty((x.shape[0], {groups}), x.dtype)" if types["x"].ndim > 1 else "np.empty((0, 0), x.dtype)"


def _of_channels(types: dict[str, Any]) -> str:
    ndim = types["x"].ndim
    last = channels_last(types.get("layout", "NCHW"), max(ndim - 2, 1)) if 2 <= ndim <= 5 else False
    return _of_groups(types, f"x.shape[{ndim - 1 if last else 1}]")


def _sum(types: dict[str, Any]) -> str:
    return lying_like("x")(types) if "residual" in types else ""


def _norms() -> dict[str, Row]:
    """A normalisation, what it saves, its gradient."""
    rows = {}
    for name, statistics, statistic, parameters in (
        ("layer", ("mean", "inv_std"), _statistic, ("dweight", "dbias")),
        ("rms", ("inv_rms",), _statistic, ("dweight",)),
        ("group", ("mean", "inv_std"), _of_groups, ("dweight", "dbias")),
        ("instance", ("mean", "inv_std"), _of_channels, ("dweight", "dbias")),
    ):
        saved = {f"={each}": statistic for each in statistics}
        rows[f"{name}_norm"] = Row({"out": lying_like("x"), "=sum": _sum})
        rows[f"{name}_norm_train"] = Row({"out": lying_like("x"), **saved, "=sum": _sum})
        sums = {f"={each}": each_of("weight") for each in parameters}
        rows[f"{name}_norm_backward"] = Row({"out": lying_like("x"), **sums})
    return rows


# ---------------------------------------------------------------- recurrent networks


def _network(state: str, *, over: str = "") -> Callable[[dict[str, Any]], str]:
    """The outputs of a network, (first, second, `over`) of x, or its last states."""

    def shape(types: dict[str, Any]) -> str:
        if types["x"].ndim != 3:
            return "np.empty((0, 0, 0), x.dtype)"
        ways = 2 if types["weights"][1] == 2 and types["merge"] == "concat" else 1
        parts = sum(name.startswith("w_hh") for name in types)
        lengths = f"x.shape[0], x.shape[1], {ways} * {state}" if over else f"{parts}, {_BATCH}, {state}"
        return f"np.empty(({lengths}), x.dtype)"

    return shape


_BATCH = "(x.shape[0] if batch_first_ else x.shape[1])"
_H = "w_hh_l0.shape[1]"
_recurrent = {"out": _network(_H, over="x"), "=h_n": _network(_H)}
_cell = {"=c_n": _network("w_hh_l0.shape[0] // 4")}


# ---------------------------------------------------------------- reductions, functions of elements


def _reduced(types: dict[str, Any]) -> str:
    """A value for each row."""
    axes, keep = types.get("axis"), types.get("keepdims", False)
    listed = axes if isinstance(axes, list) else [axes]
    left = types["x"].ndim - (0 if keep else types["x"].ndim if axes is None else len(listed))
    # of no axes one that there is not: Numba cannot loop over an empty tuple
    words = ("1", *(f"np.int64({axis})" for axis in listed or ["x.ndim"])) if axes is not None else ("0",)
    sizes = [f"row_size(x.shape, {i}, {keep}, ({', '.join(words)},))" for i in range(max(left, 0))]
    op = types["op"]
    dtype = "np.int64" if op in ("argmin", "argmax") else "np.bool_" if op in ("any", "all") else "x.dtype"
    return f"np.empty(({''.join(f'{size}, ' for size in sizes)}), {dtype})"


def _cast(types: dict[str, Any]) -> str:
    return f"np.empty_like(x, {dtype_of(types.get('dtype', types.get('out_dtype', 'float32')))})"


def _integers(types: dict[str, Any]) -> str:
    if types.get("dtype") not in ("int8", "uint8"):
        raise TypeError("numbaprims.quantize inside @njit: dtype must be 'int8' or 'uint8', as a literal")
    return f"np.empty_like(x, np.{types['dtype']})"


def _ranges(dtype: str = "") -> Callable[[dict[str, Any]], str]:
    """A scale or a zero point for all of x, or along an axis."""

    def expression(types: dict[str, Any]) -> str:
        axis, ndim = types.get("axis"), types["x"].ndim
        axis = None if isinstance(axis, list) else axis  # refused by the public call
        word = dtype or f"np.{_quantized(types)}"
        lengths = {d: f"(1 if {axis} == {d} or {axis} == {d - ndim} else x.shape[{d}])" for d in range(ndim)}
        return f"np.empty((), {word})" if axis is None else shaped("x", lengths, ndim, word)

    return expression


def _quantized(types: dict[str, Any]) -> str:
    return "int8" if types.get("symmetric") else "uint8"


def _positions(types: dict[str, Any]) -> list[str]:
    """A record is made on positions of zeros."""
    if "positions" not in types:
        return []
    return [
        "for place_ in positions.flat:",
        "    if place_ < 0 or place_ >= cos.shape[0]:",
        "        raise ValueError(f'positions holds {place_}; cos has rows from 0 to {cos.shape[0] - 1}')",
    ]


def _attended(types: dict[str, Any]) -> str:
    """A row of v for each of q."""
    if types["q"].ndim < 3 or types["v"].ndim < 3:
        return "np.empty((0, 0, 0), q.dtype)"  # refused by the public call
    return shaped("q", {types["q"].ndim - 1: f"v.shape[{types['v'].ndim - 1}]"}, types["q"].ndim, "q.dtype")


def _sums(types: dict[str, Any]) -> str:
    return shaped("q", {}, max(types["q"].ndim - 1, 0), "q.dtype")


_attention: dict[str, Any] = {
    "arrays": ("q", "k", "v", "mask", "dout", "y", "lse", "out"), "defaults": {"scale": "attention_scale(q)"}
}  # fmt: skip


def _first(dtype: str) -> Callable[[dict[str, Any]], str]:
    """k elements along the axis; of a k that there cannot be any number, for the public call to refuse."""

    def expression(types: dict[str, Any]) -> str:
        ndim, k = types["x"].ndim, types.get("k", "0")
        k = k if isinstance(k, str) else "0"
        sizes = {d: f"(max({k}, 0) if axis_ == {d} or axis_ == {d - ndim} else x.shape[{d}])" for d in range(ndim)}
        return shaped("x", sizes, ndim, dtype)

    return expression


def _alignments(types: dict[str, Any]) -> str:
    """A loss for each sequence, or one."""
    batch = "log_probs.shape[1], " if types["reduction"] == "none" and types["log_probs"].ndim == 3 else ""
    return f"np.empty(({batch}), log_probs.dtype)"


def _labels(types: dict[str, Any]) -> str:
    given = {name: types[name] for name in ("targets", "input_lengths", "target_lengths")}
    for name, typ in given.items():
        _check_integers(name, typ)
    if types["log_probs"].ndim != 3 or [typ.ndim for typ in given.values()] not in ([1, 1, 1], [2, 1, 1]):
        return "np.empty(0, np.int64), -1"
    return f"ctc_table(log_probs.shape, {', '.join(given)}, blank_)"


def _check_integers(name: str, typ: Any) -> None:
    if "int" not in str(typ.dtype):
        raise TypeError(f"numbaprims inside @njit: {name} is {typ}; it must be an array of integers")


def _lengths(types: dict[str, Any]) -> str:
    given = types.get("input_lengths")
    if given is not None:
        _check_integers("input_lengths", given)
    if types["log_probs"].ndim != 3 or (given is not None and given.ndim != 1):
        return "np.empty(0, np.int64), -1"
    lengths = "np.full(log_probs.shape[1], log_probs.shape[0])" if given is None else "input_lengths"
    return f"ctc_steps(log_probs.shape, {lengths}, blank_)"


def _decoded(*more: str, dtype: str = "np.int64") -> Callable[[dict[str, Any]], str]:
    """Something for each sequence."""

    def expression(types: dict[str, Any]) -> str:
        sizes = ("log_probs.shape[1]", *more) if types["log_probs"].ndim == 3 else ["0"] * (1 + len(more))
        return f"np.empty(({''.join(f'{size}, ' for size in sizes)}), {dtype})"

    return expression


def _ctc(*taken: str, word: str = "=refused", make: Callable[[dict[str, Any]], str] = _lengths) -> dict[str, Any]:
    return {"arrays": ("dy", "log_probs", *taken, "out"), "made": Made("table", "int64", 1, word, taken, make)}


_ctc_loss = _ctc("targets", "input_lengths", "target_lengths", word="labels", make=_labels)


# calls that are refused, and zero points that not every type of integers holds, are others
_ONE_SCALE: dict[str, Any] = {"arrays": ("x", "out"), "defaults": {"zero_point": 0.0}, "conditions": (
    "0 if 0.0 < scale_ < np.inf else 1",
    "0 if zero_point_ != np.floor(zero_point_) else 1 if 0 <= zero_point_ <= 127 else "
    "2 if -128 <= zero_point_ < 0 else 3 if 127 < zero_point_ <= 255 else 4",
)}  # fmt: skip

# gemm and gemv drop what beta multiplies where it is 0; alpha other than 1 costs gemm another pass
_ROWS: dict[str, Row] = {
    **dict.fromkeys(
        ("softmax", "log_softmax", "hardmax", "batch_norm", "lrn", "lrn_backward", "cumprod", "cumsum"),
        Row({"out": lying_like("x")}),
    ),
    **dict.fromkeys(("softmax_backward", "log_softmax_backward"), Row({"out": lying_like("dy")})),
    "gemm": Row({"out": _gemm}, special={"alpha": (1.0,), "beta": (0.0, 1.0)}),
    "linear": Row({"out": _linear}),
    "gemv": Row({"out": _gemv}, special={"beta": (0.0,)}),
    "ger": Row({"out": _ger}),
    "dropout": Row({"out": lying_like("x")}, conditions=("1 if 0.0 <= p_ <= 1.0 else 0",)),
    "dropout_backward": Row({"out": lying_like("dy")}, conditions=("1 if 0.0 <= p_ <= 1.0 else 0",)),
    "binary": Row({"out": broadcast("a", "b", "c")}, special={"alpha1": (1.0,), "alpha2": (1.0,)}),
    "where": Row({"out": broadcast("condition", "a", "b")}),
    "isnan": Row({"out": like("x", ", np.bool_")}),
    "isinf": Row({"out": like("x", ", np.bool_")}),
    "scale": Row({"out": like("x")}),
    "cast": Row({"out": _cast}),
    "quantize": Row({"out": _integers}, absent=("axis", "block_size"), **_ONE_SCALE),
    "dynamic_quantize": Row(
        {
            "out": lambda types: f"np.empty_like(x, np.{_quantized(types)})",
            "=scale": _ranges("x.dtype"),
            "=zero_point": _ranges(),
        },
        windows=("axis",),
    ),
    "dequantize": Row({"out": _cast}, absent=("axis", "block_size", "dtype", "length"), **_ONE_SCALE),
    "reduce": Row({"out": _reduced}, windows=("axis",)),
    "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_backward": _cross_entropy_backward,
    "nll_loss": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    "attention": Row({"out": _attended}, **_attention),
    "attention_train": Row({"out": _attended, "=lse": _sums}, **_attention),
    "attention_backward": Row({f"=d{name}": each_of(name) for name in "qkv"}, **_attention),
    "ctc_loss": Row({"=loss": _alignments}, **_ctc_loss),
    "ctc_loss_backward": Row({"out": lying_like("log_probs")}, **_ctc_loss),
    **{
        f"ctc_{way}_decode": Row(
            {
                "=labels": _decoded(*paths, "log_probs.shape[0]"),
                "=lengths": _decoded(*paths),
                "=scores": _decoded(*paths, dtype="log_probs.dtype"),
            },
            **_ctc("input_lengths"),
        )
        for way, paths in (("greedy", ()), ("beam_search", ("max(paths_, 0)",)))
    },
    "topk": Row({"=values": _first("x.dtype"), "=indices": _first("np.int64")}, windows=("k",)),
    "rope": Row({"out": lying_like("x")}, optional=("rotary_dims",), checks=_positions),
    "rope_backward": Row({"out": lying_like("dy")}, optional=("rotary_dims",), checks=_positions),
    "batch_norm_train": Row(
        {
            "out": lying_like("x"),
            **{f"={name}": each_of("scale") for name in ("mean", "inv_std")},
            **{f"={name}": each_of(name) for name in ("running_mean", "running_var")},
        },
        numbers=_momentum,
    ),
    "batch_norm_backward": Row(
        {"out": lying_like("x"), **{f"={name}": each_of("scale") for name in ("dscale", "dshift")}}
    ),
}

_SPECIAL = {
    "celu": {"alpha": (0.0,)},
    "softplus": {"beta": (0.0, 1.0), "threshold": (20.0,)},
    "power": {"gamma": (2.0,)},
}
_CONDITIONS = {"hard_tanh": ("1 if min_val_ > max_val_ else 0",)}


def _activations() -> dict[str, Row]:
    rows = {}
    for name in (*KINDS, *ALIASES):
        kind = ALIASES.get(name, (name, {}))[0]
        more: dict[str, Any] = {
            "special": _SPECIAL.get(kind, {}),
            "conditions": _CONDITIONS.get(kind, ()),
            "defaults": {
                key: value for key, value in KINDS[kind].parameters.items() if isinstance(value, (float, int))
            },
            "read": ("weight",) if kind == "prelu" else (),
        }
        results = {"out": like("dy")}
        if kind == "prelu":
            results["dweight"] = like("weight")
        rows[name] = Row({"out": _glu if kind == "glu" else like("x")}, **more)
        rows[f"{name}_backward"] = Row({"out": like("x")} if kind == "glu" else results, **more)
    return rows


_NETWORKS = {
    name: Row(
        _recurrent | (_cell if name == "lstm" else {}), optional=("clip",), conditions=("1 if clip_ > 0.0 else 0",)
    )
    for name in ("lstm", "gru", "rnn")
}

ROWS: dict[str, Row] = {
    **_ROWS, **_norms(), **_NETWORKS, **MOVE_ROWS, **WINDOW_ROWS, **QUANTIZED_ROWS, **_activations()
}  # fmt: skip
#: Functions that stand for one of the others, by a literal kind.
BY_KIND = ("activation", "activation_backward")
