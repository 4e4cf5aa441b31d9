"""Calls of the primitives that are formulas, and of recurrent networks, which the contract suite holds to one set of
promises.

A call is made for a dtype: arrays of float64 that stand in it are converted, integers stay as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gather_cases
import norm_cases
import numpy as np
import row_cases
import tensor_cases
from ctc_cases import draw
from helpers import from_float64, in_library, lay_out
from rnn_cases import DEFINITIONS, draw_weights

import numbaprims
from numbaprims import RnnWeights, arrays
from numbaprims.ops.rnn import RnnReserve
from numbaprims.ops.stack import added_sizes
from numbaprims.recurrent.parts import RnnPart
from numbaprims.stacks.operations import parse, sizes_of, steps_of

Made = tuple[tuple[Any, ...], dict[str, Any]]


class Call(NamedTuple):
    """A public function with operands."""

    function: str
    label: str
    make: Callable[[np.random.Generator], Made]
    gradient: str = ""
    """The function that is its gradient, by what `GRADIENTS` says."""
    single: bool = True
    """Whether it is one launch, which any solver may be forced to do."""
    relative: bool = False
    """Whether errors are relative to each element."""
    k: int = 32
    """Roundings behind an element, of sums that are not long."""
    stored: int = 0
    """Roundings to the call's type of what lies between its arrays and a result: states, outputs of layers."""
    wide: tuple[int, ...] = ()
    """The arrays that are of the type that is computed in."""
    given: Callable[..., Made] = lambda args, words: (args, words)
    """What the function takes, where that is no arrays: containers of those of the call."""

    def __str__(self) -> str:
        return f"{self.function}-{self.label}"


CALLS: list[Call] = []


def made(call: Call, dtype: str, library: str = "numpy", layout: str = "C", seed: int = 0) -> Made:
    """(arguments, keywords) of a call in a dtype, its first arrays laid out; a network's weights and states too."""
    args, words = call.make(np.random.default_rng(seed))

    def convert(x, layout="C"):
        if isinstance(x, list):
            return [convert(each) for each in x]
        if not isinstance(x, np.ndarray):
            return x
        if x.dtype != np.float64:
            return in_library(x, arrays.dtype_of(x), library)
        return in_library(lay_out(from_float64(x, dtype), layout), dtype, library)

    shape = args[0].shape
    wide = "f64" if dtype == "f64" else "f32"
    args = tuple(
        in_library(from_float64(x, wide), wide, library) if k in call.wide
        else convert(x, layout if isinstance(x, np.ndarray) and (x.shape == shape or call.stored) else "C")
        for k, x in enumerate(args)
    )  # fmt: skip
    return args, {name: convert(x) for name, x in words.items()}


def run(call: Call, args: Any, words: dict[str, Any]) -> tuple[Any, ...]:
    """The arrays that a call gives."""
    args, words = call.given(args, words)
    return flat(getattr(numbaprims, call.function)(*args, **words))


def flat(result: Any) -> tuple[Any, ...]:
    """The arrays of a result that may be a container of them."""
    if isinstance(result, RnnReserve):
        result = result[-3:]  # the others are the call's own
    if isinstance(result, tuple):
        return tuple(array for each in result for array in flat(each))
    return () if result is None else (result,)


def add(function: str, label: str, make: Callable[[np.random.Generator], Made], **more: Any) -> None:
    CALLS.append(Call(function, label, make, **more))


def _rows(shape: tuple[int, ...], arrays: int, *more: Any, **words: Any) -> Callable[[np.random.Generator], Made]:
    return lambda rng: ((*(rng.standard_normal(shape) for _ in range(arrays)), *more), words)


# ---------------------------------------------------------------- softmax and the losses

#: Short rows, rows with tails, one element, long ones; the last axis, one in the middle, the first.
_SOFTMAX = {
    "short": ((5, 3), -1), "tail": ((7, 67), -1), "long": ((2, 5000), -1), "one": ((4, 1), 1),
    "middle": ((3, 5, 37), 1), "first": ((33, 20), 0), "many": ((130, 10), -1), "vector": ((21,), 0),
}  # fmt: skip
for _label, (_shape, _axis) in _SOFTMAX.items():
    add("softmax", _label, _rows(_shape, 1, axis=_axis), relative=True)
    add("hardmax", _label, _rows(_shape, 1, axis=_axis))
    add("log_softmax", _label, _rows(_shape, 1, axis=_axis))
    # of operands that are no probabilities the sums do not cancel
    add("softmax_backward", _label, _rows(_shape, 2, axis=_axis), k=512)
    add("log_softmax_backward", _label, _rows(_shape, 2, axis=_axis), k=512)


def _classes(
    shape: tuple[int, ...], *, soft: bool = False, weighted: bool = False, backward: bool = False, of: Any = np.int64,
    **words: Any,
) -> Callable[[np.random.Generator], Made]:  # fmt: skip
    def make(rng: np.random.Generator) -> Made:
        rows = (shape[0], *shape[2:])
        x = rng.standard_normal(shape)
        target: Any = rng.random(shape) if soft else rng.integers(0, shape[1], rows).astype(of)
        if not soft:
            target.flat[0] = words.get("ignore_index", -100)
        more = {**words, **({"weight": rng.random(shape[1]) + 0.5} if weighted else {})}
        if not backward:
            return (x, target), more
        dy = np.asarray(rng.standard_normal(rows if words.get("reduction") == "none" else ()))
        return (dy, x, target), more

    return make


for _reduction in ("none", "mean", "sum"):
    for _name, _words in {
        "rows": {"shape": (9, 37)},
        "images": {"shape": (2, 5, 3, 7), "weighted": True},
        "int32": {"shape": (4, 70), "of": np.int32, "ignore_index": 3},
    }.items():
        _words = {**_words, "reduction": _reduction}
        _single = _reduction == "none"
        add("nll_loss", f"{_name}-{_reduction}", _classes(**_words), single=_single)
        add(
            "nll_loss_backward", f"{_name}-{_reduction}", _classes(**_words, backward=True), single=_reduction != "mean"
        )
        for _smoothing in (0.0, 0.1):
            _more = {**_words, "label_smoothing": _smoothing}
            _label = f"{_name}-{_reduction}-{_smoothing}"
            add("softmax_cross_entropy", _label, _classes(**_more), single=_single)
            add("softmax_cross_entropy_backward", _label, _classes(**_more, backward=True), single=False)
    for _weighted in (False, True):
        _more = {"shape": (6, 40), "soft": True, "weighted": _weighted, "reduction": _reduction, "label_smoothing": 0.2}
        add("softmax_cross_entropy", f"soft-{_reduction}-{_weighted}", _classes(**_more), single=_reduction == "none")
        _label = f"soft-{_reduction}-{_weighted}"
        add("softmax_cross_entropy_backward", _label, _classes(**_more, backward=True), single=False)


# ---------------------------------------------------------------- dropout

for _name in ("dropout", "dropout_backward"):
    for _label, _shape in {"short": (7,), "blocks": (3, 5, 64), "long": (2, 20003), "one": (1, 1)}.items():
        add(_name, _label, _rows(_shape, 1, p=0.25, seed=1 << 40, offset=7), k=4)


# ---------------------------------------------------------------- CTC


def _ctc(steps: int, classes: int, labels: int, backward: bool = False, **words: Any) -> Callable[[Any], Made]:
    def make(rng: np.random.Generator) -> Made:
        given = draw(rng, steps, 3, classes, labels, words.get("blank", 0), repeats=True)
        dy = np.asarray(rng.standard_normal(() if words.get("reduction") == "mean" else 3))
        return ((dy, *given) if backward else given), words

    return make


for _label, (_sizes, _words) in {
    "plain": ((9, 7, 3), {}), "blank": ((30, 40, 12), {"blank": 5}),
    "mean": ((25, 33, 17), {"reduction": "mean", "zero_infinity": True}),
}.items():  # fmt: skip
    add("ctc_loss", _label, _ctc(*_sizes, **_words), single=_label != "mean", k=256)
    add("ctc_loss_backward", _label, _ctc(*_sizes, backward=True, **_words), k=256)
    add("ctc_loss_backward", f"{_label}-logits", _ctc(*_sizes, backward=True, logits=True, **_words), k=256)


# ---------------------------------------------------------------- batch normalisation


def _batch_norm(
    function: str,
    shape: tuple[int, ...],
    mode: str = "spatial",
    layout: str = "NCHW",
    running: bool = False,
    **more: Any,
) -> Callable[[np.random.Generator], Made]:
    def make(rng: np.random.Generator) -> Made:
        channels = shape[-1] if layout == "NHWC" else shape[1]
        of = (1, *shape[1:]) if mode == "per_activation" else (channels,)
        x, parameters = rng.standard_normal(shape) + 1.0, [rng.random(of) + 0.5 for _ in range(4)]
        words = {"mode": mode, "layout": layout, **more}
        if function == "batch_norm_backward":
            return (rng.standard_normal(shape), x, *parameters[: 4 if "activation" in more else 3]), words
        return (x, *(parameters if function == "batch_norm" or running else parameters[:2])), words

    return make


_SHAPES: dict[str, tuple[tuple[int, ...], str, str]] = {
    "planes": ((3, 5, 9, 7), "spatial", "NCHW"), "pixels": ((3, 9, 7, 20), "spatial", "NHWC"),
    "matrix": ((40, 37), "spatial", "NCHW"), "volume": ((2, 3, 4, 5, 6), "spatial", "NCHW"),
    "one": ((1, 4, 1, 1), "spatial", "NCHW"), "each": ((6, 5, 3, 7), "per_activation", "NCHW"),
    "large": ((2, 3, 70, 71), "spatial", "NCHW"), "sequence": ((2, 3, 100), "spatial", "NCHW"),
}  # fmt: skip
for _label, _of in _SHAPES.items():
    for _name in ("batch_norm", "batch_norm_train", "batch_norm_backward"):
        add(_name, _label, _batch_norm(_name, *_of), single=_name != "batch_norm", k=1024 if _label == "large" else 64)
    add("batch_norm_train", f"{_label}-running", _batch_norm("batch_norm_train", *_of, running=True), k=64)
_ENDINGS: dict[str, Any] = {
    "planes": "relu", "pixels": ("leaky_relu", {"negative_slope": 0.25}), "each": "gelu", "sequence": "softplus",
    "matrix": ("clip", {"min": -0.5, "max": 0.75}),
}  # fmt: skip
for _label, _activation in _ENDINGS.items():
    for _name in ("batch_norm", "batch_norm_train", "batch_norm_backward"):
        _made = _batch_norm(_name, *_SHAPES[_label], activation=_activation)
        add(_name, f"{_label}-activated", _made, single=_name != "batch_norm", k=128)


norm_cases.add_to(add)
tensor_cases.add_to(add, _SOFTMAX)
gather_cases.add_to(add)
row_cases.add_to(add)

# ---------------------------------------------------------------- pooling


def _pool(
    name: str, shape: tuple[int, ...], args: tuple[Any, ...], words: dict[str, Any]
) -> tuple[Callable[[np.random.Generator], Made], Callable[[np.random.Generator], Made]]:
    """(a call of a pooling, the call of its gradient)"""

    def forward(rng: np.random.Generator) -> Made:
        return (rng.standard_normal(shape), *args), words

    def backward(rng: np.random.Generator) -> Made:
        x = rng.standard_normal(shape)
        y = getattr(numbaprims, name)(x, *args, **words)
        dy, more = rng.standard_normal(y.shape), words
        if name in ("adaptive_max_pool", "global_max_pool"):
            return (dy, x), more
        if name == "max_pool":
            return (dy, x, *args), more
        if name == "lp_pool":
            return (dy, x, y, *args), more
        spatial = shape[1:-1] if words.get("layout") == "NHWC" else shape[2:]
        return (dy, spatial, *(args if name == "avg_pool" else ())), more

    return forward, backward


_POOLS: dict[str, tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 8, 12), (2,), {}), "planes": ((2, 3, 13, 21), (3,), {"stride": 2, "padding": 1}),
    "pixels": ((2, 9, 7, 20), (3,), {"stride": 1, "padding": 1, "layout": "NHWC"}),
    "ceil": ((1, 2, 10, 11), (3,), {"stride": 2, "ceil_mode": True, "padding": ((0, 1), (1, 0))}),
}  # fmt: skip
for _label, (_shape, _args, _words) in _POOLS.items():
    for _name in ("max_pool", "avg_pool", "lp_pool"):
        _forward, _backward = _pool(_name, _shape, _args, _words)
        add(_name, _label, _forward)
        add(f"{_name}_backward", _label, _backward)
for _shape, _label, _words in (((2, 5, 7, 9), "planes", {}), ((2, 7, 9, 20), "pixels", {"layout": "NHWC"})):
    for _name, _args in (("adaptive", ((3, 4),)), ("global", ())):
        for _op in ("max", "avg"):
            _forward, _backward = _pool(f"{_name}_{_op}_pool", _shape, _args, _words)
            add(f"{_name}_{_op}_pool", _label, _forward)
            add(f"{_name}_{_op}_pool_backward", _label, _backward)


# ---------------------------------------------------------------- local response normalisation


def _lrn(
    shape: tuple[int, ...], arrays: int, size: int, words: dict[str, Any]
) -> Callable[[np.random.Generator], Made]:
    return lambda rng: ((*(rng.standard_normal(shape) for _ in range(arrays)), size), words)


for _label, (_shape, _size, _words) in {
    "planes": ((2, 9, 5, 7), 5, {"alpha": 0.5}),
    "pixels": ((2, 5, 3, 37), 4, {"alpha": 0.5, "k": 2.0, "layout": "NHWC"}),
    "even": ((1, 6, 40), 4, {"before": 1, "beta": 0.5}),
    "wide": ((1, 3, 30, 41), 9, {"alpha": 1.0}),
    "within": ((2, 3, 9, 37), 5, {"mode": "within_channel"}),
    "within pixels": ((1, 4, 6, 20), 3, {"mode": "within_channel", "layout": "NHWC", "before": 0}),
    "volume": ((1, 2, 3, 4, 19), 3, {"mode": "within_channel"}),
    "one": ((3, 1, 1), 3, {}), "long": ((1, 2, 1200), 3, {"mode": "within_channel"}),
}.items():  # fmt: skip
    add("lrn", _label, _lrn(_shape, 1, _size, _words))
    add("lrn_backward", _label, _lrn(_shape, 2, _size, _words), k=128)


# ---------------------------------------------------------------- resizing

_RESIZED = {
    "double": ((2, 3, 9, 20), (18, 40), {"mode": "linear"}),
    "half": ((1, 2, 12, 70), (6, 35), {"mode": "linear"}),
    "corners": ((1, 2, 5, 7), (8, 19), {"mode": "linear", "align_corners": True}),
    "far": ((1, 1, 7, 200), (5, 21), {"mode": "linear", "antialias": True}),
    "pixels": ((2, 5, 6, 20), (10, 9), {"mode": "linear", "layout": "NHWC"}),
    "colours": ((1, 5, 30, 3), (7, 41), {"mode": "linear", "layout": "NHWC"}),
    "cubic": ((1, 2, 6, 17), (11, 31), {"mode": "cubic"}),
    "cubic pixels": ((1, 4, 5, 17), (7, 3), {"mode": "cubic", "layout": "NHWC", "align_corners": True}),
    "volume": ((1, 2, 3, 4, 18), (6, 7, 33), {"mode": "linear"}),
    "row": ((2, 3, 40), (25,), {"mode": "linear"}),
    "nearest": ((2, 3, 9, 20), (18, 40), {}),
    "nearest pixels": ((1, 4, 6, 20), (9, 3), {"mode": "nearest_exact", "layout": "NHWC"}),
    "nearest volume": ((1, 2, 3, 4, 18), (6, 3, 40), {"mode": "nearest_exact"}),
}


def _resized(
    shape: tuple[int, ...], size: tuple[int, ...], words: dict[str, Any], backward: bool
) -> Callable[[np.random.Generator], Made]:
    last = words.get("layout") == "NHWC"
    to = (shape[0], *size, shape[-1]) if last else (*shape[:2], *size)
    given = (to, shape) if backward else (shape, size)
    return lambda rng: ((rng.standard_normal(given[0]), given[1]), words)


for _label, (_shape, _size, _words) in _RESIZED.items():
    add("resize", _label, _resized(_shape, _size, _words, False))
    add("resize_backward", _label, _resized(_shape, _size, _words, True), k=128)


# ---------------------------------------------------------------- stacks


def _stack(shape: tuple[int, ...], operations: str, **words: Any) -> Callable[[np.random.Generator], Made]:
    texts = tuple(operations.split())
    numbers = sum(parse(text).numbers for text in texts)
    channels = shape[-1] if words.get("layout") == "NHWC" else shape[1]

    def make(rng: np.random.Generator) -> Made:
        return (rng.standard_normal(shape), texts, *([rng.random((channels, numbers)) + 0.5] if numbers else [])), words

    return make


_BLOCK = "max/3x3/1x1/1x1/1x1/1x1/0/1 batch_norm/3 relu/0 "
_STACKS: dict[str, tuple[tuple[int, ...], str, dict[str, Any]]] = {
    "plain": ((3, 2, 5, 6), "relu/0 softsign/0", {}),
    "elements": ((2, 5, 9, 7), "batch_norm/3 leaky_relu/1 bias/1", {}),
    "blocks": ((2, 3, 11, 37), 3 * _BLOCK, {}),
    "pixels": ((2, 11, 9, 20), 2 * _BLOCK + "avg/2x2/2x2/0x0/0x0/1x1/0/1 sigmoid/0", {"layout": "NHWC"}),
    "cut": ((1, 3, 14, 14), "relu/0 " + 3 * _BLOCK, {"most": 2}),
    "bands": ((1, 2, 33, 20), "scale/1 avg/3x3/2x2/1x1/1x1/1x1/1/0 " + 3 * _BLOCK, {"limit": 3000}),
    "depthwise": ((2, 3, 9, 21), "depthwise/3x3/1x1/1x1/1x1/1x1/0/1 bias/1 relu/0 avg/2x2/2x2/0x0/0x0/1x1/0/1", {}),
    "depthwise pixels": ((1, 9, 8, 19), "scale/1 depthwise/3x2/2x1/1x1/1x0/1x1/0/1 bias/1", {"layout": "NHWC"}),
    "large": ((1, 20, 31, 2), "affine/2 max/15x14/2x3/7x7/7x7/1x1/0/1 avg/4x2/1x1/2x0/1x1/1x1/0/1", {"layout": "NHWC"}),
}  # fmt: skip
for _label, (_shape, _texts, _words) in _STACKS.items():
    add("stack", _label, _stack(_shape, _texts, **_words), wide=(2,), k=64)


def _stack_backward(shape: tuple[int, ...], operations: str, **words: Any) -> Callable[[np.random.Generator], Made]:
    def make(rng: np.random.Generator) -> Made:
        (x, texts, *parameters), _ = _stack(shape, operations, **words)(rng)
        parsed = [parse(text) for text in texts]
        last = words.get("layout") == "NHWC"
        n, c, size = shape[0], shape[-1 if last else 1], shape[1:3] if last else shape[2:]

        def image(size: tuple[int, int]) -> np.ndarray:
            return rng.standard_normal((n, *size, c) if last else (n, c, *size))

        more = {"added": [image(each) for each in added_sizes(parsed, size)]} if "add/0" in texts else {}
        return (image(sizes_of(steps_of(parsed), size)[-1]), x, texts, *parameters), {**more, **words}

    return make


for _label, _of in {
    "smooth": ((3, 2, 5, 6), "softsign/0 sigmoid/0", {}),
    **{_label: _STACKS[_label] for _label in ("elements", "plain", "blocks", "pixels", "large")},
    "residual": ((2, 3, 9, 13), "batch_norm/3 add/0 relu/0 add/0", {}),
    "narrow": ((1, 2, 20, 5), "avg/3x3/2x2/1x1/1x1/1x1/1/0 prelu/1 add/0 gelu/0 " + _BLOCK, {"of_added": ()}),
    "frozen": ((2, 9, 8, 16), "scale/1 silu/0 " + _BLOCK, {"layout": "NHWC", "of_parameters": (2, 3)}),
    "many": ((2, 3, 5, 7), 6 * "batch_norm/3 tanh/0 ", {}),
}.items():
    add("stack_backward", _label, _stack_backward(_of[0], _of[1], **_of[2]), wide=(3,), k=256)


# ---------------------------------------------------------------- recurrent networks


def network(like: RnnWeights, arrays: Any) -> RnnWeights:
    """A network with the given arrays in the place of those that another has."""
    left = iter(arrays)
    parts = tuple(RnnPart(*(None if array is None else next(left) for array in part)) for part in like.parts)
    return RnnWeights(like.cell, parts, like.directions, like.reset_after, like.skip_input)


def _recurrent(cell: str, shape: tuple[int, int, int], call: dict[str, Any], drawn: dict[str, Any]) -> None:
    """Add a network's calls: inference, training, gradient. The arrays are x, the states and the weights."""
    name, label = cell.partition("_")[0], drawn.pop("label")
    states = 2 if cell == "lstm" else 1
    merge = {"merge": call["merge"]} if "merge" in call else {}
    like = draw_weights(np.random.default_rng(0), cell, inputs=shape[-1], **drawn, **merge)
    steps, batch = shape[1::-1] if call.get("batch_first") else shape[:2]

    def start(rng: np.random.Generator) -> list[np.ndarray]:
        widths = (like.out_size, like.hidden_size)[:states]
        return [rng.standard_normal((len(like.parts), batch, width)) for width in widths]

    def make(rng: np.random.Generator) -> Made:
        most = min(0.9, 3.0 / like.hidden_size**0.5)  # of wider ones errors grow from step to step, to 38 times
        weights = [rng.uniform(-most, most, array.shape) for array in flat(like.parts)]
        return (rng.standard_normal(shape), *start(rng), *weights), call

    def given(args: Any, words: Any) -> Made:
        x, *more = args
        return (x, network(like, more[states:]), *more[:states]), words

    def make_backward(rng: np.random.Generator) -> Made:
        args, words = make(rng)
        directions = like.directions if call.get("merge") != "sum" else 1
        return (rng.standard_normal((*shape[:2], directions * like.out_size)), *start(rng), *args), words

    def given_backward(args: Any, words: Any) -> Made:
        *errors, reserve = *args[: 1 + states], args[1 + states :]
        args, words = given(reserve, words)
        return (*errors, getattr(numbaprims, f"{name}_train")(*args, **words)[-1]), {}

    more = {"k": 128 * like.layers * steps, "stored": 8}
    add(name, label, make, given=given, **more)
    if "clip" not in call:
        add(f"{name}_train", label, make, given=given, **more)
        add(f"{name}_backward", label, make_backward, given=given_backward, **more)


#: A label -> (x, what the call says, what the weights are).
_NETWORKS: dict[str, tuple[tuple[int, int, int], dict[str, Any], dict[str, Any]]] = {
    "deep": ((5, 4, 7), {}, {"hidden": 20, "layers": 2, "directions": 2}),
    "wide": ((7, 19, 5), {"reverse": True, "lengths": np.arange(19) % 8}, {"hidden": 37, "bias": False}),
    "sum": ((3, 6, 5), {"batch_first": True, "merge": "sum", "lengths": np.array([2, 0, 6])},
            {"hidden": 9, "layers": 2, "directions": 2}),
    "clipped": ((4, 3, 21), {"clip": 0.7}, {"hidden": 21, "skip": True, "layers": 2}),
    "one": ((1, 1, 3), {}, {"hidden": 4}),
}  # fmt: skip
for _cell, _after in DEFINITIONS:
    for _label, (_shape, _words, _drawn) in _NETWORKS.items():
        _recurrent(_cell, _shape, _words, {**_drawn, "after": _after, "label": f"{_cell}-{_label}-{_after}"})
_recurrent("lstm", (5, 4, 7), {"lengths": np.array([3, 5, 1, 5])},
           {"label": "projected", "proj": 5, "peephole": True, "hidden": 18, "directions": 2})  # fmt: skip
_recurrent("lstm", (5, 9, 7), {}, {"label": "peepholes", "peephole": True, "hidden": 33, "layers": 2})
# ---------------------------------------------------------------- attention


def _attention(
    q: tuple[int, ...],
    k: tuple[int, ...],
    values: int,
    mask: tuple[int, ...] = (),
    *,
    floats: bool = False,
    **words: Any,
) -> Callable[[np.random.Generator], Made]:
    def make(rng: np.random.Generator) -> Made:
        given = rng.standard_normal(q), rng.standard_normal(k), rng.standard_normal((*k[:-1], values))
        more = {"mask": rng.standard_normal(mask) if floats else rng.random(mask) < 0.7} if mask else {}
        return given, {**more, **words}

    return make


def _attention_backward(*of: Any, **words: Any) -> Callable[[np.random.Generator], Made]:
    def make(rng: np.random.Generator) -> Made:
        given, more = _attention(*of, **words)(rng)
        with numbaprims.config(device="reference"):
            out, lse = numbaprims.attention_train(*given, **more)
        return (rng.standard_normal(out.shape), *given, out, lse), more

    return make


_ATTENTION: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "heads": (((2, 3, 37, 20), (2, 3, 41, 20), 20), {}),
    "causal": (((2, 70, 16), (2, 90, 16), 24), {"causal": True}),
    "grouped": (((2, 6, 5, 33), (2, 2, 130, 33), 17, (2, 1, 1, 130)), {"scale": 0.25}),
    "biased": (((4, 35, 8), (1, 66, 8), 5, (4, 35, 66)), {"floats": True, "causal": True}),
    "decode": (((1, 8, 1, 64), (1, 2, 300, 64), 64), {}),
    "wide": (((1, 1, 200, 70), (1, 1, 300, 70), 130, (200, 300)), {}),
}
for _label, (_of, _words) in _ATTENTION.items():
    for _name in ("attention", "attention_train"):
        add(_name, _label, _attention(*_of, **_words), k=128)
    add("attention_backward", _label, _attention_backward(*_of, **_words), wide=(5,), k=512)
