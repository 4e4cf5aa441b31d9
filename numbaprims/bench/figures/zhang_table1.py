"""Table I of Zhang and Zhang: matrix times vector, plain and transposed, in whole calls, against BLAS.

Zhang and Zhang, "Optimized Deep Learning Architectures with Fast Matrix Operation Kernels on Parallel Platform", 2013:
100,000 calls of each kernel, the checks on the host and the launches among the time.  Their rivals were cuBLAS on their
GPU and their own code on a CPU; ours are NumPy, SciPy's BLAS and torch here, and torch (cuBLAS) and CuPy on a GPU.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from numbaprims.bench import zhang_calls
from numbaprims.bench.zhang_calls import Printed

# (rows, columns): plain, transposed; seconds of 100,000 calls as printed, without their deviations.
PAPER = {
    (256, 256): (Printed(0.30, 1.88, 10.81), Printed(0.29, 0.30, 10.78)),
    (512, 512): (Printed(1.22, 5.97, 42.83), Printed(1.10, 1.04, 40.54)),
    (1024, 1024): (Printed(4.36, 12.17, 176.54), Printed(4.36, 3.45, 175.78)),
    (2048, 2048): (Printed(13.27, 25.55, 405.01), Printed(14.81, 12.63, 407.10)),
    (4096, 4096): (Printed(47.86, 58.52, 1778.52), Printed(51.46, 48.36, 1790.10)),
    (128, 256): (Printed(0.30, 1.89, 2.80), Printed(0.26, 0.29, 3.08)),
    (128, 512): (Printed(0.53, 4.54, 6.76), Printed(0.54, 0.64, 6.70)),
    (128, 1024): (Printed(0.67, 9.81, 13.08), Printed(0.67, 1.06, 13.38)),
    (128, 2048): (Printed(1.22, 26.17, 26.22), Printed(0.95, 2.42, 25.58)),
    (128, 4096): (Printed(2.04, 26.58, 54.09), Printed(1.54, 4.60, 56.80)),
    (128, 8192): (Printed(3.58, 51.80, 110.81), Printed(2.66, 8.78, 111.04)),
    (128, 16384): (Printed(6.52, 53.30, 214.30), Printed(5.02, 17.22, 216.32)),
    (256, 512): (Printed(0.53, 4.54, 10.31), Printed(0.51, 0.86, 29.71)),
    (256, 1024): (Printed(0.67, 9.81, 27.16), Printed(0.59, 0.59, 28.65)),
    (256, 2048): (Printed(1.22, 26.17, 58.29), Printed(1.18, 1.70, 57.07)),
    (256, 4096): (Printed(2.04, 26.58, 96.20), Printed(2.24, 5.33, 94.19)),
    (256, 8192): (Printed(3.58, 51.80, 200.01), Printed(3.39, 8.98, 205.88)),
    (256, 16384): (Printed(6.52, 53.30, 399.35), Printed(6.28, 18.30, 409.55)),
}  # fmt: skip
_PRINTED = {(*size, trans): pair[trans] for size, pair in PAPER.items() for trans in (False, True)}


def _key(entry: dict[str, Any]) -> tuple[int, int, bool]:
    return entry["m"], entry["n"], entry["trans"]


def measure(options: Namespace, document: dict[str, Any]) -> Iterator[None]:
    """Time every size of the table, plain and transposed."""
    found = document["entries"] = []
    document["threads"] = options.threads
    sizes = [(256, 256), (128, 1024)] if options.quick else list(PAPER)
    print(zhang_calls.HEADING)
    for entry in zhang_calls.entries("gemv", "table I", sizes, ((), (("trans", True),)), options):
        found.append(entry)
        print(zhang_calls.line(entry, _PRINTED[_key(entry)]), flush=True)
        yield


def lines(document: dict[str, Any]) -> list[str]:
    """The table, the paper's columns on the right."""
    return zhang_calls.lines(document, _PRINTED, _key)


def draw(document: dict[str, Any], path: str) -> None:
    """Time savings by size."""
    zhang_calls.draw(document, path, _PRINTED, _key, "Table I of Zhang and Zhang: matrix times vector")
