"""What a run prints: one line a case, geometric means, and the targets with what was reached."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import geometric_mean
from typing import Any

Record = dict[str, Any]

RIVALS = {
    "gemm": ("numpy", "torch", "onednn", "onednn packed", "numbaprims plan", "numbaprims f32"),
    "gemv": ("numpy", "torch", "scipy"),
    "ger": ("numpy", "torch", "scipy", "numexpr"),
    "activation": ("torch", "numpy", "numexpr"),
    "softmax": ("torch", "onnxruntime", "numpy"),
    "batch_norm": ("torch", "torch nhwc", "onnxruntime", "numpy"),
    "norm": ("torch", "torch nhwc", "onnxruntime"),
    "pooling": ("torch", "torch nhwc", "onednn", "onnxruntime"),
    "lrn": ("torch", "torch nhwc", "onnxruntime"),
    "resize": ("torch", "torch nhwc", "onnxruntime"),
    "stack": ("torch", "torch nhwc", "inductor", "inductor nhwc", "onnxruntime", "numbaprims layers"),
    "rnn": ("torch", "onnxruntime", "numbaprims call"),
    "random": ("torch", "numpy"),
    "attention": ("torch", "onnxruntime"),
    "rope": ("torch", "torch complex", "onnxruntime"),
    "scan": ("torch", "numpy"),
    "topk": ("torch", "numpy"),
    "ctc": ("torch",),
    "reduce": ("torch", "numpy"),
    "tensor": ("torch", "numpy"),
    "gather": ("torch", "onnxruntime", "numpy"),
    "quantize": ("onnxruntime",),
    "conv": (
        "torch", "torch nhwc", "torch prepacked", "onnxruntime", "numbaprims call", "numbaprims f32",
    ),
}  # fmt: skip
ON_GPU = ("torch", "cupy")
_SOLVER = 14
# What a record holds and how it is headed: the speed of what memory bounds, of what arithmetic bounds, of both.
_RATES = {"gemm": ("gflops",), "conv": ("gflops", "gbs"), "rnn": ("gflops",), "attention": ("gflops", "gbs")}
_RATE_NAMES = {"gflops": "GFLOP/s", "gbs": "GB/s"}


def rates(stem: str) -> dict[str, str]:
    """The speeds that a stem's tables print: field of a record -> heading."""
    return {name: _RATE_NAMES[name] for name in _RATES.get(stem, ("gbs",))}


def _label_width(stem: str) -> int:
    wide = ("softmax", "batch_norm", "norm", "stack", "lrn", "resize", "rnn", "attention", "ctc", "gather")
    return 62 if stem in ("conv", "pooling") else 42 if stem in wide else 28


def rivals_of(stem: str, on_gpu: bool) -> tuple[str, ...]:
    """What a stem is measured beside, as the columns name it."""
    if not on_gpu:
        return RIVALS[stem]
    torch_nhwc = tuple(name for name in RIVALS[stem] if name == "torch nhwc")
    return (*ON_GPU, *torch_nhwc, *(name for name in RIVALS[stem] if name.startswith("numbaprims")))


def heading(stem: str, *, on_gpu: bool = False) -> str:
    """The line above the cases of a stem."""
    cells = [f"{'case':{_label_width(stem)}}", f"{'type':>4}", f"{'thr':>3}", f"{'solver':{_SOLVER}}", f"{'time':>9}"]
    cells += [*(f"{name:>8}" for name in rates(stem).values()), f"{'% roof':>7}"]
    cells += [f"{_column(name):>{_width(name)}}" for name in rivals_of(stem, on_gpu)]
    return "  ".join(cells)


def _column(name: str) -> str:
    """What heads a rival's column; our own other ways of computing the case are "own plan", "own f32"."""
    return name.replace("numbaprims", "own")


def _width(name: str) -> int:
    return max(7, len(_column(name)))


def line(record: Record) -> str:
    """One case. The columns of the rivals hold speed-ups: 1.25 means that we are 1.25 times as fast."""
    start = f"{record['label']:{_label_width(record['stem'])}}  {record['dtype']:>4}  {record['threads']:>3}"
    if "error" in record:
        return f"{start}  NOT MEASURED: {record['error']}"
    cells = [start, f"{record['solver'][:_SOLVER]:{_SOLVER}}", f"{seconds(record['seconds']):>9}"]
    cells += [*(f"{record[name]:8.1f}" for name in rates(record["stem"])), f"{record['roof']['percent']:7.1f}"]
    for name in rivals_of(record["stem"], "device" in record):
        rival = record["rivals"].get(name)
        cells.append(f"{rival['speedup']:{_width(name)}.2f}" if rival else "-".rjust(_width(name)))
    text = "  ".join(cells)
    for name, reason in record.get("refused", {}).items():
        text += f"\n    {name}: not timed, {reason}"
    return text


def failures(records: list[Record]) -> list[str]:
    """The cases that were not measured, once more at the end: among hundreds of lines they are easily missed."""
    return [line(record) for record in records if "error" in record]


def seconds(value: float) -> str:
    """1.23 ms"""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def means(records: list[Record]) -> list[str]:
    """Geometric mean and worst of every speed-up, by suite, type and threads; conv's by direction and batch too, those
    of stems with layers of several kinds by kind."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        if "rivals" in record:
            suite = record["suite"]
            if record["stem"] == "conv":
                batch = "" if suite in ("given", "deepbench") else f" batch {record['sizes']['n']}"
                suite += f"{batch} {record['switches'].get('direction', 'forward')}"
            elif record["stem"] != "activation" and "kind" in record["switches"]:
                switches = record["switches"]
                suite += f" {switches['kind']}" + "".join(f" {name}" for name in ("backward",) if name in switches)
                suite += f" {switches['layout']}" if "layout" in switches else ""
            groups.setdefault((suite, record["dtype"], record["threads"]), []).append(record)
    lines = []
    for (suite, dtype, threads), group in groups.items():
        stem = group[0]["stem"]
        head = f"{suite}, {dtype}, {threads} thread{'s' * (threads > 1)}, {len(group)} cases: "
        percents = [record["roof"]["percent"] for record in group]
        worst = min(group, key=lambda record: record["roof"]["percent"])
        parts = [f"{geometric_mean(percents):.1f} % of the roof (worst {min(percents):.1f}, {worst['label']})"]
        for name in rivals_of(stem, "device" in group[0]):
            found = [(r["rivals"][name]["speedup"], r["label"]) for r in group if name in r["rivals"]]
            if found:
                low, where = min(found)
                mean = geometric_mean(value for value, _ in found)
                parts.append(f"{mean:.2f} x {name} (worst {low:.2f}, {where})")
        lines.append(head + "; ".join(parts))
    return lines


def targets(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The project's goals beside what this run reached."""
    lines = [f"{'target':58}  thr  cases  {'reached':>8}  {'floor':>6}  {'aim':>6}  verdict"]
    for row in rows:
        value, floor, aim = (number(row[key], row["unit"]) for key in ("value", "floor", "aim"))
        name = f"{row['stem']}: {row['name']}"
        lines.append(
            f"{name:58}  {row['threads']:>3}  {row['cases']:>5}  {value:>8}  {floor:>6}  {aim:>6}  {row['verdict']}"
        )
    return lines if len(lines) > 1 else []


def number(value: float | None, unit: str) -> str:
    """1.234 x -> "1.23 x"; 87.25 % -> "87.3 %"; nothing for None."""
    if value is None:
        return ""
    if unit == "%":
        return f"{value:.1f} %" if value % 1 else f"{value:.0f} %"
    return f"{value:.3g}{unit if unit.startswith(' ') else ' ' + unit}"
