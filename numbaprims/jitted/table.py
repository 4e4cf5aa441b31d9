"""The one table of what compiles inside `@njit`: public function -> how its call is posed from types and shapes.

A function's arguments are told apart by their names. What is left to say of one is how its results are allocated, and
which values of its numbers choose another kernel or are refused (all others are run-time scalars of one record).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.ops.activation_kinds import ALIASES, KINDS
from numbaprims.shapes import channels_last

ARRAYS = (
    "a", "b", "c", "x", "y", "dy", "bias", "weight", "out", "target", "scale", "shift", "mean", "var", "running_mean",
    "running_var", "condition", "saved_mean", "saved_inv_std", "saved_inv_rms", "residual", "dsum", "indices",
    "weights", "h0", "c0", "lengths", "cos", "sin", "positions",
)  # fmt: skip
FLAGS = (
    "trans", "trans_a", "trans_b", "ceil_mode", "count_include_pad", "batch_first", "reverse", "interleaved", "causal",
    "exclusive", "largest", "sorted",
)  # fmt: skip
INTS = ("axis", "ignore_index", "normalized_dims", "groups", "rotary_dims")
#: Integers of 64 bits whose bits a float of the call carries.
WORDS = ("seed", "offset")
#: Words that must be literals: they choose code.
LITERALS = (
    "activation", "out_dtype", "approximate", "kind", "mode", "layout", "reduction", "return_indices", "merge", "op",
    "keepdims", "nan", "dtype", "align_corners", "antialias",
)  # fmt: skip
#: Those that are bools.
TRUTHS = ("return_indices", "keepdims", "align_corners", "antialias")
#: What must be left out.
ABSENT = ("batch_sizes",)
#: One integer, or a tuple of them, which may hold pairs; None and words as literals.
WINDOWS = ("kernel_size", "stride", "padding", "dilation", "output_size", "size", "before")


class Row(NamedTuple):
    """One function."""

    results: dict[str, Callable[[dict[str, Any]], str]]
    """Each result -> the expression that allocates it, from the types of the arrays and the literals; "" where a call
    does not have it.  Names of numbers, flags and ints end in "_" in an expression.  "out" may be given instead, and
    what begins with "=" the function has no argument for."""
    special: dict[str, tuple[float, ...]] = {}  # noqa: RUF012
    """Numbers -> the values that make another call of it."""
    conditions: tuple[str, ...] = ()
    """Other expressions, of ints, that do."""
    defaults: dict[str, Any] = {}  # noqa: RUF012
    """What None stands for: a value, or an expression as text."""
    read: tuple[str, ...] = ()
    """Arrays whose only element, if they have no other, is a number of the kernel; they stand before the others."""
    numbers: Callable[[dict[str, Any]], tuple[str, ...]] | None = None
    """The numbers that kernels take, in their order, from the types of the arrays; None for all."""
    optional: tuple[str, ...] = ()
    """Arguments that may be None and stay so in the public call, where None is no default of an array."""
    arrays: tuple[str, ...] = ()
    """Its arguments that are arrays, where the names of some are those of numbers in others; () for `ARRAYS`."""
    windows: tuple[str, ...] = ()
    """Arguments that are those of windows in this function."""
    absent: tuple[str, ...] = ()
    """Arguments that must be left out of this function."""
    checks: Callable[[dict[str, Any]], list[str]] = lambda types: []
    """Lines that look at elements of the arrays before the call."""


def _like(name: str, dtype: str = "") -> Callable[[dict[str, Any]], str]:
    return lambda types: f"np.empty_like({name}{dtype})"


def _lying_like(name: str) -> Callable[[dict[str, Any]], str]:
    """As the public call's: which elements lie side by side decides in which order they are summed up."""
    return lambda types: f"np.empty_like({name})" if types[name].layout in "CF" else f"lying_like({name})"


def _dim(x: str, y: str) -> str:
    """The length of two that broadcast; where they don't, the public call says so."""
    return f"({y} if {x} == 1 else {x})"


def _gemm(types: dict[str, Any]) -> str:
    a, b = types["a"], types["b"]
    if a.ndim < 2 or b.ndim < 2:
        return "np.empty((0, 0), a.dtype)"  # refused by the public call
    ndim = max(a.ndim, b.ndim)
    lead = []
    for d in range(ndim - 2):
        from_a, from_b = d - (ndim - a.ndim), d - (ndim - b.ndim)
        sizes = [f"{name}.shape[{at}]" for name, at in (("a", from_a), ("b", from_b)) if at >= 0]
        lead.append(_dim(*sizes) if len(sizes) == 2 else sizes[0])
    rows = f"(a.shape[{a.ndim - 1}] if trans_a_ else a.shape[{a.ndim - 2}])"
    columns = f"(b.shape[{b.ndim - 2}] if trans_b_ else b.shape[{b.ndim - 1}])"
    return f"np.empty(({', '.join([*lead, rows, columns])}), result_dtype)"


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


def _losses(numbers: Callable[[dict[str, Any]], tuple[str, ...]], conditions: tuple[str, ...]) -> tuple[Row, Row]:
    """A loss and its gradient."""
    more: dict[str, Any] = {"numbers": numbers, "conditions": conditions, "checks": _classes}
    return Row({"=loss": _loss}, **more), Row({"out": _lying_like("x")}, **more)


def _each(name: str) -> Callable[[dict[str, Any]], str]:
    """A value for each of an array's, where it is there."""
    return lambda types: f"np.empty({name}.shape, {name}.dtype)" if name in types else ""


def _momentum(types: dict[str, Any]) -> tuple[str, ...]:
    return ("momentum", "eps") if "running_mean" in types else ("eps",)


_cross_entropy, _cross_entropy_backward = _losses(_smoothing, ("1 if 0.0 <= label_smoothing_ <= 1.0 else 0",))
_nll_loss, _nll_loss_backward = _losses(lambda types: (), ())


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
    return _lying_like("x")(types) if "residual" in types else ""


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
        rows[f"{name}_norm"] = Row({"out": _lying_like("x"), "=sum": _sum})
        rows[f"{name}_norm_train"] = Row({"out": _lying_like("x"), **saved, "=sum": _sum})
        sums = {f"={each}": _each("weight") for each in parameters}
        rows[f"{name}_norm_backward"] = Row({"out": _lying_like("x"), **sums})
    return rows


# ---------------------------------------------------------------- pooling


def _spatial(types: dict[str, Any], ndim: int) -> range:
    last = types["layout"] in ("NHWC", "NWC", "NDHWC")
    return range(1, ndim - 1) if last else range(2, ndim)


def _each_dimension(types: dict[str, Any], name: str, rank: int) -> list[Any]:
    """The expressions of an argument; of a wrong number of them any, for the public call to refuse."""
    value = types.get(name)
    return ([*value, *["0"] * rank] if isinstance(value, list) else [value] * rank)[:rank]


def _shaped(array: str, lengths: dict[int, str], ndim: int, dtype: str) -> str:
    words = [lengths.get(d, f"{array}.shape[{d}]") for d in range(ndim)]
    return f"np.empty(({', '.join(words)},), {dtype})" if words else f"np.empty((), {dtype})"


def _pooled(types: dict[str, Any], dtype: str = "x.dtype") -> str:
    """The result of windows over x."""
    ndim, lengths = types["x"].ndim, {}
    dims = _spatial(types, ndim)
    words = ("output_size", "kernel_size", "stride", "padding", "dilation")
    each = {name: _each_dimension(types, name, len(dims)) for name in words}
    for i, d in enumerate(dims):
        output, kernel, stride, padding, dilation = (each[name][i] for name in words)
        stride = kernel if stride is None else stride
        if output is not None or kernel is None:
            lengths[d] = output or "1"
        elif types.get("padding") == "same":
            lengths[d] = f"windows_along(x.shape[{d}], 1, {stride}, 0, 0, 1, 0)"
        else:
            before, after = padding if isinstance(padding, list) and len(padding) == 2 else (padding, padding)
            # a word: "valid", or one that the public call refuses
            pads = "0, 0" if str(padding).isidentifier() else f"{before}, {after}"
            lengths[d] = f"windows_along(x.shape[{d}], {kernel}, {stride}, {pads}, {dilation}, ceil_mode_)"
    return _shaped("x", lengths, ndim, dtype)


def _places(types: dict[str, Any]) -> str:
    return _pooled(types, "np.int64") if types.get("return_indices") else ""


def _spread(types: dict[str, Any]) -> str:
    """dx, of the shape of x or with the sizes that are given."""
    if types.get("x") is not None:
        return "np.empty(x.shape, dy.dtype)"
    ndim = types["dy"].ndim
    dims = _spatial(types, ndim)
    sizes = _each_dimension(types, "size", len(dims))
    return _shaped("dy", {d: f"max({size}, 0)" for d, size in zip(dims, sizes, strict=True) if size}, ndim, "dy.dtype")


def _resized(types: dict[str, Any]) -> str:
    """The result of `resize`, with the sizes that are given."""
    ndim = types["x"].ndim
    dims = _spatial(types, ndim)
    sizes = _each_dimension(types, "size", len(dims))
    return _shaped("x", {d: f"max({size}, 0)" for d, size in zip(dims, sizes, strict=True) if size}, ndim, "x.dtype")


def _of_shape(types: dict[str, Any]) -> str:
    """Of the shape that is given."""
    ndim = types["dy"].ndim
    sizes = _each_dimension(types, "shape", ndim)
    return _shaped("dy", {d: f"max({size}, 0)" for d, size in enumerate(sizes) if size}, ndim, "dy.dtype")


_POOLING = {
    f"{name}{op}_pool{way}": (
        Row({"out": _spread}, optional=("x",)) if way else Row({"out": _pooled, "=indices": _places})
    )
    for way in ("", "_backward") for name in ("", "adaptive_", "global_") for op in ("max", "avg")
}  # fmt: skip


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
    words = ("1", *(f"np.int64({axis})" for axis in listed)) if axes is not None else ("0",)
    sizes = [f"row_size(x.shape, {i}, {keep}, ({', '.join(words)},))" for i in range(max(left, 0))]
    op = types["op"]
    dtype = "np.int64" if op in ("argmin", "argmax") else "np.bool_" if op in ("any", "all") else "x.dtype"
    return f"np.empty(({''.join(f'{size}, ' for size in sizes)}), {dtype})"


def _broadcast(*names: str) -> Callable[[dict[str, Any]], str]:
    """Of the shape to which arrays broadcast, and of the second one's type; of comparisons bool."""

    def expression(types: dict[str, Any]) -> str:
        from numbaprims.ops.tensor import BINARY

        given = [name for name in names if types.get(name) is not None]
        ndim = max(types[name].ndim for name in given)
        sizes = []
        for d in range(ndim):
            size = "1"
            for name in given:
                at = d - ndim + types[name].ndim
                size = _dim(f"{name}.shape[{at}]", size) if at >= 0 else size
            sizes.append(size)
        truth = types.get("op") in BINARY and BINARY[types["op"]].gives
        return f"np.empty(({''.join(f'{size}, ' for size in sizes)}), {'np.bool_' if truth else names[1] + '.dtype'})"

    return expression


def _cast(types: dict[str, Any]) -> str:
    from numbaprims import arrays

    wanted = types.get("dtype", types.get("out_dtype", "float32"))
    try:
        return f"np.empty_like(x, np.{arrays.LONG_NAMES[arrays.dtype_name(wanted)].replace('bool', 'bool_')})"
    except TypeError:
        return "np.empty_like(x)"  # refused by the public call


def _integers(types: dict[str, Any]) -> str:
    if types.get("dtype") not in ("int8", "uint8"):
        raise TypeError("numbaprims.quantize inside @njit: dtype must be 'int8' or 'uint8', as a literal")
    return f"np.empty_like(x, np.{types['dtype']})"


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
    return _shaped("q", {types["q"].ndim - 1: f"v.shape[{types['v'].ndim - 1}]"}, types["q"].ndim, "q.dtype")


def _sums(types: dict[str, Any]) -> str:
    return _shaped("q", {}, max(types["q"].ndim - 1, 0), "q.dtype")


_attention: dict[str, Any] = {
    "arrays": ("q", "k", "v", "mask", "dout", "y", "lse", "out"), "defaults": {"scale": "attention_scale(q)"}
}  # fmt: skip


def _first(dtype: str) -> Callable[[dict[str, Any]], str]:
    """k elements along the axis; of a k that there cannot be any number, for the public call to refuse."""

    def expression(types: dict[str, Any]) -> str:
        ndim, k = types["x"].ndim, types.get("k", "0")
        sizes = {d: f"(max({k}, 0) if axis_ == {d} or axis_ == {d - ndim} else x.shape[{d}])" for d in range(ndim)}
        return _shaped("x", sizes, ndim, dtype)

    return expression


#: Tables are made of it.
_COEFFICIENT = ("np.float64(cubic_coeff_).view(np.int64)",)

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
        Row({"out": _lying_like("x")}),
    ),
    **dict.fromkeys(("softmax_backward", "log_softmax_backward"), Row({"out": _lying_like("dy")})),
    "gemm": Row({"out": _gemm}, special={"alpha": (1.0,), "beta": (0.0, 1.0)}),
    "linear": Row({"out": _linear}),
    "gemv": Row({"out": _gemv}, special={"beta": (0.0,)}),
    "ger": Row({"out": _ger}),
    "dropout": Row({"out": _lying_like("x")}, conditions=("1 if 0.0 <= p_ <= 1.0 else 0",)),
    "dropout_backward": Row({"out": _lying_like("dy")}, conditions=("1 if 0.0 <= p_ <= 1.0 else 0",)),
    "binary": Row({"out": _broadcast("a", "b", "c")}, special={"alpha1": (1.0,), "alpha2": (1.0,)}),
    "where": Row({"out": _broadcast("condition", "a", "b")}),
    "isnan": Row({"out": _like("x", ", np.bool_")}),
    "isinf": Row({"out": _like("x", ", np.bool_")}),
    "scale": Row({"out": _like("x")}),
    "cast": Row({"out": _cast}),
    "quantize": Row({"out": _integers}, absent=("axis", "block_size"), **_ONE_SCALE),
    "dequantize": Row({"out": _cast}, absent=("axis", "block_size", "dtype", "length"), **_ONE_SCALE),
    "reduce": Row({"out": _reduced}, windows=("axis",)),
    "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_backward": _cross_entropy_backward,
    "nll_loss": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    "resize": Row({"out": _resized}, conditions=_COEFFICIENT, absent=("scale",)),
    "resize_backward": Row({"out": _of_shape}, windows=("shape",), conditions=_COEFFICIENT, absent=("scale",)),
    "attention": Row({"out": _attended}, **_attention),
    "attention_train": Row({"out": _attended, "=lse": _sums}, **_attention),
    "attention_backward": Row({f"=d{name}": _each(name) for name in "qkv"}, **_attention),
    "topk": Row({"=values": _first("x.dtype"), "=indices": _first("np.int64")}, windows=("k",)),
    "rope": Row({"out": _lying_like("x")}, optional=("rotary_dims",), checks=_positions),
    "rope_backward": Row({"out": _lying_like("dy")}, optional=("rotary_dims",), checks=_positions),
    "batch_norm_train": Row(
        {
            "out": _lying_like("x"),
            **{f"={name}": _each("scale") for name in ("mean", "inv_std")},
            **{f"={name}": _each(name) for name in ("running_mean", "running_var")},
        },
        numbers=_momentum,
    ),
    "batch_norm_backward": Row(
        {"out": _lying_like("x"), **{f"={name}": _each("scale") for name in ("dscale", "dshift")}}
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
        results = {"out": _like("dy")}
        if kind == "prelu":
            results["dweight"] = _like("weight")
        rows[name] = Row({"out": _glu if kind == "glu" else _like("x")}, **more)
        rows[f"{name}_backward"] = Row({"out": _like("x")} if kind == "glu" else results, **more)
    return rows


_NETWORKS = {
    name: Row(_recurrent | (_cell if name == "lstm" else {}), optional=("clip",)) for name in ("lstm", "gru", "rnn")
}

ROWS: dict[str, Row] = {**_ROWS, **_norms(), **_NETWORKS, **_POOLING, **_activations()}
#: Functions that stand for one of the others, by a literal kind.
BY_KIND = ("activation", "activation_backward")
