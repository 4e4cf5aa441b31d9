"""Whole calls of gemv and ger, in the form of tables I and II of Zhang and Zhang (2013).

A time is that of 100,000 calls with their checks and their launch, a saving is (T_rival - T_ours) / T_rival (equation
18).  The calls that were really timed are a stated fraction of the 100,000: libraries take turns (tuning/timing.py),
and the median call of a library stands for all.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

from numbaprims.bench import gpu, rivals, session
from numbaprims.bench.cases import OURS, Case, stem_module
from numbaprims.bench.operands import on_gpu
from numbaprims.bench.runner import check_contenders
from numbaprims.tuning.timing import measure

CALLS = 100_000
Size = tuple[int, int]


class Printed(NamedTuple):
    """Seconds that the paper prints: its own kernel, cuBLAS, and its CPU code."""

    kernel: float
    cublas: float
    cpu: float


def saving(rival: float, ours: float) -> float:
    """Equation 18, in percent."""
    return 100 * (rival - ours) / rival


def devices() -> list[tuple[str, Any]]:
    """("cpu", None), and the first GPU with its driver where there is one."""
    found: list[tuple[str, Any]] = [("cpu", None)]
    try:
        found.append(("cuda", gpu.open_device("cuda")))
    except ValueError:  # no GPU here
        pass
    return found


def entries(stem: str, title: str, sizes: list[Size], switches: Any, options: Namespace) -> Iterator[dict[str, Any]]:
    """One entry a size, form and device; `switches` are the forms: () and (("trans", True),)."""
    with rivals.limit_threads(options.threads):
        for device, driver in devices():
            for m, n in sizes:
                for form in switches:
                    case = Case(stem, title, (("m", m), ("n", n)), "f32", form)
                    yield {"device": device, "m": m, "n": n, "trans": bool(form), **_timed(case, driver, options)}


def _timed(case: Case, driver: Any, options: Namespace) -> dict[str, Any]:
    if driver is not None:
        with on_gpu(driver):
            return _times(case, gpu.schedule(options), options.threads, driver.clock())
    return _times(case, session.schedule(options), options.threads, None)


def _times(case: Case, schedule: Any, threads: int, clock: Any) -> dict[str, Any]:
    work = stem_module(case.stem).workload(case, threads)
    refused = check_contenders(work)
    if OURS in refused:
        return {"error": refused[OURS]}
    calls = {name: contender.call for name, contender in work.contenders.items() if name not in refused}
    times = measure(calls, schedule, clock=clock)
    found: dict[str, Any] = {
        "solver": work.solver(),
        "seconds": {name: CALLS * times[name].seconds for name in calls},
        "fraction": min(times[name].calls for name in calls) / CALLS,
    }
    return {**found, "refused": refused} if refused else found


def line(entry: dict[str, Any], printed: Printed) -> str:
    """One row: ours and the paper's seconds, the savings over the rivals and those of the paper."""
    start = f"{entry['device']:5} {entry['m']:>5} x {entry['n']:<6}{'T' if entry['trans'] else ' '}"
    if "error" in entry:
        return f"{start}  NOT MEASURED: {entry['error']}"
    times = entry["seconds"]
    ours = times[OURS]
    savings = "  ".join(f"{name} {saving(value, ours):+.1f}" for name, value in times.items() if name != OURS)
    paper = f"{saving(printed.cublas, printed.kernel):+.1f}, {saving(printed.cpu, printed.kernel):+.1f}"
    text = (
        f"{start} {ours:9.3f}  {savings:56}  | {printed.kernel:8.2f} {printed.cublas:8.2f} {printed.cpu:9.2f}  {paper}"
    )
    for name, wrong in entry.get("refused", {}).items():
        text += f"\n    {name}: left out, {wrong}"
    return text


HEADING = (
    "device      size    ours (s)  time saving in % over                          | paper (s): its, cuBLAS, CPU; saving"
)


def lines(document: dict[str, Any], printed: dict[Any, Printed], key: Any) -> list[str]:
    """The table, and the means of the savings."""
    found = document["entries"]
    measured = [entry for entry in found if "seconds" in entry]
    threads = document["threads"]
    out = [f"seconds of {CALLS:,} whole calls, f32, {threads} thread{'s' * (threads > 1)}"]
    if measured:
        least = min(entry["fraction"] for entry in measured)
        out[0] += f"; timed at least {100 * least:.2g} % of them, in turns; the median call stands for all"
    out += ["", HEADING, *(line(entry, printed[key(entry)]) for entry in found), ""]
    for device in dict.fromkeys(entry["device"] for entry in measured):
        for trans in dict.fromkeys(entry["trans"] for entry in measured):
            mine = [entry for entry in measured if entry["device"] == device and entry["trans"] == trans]
            names = [name for name in mine[0]["seconds"] if name != OURS]
            means = ", ".join(f"{name} {_mean(mine, name):+.1f} %" for name in names)
            paper = [printed[key(entry)] for entry in mine]
            theirs = [sum(saving(p[i], p.kernel) for p in paper) / len(paper) for i in (1, 2)]
            out.append(
                f"mean saving on {device}{', transposed' * trans}: {means}; the paper's: cuBLAS {theirs[0]:+.1f} %, "
                f"CPU {theirs[1]:+.1f} %"
            )
    if not any(entry["device"] == "cuda" for entry in found):
        out.append("No GPU was there: the paper's times are a GPU's, of 2013; ours are those of this CPU.")
    return out


def _mean(mine: list[dict[str, Any]], name: str) -> float:
    values = [saving(entry["seconds"][name], entry["seconds"][OURS]) for entry in mine if name in entry["seconds"]]
    return sum(values) / len(values)


def draw(document: dict[str, Any], path: str, printed: dict[Any, Printed], key: Any, title: str) -> None:
    """Savings by size: ours over each rival as dots, the paper's over cuBLAS and its CPU code as crosses.

    Raises:
        ValueError: nothing was measured, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: matplotlib is not installed; pip install numbaprims[bench] brings it") from None
    measured = [entry for entry in document["entries"] if "seconds" in entry]
    if not measured:
        raise ValueError("plot: nothing to draw, no size was measured")
    groups = list(dict.fromkeys((entry["device"], entry["trans"]) for entry in measured))
    figure = Figure(figsize=(11, 4.2 * len(groups)), layout="constrained")
    for axes, (device, trans) in zip(figure.subplots(len(groups), 1, squeeze=False).flat, groups, strict=True):
        mine = [entry for entry in measured if (entry["device"], entry["trans"]) == (device, trans)]
        places = range(len(mine))
        for name in [name for name in mine[0]["seconds"] if name != OURS]:
            values = [saving(e["seconds"][name], e["seconds"][OURS]) if name in e["seconds"] else None for e in mine]
            axes.plot(places, values, "o", label=f"ours over {name}")
        for place, name in ((1, "cuBLAS"), (2, "CPU")):
            values = [saving(printed[key(entry)][place], printed[key(entry)].kernel) for entry in mine]
            axes.plot(places, values, "x", color=("black", "grey")[place - 1], label=f"the paper's over {name}")
        axes.axhline(0.0, color="black", linewidth=1)
        axes.set_ylim(max(-100, axes.get_ylim()[0]), 100)
        axes.set_xticks(places, [f"{entry['m']} x {entry['n']}" for entry in mine], rotation=60, fontsize=8)
        axes.set_ylabel("time saving (%)")
        axes.set_title(f"{device}{', transposed' * trans}")
        axes.grid(True, axis="y", alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(f"{title}, {document['threads']} thread(s), on {document['machine']['cpu']}")
    figure.savefig(path, dpi=110)
