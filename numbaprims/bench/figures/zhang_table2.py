"""Table II of Zhang and Zhang: vector times vector, A = x y^T + A, in whole calls, against BLAS.

Zhang and Zhang, "Optimized Deep Learning Architectures with Fast Matrix Operation Kernels on Parallel Platform", 2013:
100,000 calls, the checks on the host and the launches among the time.  What is timed here is BLAS's ger, the update in
place, which is what their rival Sger computes.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from numbaprims.bench import zhang_calls
from numbaprims.bench.zhang_calls import Printed

# Lengths of both vectors; seconds of 100,000 calls as printed, without their deviations.
PAPER = {
    (256, 256): Printed(0.43, 0.46, 5.61),
    (512, 512): Printed(1.75, 1.81, 21.88),
    (1024, 1024): Printed(5.70, 5.91, 87.71),
    (2048, 2048): Printed(21.48, 22.05, 159.03),
    (4096, 4096): Printed(47.81, 49.30, 627.16),
    (128, 256): Printed(0.19, 0.23, 3.04),
    (128, 512): Printed(0.41, 0.47, 5.67),
    (128, 1024): Printed(0.58, 0.78, 10.92),
    (128, 2048): Printed(1.62, 1.85, 21.73),
    (128, 4096): Printed(3.04, 3.30, 44.38),
    (128, 8192): Printed(6.17, 6.82, 84.51),
    (256, 512): Printed(0.54, 0.54, 11.09),
    (256, 1024): Printed(1.13, 1.28, 21.57),
    (256, 2048): Printed(2.67, 2.98, 43.71),
    (256, 4096): Printed(5.78, 6.16, 85.65),
    (256, 8192): Printed(10.49, 11.83, 157.26),
}


def _key(entry: dict[str, Any]) -> tuple[int, int]:
    return entry["m"], entry["n"]


def measure(options: Namespace, document: dict[str, Any]) -> Iterator[None]:
    """Time every size of the table."""
    found = document["entries"] = []
    document["threads"] = options.threads
    sizes = [(256, 256), (128, 1024)] if options.quick else list(PAPER)
    print(zhang_calls.HEADING)
    for entry in zhang_calls.entries("ger", "table II", sizes, ((),), options):
        found.append(entry)
        print(zhang_calls.line(entry, PAPER[_key(entry)]), flush=True)
        yield


def lines(document: dict[str, Any]) -> list[str]:
    """The table, the paper's columns on the right."""
    return zhang_calls.lines(document, PAPER, _key)


def draw(document: dict[str, Any], path: str) -> None:
    """Time savings by size."""
    zhang_calls.draw(document, path, PAPER, _key, "Table II of Zhang and Zhang: vector times vector")
