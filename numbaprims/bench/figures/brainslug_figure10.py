"""Figure 10 of BrainSlug: 1 to 40 blocks of max-pooling, batch norm and ReLU, depth first and layer by layer.

Weber et al., "BrainSlug: Transparent Acceleration of Deep Learning Through Depth-First Parallelism", 2018, section 5.1:
pooling 3x3 with stride and padding 1, three strategies (one step a sequence, five at most, unrestricted) beside PyTorch
0.3, on a CPU with 14 cores and on a GPU.  The paper draws curves; its text says how much faster, and where
"unrestricted" falls off.  It does not state the image: ours are four of 64 x 56 x 56, float32, on the CPU that this
runs on.  "auto" is what a call does by itself.  The same calls are timed twice: by the paper's protocol, the least of
five runs, and by this project's clock, the median of interleaved blocks.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from numbaprims.bench import rivals, session
from numbaprims.bench.cases import OURS, Case, Contender
from numbaprims.bench.runner import check_contenders
from numbaprims.bench.stems import stack
from numbaprims.tuning.timing import measure as measure_calls

IMAGES = {"n": 4, "c": 64, "h": 56, "w": 56}
KIND = "pool_norm_relu"
DEPTHS = {"quick": (1, 4), "normal": (1, 2, 4, 5, 8, 10, 16, 20, 24, 32, 38, 40), "full": tuple(range(1, 41))}
#: inductor compiles for a second and more a block, and its time a block hardly depends on their number.
COMPILED = (1, 4, 10, 20, 40)
RUNS = 5
#: The paper's strategies as arguments of a call.
STRATEGIES: dict[str, dict[str, int]] = {"one": {"most": 1}, "five": {"most": 5}, "unrestricted": {"limit": -1}}
AUTO, LAYERS = "auto", "layers"
#: What is drawn and printed, in this order.
NAMES = (AUTO, *STRATEGIES, LAYERS, "torch", "torch nhwc", "inductor", "inductor nhwc")
PAPER, BLOCKS = "the paper's protocol", "interleaved blocks"
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")


def measure(options: Namespace, document: dict[str, Any]) -> Iterator[None]:
    """Time every strategy and every library at each depth."""
    entries = document["entries"] = []
    document["threads"], document["images"] = options.threads, dict(IMAGES)
    words = "quick" if options.quick else "full" if options.full else "normal"
    with rivals.limit_threads(options.threads):
        print(f"ms a block, the least of {RUNS} runs\n{_heading()}")
        for blocks in DEPTHS[words]:
            entries.append(_entry(blocks, options))
            print(_line(entries[-1], PAPER), flush=True)
            yield


def contenders(case: Case, threads: int) -> tuple[dict[str, Contender], dict[str, str]]:
    """Who computes the case, by name, and what is wrong with those whose result is not the definition's."""
    work = stack.workload(case, threads)
    found = work.contenders
    found[AUTO], found[LAYERS] = found.pop(OURS), found.pop(f"{OURS} layers")
    call = found[AUTO].call
    for name, words in STRATEGIES.items():
        found[name] = Contender(partial(call, **words), found[AUTO].result)
    work.contenders = {name: found[name] for name in NAMES if name in found}
    if case["blocks"] not in COMPILED:
        work.contenders = {name: each for name, each in work.contenders.items() if not name.startswith("inductor")}
    return work.contenders, check_contenders(work)


def _entry(blocks: int, options: Namespace) -> dict[str, Any]:
    case = Case("stack", "figure10", (*IMAGES.items(), ("blocks", blocks)), "f32", (("kind", KIND),))
    entry: dict[str, Any] = {"blocks": blocks}
    found, refused = contenders(case, options.threads)
    if refused:
        entry["refused"] = refused
    wrong = [f"{name}: {reason}" for name, reason in refused.items() if name in (AUTO, *STRATEGIES)]
    if wrong:
        return {**entry, "error": "; ".join(wrong)}
    calls = {name: each.call for name, each in found.items() if name not in refused}
    times = measure_calls(calls, session.schedule(options))
    return {
        **entry,
        "seconds": {
            PAPER: {name: _least(call) for name, call in calls.items()},
            BLOCKS: {name: times[name].seconds for name in calls},
        },
    }


def _least(call: Callable[[], Any]) -> float:
    """Seconds of the shortest of some runs, one library after the other, as the paper timed them."""
    found = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def _heading() -> str:
    return "  ".join([f"{'blocks':>6}", *(f"{name:>{max(7, len(name))}}" for name in NAMES)])


def _line(entry: dict[str, Any], protocol: str) -> str:
    start = f"{entry['blocks']:>6}"
    if "error" in entry:
        return f"{start}  NOT MEASURED: {entry['error']}"
    seconds = entry["seconds"][protocol]
    cells = [f"{1e3 * seconds[name] / entry['blocks']:.4f}" if name in seconds else "-" for name in NAMES]
    text = "  ".join([start, *(f"{cell:>{max(7, len(name))}}" for name, cell in zip(NAMES, cells, strict=True))])
    for name, reason in entry.get("refused", {}).items():
        text += f"\n    {name}: left out, {reason}"
    return text


def lines(document: dict[str, Any]) -> list[str]:
    """Milliseconds a block by both protocols, then what the paper says beside what this run found."""
    entries, threads = document["entries"], document["threads"]
    image = "x".join(str(size) for size in document["images"].values())
    found = [f"<max-pool 3x3/1 p1, batch norm, ReLU>, {image}, f32, {threads} thread{'s' * (threads > 1)}, ms a block"]
    for protocol, meaning in ((PAPER, f"least of {RUNS} runs"), (BLOCKS, "median")):
        found += ["", f"{protocol}, {meaning}", _heading(), *(_line(entry, protocol) for entry in entries)]
    measured = [entry for entry in entries if "seconds" in entry]
    if measured:
        found += [
            "",
            "What the paper says of its CPU (of its GPU), and what is so here, by its protocol and by blocks:",
        ]
        found += [f"  {text}" for text in _claims(measured)]
    return found


def _ratios(entries: list[dict[str, Any]], protocol: str, slow: str, fast: str) -> list[float]:
    """How often as fast, at each depth where both were timed."""
    pairs = (entry["seconds"][protocol] for entry in entries)
    return [seconds[slow] / seconds[fast] for seconds in pairs if slow in seconds and fast in seconds]


def _range(entries: list[dict[str, Any]], slow: str, fast: str) -> str:
    texts = []
    for protocol in (PAPER, BLOCKS):
        ratios = _ratios(entries, protocol, slow, fast)
        texts.append(f"{min(ratios):.3g}-{max(ratios):.3g} x" if ratios else "not measured")
    return ", ".join(texts)


def _claims(entries: list[dict[str, Any]]) -> list[str]:
    found = [f"over PyTorch 10-20 x (1.4-2.2 x): auto over torch {_range(entries, 'torch', AUTO)}"]
    for name in NAMES[NAMES.index("torch") + 1 :]:
        if _ratios(entries, PAPER, name, AUTO):
            found.append(f"    over {name}, which the paper does not have: {_range(entries, name, AUTO)}")
    found.append(f"    over our own layers one by one, which it does not have: {_range(entries, LAYERS, AUTO)}")
    best = [max(_ratios(entries, protocol, "one", "five")) for protocol in (PAPER, BLOCKS)]
    percents = ", ".join(f"{100 * (ratio - 1):.0f} %" for ratio in best)
    found.append(f"several steps a sequence up to 58 % (61 %) faster than one: five at most {percents}")
    found.append(f"    auto over one step a sequence: {_range(entries, 'one', AUTO)}")
    found.append(
        "unrestricted is slower as blocks pile up, with steps at 24 and 38 blocks (16 and 32), the cause being"
    )
    found.append("    overlaps computed twice, which line buffers do not have. Most time a block over the least:")
    for name in ("unrestricted", AUTO):
        shares = []
        for protocol in (PAPER, BLOCKS):
            each = {entry["blocks"]: entry["seconds"][protocol][name] / entry["blocks"] for entry in entries}
            last = max(each)
            shares.append(f"{max(each.values()) / min(each.values()):.2f} ({last} blocks over 1: "
                          f"{each[last] / each[min(each)]:.2f})")  # fmt: skip
        found.append(f"    {name} {', '.join(shares)}")
    return found


def draw(document: dict[str, Any], path: str) -> None:
    """Two panels: time over blocks as the paper drew it, and time a block.

    Raises:
        ValueError: nothing was measured, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: matplotlib is not installed; pip install numbaprims[bench] brings it") from None
    measured = [entry for entry in document["entries"] if "seconds" in entry]
    if not measured:
        raise ValueError("plot: nothing to draw, no depth was measured")
    figure = Figure(figsize=(13, 5), layout="constrained")
    for axes, part in zip(figure.subplots(1, 2), ("of the stack", "a block"), strict=True):
        for name, colour in zip(NAMES, _COLOURS, strict=False):
            points = [(entry["blocks"], entry["seconds"][PAPER].get(name)) for entry in measured]
            points = [(blocks, 1e3 * s / (blocks if part == "a block" else 1)) for blocks, s in points if s is not None]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", markersize=3, color=colour, label=name)
        axes.set_yscale("log")
        axes.set_xlabel("blocks of <max-pool, batch norm, ReLU>")
        axes.set_ylabel(f"ms {part}, least of {RUNS} runs")
        axes.grid(True, which="both", alpha=0.2)
        axes.legend(fontsize=8)
    machine, image = document["machine"], "x".join(str(size) for size in document["images"].values())
    figure.suptitle(f"{image}, f32, {document['threads']} thread(s), on {machine['cpu']} ({machine['llvm']})")
    figure.savefig(path, dpi=110)
