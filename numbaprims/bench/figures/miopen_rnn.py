"""Recurrent networks by single products over a product for each gate and step, across steps, batch and hidden units.

Khan et al., "MIOpen: An open source library for deep learning primitives", 2019, section IV.C: the inputs of all steps
and gates are one product (equation 12), the gates of a step another (11).  The paper says that it is faster and prints
no number.  All solvers are our own; a GPU gains the launches too, of which a CPU's program has none.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np

from numbaprims import config
from numbaprims.bench import rivals, session
from numbaprims.bench.cases import aligned
from numbaprims.bench.table import seconds
from numbaprims.ops.rnn import gru, lstm, rnn
from numbaprims.recurrent.weights import RnnWeights
from numbaprims.tuning.timing import measure as measure_calls

BASELINE = "step_by_step"
SOLVERS = (BASELINE, "single_gemm", "persistent")
CELLS: dict[str, tuple[Callable[..., Any], int]] = {"lstm": (lstm, 4), "gru": (gru, 3), "rnn_tanh": (rnn, 1)}
#: The size that stays where another one grows.
CENTRE = {"t": 50, "n": 16, "h": 256}
AXES = {"t": (1, 10, 50, 200), "n": (1, 4, 16, 64), "h": (64, 128, 256, 512, 1024)}
NAMES = {"t": "steps", "n": "sequences", "h": "hidden units"}
_QUICK = {"t": (1, 2), "n": (1,), "h": (16,)}


def measure(options: Namespace, document: dict[str, Any]) -> Iterator[None]:
    """Time every solver along each axis."""
    entries = document["entries"] = []
    document["threads"] = options.threads
    axes = _QUICK if options.quick else AXES
    with rivals.limit_threads(options.threads):
        for cell in CELLS:
            for axis, values in axes.items():
                for value in values:
                    size = {**CENTRE, **({"t": 2, "h": 16} if options.quick else {}), axis: value}
                    entries.append({"cell": cell, "axis": axis, **size, **_times(cell, size, options)})
                    print(_line(entries[-1]), flush=True)
                    yield


def _times(cell: str, size: dict[str, int], options: Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    function, gates = CELLS[cell]
    t, n, h = (size[name] for name in "tnh")

    def draw(*shape: int) -> np.ndarray:
        return aligned((rng.random(shape, np.float32) - np.float32(0.5)) * np.float32(h**-0.5))

    weights = RnnWeights.from_arrays(
        cell, draw(gates * h, h), draw(gates * h, h), draw(gates * h), draw(gates * h)
    )  # fmt: skip
    x = draw(t, n, h)

    def run(solver: str) -> Any:
        with config(algorithm=f"rnn:{solver}"):
            return function(x, weights)[0]

    calls = {solver: partial(run, solver) for solver in SOLVERS}
    found = {solver: call() for solver, call in calls.items()}
    want = found[BASELINE]
    for solver, have in found.items():
        if not np.allclose(have, want, rtol=1e-5, atol=1e-5):
            return {"error": f"{solver} gives another result"}
    times = {name: each.seconds for name, each in measure_calls(calls, session.schedule(options)).items()}
    return {"seconds": times, "speedup": {name: times[BASELINE] / time for name, time in times.items()}}


def _line(entry: dict[str, Any]) -> str:
    start = f"{entry['cell']:9} T {entry['t']:4} N {entry['n']:3} H {entry['h']:5}"
    if "error" in entry:
        return f"{start}  NOT MEASURED: {entry['error']}"
    times, gains = entry["seconds"], entry["speedup"]
    return start + "".join(f"  {seconds(times[name]):>12}" for name in SOLVERS) + "".join(
        f"  {gains[name]:11.2f}" for name in SOLVERS[1:]
    )  # fmt: skip


def lines(document: dict[str, Any]) -> list[str]:
    """The tables, axis by axis."""
    threads = document["threads"]
    found = [f"time, and speed-up over {BASELINE}, f32, {threads} thread{'s' * (threads > 1)}; inputs as hidden units"]
    heading = " " * 29 + "".join(f"  {name:>12}" for name in SOLVERS) + "".join(f"  {name:>11}" for name in SOLVERS[1:])
    for axis, name in NAMES.items():
        mine = [entry for entry in document["entries"] if entry["axis"] == axis]
        if mine:
            found += ["", f"across {name}", heading, *map(_line, mine)]
    measured = [entry["speedup"] for entry in document["entries"] if "speedup" in entry]
    for name in SOLVERS[1:] if measured else ():
        gains = [each[name] for each in measured]
        found.append(f"{name}: geometric mean {geometric_mean(gains):.2f}, {min(gains):.2f} to {max(gains):.2f}")
    return found


def draw(document: dict[str, Any], path: str) -> None:
    """A panel an axis, a line a cell and solver.

    Raises:
        ValueError: nothing was measured, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: matplotlib is not installed; pip install numbaprims[bench] brings it") from None
    measured = [entry for entry in document["entries"] if "speedup" in entry]
    if not measured:
        raise ValueError("plot: nothing to draw, nothing was measured")
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    for axes, (axis, title) in zip(figure.subplots(1, len(NAMES)), NAMES.items(), strict=True):
        for cell, colour in zip(CELLS, ("#0072B2", "#D55E00", "#009E73"), strict=False):
            mine = [entry for entry in measured if entry["axis"] == axis and entry["cell"] == cell]
            for solver, style in zip(SOLVERS[1:], ("-", "--"), strict=True):
                gains = [entry["speedup"][solver] for entry in mine]
                axes.plot([e[axis] for e in mine], gains, style, marker="o", color=colour, label=f"{cell}, {solver}")
        axes.axhline(1.0, color="black", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xlabel(title)
        axes.set_ylabel(f"over {BASELINE}")
        axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7)
    machine = document["machine"]
    figure.suptitle(f"f32, {document['threads']} thread(s), on {machine['cpu']} ({machine['llvm']})")
    figure.savefig(path, dpi=110)
