"""Write the tuning records that ship for this CPU, of times that regret_*.py took with one thread and with two.

    for t in 1 2; do
        python benchmarks/regret_conv.py conv.json --directions prepared,forward --layouts NCHW --threads $t
        python benchmarks/regret_gemm.py gemm.json --threads $t
    done
    python benchmarks/ship.py numbaprims/tuning/shipped conv.json gemm.json

The choice does not depend on the threads. Of each problem the solvers count that take at most a tenth longer than the
best with two threads; of these the two that are fastest with one ship for a layer, and for a product the fastest, where
it gains 3 % on what the estimate takes. Each is held to the float64 definition first. Records of other stems stay.
"""

import json
import pathlib
import sys

import numpy as np

import numbaprims
from numbaprims.dispatch import examples, registry, ship
from numbaprims.dispatch.explain import problem_of
from numbaprims.dispatch.solver import default_config
from numbaprims.tuning import database, records

SLOWER, GAIN = 1.1, 1.03


def posed(row: dict) -> object:
    """The problem of a row of times."""
    if "fields" in row:
        return examples.restore("conv", row["fields"])
    m, n, k, trans_b = (row[name] for name in ("m", "n", "k", "trans_b"))
    a, b = np.empty((m, k), np.float32), np.empty((n, k) if trans_b else (k, n), np.float32)
    return problem_of("gemm", a, b, trans_b=trans_b, out=np.empty((m, n), np.float32))


def records_of(path: str) -> list:
    """What is worth shipping of a file of times."""
    target = registry.target("cpu")
    known = json.loads(pathlib.Path(path).read_text())
    machines = [machine for machine in known if machine["target"]["name"] == target.microarchitecture]
    machines.sort(key=lambda machine: machine["target"]["threads"])
    one, two = ({json.dumps({**row, "seconds": 0}): row for row in machine["rows"]} for machine in machines)
    entries = []
    for name, row in one.items():
        problem, seconds = posed(row), row["seconds"]
        both = two.get(name, row)["seconds"]
        able = [s for s in seconds if both.get(s, 1.0) <= SLOWER * min(both.values())]
        best = sorted(able, key=seconds.__getitem__)[:2]
        solvers = {solver.name: solver for solver in registry.solvers(problem.stem, "cpu")}
        if problem.stem == "gemm":
            chosen = min(seconds, key=lambda s: solvers[s].estimate(problem, target))
            best = best[: seconds[chosen] > GAIN * seconds[best[0]]]
        for each in best:
            config = default_config(solvers[each], problem, target)
            made = records.Record(each, solvers[each].version, dict(config), seconds[each], 1, records.toolchain())
            entries.append((records.key_of(problem, target), made))
    return entries


def main(folder: str, *times: str) -> None:
    with numbaprims.config(threads=1):
        entries = [entry for path in times for entry in records_of(path)]
        path = pathlib.Path(folder, pathlib.Path(database.shipped_file(entries[0][0].family)).name)
        stems = {key.stem for key, _ in entries}
        before = path.read_text().splitlines() if path.exists() else []
        lines = [line for line in before if json.loads(line)["stem"] not in stems]
        lines += [
            json.dumps({"schema": records.SCHEMA, **key.document(), **record.document()}, separators=(",", ":"))
            for key, record in ship.checked(entries)
        ]
    path.write_text("".join(f"{line}\n" for line in lines))
    print(f"{path}: {len(lines)} records")


if __name__ == "__main__":
    main(*sys.argv[1:])
