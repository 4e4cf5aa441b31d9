"""The picture of a run: on the left its cases under the roof, on the right the speed-ups over each rival."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from numbaprims.bench.results import NO_MATPLOTLIB
from numbaprims.bench.table import RIVALS

# Colours that stay apart for colour-blind readers (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def draw(document: dict[str, Any], path: str) -> None:
    """Draw a run to a file; the ending says the format (.png, .svg, .pdf).

    ValueError: nothing was measured, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(NO_MATPLOTLIB) from None
    records = [record for record in document["records"] if "roof" in record]
    if not records:
        raise ValueError("plot: nothing to draw, allowed are runs of a primitive with results")
    stem = records[0]["stem"]
    figure = Figure(figsize=(13, 5.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _under_the_roof(left, document, records, stem)
    _speedups(right, records, stem)
    machine = document["machine"]
    chip = machine.get("gpu") or f"{machine['cpu']} ({machine['llvm']}, {machine['isa']})"
    figure.suptitle(f"numbaprims {stem} on {chip}")
    figure.savefig(path, dpi=130)


def _under_the_roof(axes: Any, document: dict[str, Any], records: list[dict[str, Any]], stem: str) -> None:
    """Operations per byte against GFLOP/s; bytes against GB/s for what memory bounds."""
    compute = stem in ("gemm", "conv")
    for index, count in enumerate(sorted({record["threads"] for record in records})):
        mine = [record for record in records if record["threads"] == count]
        colour = _COLOURS[index % len(_COLOURS)]
        label = f"{count} thread{'s' * (count > 1)}"
        x = [r["flops"] / r["bytes"] if compute else r["bytes"] for r in mine]
        y = [r["gflops"] if compute else r["gbs"] for r in mine]
        axes.scatter(x, y, s=18, color=colour, label=label)
        roofs = document["rooflines"]
        roof = roofs["cuda"] if "cuda" in roofs else roofs[str(count)]  # of a GPU the driver's copy alone
        low, high = min(x) * 0.8, max(x) * 1.25
        for name, begin, end, rate in _levels(roof):
            if compute:
                _roof(axes, low, high, name, rate, roof["fma_f32"], colour)
            elif begin < high and end > low:
                ends = max(begin, low), min(end, high)
                axes.plot(ends, [rate] * 2, color=colour, linewidth=1)
                axes.annotate(name, (ends[0], rate), (2, 2), textcoords="offset points", color=colour, fontsize=7)
        if not compute:
            axes.plot([low, high], [roof["copy"]] * 2, color=colour, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of the operands (flop/B)" if compute else "memory touched by a call (B)")
    axes.set_ylabel("speed (GFLOP/s)" if compute else "speed (GB/s)")
    axes.set_title(
        "lines: f32 FMA peak, reading from each level of memory"
        if compute
        else "lines: reading from each level of memory; copying (dashed)"
    )
    axes.grid(True, which="both", alpha=0.2)
    axes.legend()


def _levels(roof: dict[str, Any]) -> Iterator[tuple[str, float, float, float]]:
    """(name, from how many bytes, to how many, GB/s of reading) of each level of memory; results of before the levels
    were measured have the memory alone."""
    begin = 0.0
    for level in roof.get("levels") or [{"name": "memory", "bytes": None, "read": roof.get("read", roof["copy"])}]:
        end = math.inf if level["bytes"] is None else float(level["bytes"])
        yield level["name"], begin, end, level["read"]
        begin = max(begin, end)


def _roof(axes: Any, low: float, high: float, name: str, rate: float, peak: float, colour: str) -> None:
    """One level's roof: its bandwidth times the operations per byte, up to the peak."""
    ridge = min(max(peak / rate, low), high)
    axes.plot([low, ridge, high], [min(peak, rate * s) for s in (low, ridge, high)], color=colour, linewidth=1)
    if rate * low < peak:
        axes.annotate(name, (low, rate * low), (0, 6), textcoords="offset points", color=colour, fontsize=7)


def _speedups(axes: Any, records: list[dict[str, Any]], stem: str) -> None:
    """One dot a case and rival; cases in the order of their size."""
    count = min(record["threads"] for record in records)
    mine = sorted((r for r in records if r["threads"] == count), key=lambda r: r["flops"])
    for name, colour in zip(RIVALS[stem], _COLOURS, strict=False):
        dots = [(i, r["rivals"][name]["speedup"]) for i, r in enumerate(mine) if name in r["rivals"]]
        if dots:
            axes.scatter(*zip(*dots, strict=True), s=14, color=colour, label=f"over {name}")
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if len(mine) <= 45:
        axes.set_xticks(range(len(mine)), [r["label"] for r in mine], rotation=90, fontsize=7)
        axes.set_xlabel("case")
    else:
        axes.set_xlabel("cases, by number of operations (rank)")
    axes.set_ylabel("speed-up (time of the rival / time of numbaprims)")
    axes.set_title(f"{count} thread{'s' * (count > 1)}; above 1: numbaprims is faster")
    axes.grid(True, axis="y", alpha=0.3)
    axes.legend(fontsize=8)
