"""Figure 6 of the MIOpen paper: the best convolution solver of each layer over im2col + GEMM, in three directions.

Khan et al., "MIOpen: An open source library for deep learning primitives", 2019, section VI: layers of GoogLeNet,
Inception v3 and Inception v4, 1x1 filters on the left and all others on the right.  The paper draws bars and prints no
number, says neither the batch size nor which layers it drew by lot, and measured a GPU; ours are layers of the same
networks with stride 1, since its labels have no stride, on the CPU that this runs on.  Both sides of a ratio are our
own plain calls, weights packed or transformed inside.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from statistics import geometric_mean
from typing import Any

from numbaprims.bench import rivals
from numbaprims.bench.cases import Case, load_suites
from numbaprims.bench.operands import spoil
from numbaprims.bench.session import schedule
from numbaprims.bench.stems import conv, conv_operands, conv_suites, shared
from numbaprims.bench.stems.conv_solvers import solver_times
from numbaprims.bench.stems.conv_suites import Layer
from numbaprims.bench.table import seconds

# Begins the name of the solver that everything is compared with; that of the weight's gradient is im2col_gemm_weight.
BASELINE = "im2col_gemm"
NETWORKS = ("googlenet", "inception-v3", "inception-v4")
# The panels, as the paper names them: direction and whether filters are 1x1.
PANELS = {
    "a": ("forward", True, "1x1 filter size (forward)"),
    "b": ("forward", False, "non 1x1 filter sizes (forward)"),
    "c": ("data", True, "1x1 filter size (backward data)"),
    "d": ("data", False, "non 1x1 filter sizes (backward data)"),
    "e": ("weight", True, "1x1 filter size (backward weights)"),
    "f": ("weight", False, "non 1x1 filter sizes (backward weights)"),
}
# What the text of the paper says of the figure, and the layers that our number beside it comes from.
CLAIMS: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    ("1x1 gains although it is a plain product in mathematics", lambda entry: _size(entry) == (1, 1)),
    ("Winograd speeds up many 3x3", lambda entry: _size(entry) == (3, 3)),
    ("larger filters gain less, in some cases not substantially", lambda entry: max(_size(entry)) > 3),
)
# Bars in a panel; the paper's have about as many. 0: every layer there is.
_BARS = {"quick": 3, "normal": 14, "full": 0}
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def label(layer: Layer) -> str:
    """R-S-C-H-W-K-padH-padW"""
    numbers = (layer.r, layer.s, layer.c, layer.h, layer.w, layer.k, *layer.padding)
    return "-".join(map(str, numbers))


def layers(ones: bool, count: int, batch: int = 1) -> list[Layer]:
    """Layers of one column of panels, spread evenly over all there are in the order of their cost; 0: all."""
    found: dict[str, Layer] = {
        label(layer): layer
        for name in NETWORKS
        for layer in conv_suites.layers(load_suites("conv")[name], [batch])
        if layer.stride == (1, 1) and ((layer.r, layer.s) == (1, 1)) == ones
    }
    ordered = sorted(found.values(), key=lambda layer: (layer.flops, label(layer)))
    if not 0 < count < len(ordered):
        return ordered
    last = len(ordered) - 1
    return [ordered[round(index * last / max(count - 1, 1))] for index in range(count)]


def measure(options: Namespace, document: dict[str, Any]) -> Iterator[None]:
    """Time every solver on every bar."""
    entries = document["entries"] = []
    document["batch"], document["threads"] = options.batch, options.threads
    count = _BARS["quick" if options.quick else "full" if options.full else "normal"]
    with rivals.limit_threads(options.threads):
        for panel, (direction, ones, title) in PANELS.items():
            print(f"\n({panel}) {title}")
            for layer in layers(ones, count, options.batch):
                entry = _entry(panel, direction, layer, options)
                entries.append(entry)
                print(_line(entry), flush=True)
                yield


def _entry(panel: str, direction: str, layer: Layer, options: Namespace) -> dict[str, Any]:
    sizes = tuple((name, getattr(layer, name)) for name in conv.DIMENSIONS)
    switches = (("padding", conv_suites.text(layer.padding)), ("direction", direction))
    case = Case("conv", "figure 6", sizes, "f32", switches)
    operands = conv_operands.Operands(case, shared.drawn(case))
    ours, check = conv_operands.Ours(operands), operands.check()
    entry: dict[str, Any] = {"panel": panel, "label": label(layer), "flops": layer.flops}
    names, refused = [], {}
    for name in ours.candidates():
        spoil(operands.out.storage)
        ours.call(name)()
        wrong = check(operands.result())
        if wrong is None:
            names.append(name)
        else:
            refused[name] = wrong
    if refused:
        entry["refused"] = refused
    baseline = next((name for name in names if name.startswith(BASELINE)), None)
    if baseline is None:
        return {**entry, "error": f"no solver {BASELINE} for this problem, only {', '.join(names)}"}
    times = solver_times(ours.call, names, schedule(options), always=(baseline,))
    best = min(times, key=lambda name: times[name])
    return {**entry, "seconds": times, "baseline": baseline, "best": best, "speedup": times[baseline] / times[best]}


def _line(entry: dict[str, Any]) -> str:
    start = f"{entry['label']:28}"
    if "error" in entry:
        return f"{start}  NOT MEASURED: {entry['error']}"
    times = entry["seconds"]
    text = (
        f"{start}  {seconds(times[entry['baseline']]):>9}  {seconds(times[entry['best']]):>9}  {entry['speedup']:7.2f}"
    )
    for name, wrong in entry.get("refused", {}).items():
        text += f"\n    {name}: left out, wrong result: {wrong}"
    return f"{text}  {entry['best']}"


def lines(document: dict[str, Any]) -> list[str]:
    """The figure as a table, then what the paper says of it."""
    threads = document["threads"]
    head = f"speed-up of the best solver over {BASELINE}, f32, batch {document['batch']}, "
    found = [f"{head}{threads} thread{'s' * (threads > 1)}; label R-S-C-H-W-K-padH-padW"]
    heading = f"{'layer':28}  {'im2col':>9}  {'best':>9}  {'speedup':>7}  solver"
    for panel, (_, _, title) in PANELS.items():
        mine = [entry for entry in document["entries"] if entry["panel"] == panel]
        if not mine:
            continue
        found += ["", f"({panel}) {title}", heading, *map(_line, mine)]
        speedups = [entry["speedup"] for entry in mine if "speedup" in entry]
        if speedups:
            found.append(
                f"{'geometric mean':28}  {'':9}  {'':9}  {geometric_mean(speedups):7.2f}  "
                f"(from {min(speedups):.2f} to {max(speedups):.2f})"
            )
    found += ["", "The paper prints no number for a bar; beside what its text says, our geometric means:"]
    for claim, belongs in CLAIMS:
        speedups = [entry["speedup"] for entry in document["entries"] if "speedup" in entry and belongs(entry)]
        if speedups:
            found.append(f"  {claim:60}  {geometric_mean(speedups):.2f} ({len(speedups)} layers and directions)")
    return found


def _size(entry: dict[str, Any]) -> tuple[int, int]:
    r, s, *_ = entry["label"].split("-")
    return int(r), int(s)


def draw(document: dict[str, Any], path: str) -> None:
    """The six panels; a bar's colour says which solver was best.

    Raises:
        ValueError: nothing was measured, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ValueError("plot: matplotlib is not installed; pip install numbaprims[bench] brings it") from None
    entries = [entry for entry in document["entries"] if "speedup" in entry]
    if not entries:
        raise ValueError("plot: nothing to draw, no layer was measured")
    colours = dict(zip(sorted({entry["best"] for entry in entries}), _COLOURS * 2, strict=False))
    figure = Figure(figsize=(14, 15), layout="constrained")
    for axes, (panel, (_, _, title)) in zip(figure.subplots(3, 2).flat, PANELS.items(), strict=True):
        mine = [entry for entry in entries if entry["panel"] == panel]
        places = range(len(mine))
        heights = [entry["speedup"] for entry in mine]
        axes.bar(places, heights, color=[colours[entry["best"]] for entry in mine])
        axes.axhline(1.0, color="black", linewidth=1)
        axes.set_yscale("log")
        ticks = _ticks(heights)
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xticks(places, [entry["label"] for entry in mine], rotation=90, fontsize=8)
        axes.set_title(f"({panel}) {title}")
        axes.set_ylabel("speed-up (log)")
        axes.grid(True, axis="y", alpha=0.3)
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), title="best solver")
    machine = document["machine"]
    figure.suptitle(
        f"Best solver over {BASELINE}, batch {document['batch']}, {document['threads']} thread(s), "
        f"on {machine['cpu']} ({machine['llvm']}, {machine['isa']})\nlabels: R-S-C-H-W-K-padH-padW"
    )
    figure.savefig(path, dpi=110)


def _ticks(heights: list[float]) -> list[float]:
    """1, 2, 5, 10, ... as far as the highest bar reaches."""
    every = [factor * 10**power for power in range(4) for factor in (1, 2, 5)]
    reached = max(heights, default=1.0)
    return [float(tick) for tick in every if tick <= 2 * reached]
