"""How implicit_gemm cuts a pass into tiles, and what its copy of the input looks like; the table that says so."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from numbaprims.cpu.conv.implicit_passes import Pass
from numbaprims.cpu.conv.implicit_planes import WORDS
from numbaprims.cpu.gemm.cost import ceil_div, round_up

Four = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Axis:
    """The copy of the input along one axis, for a tile of `block` results."""

    slots: int
    """Remainders of the stride that taps meet."""
    length: int
    """Of a slot."""
    low: int
    """The input's index where slot 0 begins, for the first result."""
    apart: int
    """From slot to slot, in the input."""
    places: tuple[tuple[int, int], ...]
    """Slot and shift of each tap."""


def axis(block: int, taps: int, stride: int, dilation: int, padding: int) -> Axis:
    """Lay out one axis: tap t of result o reads place o + shift of its slot.

    >>> axis(4, 3, 2, 1, 1)
    Axis(slots=2, length=5, low=-1, apart=1, places=((0, 0), (1, 0), (0, 1)))
    """
    if taps == 0:
        return Axis(0, block, 0, 0, ())
    common = math.gcd(stride, dilation)
    slots = min(stride // common, taps)
    shifts = [tap // slots * (dilation // common if stride > 1 else dilation) for tap in range(taps)]
    low = min(shifts)
    places = tuple((tap % slots, shift - low) for tap, shift in enumerate(shifts))
    return Axis(slots, block + max(shifts) - low, low * stride - padding, dilation, places)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes of a tile of one pass."""

    size: Four
    """Images, planes, rows and columns of results."""
    channels: int
    """That are copied and summed at a time."""

    def pixels(self) -> int:
        """Results of one channel in a tile."""
        return math.prod(self.size)

    def counts(self, walk: Pass) -> Four:
        """Tiles along images, planes, rows, columns."""
        n, o, p, q = (ceil_div(a, b) for a, b in zip((walk.n, *walk.grid), self.size, strict=True))
        return n, o, p, q

    def axes(self, walk: Pass) -> tuple[Axis, Axis, Axis]:
        """The copy along depth, height, width."""
        made = (
            axis(*values)
            for values in zip(self.size[1:], walk.taps, walk.stride, walk.dilation, walk.padding, strict=True)
        )
        d, h, w = made
        return d, h, w

    def staged(self, walk: Pass) -> int:
        """Elements of the copy of one channel."""
        return self.size[0] * math.prod(a.slots * a.length for a in self.axes(walk))


def candidates(walk: Pass, most: int) -> list[Four]:
    """Tiles of at most about `most` results: part of a row, whole rows, whole planes or whole images."""
    o, p, q = walk.grid
    if q > most:
        return [(1, 1, 1, round_up(ceil_div(q, parts), 32)) for parts in range(ceil_div(q, most), 9 + q // most)]
    found: list[Four] = [(1, 1, rows, q) for rows in range(1, min(p, most // q) + 1)]
    found += [(1, planes, p, q) for planes in range(2, min(o, most // (p * q)) + 1)]
    found += [(images, o, p, q) for images in range(2, min(walk.n, most // (o * p * q)) + 1)]
    return found


def choose(walk: Pass, rows: int, m_blocks: int, lanes: int, size: int, l2: int, k_most: int, parallel: bool) -> Blocks:
    """The tile of least estimated time for `rows` rows of weights; `size` bytes an element.

    Operations on whole vectors, plus the copy (its halo again for each tile), plus one tile too many on one of two
    workers; less weight on the copy than on operations, since both were measured: 0.15 ns an element, 0.0085 ns a
    multiply-add.
    """
    window = max(walk.window, 1)
    channels = max(1, min(walk.depth, k_most // window))
    channels = walk.depth if walk.window == 0 else ceil_div(walk.depth, ceil_div(walk.depth, channels))
    # the sums of a tile, its copy and the block of weights share the second-level cache
    room = max(l2 * 3 // 4 - rows * channels * window * size, l2 // 4)
    most = max(64, min(2048, room // (size * (rows + 3 * channels))))
    best, least = None, math.inf
    for found in candidates(walk, most):
        blocks = Blocks(found, channels)
        tiles = math.prod(blocks.counts(walk)) * m_blocks * walk.groups
        # the tiles at the end are smaller: their share by the results that they have
        whole = [divmod(a, b) for a, b in zip((walk.n, *walk.grid), found, strict=True)]
        vectors = 0
        for part in itertools.product(
            *(((count, b), (1, rest)) for (count, rest), b in zip(whole, found, strict=True))
        ):
            vectors += math.prod(c for c, _ in part) * ceil_div(math.prod(b for _, b in part), lanes)
        vectors *= m_blocks
        copied = math.prod(blocks.counts(walk)) * m_blocks * blocks.staged(walk) * walk.depth
        seconds = vectors * lanes * (rows + 4) * walk.depth * window * 0.0085e-9 * size / 4 + copied * 0.15e-9
        seconds = seconds * walk.groups + tiles * 0.3e-6
        if parallel:
            seconds *= ceil_div(tiles, 2) * 2 / tiles + 0.3 / tiles
        if seconds < least:
            best, least = blocks, seconds
    assert best is not None
    return best


def merged(blocks: Blocks, walk: Pass, steps: Any) -> int:
    """How many levels of a tile's results lie a constant step apart: 1 rows, 2 planes, 3 images, 4 the whole tile."""
    n, o, p, q = blocks.size
    step = steps[4]
    if p > 1 and steps[3] != q * step:
        return 1
    if o > 1 and steps[2] != p * q * step:
        return 2
    if n > 1 and steps[0] != o * p * q * step:
        return 3
    return 4


def words(
    walk: Pass, blocks: Blocks, tile: int, m_blocks: int, panels: int, in_out: bool, has_c: bool
) -> tuple[list[int], tuple[np.ndarray, ...]]:
    """A pass's words of the table, and the arrays that they point to; `panels`: where its packed weights begin."""
    d, h, w = axes = blocks.axes(walk)
    image = d.length * h.length * w.length
    slot = blocks.size[0] * image
    taps = np.array(
        [
            ((zs * h.slots + rs) * w.slots + ss) * slot + (z * h.length + r) * w.length + s
            for (zs, z), (rs, r), (ss, s) in itertools.product(*(a.places for a in axes))
        ],
        np.int64,
    )
    w_taps = np.array(
        [sum(t * s for t, s in zip(tap, walk.w[2:], strict=True)) for tap in np.ndindex(*walk.taps)], np.int64
    )
    padded = round_up(walk.rows, tile)
    counts = blocks.counts(walk)
    merge = merged(blocks, walk, walk.y)
    if has_c:
        merge = min(merge, merged(blocks, walk, walk.c))
    values: dict[str, int] = {
        "tiles": math.prod(counts) * walk.groups * m_blocks, "pack_tiles": walk.groups * padded // tile if walk.window else 0,
        "panels": panels, "group_panels": padded * walk.depth * walk.window, "padded_rows": padded,
        "n": walk.n, "groups": walk.groups, "rows": walk.rows, "depth": walk.depth, "window": walk.window,
        "channels": blocks.channels, "merge": merge, "sums_in_out": int(in_out and merge == 4 and walk.y[4] in (0, 1)),
        "sums_step": round_up(blocks.pixels(), 16), "taps": int(taps.ctypes.data), "w_taps": int(w_taps.ctypes.data),
        "plain": int(bool((w_taps == np.arange(len(w_taps))).all())),
        "channel_step": d.slots * h.slots * w.slots * slot, "planes": d.length, "rows_staged": h.length,
        "columns": w.length, "slots_z": d.slots, "slots_r": h.slots, "slots_s": w.slots,
        "w_row": walk.w[0], "w_c": walk.w[1], "w_base": walk.w_base, "w_group": walk.w_group,
        "y_base": walk.y_base, "c_base": walk.c_base,
    }  # fmt: skip
    for names, numbers in (
        (("grid_o", "grid_p", "grid_q"), walk.grid),
        (("block_n", "block_o", "block_p", "block_q"), blocks.size),
        (("blocks_n", "blocks_o", "blocks_p", "blocks_q"), counts),
        (("low_d", "low_h", "low_w"), tuple(a.low for a in axes)),
        (("stride_d", "stride_h", "stride_w"), walk.stride),
        (("step_d", "step_h", "step_w"), walk.stride),
        (("apart_d", "apart_h", "apart_w"), tuple(a.apart for a in axes)),
        (("size_d", "size_h", "size_w"), walk.size),
        (("x_n", "x_c", "x_d", "x_h", "x_w"), walk.x),
        (("y_n", "y_k", "y_o", "y_p", "y_q"), walk.y),
        (("c_n", "c_k", "c_o", "c_p", "c_q"), walk.c),
    ):
        values.update(zip(names, numbers, strict=True))
    assert set(values) == set(WORDS)
    return [values[name] for name in WORDS], (taps, w_taps)
