"""What a Fourier convolution takes on a GPU, in seconds, by formula: bytes or instructions of the transforms, whichever
take longer, and gemm's own estimates of the products."""

from __future__ import annotations

from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.fft.domain import Cut, cuts, summed
from numbaprims.gpu.conv.transformed import pose, ranked
from numbaprims.gpu.conv.winograd.cost import END, sweep_seconds
from numbaprims.gpu.gemm.cost import CACHE, LAUNCH

#: Instructions for each of the N x N words of a tile, counted in the code for sm_90a.  Words are also stored and loaded
#: six times in shared memory, 32 a clock, which takes half as long.
INSTRUCTIONS = {"four": 45, "three": 52}
WORTH = 1.1
"""By how much longer it may take for its lost digits, and what barriers cost beside that, not to be worth it."""


def spectra_seconds(nbytes: float, tiles: float, n: int, form: str, target: Any, outputs: float = 0.0) -> float:
    """A transform of `tiles` tiles that moves so many bytes; `outputs` of a tile on the way back."""
    # the tiles of an image overlap: what they have in common comes out of the second-level cache again
    again = LAUNCH + tiles * n * n * 4 / (CACHE * target.bandwidth)
    work = sweep_seconds(nbytes, tiles, INSTRUCTIONS[form] * n * n + END * outputs, target)
    return float(max(again, work))


def _products(cut: Cut, target: Any) -> float:
    return float(ranked(cut.product, target)[0].estimate(cut.product, target))


def seconds(problem: Any, target: Any, n: int, form: str) -> float:
    """All kernels of a call, one after another."""
    p, q = problem, pose(problem)
    made = cuts(p, n, form)
    tiles = sum(cut.tiles for cut in made)
    size_in, size_out = DTYPES[p.in_dtype].itemsize, DTYPES[p.out_dtype].itemsize
    filters = q.groups * summed(q) * q.out_channels
    # each tap along the depth reads its planes again
    x = q.images * q.groups * summed(q) * q.x[0] * q.x[1] * size_in
    y = q.images * q.groups * q.out_channels * q.out[0] * q.out[1]
    taps = p.kernel[1] * p.kernel[2]
    w = filters * taps
    known: dict[tuple[int, bool], float] = {}
    total = 0.0
    for cut in made:
        key = (cut.tiles, cut.product.has_c)
        if key not in known:
            share = cut.tiles / tiles
            of_tiles = q.groups * cut.tiles
            known[key] = _products(cut, target) + spectra_seconds(
                x * share + cut.plain.nbytes, of_tiles * summed(q), n, form, target
            )
            outputs = 0.0
            if p.direction == "weight":
                moved = y * size_in * share + cut.wide.nbytes
            else:
                moved = y * size_out * share * (2 if p.has_c else 1) + cut.result.nbytes
                outputs = y * share / max(1, of_tiles * q.out_channels)
            known[key] += spectra_seconds(moved, of_tiles * q.out_channels, n, form, target, outputs)
        total += known[key]
    if p.direction == "weight":
        moved = w * size_out * (2 if p.has_c else 1) + made[0].result.nbytes
        return WORTH * (total + spectra_seconds(moved, filters, n, form, target, taps))
    if p.prepared:
        return WORTH * total
    return WORTH * (total + spectra_seconds(w * size_in + made[0].wide.nbytes, filters, n, form, target))
