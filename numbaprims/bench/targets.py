"""The project's own goals: for each row a floor that must hold and an aim, and what a run reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

Record = dict[str, Any]
Metric = Callable[[Record], float | None]

EXP_LIKE = ("exp", "tanh", "sigmoid", "gelu", "silu", "mish", "softplus", "elu")
CHEAP = ("relu", "abs", "clip", "leaky_relu")
LARGE_ACTIVATION = 1 << 26


@dataclass(frozen=True)
class Target:
    """One goal; None where the project has stated no floor, or no aim.

    metric   number of a record, or None where the row says nothing about it
    reduce   "geomean", "worst" (the least favourable record) or "mean"
    lower    True where less is better (times)
    unit     "x" or "%" behind the number
    """

    stem: str
    name: str
    metric: Metric
    reduce: str
    floor: float | None
    aim: float | None
    unit: str = "x"
    lower: bool = False

    def value(self, records: Iterable[Record]) -> tuple[float, int, str] | None:
        """(number reached, records it comes from, label of the worst of them); None if no record counts."""
        found = [(number, record) for record in records if (number := self.metric(record)) is not None]
        if not found:
            return None
        numbers = [number for number, _ in found]
        pick = max if self.lower else min
        worst, where = pick(found, key=lambda entry: entry[0])
        if self.reduce == "worst":
            reached = worst
        else:
            reached = geometric_mean(numbers) if self.reduce == "geomean" else sum(numbers) / len(numbers)
        return reached, len(found), str(where["label"])

    def verdict(self, value: float) -> str:
        """ "aim", "floor", "below the aim" where there is no floor, or by how much of the floor it misses."""
        if self.aim is not None and (value <= self.aim if self.lower else value >= self.aim):
            return "aim"
        if self.floor is None:
            return "below the aim"
        if value <= self.floor if self.lower else value >= self.floor:
            return "floor"
        missed = value / self.floor - 1 if self.lower else 1 - value / self.floor
        return f"MISSED by {100 * missed:.0f} %"


def _speedup(record: Record, *names: str) -> float | None:
    """Speed-up over the best of the rivals named; None if none of them ran."""
    found = [record["rivals"][name]["speedup"] for name in names if name in record.get("rivals", {})]
    return min(found) if found else None


def _over(which: Callable[[Record], bool], *names: str) -> Metric:
    """Over the best of the rivals named, or of all."""
    return lambda record: _speedup(record, *(names or record.get("rivals", {}))) if which(record) else None


def _of(which: Callable[[Record], bool]) -> Metric:
    """Percent of the roof."""
    return lambda record: record["roof"]["percent"] if which(record) and "roof" in record else None


def _f32(record: Record) -> bool:
    return bool(record["dtype"] == "f32")


def _plain(record: Record, *switches: str) -> bool:
    """f32, and none of these switches."""
    return _f32(record) and not {*switches} & record["switches"].keys()


# ---------------------------------------------------------------- products


def _is_square(record: Record) -> bool:
    return record["suite"] == "square" and 256 <= record["sizes"]["n"] <= 4096 and not record["switches"]


def _square_f32(record: Record) -> bool:
    return _f32(record) and _is_square(record)


def _odd(record: Record) -> bool:
    return record["suite"] in ("skinny", "deepbench") and _f32(record)


def _plan_over(*names: str) -> Metric:
    """The speed-up of our plan, whose B is packed beforehand, over the best of the rivals."""

    def metric(record: Record) -> float | None:
        speedup, plan = _over(_odd, *names)(record), _speedup(record, "numbaprims plan")
        return None if speedup is None or plan is None else speedup / plan

    return metric


def _square_of(dtype: str) -> Callable[[Record], bool]:
    return lambda record: record["dtype"] == dtype and _is_square(record)


def _paper_f32(record: Record) -> bool:
    return record["suite"] in ("square", "wide128", "wide256") and _f32(record)


def _vector_read_percent(record: Record) -> float | None:
    """Of the bandwidth of reading as many bytes, for matrices that no cache of the machine holds."""
    if not _paper_f32(record) or record["bytes"] < 2 * record["caches"]["l3"]:
        return None
    return record.get("percent_of_read", _of(_f32)(record))


# ---------------------------------------------------------------- activations


def _kind(record: Record) -> str:
    return str(record["switches"].get("kind", ""))


def _activation(kinds: tuple[str, ...], least: int) -> Metric:
    def inside(record: Record) -> bool:
        small = record["suite"] == "small" and least <= record["sizes"]["n"] <= 1 << 20
        return small and _plain(record, "backward") and _kind(record) in kinds

    return _over(inside, "torch")


def _large_activation(record: Record) -> bool:
    return record["sizes"]["n"] >= LARGE_ACTIVATION and _plain(record, "backward")


# ---------------------------------------------------------------- convolutions


def _layer(record: Record) -> dict[str, Any]:
    """Sizes and parameters of a convolution, pairs as text; with its direction."""
    plain = {"stride": "1", "dilation": "1", "groups": 1, "direction": "forward"}
    return {**plain, **record["sizes"], **record["switches"]}


# The suites that conv is judged by: those that run unless others are named.
_JUDGED = ("resnet50", "vgg16", "mobilenet", "depthwise5x5", "first")


def _plain_forward(record: Record) -> bool:
    """A forward convolution of a network, without an epilogue, which not every rival can fuse."""
    inside = record["suite"] in _JUDGED
    return inside and not {"direction", "layout", "bias", "activation"} & record["switches"].keys()


def _is_dense(record: Record) -> bool:
    return record["suite"] in ("resnet50", "vgg16") and _plain_forward(record)


def _is_3x3(record: Record) -> bool:
    layer = _layer(record)
    window = (layer["r"], layer["s"], layer["stride"], layer["dilation"], layer["groups"]) == (3, 3, "1", "1", 1)
    return window and min(layer["c"], layer["k"]) >= 64 and _plain_forward(record)


def _is_1x1(record: Record) -> bool:
    layer = _layer(record)
    return (layer["r"], layer["s"], layer["groups"]) == (1, 1, 1) and _plain_forward(record)


def _is_depthwise(record: Record) -> bool:
    layer = _layer(record)
    return layer["groups"] == layer["c"] > 1 and layer["r"] in (3, 5) and _plain_forward(record)


def _is_first(record: Record) -> bool:
    return record["suite"] == "first" and _plain_forward(record)


def _conv_over(which: Callable[[Record], bool], *names: str, dtype: str = "f32") -> Metric:
    return _over(lambda record: record["dtype"] == dtype and which(record), *names)


def _gradient_over(direction: str, *names: str) -> Metric:
    def inside(record: Record) -> bool:
        judged = record["suite"] in _JUDGED and _plain(record, "layout")
        return judged and _layer(record)["direction"] == direction

    return _over(inside, *names)


def _depthwise_f32(record: Record) -> bool:
    return _is_depthwise(record) and _f32(record)


def _depthwise_copy_percent(record: Record) -> float | None:
    return record["roof"]["percents"]["copy"] if _depthwise_f32(record) and "roof" in record else None


def _cold(record: Record) -> float | None:
    return None if record.get("cold") is None else 1e3 * record["cold"]


def _regret(record: Record) -> float | None:
    return record["regret"]["percent"] if "regret" in record else None


# ---------------------------------------------------------------- the others

# Suites that no goal is about.
_ASIDE = ("given", "quick")


def _kinds_over(*kinds: str, backward: bool = False) -> Metric:
    """Over the best rival of each case: of layers that memory bounds every library's best form counts."""

    def inside(record: Record) -> bool:
        judged = _f32(record) and record["suite"] not in _ASIDE and _kind(record) in kinds
        return judged and ("backward" in record["switches"]) == backward

    return _over(inside)


def _elements_over(record: Record) -> float | None:
    return None if _kind(record) in (*_MOVED, "concat") else _any_over(record)


def _moved_beyond(record: Record) -> bool:
    """Copies in another order of what the caches do not hold."""
    judged = _f32(record) and record["suite"] not in _ASIDE and _kind(record) in _MOVED
    return judged and record["bytes"] > record["caches"]["l3"]


_any_over = _over(lambda record: _f32(record) and record["suite"] not in _ASIDE)


def _rnn_over(*, backward: bool = False, lengths: bool = False) -> Metric:
    def metric(record: Record) -> float | None:
        switches = record["switches"]
        if ("backward" in switches, "lengths" in switches) != (backward, lengths) or record["suite"] in _ASIDE:
            return None
        others = (name for name in record.get("rivals", {}) if not name.startswith("numbaprims"))
        return _speedup(record, *others) if _f32(record) else None

    return metric


def _rnn_percent(*, one: bool = False) -> Metric:
    """Of inference: of the multiply-adds' peak, with `one` sequence of that and of reading the weights in turn."""

    def inside(record: Record) -> bool:
        sequences = record["sizes"]["n"]
        large = (sequences == 1 if one else sequences >= 16) and record["sizes"]["h"] >= 512
        return large and _plain(record, "backward", "lengths")

    return _of(inside)


def _attention_over(*, backward: bool = False, decode: bool = False, masked: bool = False) -> Metric:
    def inside(record: Record) -> bool:
        asked = (record["sizes"]["l"] == 1) == decode or masked
        asked = asked and ("backward" in record["switches"]) == backward
        return asked and _masked(record) == masked and _f32(record)

    return _over(inside, "torch")


def _masked(record: Record) -> bool:
    return record["switches"].get("kind") in ("padded", "windows")


def _many_queries(record: Record) -> bool:
    return _plain(record, "backward") and record["sizes"]["l"] >= 128 and not _masked(record)


def _figure10(record: Record) -> bool:
    return _f32(record) and record["suite"] == "figure10"


def _stack_over(*names: str) -> Metric:
    """Over rivals on images of the same layout."""

    def metric(record: Record) -> float | None:
        last = " nhwc" if record["switches"].get("layout") == "NHWC" else ""
        return _over(_figure10, *(name + last for name in names))(record)

    return metric


def _field(name: str) -> Metric:
    return lambda record: record.get(name)


_ANY = ("numpy", "torch", "onednn", "onednn packed")
_CONV = ("torch", "torch nhwc", "torch prepacked", "onnxruntime")
_OWN = "numbaprims f32"
_NORMS = ("layer", "rms", "group", "instance")
_MOVED = ("transform", "transform-back", "transform-heads")
_RESIZED = ("nearest", "linear", "cubic")
_PADS = ("pad-constant", "pad-reflect", "pad-edge", "pad-wrap")
_POOLS = ("max", "avg", "global_avg")

TARGETS = (
    Target("gemm", "f32, square 256-4096, of the FMA peak", _of(_square_f32), "geomean", 82, 95, "%"),
    Target("gemm", "f32, square 256-4096, over NumPy (OpenBLAS)", _over(_square_f32, "numpy"), "geomean", 0.92, 1.05),
    Target("gemm", "f32, square 256-4096, over torch.mm (MKL)", _over(_square_f32, "torch"), "geomean", 2.0, 2.3),
    Target("gemm", "f32, skinny and odd, over the best rival", _over(_odd, *_ANY[:3]), "geomean", 1.1, 1.4),
    Target("gemm", "f32, skinny and odd, over the best rival, worst", _over(_odd, *_ANY[:3]), "worst", 0.8, 1.0),
    Target("gemm", "the same, oneDNN's weights packed beforehand", _over(_odd, *_ANY), "geomean", 1.1, 1.4),
    Target("gemm", "the same, our weights in a plan as well", _plan_over(*_ANY), "geomean", 1.1, 1.4),
    Target("gemm", "bf16, square 256-4096, over our own f32", _over(_square_of("bf16"), _OWN), "geomean", 1.3, 1.7),
    Target("gemm", "int8, square 256-4096, over our own f32", _over(_square_of("int8"), _OWN), "geomean", 1.8, 3.0),
    Target(
        "gemv",
        "f32, gemv and gemv^T, over the better of NumPy and torch",
        _over(_paper_f32, "numpy", "torch"),
        "geomean",
        1.2,
        2,
    ),
    Target("gemv", "f32, larger than the caches, of the read bandwidth", _vector_read_percent, "geomean", 85, 95, "%"),
    Target("ger", "f32, over the better of NumPy and torch", _over(_paper_f32, "numpy", "torch"), "geomean", 1.2, 2),
    Target("ger", "f32, larger than the caches, of the read bandwidth", _vector_read_percent, "geomean", 85, 95, "%"),
    Target("activation", "f32, exp-like, 16 Ki to 1 Mi, over torch", _activation(EXP_LIKE, 1 << 14), "geomean", 3, 5),
    Target("activation", "f32, cheap, 64 Ki to 1 Mi, over torch", _activation(CHEAP, 1 << 16), "geomean", 1, 1.3),
    Target("activation", "f32, every kind, 64 Mi, of the best copy", _of(_large_activation), "geomean", 85, 95, "%"),
    Target(
        "activation", "f32, every kind, 64 Mi, of the best copy, worst", _of(_large_activation), "worst", 85, 95, "%"
    ),
    Target("conv", "f32, ResNet-50 and VGG-16, over torch NCHW", _conv_over(_is_dense, "torch"), "geomean", 1.3, 2),
    Target("conv", "f32, ResNet-50 and VGG-16, over the best rival", _conv_over(_is_dense, *_CONV), "geomean", 1, 1.5),
    Target("conv", "f32, 3x3 stride 1, C, K >= 64, over the best", _conv_over(_is_3x3, *_CONV), "geomean", 1.4, 2),
    Target("conv", "f32, 3x3 stride 1, C, K >= 64, worst", _conv_over(_is_3x3, *_CONV), "worst", 0.95, None),
    Target("conv", "f32, 1x1, over the best rival", _conv_over(_is_1x1, *_CONV), "geomean", 1, 1.3),
    Target("conv", "f32, depthwise 3x3, 5x5, over torch NCHW", _conv_over(_is_depthwise, "torch"), "geomean", 1.5, 3),
    Target("conv", "f32, depthwise 3x3, 5x5, of the best copy", _depthwise_copy_percent, "geomean", None, 80, "%"),
    Target("conv", "the same, of the copy or the FMA peak", _of(_depthwise_f32), "geomean", None, 80, "%"),
    Target("conv", "f32, first layers, over the best rival", _conv_over(_is_first, *_CONV), "geomean", 1, 1.3),
    Target("conv", "f32, data gradient, over torch", _gradient_over("data", *_CONV[:2]), "geomean", 1, 1.5),
    Target("conv", "f32, weight gradient, over torch", _gradient_over("weight", *_CONV[:2]), "geomean", 1, 1.5),
    Target("conv", "bf16, over our own f32", _conv_over(_is_dense, _OWN, dtype="bf16"), "geomean", 1.2, 1.7),
    Target("conv", "int8, over our own f32", _conv_over(_is_dense, _OWN, dtype="int8"), "geomean", 1.5, 2.5),
    Target("conv", "first call of a shape, kernels loaded, worst", _cold, "worst", 50, 5, " ms", lower=True),
    Target("conv", "default choice, slower than the best solver", _regret, "mean", 10, None, "%", lower=True),
    Target("conv", "default choice, slower than the best, worst", _regret, "worst", 50, None, "%", lower=True),
    Target("softmax", "f32, softmax, over the best rival", _kinds_over("softmax"), "geomean", 1.5, None),
    Target("softmax", "f32, log-softmax, over the best rival", _kinds_over("log_softmax"), "geomean", 1.5, None),
    Target("softmax", "f32, cross entropy, over the best rival", _kinds_over("cross_entropy"), "geomean", 1.5, None),
    Target(
        "softmax",
        "f32, gradients, over the best rival",
        _kinds_over("softmax", "log_softmax", "cross_entropy", backward=True),
        "geomean",
        None,
        1.5,
    ),
    Target("softmax", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("batch_norm", "f32, inference, over the best rival", _kinds_over("inference"), "geomean", 1.3, None),
    Target("batch_norm", "f32, training, over the best rival", _kinds_over("train"), "geomean", 1.3, None),
    Target("batch_norm", "f32, gradient, over the best rival", _kinds_over("backward"), "geomean", 1.3, None),
    Target("batch_norm", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("norm", "f32, rows, over the best rival", _kinds_over("layer", "rms"), "geomean", 1.3, 2),
    Target("norm", "f32, images, over the best rival", _kinds_over("group", "instance"), "geomean", 1.3, 2),
    Target("norm", "f32, gradients, over the best rival", _kinds_over(*_NORMS, backward=True), "geomean", 1.3, 2),
    Target("norm", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("lrn", "f32, over the best rival", _any_over, "geomean", 5, 10),
    Target("lrn", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("resize", "f32, over the best rival", _kinds_over(*_RESIZED), "geomean", 1.3, 2),
    Target("resize", "f32, gradients, over the best rival", _kinds_over(*_RESIZED, backward=True), "geomean", 1.3, 2),
    Target("resize", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("reduce", "f32, over the best rival", _any_over, "geomean", 1.3, 2),
    Target("reduce", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("tensor", "f32, over the best rival", _elements_over, "geomean", 1.3, 2),
    Target("tensor", "f32, copies in another order, over the best rival", _kinds_over(*_MOVED), "geomean", 1.3, 2),
    Target("tensor", "f32, the same beyond the caches, of the copy", _of(_moved_beyond), "geomean", 85, 95, "%"),
    Target("tensor", "f32, concat, over the best rival", _kinds_over("concat"), "geomean", 1.3, 2),
    Target("tensor", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("gather", "f32, pads, over the best rival", _kinds_over(*_PADS), "geomean", 1.3, 2),
    Target("gather", "f32, pads, over the best rival, worst", _kinds_over(*_PADS), "worst", 0.9, None),
    Target("gather", "f32, gradients by indices, over torch", _kinds_over("gather", backward=True), "geomean", 1, 2),
    Target("quantize", "over onnxruntime", _any_over, "geomean", 1.0, 1.3),
    Target("quantize", "over onnxruntime, worst", _any_over, "worst", 0.7, None),
    Target("pooling", "f32, over the best rival", _kinds_over(*_POOLS), "geomean", 1.8, None),
    Target("pooling", "f32, gradients, over the best rival", _kinds_over(*_POOLS, backward=True), "geomean", 1.8, None),
    Target("pooling", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("stack", "f32, figure 10, over torch of the layout", _stack_over("torch"), "geomean", 30, 60),
    Target("stack", "f32, figure 10, over inductor of the layout", _stack_over("inductor"), "geomean", 6, 12),
    Target("stack", "f32, figure 10, over our own layers", _over(_figure10, "numbaprims layers"), "geomean", 3, 6),
    Target("stack", "f32, over the best rival, worst", _any_over, "worst", 1, None),
    Target("random", "f32, dropout, over torch", _kinds_over("dropout"), "geomean", 3, 6),
    Target("random", "f32, random numbers, over the better rival", _kinds_over("uniform", "normal"), "geomean", 1.5, 3),
    Target("rnn", "f32, inference, over the better rival", _rnn_over(), "geomean", 1.2, 1.6),
    Target("rnn", "f32, inference, over the better rival, worst", _rnn_over(), "worst", 0.9, 1.1),
    Target("rnn", "f32, batch 16 and 64, H 512 and more, of the peak", _rnn_percent(), "geomean", 78, 90, "%"),
    Target(
        "rnn",
        "f32, one sequence, H 512 and more, of both roofs in turn",
        _rnn_percent(one=True),
        "geomean",
        70,
        90,
        "%",
    ),
    Target("rnn", "f32, training, over torch", _rnn_over(backward=True), "geomean", 1.1, 1.5),
    Target("rnn", "f32, lengths from 1 to T, over torch's packed", _rnn_over(lengths=True), "geomean", 1.5, 3),
    Target("attention", "f32, inference, over torch", _attention_over(), "geomean", 1.0, 1.4),
    Target("attention", "f32, one query, over torch", _attention_over(decode=True), "geomean", 1.0, 1.4),
    Target("attention", "f32, training, over torch", _attention_over(backward=True), "geomean", 0.9, 1.2),
    Target("attention", "f32, masks, over torch", _attention_over(masked=True), "geomean", 1.0, 1.4),
    Target(
        "attention",
        "f32, masks, training, over torch",
        _attention_over(backward=True, masked=True),
        "geomean",
        0.9,
        1.2,
    ),
    Target("attention", "f32, inference, over the better rival, worst", _any_over, "worst", 0.9, 1.1),
    Target("attention", "f32, 128 queries and more, of the peak", _of(_many_queries), "geomean", 60, 80, "%"),
    Target("rope", "f32, over the best rival", _any_over, "geomean", 1.3, 2),
    Target("rope", "f32, over the best rival, worst", _any_over, "worst", 0.9, None),
    Target("scan", "f32, over the better rival", _any_over, "geomean", 1.3, 2),
    Target("scan", "f32, over the better rival, worst", _any_over, "worst", 0.9, None),
    Target("topk", "f32, over the better rival", _any_over, "geomean", 1.3, 3),
    Target("topk", "f32, over the better rival, worst", _any_over, "worst", 0.9, None),
    Target("ctc", "f32, loss, over torch", _kinds_over("loss"), "geomean", 3, 10),
    Target("ctc", "f32, loss and gradient, over torch", _kinds_over("loss", backward=True), "geomean", 3, 10),
    Target("ctc", "f32, over torch, worst", _any_over, "worst", 0.9, None),
    Target("call", "8x8 operands, times NumPy's own time", _field("times_numpy"), "worst", 1, 0.5, lower=True),
    Target("call", "8x8 tensors, times torch's own time", _field("times_torch"), "worst", 1.5, 1, lower=True),
    Target("start", "first gemm of a process, cold cache", _field("cold"), "worst", 4, 2, " s", lower=True),
    Target("start", "first gemm of a process, warm cache", _field("warm"), "worst", 0.9, 0.65, " s", lower=True),
)


def _judged(record: Record) -> bool:
    return record["suite"] in _JUDGED and _plain(record, "layout")


def _large(record: Record) -> bool:
    """Where neither the launch nor the second-level cache decides."""
    return _f32(record) and record["bytes"] >= 1 << 28


# On a GPU torch's products are cuBLAS.
GPU_TARGETS = (
    Target("gemm", "f32, square 256-4096, over cuBLAS", _over(_square_of("f32"), "torch"), "geomean", 0.7, 0.95),
    Target("gemm", "bf16, square 256-4096, over cuBLAS", _over(_square_of("bf16"), "torch"), "geomean", 0.6, 0.85),
    Target("conv", "f32, every direction, over cuDNN", _over(_judged, "torch", "torch nhwc"), "geomean", 0.6, 0.9),
    Target("gemv", "f32, gemv and gemv^T, over the best rival", _over(_f32, "torch", "cupy"), "geomean", 1.0, 1.3),
    Target("ger", "f32, over the best rival", _over(_f32, "torch", "cupy"), "geomean", 1.0, 1.3),
    Target("gemv", "f32, from 256 MiB, of the measured copy", _of(_large), "geomean", 85, 95, "%"),
    Target("ger", "f32, from 256 MiB, of the measured copy", _of(_large), "geomean", 85, 95, "%"),
    Target("activation", "f32, from 256 MiB, of the measured copy", _of(_large), "geomean", 85, 95, "%"),
    Target("activation", "f32, every kind, over the best rival", _over(_f32, "torch", "cupy"), "geomean", 0.95, 1.05),
)


def summarise(records: list[Record]) -> list[dict[str, Any]]:
    """Every target that the records say something about, per thread count."""
    rows = []
    for target in GPU_TARGETS if any("device" in record for record in records) else TARGETS:
        for threads in sorted({record["threads"] for record in records if record["stem"] == target.stem}):
            mine = [r for r in records if r["stem"] == target.stem and r["threads"] == threads and "error" not in r]
            reached = target.value(mine)
            if reached is None:
                continue
            value, count, worst = reached
            rows.append(
                {
                    "stem": target.stem,
                    "name": target.name,
                    "threads": threads,
                    "cases": count,
                    "value": value,
                    "floor": target.floor,
                    "aim": target.aim,
                    "unit": target.unit,
                    "verdict": target.verdict(value),
                    "worst": worst,
                }
            )
    return rows
