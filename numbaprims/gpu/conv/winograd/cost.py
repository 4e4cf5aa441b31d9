"""What a Winograd convolution takes on a GPU, in seconds, by formula.

Three kernels one after another (four where the windows are not prepared), and no more overlap than the caches give:
each transform is bound by its bytes or its instructions, the products by gemm's own estimate.  Bytes of V and M count
twice, written and read, out of the second-level cache where they are less than half of it.  Instructions are counts of
the code for sm_90a.
"""

from __future__ import annotations

from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.transformed import Domain, Pose, ranked
from numbaprims.gpu.gemm import cost

#: Instructions of a thread: for each position of its tile, and for each output.
IN, FILTER, OUT, END = 23, 9, 10, 30
#: Of the four instructions that a multiprocessor issues a clock: the part that loads, stores and waits leave.
ISSUED = 0.6


def instruction_seconds(threads: float, instructions: float, target: Any) -> float:
    """The time in which the GPU issues them."""
    return float(threads * instructions / (ISSUED * 128 * target.multiprocessors * target.clock))


def sweep_seconds(nbytes: float, threads: float, instructions: float, target: Any) -> float:
    """A kernel that moves bytes and computes in between."""
    work = cost.LAUNCH + instruction_seconds(threads, instructions, target)
    return float(max(cost.sweep_seconds(nbytes, target), work))


def filter_seconds(q: Pose, domain: Domain, size: int, taps: int, target: Any) -> float:
    """The transform of the windows."""
    threads = domain.groups * domain.channels * domain.outs
    nbytes = domain.bytes[2] + q.groups * q.x_channels * q.out_channels * taps * size
    return sweep_seconds(nbytes, threads, FILTER * domain.positions + 80, target)


def slice_seconds(
    problem: Any, q: Pose, domain: Domain, share: float, outputs: int, target: Any, *, rounded: bool
) -> float:
    """One slice of tiles, which is the part `share` of them all; `outputs` of a tile."""
    size_in, size_out = DTYPES[problem.in_dtype].itemsize, DTYPES[problem.out_dtype].itemsize
    v, m, _ = domain.bytes
    x = share * q.images * q.groups * q.x_channels * q.x[0] * q.x[1] * size_in
    y = share * q.images * q.groups * q.out_channels * q.out[0] * q.out[1] * size_out * (2 if problem.has_c else 1)
    product = domain.product()
    seconds = ranked(product, target, rounded=rounded)[0].estimate(product, target)
    # each piece of a window, and each of its planes, reads the input again
    seconds += sweep_seconds(
        x * (domain.channels / q.x_channels) + v, domain.groups * domain.channels * domain.tiles,
        IN * domain.positions, target,
    )  # fmt: skip
    seconds += sweep_seconds(
        y + m, domain.groups * domain.outs * domain.tiles, OUT * domain.positions + END * outputs, target
    )
    return seconds
