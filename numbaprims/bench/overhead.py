"""`numbaprims bench call`: what a whole call costs, all Python included, where arithmetic costs nothing."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims.bench import rivals
from numbaprims.bench.session import thread_counts
from numbaprims.bench.table import seconds
from numbaprims.tuning.timing import Schedule, measure

SIZE = 8


def pairs() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """name -> (our call, NumPy's for the same), on 8x8 float32 operands."""
    import numbaprims

    rng = np.random.default_rng(8)
    a, b = (rng.standard_normal((SIZE, SIZE), np.float32) for _ in range(2))
    x, y = (rng.standard_normal(SIZE, np.float32) * np.float32(2**-10) for _ in range(2))
    out, vector, sums, product = np.empty_like(a), np.empty_like(x), a.copy(), np.empty_like(a)
    column = x[:, None]

    def numpy_ger() -> None:
        np.multiply(column, y, out=product)
        np.add(sums, product, out=sums)

    return {
        "gemm": (lambda: numbaprims.gemm(a, b), lambda: np.matmul(a, b)),
        "gemm out=": (lambda: numbaprims.gemm(a, b, out=out), lambda: np.matmul(a, b, out=out)),
        "gemv": (lambda: numbaprims.gemv(a, x), lambda: np.matmul(a, x)),
        "gemv out=": (lambda: numbaprims.gemv(a, x, out=vector), lambda: np.matmul(a, x, out=vector)),
        "ger in place": (lambda: numbaprims.ger(x, y, a=sums, out=sums), numpy_ger),
        "relu out=": (lambda: numbaprims.relu(a, out=out), lambda: np.maximum(a, 0, out=out)),
        "tanh": (lambda: numbaprims.tanh(a), lambda: np.tanh(a)),
        "tanh out=": (lambda: numbaprims.tanh(a, out=out), lambda: np.tanh(a, out=out)),
    }


def run(options: Namespace, document: dict[str, Any]) -> int:
    """Measure and print every pair; put the records into the document; return how many failed."""
    document["records"] = []
    schedule = Schedule(block=6e-3, settle=2e-3, rounds=3) if options.quick else Schedule()
    print(f"\n{'call on 8x8 f32':18} {'thr':>3}  {'numbaprims':>10}  {'NumPy':>10}  times NumPy's")
    for count in thread_counts(options):
        with rivals.limit_threads(count):
            for name, (ours, numpys) in pairs().items():
                record: dict[str, Any] = {"stem": "call", "label": name, "threads": count, "dtype": "f32"}
                document["records"].append(record)
                try:
                    times = measure({"ours": ours, "numpy": numpys}, schedule)
                except Exception as error:
                    record["error"] = f"{type(error).__name__}: {error}"
                    print(f"{name:18} {count:>3}  NOT MEASURED: {record['error']}")
                    continue
                ratio = times.speedup("numpy", over="ours")
                record["seconds"] = times["ours"].seconds
                record["numpy_seconds"] = times["numpy"].seconds
                record["times_numpy"], record["low"], record["high"] = ratio.value, ratio.low, ratio.high
                print(
                    f"{name:18} {count:>3}  {seconds(record['seconds']):>10}  "
                    f"{seconds(record['numpy_seconds']):>10}  {ratio.value:.2f}",
                    flush=True,
                )
    return sum("error" in record for record in document["records"])
