"""Figure 7 of the MIOpen paper: fused operators over the same ones one by one.

Khan et al., "MIOpen: An open source library for deep learning primitives", 2019, section VI: (a) convolution, bias and
activation over K-C-H-W, (b) batch norm and activation over C-H-W, forward.  The paper draws bars and prints no number
but "as high as 2.5 times"; it says neither batch size, filters nor activation, and measured a GPU.  Ours are
3x3 and 1x1 filters and ReLU on the CPU that this runs on.  Both sides are our own: a `FusionPlan`, and the public
functions that do one operator each, in place where they can.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np

from numbaprims.bench import rivals, session
from numbaprims.bench.cases import aligned, aligned_empty
from numbaprims.bench.table import seconds
from numbaprims.fusion.fusion_plan import FusionPlan
from numbaprims.ops.activation import relu
from numbaprims.ops.batch_norm import batch_norm
from numbaprims.ops.conv import conv
from numbaprims.ops.stack import stack
from numbaprims.tuning.timing import measure as measure_calls

PANELS = {"a": "convolution + bias + activation (filter, K-C-H-W)", "b": "batch norm + activation (C-H-W)"}
#: (filter, k, c, h, w): few and many output channels.
CBA = (
    (1, 8, 64, 112, 112), (1, 16, 64, 56, 56), (1, 64, 256, 56, 56), (1, 256, 64, 56, 56), (1, 1024, 256, 14, 14),
    (3, 4, 16, 112, 112), (3, 8, 32, 112, 112), (3, 16, 64, 56, 56), (3, 64, 64, 56, 56), (3, 128, 128, 28, 28),
    (3, 512, 512, 7, 7),
)  # fmt: skip
NA = (
    (16, 7, 7), (64, 14, 14), (64, 56, 56), (64, 112, 112), (256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7),
)  # fmt: skip
_QUICK = 2


def measure(options: Namespace, document: dict[str, Any]) -> Iterator[None]:
    """Time both sides of every bar."""
    entries = document["entries"] = []
    document["batch"], document["threads"] = options.batch, options.threads
    makers: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {"a": (CBA, _cba), "b": (NA, _na)}
    with rivals.limit_threads(options.threads):
        for panel, (sizes, make) in makers.items():
            print(f"\n({panel}) {PANELS[panel]}")
            for size in sizes[:_QUICK] if options.quick else sizes:
                entries.append(_entry(panel, size, make(np.random.default_rng(7), options.batch, *size), options))
                print(_line(entries[-1]), flush=True)
                yield


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return aligned(rng.random(shape, np.float32) - np.float32(0.5))


def _cba(rng: np.random.Generator, n: int, r: int, k: int, c: int, h: int, w: int) -> Any:
    """(fused, one by one), each a call that gives its result."""
    x, weight, bias = _draw(rng, n, c, h, w), _draw(rng, k, c, r, r), _draw(rng, k)
    plan = FusionPlan(x.shape)
    product, added = plan.conv(weight.shape, padding=r // 2), plan.bias()
    plan.activation("relu")
    plan.compile(strict=True, calls=1)
    plan.set_args(product, weight=weight)
    plan.set_args(added, bias=bias)
    single = conv.plan(x.shape, weight, padding=r // 2)
    out, y = (aligned_empty((n, k, h, w), np.dtype(np.float32)) for _ in range(2))
    column = bias[:, None]

    def one_by_one() -> Any:
        single(x, out=y)
        stack(y, ("bias/1",), column, out=y)
        return relu(y, out=y)

    return partial(plan, x, out=out), one_by_one


def _na(rng: np.random.Generator, n: int, c: int, h: int, w: int) -> Any:
    x, given = _draw(rng, n, c, h, w), [_draw(rng, c) + np.float32(1) for _ in range(4)]
    plan = FusionPlan(x.shape)
    norm = plan.batch_norm()
    plan.activation("relu")
    plan.compile(strict=True, calls=1)
    plan.set_args(norm, **dict(zip(("scale", "shift", "mean", "var"), given, strict=True)))
    out, y = (aligned_empty(x.shape, np.dtype(np.float32)) for _ in range(2))

    def one_by_one() -> Any:
        return relu(batch_norm(x, *given, out=y), out=y)

    return partial(plan, x, out=out), one_by_one


def _entry(panel: str, size: tuple[int, ...], calls: Any, options: Namespace) -> dict[str, Any]:
    names = size if panel == "b" else size[1:]
    label = "-".join(map(str, names))
    entry: dict[str, Any] = {"panel": panel, "label": label if panel == "b" else f"{size[0]}x{size[0]} {label}"}
    fused, single = calls
    have, want = fused(), single()
    if not np.allclose(have, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max())):
        return {**entry, "error": "the fused result is another"}
    times = measure_calls({"fused": fused, "one by one": single}, session.schedule(options))
    found = {name: each.seconds for name, each in times.items()}
    return {**entry, "seconds": found, "speedup": found["one by one"] / found["fused"]}


def _line(entry: dict[str, Any]) -> str:
    start = f"{entry['label']:24}"
    if "error" in entry:
        return f"{start}  NOT MEASURED: {entry['error']}"
    times = entry["seconds"]
    return f"{start}  {seconds(times['one by one']):>10}  {seconds(times['fused']):>10}  {entry['speedup']:7.2f}"


def lines(document: dict[str, Any]) -> list[str]:
    """The figure as a table, then what the paper says of it."""
    threads = document["threads"]
    found = [
        f"speed-up of fused operators over the same one by one, f32, batch {document['batch']}, "
        f"{threads} thread{'s' * (threads > 1)}"
    ]
    for panel, title in PANELS.items():
        mine = [entry for entry in document["entries"] if entry["panel"] == panel]
        if not mine:
            continue
        heading = f"{'':24}  {'one by one':>10}  {'fused':>10}  {'speedup':>7}"
        found += ["", f"({panel}) {title}", heading, *map(_line, mine)]
        ratios = [entry["speedup"] for entry in mine if "speedup" in entry]
        if ratios:
            mean, most = geometric_mean(ratios), max(ratios)
            found.append(f"{'geometric mean':24}  {'':10}  {'':10}  {mean:7.2f}  ({min(ratios):.2f} to {most:.2f})")
    return [*found, "", "The paper: up to 2.5 times; more with fewer output channels (a), with larger images (b)."]


def draw(document: dict[str, Any], path: str) -> None:
    """Two panels of bars.

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
    figure = Figure(figsize=(13, 5), layout="constrained")
    for axes, (panel, title) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        mine = [entry for entry in measured if entry["panel"] == panel]
        axes.bar(range(len(mine)), [entry["speedup"] for entry in mine], color="#0072B2")
        axes.axhline(1.0, color="black", linewidth=1)
        axes.set_xticks(range(len(mine)), [entry["label"] for entry in mine], rotation=90, fontsize=8)
        axes.set_title(f"({panel}) {title}")
        axes.set_ylabel("fused over one by one")
        axes.grid(True, axis="y", alpha=0.3)
    machine = document["machine"]
    figure.suptitle(
        f"f32, batch {document['batch']}, {document['threads']} thread(s), on {machine['cpu']} ({machine['llvm']})"
    )
    figure.savefig(path, dpi=110)
