"""Time every conv solver on the layers of networks, and keep the times with which tests judge the choice.

    python benchmarks/regret_conv.py tests/data/conv_timings.json [--every 3] [--directions prepared] [--threads 2]

The layers of ResNet-50, VGG-16, MobileNet and Inception v3, batch 1, and the smaller of two runs' times.
A time of a run that is cut off is kept; a second run merges.
"""

import argparse
import dataclasses
import json
import pathlib

import numpy as np

import numbaprims
from numbaprims.bench.cases import load_suites
from numbaprims.bench.stems.conv_suites import Layer, layers
from numbaprims.dispatch import choose, registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.dispatch.find import time_items
from numbaprims.tuning import records

SUITES = ("resnet50", "vgg16", "mobilenet", "inception-v3")
DIRECTIONS = ("prepared", "forward", "data", "weight")


def problem_of_layer(layer: Layer, direction: str, layout: str) -> object:
    """The problem of a layer; "prepared" is forward with the weights of a plan."""
    k, p, q = layer.output
    x, w, y = (layer.n, layer.c, layer.h, layer.w), (k, layer.c // layer.groups, layer.r, layer.s), (layer.n, k, p, q)
    if layout == "NHWC":
        x, y = (x[0], *x[2:], x[1]), (y[0], *y[2:], y[1])
    window = {
        "stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation, "groups": layer.groups,
        "layout": layout,
    }  # fmt: skip
    first, weight, dy = (np.empty(shape, np.float32) for shape in (x, w, y))
    if direction == "data":
        return problem_of("conv_backward_data", dy, weight, x, **window)
    if direction == "weight":
        return problem_of("conv_backward_weight", dy, first, w, **window)
    problem = problem_of("conv", first, weight, **window)
    return dataclasses.replace(problem, prepared=direction == "prepared")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=1, help="take every n-th layer only")
    parser.add_argument("--directions", default=",".join(DIRECTIONS))
    parser.add_argument("--layouts", default="NCHW,NHWC")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    target = registry.target("cpu")
    facts = {"name": target.microarchitecture}
    facts |= {name: getattr(target, name) for name in ("isa", "vector_bytes", "l1d", "l2", "l3")}
    facts["threads"] = arguments.threads
    suites = load_suites("conv")
    seen = {dataclasses.replace(layer, count=1): None for name in SUITES for layer in layers(suites[name], [1])}
    ratios = []
    with numbaprims.config(threads=arguments.threads):
        for layer in list(seen)[:: arguments.every]:
            for direction in arguments.directions.split(","):
                for layout in arguments.layouts.split(","):
                    problem = problem_of_layer(layer, direction, layout)
                    able = [c for c in choose.candidates(problem, "cpu") if c.refusal is None]
                    able = sorted((c for c in able if c.solver.name != "naive"), key=lambda c: c.estimate)
                    if len(able) < 2:
                        continue
                    found = time_items(problem, "cpu", [(c.solver, c.config, c.estimate) for c in able])
                    seconds = {f.algorithm: float(f"{f.seconds:.4g}") for f in found if f.measured}
                    chosen = able[0].solver.name
                    if chosen not in seconds:
                        continue
                    ratios.append(seconds[chosen] / min(seconds.values()))
                    merge(arguments.path, facts, {"fields": records.fields_of(problem), "seconds": seconds})
                    print(direction, layout, layer, seconds, chosen, f"{ratios[-1]:.2f}", flush=True)
    print(f"mean slowdown of the choice {np.mean(ratios):.3f}, worst {max(ratios):.2f}, {len(ratios)} problems")


def merge(path: pathlib.Path, facts: dict, row: dict) -> None:
    """Add a row; where the file has times of the same CPU, the smaller stay: another process can only add."""
    machines = json.loads(path.read_text()) if path.exists() else []
    machine = next((m for m in machines if m["target"] == facts), None)
    if machine is None:
        machine = {"target": facts, "rows": []}
        machines.append(machine)
    before = next((r for r in machine["rows"] if r["fields"] == row["fields"]), None)
    row = json.loads(json.dumps(row))
    if before is None:
        machine["rows"].append(row)
    else:
        # solvers that are gone go
        before["seconds"] = {n: min(t, before["seconds"].get(n, t)) for n, t in row["seconds"].items()}
    texts = []
    for machine in machines:
        lines = ",\n".join(json.dumps(r) for r in machine["rows"])
        texts.append(f'{{"target": {json.dumps(machine["target"])},\n"rows": [\n{lines}\n]}}')
    path.write_text("[\n" + ",\n".join(texts) + "\n]\n")


if __name__ == "__main__":
    main()
