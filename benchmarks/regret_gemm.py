"""Time every gemm solver on many shapes, and keep the times with which tests judge the choice.

    python benchmarks/regret_gemm.py tests/data/gemm_timings.json [--threads 2]

The smallest of several blocks of interleaved calls, and of several runs on one CPU: a second run merges.
"""

import argparse
import json
import pathlib

import numpy as np

import numbaprims
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.tuning.timing import measure

SHAPES = [
    (16, 16, 16), (32, 32, 32), (64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
    (64, 3136, 576), (256, 196, 2304), (128, 4096, 1024), (32, 1760, 1760), (1760, 16, 1760), (3000, 7, 2048),
    (10, 10000, 64), (777, 333, 55), (1, 4096, 1024), (1, 512, 256), (1000, 1, 1000),
    (2, 4096, 1024), (4, 1000, 1000), (6, 1760, 1760),
    (1760, 64, 1760), (1760, 128, 1760), (16, 1000, 1000), (64, 784, 147), (33, 65, 17), (100, 3, 1000),
    (512, 49, 4608), (17, 1000, 1000),
    (35, 2000, 2560), (100, 100, 100), (768, 768, 768), (500, 700, 10), (2048, 10, 784),
    (32, 256, 64), (32, 10, 256), (256, 64, 32), (5, 64, 1000), (200, 200, 5000),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = []
    with numbaprims.config(threads=arguments.threads):
        for m, n, k in SHAPES:
            for trans_b in (False, True):
                a = rng.standard_normal((m, k), dtype=np.float32)
                b = rng.standard_normal((n, k) if trans_b else (k, n), dtype=np.float32)
                out = np.empty((m, n), np.float32)
                problem = problem_of("gemm", a, b, trans_b=trans_b, out=out)
                target = registry.target("cpu")
                calls = {}
                for solver in registry.solvers("gemm", "cpu"):
                    if solver.name == "naive" or solver.why_not(problem, target):
                        continue
                    launch = solver.bind(problem, target, next(iter(solver.configs(problem, target))))
                    calls[solver.name] = lambda launch=launch, a=a, b=b, out=out: launch(out, a, b, f0=1.0)
                timings = measure(calls)
                seconds = {name: float(f"{timings[name].best:.4g}") for name in timings}
                rows.append({"m": m, "n": n, "k": k, "trans_b": trans_b, "seconds": seconds})
                chosen = min(seconds, key=lambda name: _estimate(name, problem, target))
                print(m, n, k, trans_b, seconds, chosen, f"{seconds[chosen] / min(seconds.values()):.2f}", flush=True)
    facts = {"name": target.microarchitecture}
    facts |= {name: getattr(target, name) for name in ("isa", "vector_bytes", "l1d", "l2", "l3")}
    facts["threads"] = arguments.threads
    merge(arguments.path, facts, rows)


def merge(path: pathlib.Path, facts: dict, rows: list) -> None:
    """Write the rows; where the file has times of the same CPU, the smaller stay: another process can only add."""
    machines = json.loads(path.read_text()) if path.exists() else []
    known = next((machine for machine in machines if machine["target"] == facts), None)
    if known is None:
        known = {"target": facts, "rows": []}
        machines.append(known)
    old = {_key(row): row["seconds"] for row in known["rows"]}
    for row in rows:
        before = old.get(_key(row), {})
        row["seconds"] = {name: min(t, before.get(name, t)) for name, t in row["seconds"].items()}
    known["rows"] = rows
    texts = []
    for machine in machines:
        lines = ",\n".join(json.dumps(row) for row in machine["rows"])
        texts.append(f'{{"target": {json.dumps(machine["target"])},\n"rows": [\n{lines}\n]}}')
    path.write_text("[\n" + ",\n".join(texts) + "\n]\n")


def _key(row: dict) -> tuple:
    return row["m"], row["n"], row["k"], row["trans_b"]


def _estimate(name: str, problem: object, target: object) -> float:
    return next(s for s in registry.solvers("gemm", "cpu") if s.name == name).estimate(problem, target)


if __name__ == "__main__":
    main()
