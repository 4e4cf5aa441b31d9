"""`numbaprims bench start`: from starting a process to the result of its first gemm, cache cold and warm."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from typing import Any

from numbaprims.bench.session import thread_counts

# Wall-clock stamps: the monotonic clocks of parent and child need not share their zero everywhere.
_CHILD = """
import time, json
began = time.time()
import numpy as np
rng = np.random.default_rng(0)
a = rng.standard_normal((256, 256)).astype(np.float32)
numpy_ready = time.time()
import numbaprims.settings
numbaprims.settings.set_defaults(cache_dir={cache!r})
with numbaprims.config(threads={threads}):
    c = numbaprims.gemm(a, a)
done = time.time()
assert abs(c - a @ a).max() < 1e-3
print(json.dumps([began, numpy_ready, done]))
"""


def first_gemm(threads: int, cache: str) -> dict[str, float]:
    """Seconds of a new process until its first 256x256x256 product is there: whole, and the parts."""
    spawned = time.time()
    child = subprocess.run(
        [sys.executable, "-c", _CHILD.format(threads=threads, cache=cache)],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(child.stderr.strip().splitlines()[-1] if child.stderr.strip() else "the process died")
    began, numpy_ready, done = json.loads(child.stdout.splitlines()[-1])
    return {"whole": done - spawned, "interpreter": began - spawned, "numpy": numpy_ready - began,
            "numbaprims": done - numpy_ready}  # fmt: skip


def run(options: Namespace, document: dict[str, Any]) -> int:
    """Measure and print; put the records into the document; return how many failed."""
    document["records"] = []
    repetitions = 1 if options.quick else 5
    print("\nfirst gemm of a new process, seconds from its start (interpreter + import numpy + numbaprims)")
    for count in thread_counts(options):
        record: dict[str, Any] = {
            "stem": "start",
            "label": "gemm 256x256x256",
            "dtype": "f32",
            "threads": count,
        }
        document["records"].append(record)
        try:
            cold, warm = _repeat(count, repetitions)
        except RuntimeError as error:
            record["error"] = str(error)
            print(f"{count} thread(s): NOT MEASURED: {error}")
            continue
        for name, runs in (("cold", cold), ("warm", warm)):
            middle = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
            record[name] = middle["whole"]
            record[f"{name}_parts"] = {part: middle[part] for part in ("interpreter", "numpy", "numbaprims")}
            record[f"{name}_range"] = [min(run["whole"] for run in runs), max(run["whole"] for run in runs)]
            parts = " + ".join(f"{value:.2f}" for value in record[f"{name}_parts"].values())
            print(f"{count} thread(s), {name} cache: {middle['whole']:.2f} s ({parts})", flush=True)
    return sum("error" in record for record in document["records"])


def _repeat(threads: int, repetitions: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    cold = []
    with tempfile.TemporaryDirectory(prefix="numbaprims-bench-") as cache:
        for index in range(repetitions):
            cold.append(first_gemm(threads, os.path.join(cache, str(index))))
        warm = [first_gemm(threads, os.path.join(cache, "0")) for _ in range(repetitions)]
    return cold, warm
