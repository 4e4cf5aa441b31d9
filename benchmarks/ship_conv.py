"""Write the tuning records that ship for this CPU, of the times that regret_conv.py took with one thread and with two.

    for t in 1 2; do
        python benchmarks/regret_conv.py times.json --directions prepared,forward --layouts NCHW --threads $t
    done
    python benchmarks/ship_conv.py times.json numbaprims/tuning/shipped

The choice does not depend on the threads. Of each layer the two solvers that are fastest with one thread ship, of those
that take at most a tenth longer than the best with two; each is held to the float64 definition first.
"""

import json
import pathlib
import sys

import numbaprims
from numbaprims.dispatch import examples, registry, ship
from numbaprims.dispatch.solver import default_config
from numbaprims.tuning import database, records

SLOWER = 1.1


def main(times: str, folder: str) -> None:
    target = registry.target("cpu")
    machines = [m for m in json.loads(pathlib.Path(times).read_text()) if m["target"]["name"] == target.name]
    machines.sort(key=lambda machine: machine["target"]["threads"])
    one, two = ({json.dumps(r["fields"]): r["seconds"] for r in m["rows"]} for m in machines)
    solvers = {solver.name: solver for solver in registry.solvers("conv", "cpu")}
    entries = []
    with numbaprims.config(threads=1):
        for fields, seconds in one.items():
            both = two.get(fields, seconds)
            able = [name for name in seconds if both.get(name, 1.0) <= SLOWER * min(both.values())]
            problem = examples.restore("conv", json.loads(fields))
            key = records.key_of(problem, target)
            for name in sorted(able, key=seconds.__getitem__)[:2]:
                solver = solvers[name]
                config = default_config(solver, problem, target)
                made = records.Record(name, solver.version, dict(config), seconds[name], 1, records.toolchain())
                entries.append((key, made))
        path = pathlib.Path(folder, pathlib.Path(database.shipped_file(entries[0][0].family)).name)
        lines = [
            json.dumps({"schema": records.SCHEMA, **key.document(), **record.document()}, separators=(",", ":"))
            for key, record in ship.checked(entries)
        ]
    path.write_text("".join(line + "\n" for line in lines))
    print(f"{path}: {len(lines)} records of {len(one)} problems")


if __name__ == "__main__":
    main(*sys.argv[1:])
