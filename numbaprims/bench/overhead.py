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


Pairs = dict[str, tuple[Callable[[], Any], Callable[[], Any]]]


def pairs() -> Pairs:
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


def tensor_pairs() -> Pairs:
    """name -> (our call, torch's for the same), on 8x8 float32 tensors; nothing where torch is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    import numbaprims

    a, b = (torch.from_numpy(each) for each in np.random.default_rng(8).standard_normal((2, SIZE, SIZE), np.float32))
    out = torch.empty_like(a)
    return {
        "gemm, tensors": (lambda: numbaprims.gemm(a, b), lambda: torch.mm(a, b)),
        "gemm out=, tensors": (lambda: numbaprims.gemm(a, b, out=out), lambda: torch.mm(a, b, out=out)),
        "tanh, tensors": (lambda: numbaprims.tanh(a), lambda: torch.tanh(a)),
        "tanh out=, tensors": (lambda: numbaprims.tanh(a, out=out), lambda: torch.tanh(a, out=out)),
    }


def run(options: Namespace, document: dict[str, Any]) -> int:
    """Measure and print every pair; put the records into the document; return how many failed."""
    document["records"] = []
    schedule = Schedule(block=6e-3, settle=2e-3, rounds=3) if options.quick else Schedule()
    print(f"\n{'call on 8x8 f32':18} {'thr':>3}  {'numbaprims':>10}  {'NumPy/torch':>11}  times theirs")
    both = [("numpy", *each) for each in pairs().items()] + [("torch", *each) for each in tensor_pairs().items()]
    for count in thread_counts(options):
        with rivals.limit_threads(count):
            for rival, name, (ours, theirs) in both:
                record: dict[str, Any] = {"stem": "call", "label": name, "threads": count, "dtype": "f32"}
                document["records"].append(record)
                try:
                    times = measure({"ours": ours, rival: theirs}, schedule)
                except Exception as error:
                    record["error"] = f"{type(error).__name__}: {error}"
                    print(f"{name:18} {count:>3}  NOT MEASURED: {record['error']}")
                    continue
                ratio = times.speedup(rival, over="ours")
                record["seconds"] = times["ours"].seconds
                record[f"{rival}_seconds"] = times[rival].seconds
                record[f"times_{rival}"], record["low"], record["high"] = ratio.value, ratio.low, ratio.high
                print(
                    f"{name:18} {count:>3}  {seconds(record['seconds']):>10}  "
                    f"{seconds(times[rival].seconds):>11}  {ratio.value:.2f}",
                    flush=True,
                )
    return sum("error" in record for record in document["records"])
