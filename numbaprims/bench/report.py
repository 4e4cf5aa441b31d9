"""`python -m numbaprims.bench.report --write FILE...`: measured results in Markdown files, between markers.

    <!-- generated:bench targets -->
    ... written by this module ...
    <!-- end -->

What may stand in the marker: headlines, chart FILE.svg (drawn beside the page), targets, machine, call, start; "gpu"
(all that was measured on GPUs, which the others leave out); a primitive and a suite ("gemm square"), or "means" (of all
its suites), "targets", "choice" (conv's solvers, as `--regret` timed them); "figure NAME". The numbers come from
benchmarks/results/<machine>/<subject>.json, which `numbaprims bench ... --save` writes, and from figures/NAME.json
beside it, which `numbaprims reproduce ... --save` does.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numbaprims.bench import chart, figures, results, rivals, table
from numbaprims.bench.headlines import HEADLINES, Reached, headlines

Runs = dict[str, dict[str, Any]]  # subject -> document, of one machine

CHART = "chart"  # begins the name of a picture
FIGURE = "figure"  # begins the subject of what `numbaprims reproduce` measured
_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_BLOCK = re.compile(r"(<!-- generated:bench ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def load_results(folder: Path) -> dict[str, Runs]:
    """machine -> subject -> document, of everything below a results folder."""
    found: dict[str, Runs] = {}
    for path in sorted(folder.glob("*/*.json")):
        found.setdefault(path.parent.name, {})[path.stem] = results.read(path)
    for path in sorted(folder.glob("*/figures/*.json")):
        found.setdefault(path.parent.parent.name, {})[f"{FIGURE} {path.stem}"] = results.read(path)
    return found


def rewrite(text: str, machines: dict[str, Runs]) -> str:
    """The text with every marked block written anew. ValueError: a marker that names no table."""

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}\n{tables(match[2].strip(), machines)}\n{match[4]}"

    return _BLOCK.sub(block, text)


def tables(name: str, machines: dict[str, Runs]) -> str:
    """The tables of one marker, one for each machine that has results."""
    word, _, file = name.partition(" ")
    if name == "gpu":
        found = [_gpu(runs) + "\n" for runs in machines.values() if _on_gpu(runs)]
        return "\n".join(found) if found else "No results have been recorded yet.\n"
    machines = {machine: runs for machine, runs in machines.items() if not _on_gpu(runs)}
    if name == "headlines":
        return _headlines(columns(machines)) + "\n"
    if word == CHART and file.endswith(".svg"):
        return f"![Speed of each class of primitives over its rivals: the numbers are in the table]({_address(file)})\n"
    make = _maker(name)
    parts = []
    for machine, runs in machines.items():
        body = make(runs)
        if body:
            parts.append(f"On `{machine}`:\n\n{body}\n" if len(machines) > 1 else f"{body}\n")
    return "\n".join(parts) if parts else "No results have been recorded yet.\n"


def columns(machines: dict[str, Runs]) -> dict[str, dict[str, Reached]]:
    """ "CPU, N threads" -> headline -> what was reached, of every machine that has results for one as it is."""
    found = {}
    for runs in machines.values():
        if _on_gpu(runs):
            continue
        rows = [row for run in runs.values() for row in run.get("targets", [])]
        machine = max(runs.values(), key=lambda run: run["date"])["machine"]
        if machine["llvm"] in rivals.RESTRICTIONS:
            continue
        for threads, column in headlines(rows).items():
            cpu = " ".join(re.sub(r"\(R\)|\(TM\)|@.*", " ", machine["cpu"]).split())
            found[f"{cpu} ({machine['llvm']}, {machine['cpus']} CPUs), {threads} thread{'s' * (threads > 1)}"] = column
    return found


def _headlines(found: dict[str, dict[str, Reached]]) -> str:
    def cell(reached: Reached | None) -> str:
        if reached is None:
            return ""
        text = table.number(reached.value, "x")
        return f"**{text}**" if reached.missed else text

    rows = [[title, *(cell(column.get(title)) for column in found.values())] for title in HEADLINES]
    return markdown(["f32", *found], rows)


def _address(file: str) -> str:
    """Where a page finds its picture: PyPI knows no files of the repository, only addresses."""
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"] if _PROJECT.exists() else {}
    repository = project.get("urls", {}).get("Repository")
    return f"{repository}/raw/HEAD/{file}?sanitize=true" if repository else file


def _maker(name: str) -> Callable[[Runs], str]:
    fixed = {"targets": _goals, "machine": _machine, "call": _call, "start": _start}
    if name in fixed:
        return fixed[name]
    stem, _, suite = name.partition(" ")
    if stem == FIGURE and suite in figures.names():
        return lambda runs: _figure(runs, suite)
    special = {"means": _means, "targets": _goals, "choice": _choice}
    if stem in table.RIVALS and suite in special:
        return lambda runs: special[suite](_only(runs, stem))
    if stem in table.RIVALS and suite:
        return lambda runs: _cases(runs, stem, suite)
    raise ValueError(f"marker: {name!r} given, allowed are {', '.join(fixed)} and 'STEM SUITE'")


def markdown(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    rule = [":--" if index < left else "--:" for index in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _on_gpu(runs: Runs) -> bool:
    return any("gpu" in run.get("machine", {}) for run in runs.values())


def _gpu(runs: Runs) -> str:
    """Every case that was measured on a GPU."""
    newest = max(runs.values(), key=lambda run: run["date"])
    cuda, rows = newest["rooflines"]["cuda"], []
    for stem in table.RIVALS:
        for record in runs.get(stem, {}).get("records", []):
            if "error" in record:
                continue
            ours, theirs = record["seconds"], record["rivals"]
            best = {name: theirs.get(name) for name in ("torch", "torch nhwc", "cupy")}
            row = [stem, record["label"], record["dtype"], record.get("solver", ""), table.seconds(ours)]
            rows.append([*row, f"{record['roof']['percent']:.0f}", *map(_ratio, best.values())])
    head = ["", "case", "type", "solver", "time", "% of roof", "over torch", "its channels last", "over CuPy"]
    rates = f"{cuda['copy']:.0f} GB/s copied, {cuda['fma_f32'] / 1e3:.0f} TFLOP/s f32 by formula"
    versions = ", ".join(
        f"{name} {newest['versions'][name]}" for name in ("torch", "cupy") if name in newest["versions"]
    )
    return f"{newest['machine']['gpu']}: {rates}; {versions}.\n\n{markdown(head, rows, left=4)}"


def _only(runs: Runs, stem: str) -> Runs:
    return {subject: run for subject, run in runs.items() if subject == stem}


def _figure(runs: Runs, name: str) -> str:
    run = runs.get(f"{FIGURE} {name}")
    return "```\n" + "\n".join(figures.load(name).lines(run)) + "\n```" if run else ""


def _means(runs: Runs) -> str:
    lines = [line for run in runs.values() for line in table.means(run["records"])]
    return "\n".join(f"- {line}" for line in lines)


def _choice(runs: Runs) -> str:
    rows = []
    for run in runs.values():
        for record in run["records"]:
            if "regret" in record:
                found = record["regret"]
                times = ", ".join(f"{name} {table.seconds(time)}" for name, time in found["seconds"].items())
                percent = f"{found['percent']:.0f}"
                rows.append([record["label"], record["dtype"], found["default"], found["best"], percent, times])
    head = ["case", "type", "default", "best", "% slower", "every solver"]
    return markdown(head, rows, left=4) if rows else ""


def _goals(runs: Runs) -> str:
    rows = []
    for document in runs.values():
        for row in document.get("targets", []):
            value, floor, aim = (table.number(row[key], row["unit"]) for key in ("value", "floor", "aim"))
            verdict = row["verdict"] if not row["verdict"].startswith("MISSED") else f"**{row['verdict'].lower()}**"
            rows.append(
                [
                    f"{row['stem']}: {row['name']}",
                    str(row["threads"]),
                    str(row["cases"]),
                    value,
                    floor,
                    aim,
                    verdict,
                ]
            )
    if not rows:
        return ""
    return markdown(["what", "threads", "cases", "reached", "floor", "aim", "holds"], rows)


def _machine(runs: Runs) -> str:
    document = max(runs.values(), key=lambda run: run["date"])
    machine = document["machine"]
    caches = ", ".join(f"{level} {machine[level] / 2**20:.3g} MiB" for level in ("l1d", "l2", "l3"))
    runs = {subject: run for subject, run in runs.items() if not subject.startswith(FIGURE)}
    rows = [
        [
            "CPU",
            f"{machine['cpu']}, LLVM name {machine['llvm']}, {machine['isa']}, {machine['cpus']} CPUs, {caches}",
        ],
        ["System", f"{machine['system']}, threading layer {machine['threading_layer']}"],
        ["Versions", ", ".join(f"{name} {version}" for name, version in document["versions"].items())],
        *([f"Kernels of {name}", text] for name, text in document["kernels"].items()),
    ]
    for run in runs.values():
        for threads, roof in run.get("rooflines", {}).items():
            text = (
                f"FMA {roof['fma_f32']:.0f} GFLOP/s (f64 {roof['fma_f64']:.0f}, "
                f"bf16 {roof['fma_bf16']:.0f}, int8 {roof['fma_int8']:.0f}), "
                f"read {roof['read']:.1f} GB/s, "
                f"copy {roof['copy']:.1f} GB/s ({roof['copy_form']}), update {roof['update']:.1f} GB/s"
            )
            subject = run["command"].split()[2]
            rows.append([f"Roofline during {subject}, {threads} thread{'s' * (threads != '1')}", text])
    for run in runs.values():
        for threads in sorted({r["threads"] for r in run.get("records", []) if "round_trip" in r}):
            trips = [r["round_trip"] for r in run["records"] if r["threads"] == threads and "round_trip" in r]
            text = f"{min(trips) * 1e9:.0f} to {max(trips) * 1e9:.0f} ns, median {statistics.median(trips) * 1e9:.0f}"
            rows.append([f"From core to core and back during {run['command'].split()[2]}, {threads} threads", text])
    for run in runs.values():
        load = run["machine"].get("load")  # by other programs, when the run began
        busy = "" if load is None else f", load {load:.1f}"
        rows.append(["Command", f"`{run['command']}` at {run['commit']}, {run['date'][:10]}{busy}"])
    return markdown(["", ""], rows, left=2)


def _cases(runs: Runs, stem: str, suite: str) -> str:
    records = [r for r in runs.get(stem, {}).get("records", []) if r["suite"] == suite]
    if not records:
        return ""
    names = [name for name in table.RIVALS[stem] if any(name in r.get("rivals", {}) for r in records)]
    rates = table.rates(stem)
    rows = []
    for record in records:
        row = [record["label"], record["dtype"], record.get("solver", ""), str(record["threads"])]
        if "error" in record:
            rows.append([*row, "not measured: " + record["error"], *[""] * (1 + len(rates) + len(names))])
            continue
        row += [
            table.seconds(record["seconds"]),
            *(f"{record[rate]:.1f}" for rate in rates),
            f"{record['roof']['percent']:.0f}",
        ]
        rows.append([*row, *(_ratio(record["rivals"].get(name)) for name in names)])
    head = [
        "case",
        "type",
        "solver",
        "threads",
        "time",
        *rates.values(),
        "% of roof",
        *(f"over {name}" for name in names),
    ]
    means = "\n".join(f"- {line}" for line in table.means(records))
    return markdown(head, rows, left=3) + f"\n\nGeometric means:\n\n{means}"


def _ratio(rival: dict[str, Any] | None) -> str:
    return f"{rival['speedup']:.2f}" if rival else ""


def _call(runs: Runs) -> str:
    records = [r for r in runs.get("call", {}).get("records", []) if "error" not in r]
    rows = []
    for r in records:
        rival, word = ("torch", "torch's") if "torch_seconds" in r else ("numpy", "NumPy's")
        ours, theirs = table.seconds(r["seconds"]), table.seconds(r[f"{rival}_seconds"])
        rows.append([r["label"], str(r["threads"]), ours, theirs, f"{r[f'times_{rival}']:.2f} {word}"])
    return markdown(["call on 8x8 f32", "threads", "numbaprims", "NumPy, torch", "times"], rows) if rows else ""


def _start(runs: Runs) -> str:
    rows = []
    for record in runs.get("start", {}).get("records", []):
        for name in ("cold", "warm"):
            if name in record:
                parts = record[f"{name}_parts"]
                times = [record[name], *(parts[part] for part in ("interpreter", "numpy", "numbaprims"))]
                rows.append([name, str(record["threads"]), *(f"{value:.2f} s" for value in times)])
    head = ["cache", "threads", "whole", "interpreter", "import numpy", "numbaprims"]
    return markdown(head, rows) if rows else ""


def main(arguments: list[str] | None = None) -> int:
    """0 when every file is as the results say (or was made so), 1 when --check found a stale one."""
    parser = argparse.ArgumentParser(prog="python -m numbaprims.bench.report", description=__doc__.split("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", nargs="+", metavar="FILE", help="write the blocks of these files anew")
    action.add_argument("--check", nargs="+", metavar="FILE", help="fail when a block differs from the results")
    parser.add_argument("--results", default="benchmarks/results", metavar="DIR", help="default benchmarks/results")
    options = parser.parse_args(arguments)
    machines = load_results(Path(options.results))
    stale = 0
    for name in options.write or options.check:
        path = Path(name)
        before = path.read_text(encoding="utf-8")
        wanted = {path: rewrite(before, machines)}
        for _, marker, *_ in _BLOCK.findall(before):
            word, _, file = marker.strip().partition(" ")
            if word == CHART:
                wanted[path.parent / file] = chart.svg(columns(machines))
        for one, text in wanted.items():
            if one.exists() and one.read_text(encoding="utf-8") == text:
                continue
            if options.write:
                one.write_text(text, encoding="utf-8")
                print(f"{one}: written")
            else:
                stale += 1
                print(f"{one}: stale; python -m numbaprims.bench.report --write {name}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
