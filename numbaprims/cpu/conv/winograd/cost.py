"""How many tiles a block takes, and what a call costs by formula.

Products run at 85 to 100 % of a core's peak whatever the height of the register tile from 8 to 14 (Zen 5), so the
height is that of least padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numbaprims.cpu.conv.winograd.pieces import Axis
from numbaprims.cpu.conv.winograd.table import Pose
from numbaprims.cpu.gemm.cost import ceil_div, peak, round_up, span
from numbaprims.cpu.simd import lanes
from numbaprims.dtypes import DTYPES

HEIGHTS = (14, 13, 12, 10, 8, 6, 4)
# Blocks that there are at least where a smaller one costs nothing.
OWN_BLOCKS = 8
# Cycles of two vector units of 16 lanes for an element of a tile and a channel: into the transform, out of it, and of a
# filter and a channel.
IN, OUT, FILTER = 0.41, 0.287, 0.246
# How many times as long bytes take as in a loop that only moves them: of x and of the result from beyond the
# second-level cache, more than what a vector load costs; of transformed filters that a block of tiles reads from the
# third-level cache, from memory; and that no cache holds until they are read.
FAR, L3, MEMORY, WRITTEN = 4.2, 1.575, 1.2, 1.92
# The part of the filters' way that products do not hide, and from memory with 16 registers: a plan of
# 16 x 512 x 14 x 14 with a stride of 2 takes 71 ms, 44 without their way, and 54 by an implicit product (Zen 3).
SHOWN, SHOWN_FAR = 0.05, 1.0
# Of a core's part of the third-level cache what a block that is read again for each panel may have, beside the filters
# that pass through it: 16 x 256 x 28 x 28 with a stride of 2 takes 47 ms by blocks of 5 MB of 16, 58 by 11 (Zen 3).
BLOCK = 1 / 3
# Calls of a program that beginning takes as long as, and transforming filters first.
LAUNCH, FIRST = 2.5, 4.17


class TileBlocks(NamedTuple):
    """How the tiles of a problem are cut."""

    tiles: int
    """Of one block."""
    blocks: int
    rows: int
    """Rows multiplied in all blocks together, whole register tiles."""
    height: int


def result_bytes(q: Pose) -> int:
    """Of the whole result."""
    return q.n * q.groups * q.out_channels * q.out[0] * q.out[1] * DTYPES[q.out_dtype].itemsize


def count_tiles(q: Pose, axes: tuple[Axis, Axis]) -> int:
    """Tiles in all images."""
    return q.n * ceil_div(q.out[0], axes[0].m) * ceil_div(q.out[1], axes[1].m)


def positions_of(axes: tuple[Axis, Axis]) -> int:
    """Elements of a transformed tile."""
    return axes[0].n * axes[1].n


def pieces_of(axes: tuple[Axis, Axis]) -> int:
    """Pieces of a window."""
    return len(axes[0].firsts) * len(axes[1].firsts)


def filter_bytes(q: Pose, axes: tuple[Axis, Axis], size: int, nr: int) -> int:
    """Of one group's transformed filters, in panels of `nr` channels of the result."""
    channels = pieces_of(axes) * round_up(q.x_channels, nr // 2)
    return positions_of(axes) * channels * round_up(q.out_channels, nr) * size


def cut(
    tiles: int, most: int, heights: tuple[int, ...], panels: int = 1, copy: float = 0.0, stream: float = 0.0
) -> TileBlocks:
    """Blocks of about `most` tiles, and the height of the register tile, in the least time on one and two workers.

    In units of the product of a tile and a panel, `copy` is the transform of a tile, and `stream` the filters of a
    panel on their way, which `most` weighs against other caches already.
    """
    found = []
    for height in heights:
        # short tiles keep too few sums to hide a multiply-add, and load more for each of them
        slow = 1.0 if height >= 8 else 1.04 if height == 6 else 1.1
        # not a full block and a few tiles
        least = ceil_div(tiles, round_up(tiles, height) if tiles < 1.2 * most else max(height, most // height * height))
        for wanted in range(max(1, least * 2 // 3), least + 3) if least <= 12 else (least, least + 1):
            size = round_up(ceil_div(tiles, wanted), height)
            blocks = ceil_div(tiles, size)
            last = tiles - (blocks - 1) * size
            rows = (blocks - 1) * size + round_up(last, height)
            sizes = [(size, size)] * (blocks - 1) + [(round_up(last, height), last)]
            order = [(max(slow * have, stream) + 0.05 * min(slow * have, stream), copy * n) for have, n in sizes]
            one = sum(panels * tile + copied for tile, copied in order)
            two = 2 * span(order, panels) if blocks * panels <= 64 else one * (1 + 0.5 / (blocks * panels))
            # a block that is larger than the caches would have it
            large = 1.0 + 0.05 * max(0.0, size / max(most, height) - 1.2)
            found.append(((one + two) * large, -height, TileBlocks(size, blocks, rows, height)))
    return min(found)[2]


def block_size(q: Pose, target: Any, axes: tuple[Axis, Axis], size: int, nr: int) -> int:
    """About how many tiles a block should have.

    Where all transformed filters fit into the second-level cache, they, a block and its products do so together
    (64 x 56 x 56 in blocks of 14 and 28 took 298 us, of 56 320), and there are enough blocks for all workers.  Where
    they do not, either a block and its products stay in that cache, and the filters are read again for each block; or
    only the products of one panel do, and the larger block is read again for each panel.
    """
    positions, tiles = positions_of(axes), count_tiles(q, axes)
    channels, result = pieces_of(axes) * round_up(q.x_channels, nr // 2), round_up(q.out_channels, nr)
    u = filter_bytes(q, axes, size, nr)
    whole, product = positions * size * (channels + nr), positions * size * nr
    if u <= target.l2 * 3 // 4:
        return max(14, min((int(target.l2) - u) // whole, tiles // OWN_BLOCKS))
    small = max(1, int(target.l2) * 3 // 4 // whole)
    kept = int(target.rates.third(target.l3) * BLOCK) // (positions * size * channels)
    large = max(small, min(int(target.l2) // 4 // product, kept))
    again = u * ceil_div(tiles, small)
    other = u * ceil_div(tiles, large) + (whole - product) * tiles * (result // nr)
    return large if other < again else small


def near(u: float, target: Any) -> bool:
    """Whether a block of tiles reads transformed filters of `u` bytes from a cache."""
    return bool(u <= target.rates.third(target.l3) * 3 / 4)


def filter_seconds(u: float, target: Any) -> float:
    """For each byte of `u` of transformed filters that a block of tiles reads."""
    return float(L3 / target.rates.l3 if near(u, target) else MEMORY / target.rates.memory)


def shown(u: float, target: Any, usual: float = SHOWN) -> float:
    """The part of their way that products do not hide."""
    return usual if near(u, target) or target.isa in ("avx512", "neon") else SHOWN_FAR


def far_time(target: Any, *sizes: int) -> float:
    """Of x and the result, of so many bytes, from beyond the second-level cache."""
    return float(FAR * sum(size for size in sizes if size > target.l2) / target.rates.l3)


def estimate(problem: Any, q: Pose, target: Any, axes: tuple[Axis, Axis], blocks: TileBlocks) -> float:
    """Seconds of one call."""
    W = lanes(problem.accumulate, target.vector_bytes)
    size = DTYPES[problem.accumulate].itemsize
    positions = positions_of(axes)
    c, k = pieces_of(axes) * round_up(q.x_channels, W), round_up(q.out_channels, 2 * W)
    scale = W / 16  # constants below are for 16 lanes
    products = 2.0 * q.groups * positions * blocks.rows * c * k / (peak(problem, target) * 1.02)
    u = q.groups * positions * c * k * size
    stream = 0.0
    if u > target.l2 * 3 // 4:
        stream = blocks.blocks * u * filter_seconds(u, target)
    tiles, rates = count_tiles(q, axes), target.rates
    work = rates.vectors(q.groups * tiles * positions * (c * IN + round_up(q.out_channels, W) * OUT) / scale)
    x = q.n * q.groups * q.x_channels * q.x[0] * q.x[1] * DTYPES[q.x_dtype].itemsize
    far = far_time(target, x, result_bytes(q))
    filters = 0.0
    if not problem.prepared:
        filters = FIRST * rates.call + rates.vectors(q.groups * positions * c * k * FILTER / scale)
        filters += 0.0 if u <= rates.third(target.l3) / 3 else u * WRITTEN / rates.memory
        if u > target.l2 * 3 // 4 and pieces_of(axes) == 1 and target.rates.waits:
            filters += 2.0 * u / rates.l3  # written and read: 96 planes of 35 x 35 took 970 us by 6 x 6, by 4 x 4 786
        if problem.direction == "data":
            filters *= 1.25  # reversed filters are read in short pieces
    begin = LAUNCH * rates.call
    shows = shown(u, target) * min(products, stream)
    return float(begin + max(products, stream) + shows + work + far + filters)
