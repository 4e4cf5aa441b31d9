"""How implicit_gemm cuts a pass into tiles, and what its copy of the input looks like; the table that says so."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from numbaprims.cpu.conv.implicit.passes import Pass
from numbaprims.cpu.gemm.cost import ceil_div, round_up, span
from numbaprims.cpu.rates import CpuRates

Four = tuple[int, int, int, int]
# Blocks of pixels up to which each tile packs the weights that it meets for itself: 7x7x512 packed 9.4 MB into the
# third cache and beyond before, in 1.4 ms of 2.5
PRIVATE = 2
#: Times as long as its bytes take, in order, x is read from afar by the columns of a product, rows a plane apart, where
#: a core `waits`: 256 planes of 56 x 56 to 128 took 2.2 ms so, 1.85 from copies (an Emerald Rapids).
FAR = 5.0
# Cycles of two vector units for a vector of sums and an element of k, in tiles of so many rows whose input stays in the
# first-level cache, and in others
FMA = {14: 0.488, 10: 0.492, 6: 0.492}
FMA_NEAR, FMA_FAR = 0.5, 0.496
# Bytes of a way of the first-level cache, and what more lines in a set than that holds cost: 1024 channels of 14 x 14
# pixels take 1,212 us in tiles of 14 rows, 893 in tiles of 6 and 920 in tiles of 10 (8 ways, Zen 4).
PAGE = 4096
CROWDED = 1.37
# Cycles of a tile, of a panel of it by rows and by columns, and of opening it for another block of channels
TILE, PANEL, OPEN = 1230.0, 61.5, 246.0


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


def axis(block: int, taps: int, stride: int, dilation: int, padding: int, split: bool) -> Axis:
    """Lay out one axis: tap t of result o reads place o + shift of its slot (o * stride + shift, if not `split`).

    >>> axis(4, 3, 2, 1, 1, split=True)
    Axis(slots=2, length=5, low=-1, apart=1, places=((0, 0), (1, 0), (0, 1)))
    >>> axis(4, 3, 2, 1, 1, split=False)
    Axis(slots=1, length=9, low=-1, apart=1, places=((0, 0), (0, 1), (0, 2)))
    """
    if taps == 0:
        return Axis(0, block, 0, 0, ())
    common = math.gcd(stride, dilation) if split else 1
    slots = min(stride // common, taps) if split else 1
    shifts = [tap // slots * (dilation // common if split and stride > 1 else dilation) for tap in range(taps)]
    low = min(shifts)
    places = tuple((tap % slots, shift - low) for tap, shift in enumerate(shifts))
    length = (block if split else (block - 1) * stride + 1) + max(shifts) - low
    return Axis(slots, length, low * (stride if split else 1) - padding, dilation, places)


@dataclasses.dataclass(frozen=True)
class TileSizes:
    """Sizes of a tile of one pass."""

    size: Four
    """Images, planes, rows and columns of results."""
    channels: int
    """That are summed (and, where they come first, copied) at a time."""
    channels_last: bool
    """Whether channels come last in the copy and the sums."""
    transposed: bool = False
    """Whether they do so although they come first in the result."""
    direct: int = 0
    """1 where patches are read in the input itself, 2 where they lie in the copy as the product takes them."""

    def pixels(self) -> int:
        """Results of one channel in a tile."""
        return math.prod(self.size)

    def once(self, walk: Pass) -> bool:
        """Whether sums are transposed panel by panel, complete."""
        return self.transposed and self.channels == walk.depth

    def counts(self, walk: Pass) -> Four:
        """Tiles along images, planes, rows, columns."""
        n, o, p, q = (ceil_div(a, b) for a, b in zip((walk.n, *walk.grid), self.size, strict=True))
        return n, o, p, q

    def axes(self, walk: Pass) -> tuple[Axis, Axis, Axis]:
        """The copy along depth, height, width."""
        made = (
            axis(*values, split=not self.channels_last)
            for values in zip(self.size[1:], walk.taps, walk.stride, walk.dilation, walk.padding, strict=True)
        )
        d, h, w = made
        return d, h, w

    def staged(self, walk: Pass) -> int:
        """Elements of the copy of one channel."""
        return self.size[0] * math.prod(a.slots * a.length for a in self.axes(walk))


def candidates(walk: Pass, most: int, unit: int) -> list[Four]:
    """Tiles of at most about `most` results: part of a row, `unit` or a multiple of it, whole rows, whole planes or
    whole images."""
    o, p, q = walk.grid
    if q > most:
        return [(1, 1, 1, round_up(ceil_div(q, parts), unit)) for parts in range(ceil_div(q, most), 9 + q // most)]
    found: list[Four] = [(1, 1, rows, q) for rows in few(min(p, most // q))]
    if o * p == 1:
        # or one worker has all of what is a row; each part reads the weights again: 49 pixels of 960 channels in two
        # took 165 us, 147 in one (Zen 4)
        parts = (round_up(ceil_div(q, count), unit) for count in (2, 3, 4, 6, 8))
        found += [(1, 1, 1, part) for part in parts if 64 <= part < q]
    found += [(1, planes, p, q) for planes in few(min(o, most // (p * q))) if planes > 1]
    found += [(images, o, p, q) for images in few(min(walk.n, most // (o * p * q))) if images > 1]
    return found


def few(most: int) -> list[int]:
    """Numbers up to `most`, from it downwards in steps of one or a tenth.

    >>> few(5), few(60)[-5:]
    ([1, 2, 3, 4, 5], [41, 45, 49, 54, 60])
    """
    found = [most] if most else []
    while found and found[-1] > 1:
        found.append(found[-1] - max(1, found[-1] // 10))
    return found[::-1]


@dataclasses.dataclass(frozen=True)
class Costs:
    """What the choice of a tile knows of the machine and the kernels; sizes in bytes."""

    lanes: int
    size: int
    l1: int
    l2: int
    width: int
    """Rows (or columns) of a panel of weights."""
    mr: int
    """Pixels of a tile of the product where these are its rows."""
    k_most: int
    parallel: bool
    one_image: bool
    """Whether a tile must not hold several images."""
    pack: float
    """Cycles of an element of weights, 0 where they are packed already."""
    rates: CpuRates

    def tile(self, walk: Pass, rows: int, sizes: Four, blocks: TileSizes) -> float:
        """One tile of `rows` channels of the result, without its copy.

        A vector of sums takes half a cycle an element of k, 1.4 times that where it is alone in its panel; gathering
        a vector 3.3 cycles an element; sums that are transposed half a cycle each; the weights stream from the second
        and third cache, at two thirds of the second's rate, or are prefetched a panel ahead.
        """
        rates, pixels = self.rates, math.prod(sizes)
        if walk.window == 0:  # a phase of a gradient that no tap reaches: zeros and the epilogue
            return rates.cycles(rows * pixels * (0.615 if blocks.channels_last else 3.28) + TILE)
        k = walk.depth * walk.window
        vectors = ceil_div(pixels, self.lanes)
        padded = round_up(rows, self.width)
        times = ceil_div(walk.depth, blocks.channels)
        if blocks.channels_last:
            tiles = ceil_div(pixels, self.mr)
            panels = padded // self.width
            near = self.mr * blocks.channels * walk.window * self.size <= self.l1
            each = FMA.get(self.mr, FMA_NEAR) if near else FMA_FAR
            if blocks.direct and self.shared_sets(walk) > 1.5 * (self.l1 // PAGE):
                each *= CROWDED
            seconds = rates.vectors(tiles * self.mr * padded / self.lanes * k * each)
            cycles = times * tiles * panels * PANEL
            seconds += k * rows * self.size / (rates.l1 if tiles >= 4 else 0.65 * rates.l2)
            if blocks.transposed:
                cycles += round_up(rows, self.lanes) * round_up(pixels, self.lanes) * 0.451
        else:
            panels = ceil_div(vectors, 2)
            seconds = rates.vectors((vectors + 0.4 * (vectors % 2)) * padded * k * FMA_FAR)
            seconds += k * rows * self.size / (0.65 * rates.l2)
            if blocks.direct == 1:
                cycles = rows * pixels * 0.082
                times -= 1
            else:
                # planes of the result are written a few lines of each at a time
                cycles = (0.0 if blocks.direct else vectors * k * 3.28) + rows * pixels * 0.246
        seconds += times * rows * pixels * self.size / (0.6 * rates.l2)
        return seconds + rates.cycles(cycles + times * panels * OPEN + TILE)

    def shared_sets(self, walk: Pass) -> float:
        """Rows of a tile that the input keeps in the same sets of the first-level cache."""
        return self.mr * math.gcd(walk.x[4] * walk.stride[2] * self.size, PAGE) / PAGE

    def copy(self, walk: Pass, blocks: TileSizes) -> float:
        """One pixel of the copy, all channels: 0.4 cycles an element where neighbours stay neighbours."""
        if not blocks.channels_last:
            return self.rates.cycles(walk.depth * {1: 0.41, 2: 0.738}.get(walk.stride[2] * walk.x[4], 1.64))
        if walk.x[1] in (0, 1):
            return self.rates.cycles(walk.depth * 0.41)
        # W x W elements are transposed in registers, however few channels there are
        gathered = walk.depth * {1: 0.164, 2: 0.574}.get(walk.x[4], 4.1)
        return self.rates.cycles(round_up(walk.depth, self.lanes) * 0.246 + gathered)

    def total(self, walk: Pass, mc: int, blocks: TileSizes, balanced: bool = True) -> float:
        """All tiles: whole ones, and those at the ends by the results that they have.

        `balanced` weighs how evenly two workers share them.
        """
        m_blocks = ceil_div(walk.rows, mc)
        copied = 0 if blocks.direct == 1 or walk.window == 0 else blocks.staged(walk)
        each = self.copy(walk, blocks) * copied / blocks.pixels()
        # a copy with channels last serves all blocks of rows that a worker takes
        again = 0 if blocks.channels_last else m_blocks - 1
        ends = []
        for length, block in zip((walk.n, *walk.grid), blocks.size, strict=True):
            whole, rest = divmod(length, block)
            ends.append([(count, size) for count, size in ((whole, block), (1, rest)) if count and size])
        seconds, tiles = 0.0, 0
        kinds: dict[tuple[int, ...], tuple[float, float]] = {}
        for part in itertools.product(*ends):
            size = tuple(size for _, size in part)
            count = math.prod(count for count, _ in part) * walk.groups
            n, o, p, q = size
            one, copy = self.tile(walk, min(mc, walk.rows), (n, o, p, q), blocks), math.prod(size) * each
            kinds[size] = (one + copy, 0.0) if again else (one, copy)
            seconds += count * (m_blocks * one + (1 + again) * copy)
            tiles += count * m_blocks
        # few tiles pack weights for themselves, each again
        some = tiles // (m_blocks * walk.groups)
        packing = (
            self.rates.cycles(self.pack)
            * walk.groups
            * walk.rows
            * walk.depth
            * walk.window
            * (some if some <= PRIVATE else 1)
        )
        seconds += packing
        x = walk.groups * walk.depth * walk.n * math.prod(walk.grid) * self.size
        if blocks.direct == 1 and not blocks.channels_last and x > self.l2 and self.rates.waits:
            seconds += FAR * x / self.rates.l3
        if not self.parallel or not balanced:
            return seconds
        if tiles > 64:
            return seconds * (1 + 0.2 / tiles)
        if blocks.channels_last and walk.by_rows and m_blocks % 2 == 0:
            # both copy all pixels
            return seconds + sum(copy for _, copy in kinds.values()) + seconds * 0.03 / tiles
        lengths = ([size for count, size in end for _ in range(count)] for end in ends)
        order = [kinds[size] for size in itertools.product(*lengths) for _ in range(walk.groups)]
        if not blocks.channels_last:
            first = second = 0.0
            for tile in (one for one, _ in order for _ in range(m_blocks)):
                first, second = sorted((first + tile, second))
            return 2 * second + packing + seconds * 0.03 / tiles
        # another process may hold one worker up
        return 2 * span(order, m_blocks) + packing + seconds * 0.03 / tiles


def choose(walk: Pass, mc: int, costs: Costs, channels_last: bool, transposed: bool, direct: int) -> TileSizes:
    """The tile of least estimated time for blocks of `mc` channels of the result."""
    window = max(walk.window, 1)
    channels = max(1, min(walk.depth, costs.k_most // window))
    channels = walk.depth if walk.window == 0 else ceil_div(walk.depth, ceil_div(walk.depth, channels))
    rows = min(mc, walk.rows)
    if channels_last:
        # what windows meet of all channels, the sums that wait, and a panel of weights share the second-level cache
        sums = costs.width if TileSizes((1, 1, 1, 1), channels, channels_last, transposed).once(walk) else rows
        room = max(costs.l2 * 3 // 4 - costs.width * channels * window * costs.size, costs.l2 // 4)
        most = max(4 * costs.mr, min(2048, room // (costs.size * (walk.depth + sums))))
        sizes = candidates(walk, most, costs.mr)
        found = [TileSizes(size, channels, channels_last, transposed, direct) for size in sizes]
        met = [(blocks.staged(walk) * walk.depth + blocks.pixels() * sums) * costs.size for blocks in found]
        found = [blocks for blocks, size in zip(found, met, strict=True) if size <= max(room, min(met))]
    else:
        # the sums of a tile, its copy and the block of weights share the second-level cache
        room = max(costs.l2 * 3 // 4 - rows * channels * window * costs.size, costs.l2 // 4)
        most = max(64, min(2048, room // (costs.size * (rows + 3 * channels))))
        found = [TileSizes(size, channels, channels_last, transposed, direct) for size in candidates(walk, most, 32)]
    if direct == 1 and not channels_last:
        # all pixels of a tile must be neighbours; images of one pixel each lie a step apart, seldom 1
        near = walk.x[4] == 1
        found = [blocks for blocks in found if merged(blocks, walk.x) == 4 and (near or blocks.pixels() == 1)]
    if costs.one_image:
        found = [blocks for blocks in found if blocks.size[0] == 1]
    return min(found, key=lambda blocks: costs.total(walk, mc, blocks))


def block_rows(walk: Pass, costs: Costs, channels_last: bool, transposed: bool, direct: int, most: int) -> int:
    """Channels of the result in a tile, no more than `most`: all, or equal parts of whole panels, by the same time."""
    found = {round_up(ceil_div(walk.rows, parts), costs.width) for parts in (1, 2, 3, 4, 6, 8, 12, 16)}
    found = {mc for mc in found if mc <= most} or {round_up(most, costs.width)}
    found = {mc for mc in found if mc >= min(4 * costs.width, 64)} or {max(found)}
    ways = [(mc, choose(walk, mc, costs, channels_last, transposed, direct)) for mc in sorted(found, reverse=True)]
    return min(ways, key=lambda way: costs.total(walk, *way))[0]


def merged(blocks: TileSizes, steps: Any) -> int:
    """How many levels of a tile's pixels lie a constant step apart: 1 rows, 2 planes, 3 images, 4 the whole tile."""
    n, o, p, q = blocks.size
    step = steps[4] if q > 1 else steps[3] if p > 1 else steps[2] if o > 1 else 0
    if p > 1 and steps[3] != q * step:
        return 1
    if o > 1 and steps[2] != p * q * step:
        return 2
    if n > 1 and o * p * q > 1 and steps[0] != o * p * q * step:
        return 3
    return 4


def pitch(walk: Pass, size: int, lanes: int) -> int:
    """Elements from pixel to pixel of a copy with channels last.

    Rows of a tile that lie half a page or a multiple of it apart share a few sets of the first-level cache, which holds
    12 lines in each: 14 rows of 1024 channels ran at 242 GFLOP/s, a vector further apart at 258.
    """
    return walk.depth if walk.depth * size % 2048 else walk.depth + lanes


def words(
    walk: Pass, blocks: TileSizes, width: int, mc: int, panels: int, in_out: bool, has_c: bool, ends: bool, apart: int
) -> tuple[dict[str, int], tuple[np.ndarray, ...]]:
    """A pass's words of the table, and the arrays that they point to; `panels`: where its packed weights begin,
    `apart`: elements from pixel to pixel of its copy."""
    d, h, w = axes = blocks.axes(walk)
    slot = blocks.size[0] * d.length * h.length * w.length
    # steps between neighbours in the copy, in elements or in all channels of a pixel; in the input, elements
    steps = (h.length * w.length, w.length, 1)
    units = (d.length * h.length * w.length, *(a * b for a, b in zip(steps, walk.stride, strict=True)))
    if blocks.channels_last and blocks.direct:
        steps = walk.x[2:]
        units = (walk.x[0], *(a * b for a, b in zip(steps, walk.stride, strict=True)))
    taps = np.array(
        [
            ((zs * h.slots + rs) * w.slots + ss) * slot + z * steps[0] + r * steps[1] + s * steps[2]
            for (zs, z), (rs, r), (ss, s) in itertools.product(*(a.places for a in axes))
        ],
        np.int64,
    )
    w_taps = np.array(
        [sum(t * s for t, s in zip(tap, walk.w[2:], strict=True)) for tap in np.ndindex(*walk.taps)], np.int64
    )
    # the channels of taps along a row follow one another
    together = walk.dilation[2] == 1 and (steps[2] if blocks.direct else apart) == walk.depth == blocks.channels
    padded = round_up(walk.rows, width)
    counts = blocks.counts(walk)
    merge = merged(blocks, walk.y)
    if has_c:
        merge = min(merge, merged(blocks, walk.c))
    along = walk.y[1] if blocks.channels_last and not blocks.transposed else walk.y[4]
    # sums that are transposed reach the result run by run, and whole where something is to follow
    in_out = in_out and along in (0, 1) and (merge == 4 or blocks.transposed and not ends)
    values: dict[str, int] = {
        "tiles": math.prod(counts) * walk.groups * ceil_div(walk.rows, mc),
        "pack_tiles": walk.groups * padded // width if walk.window else 0,
        "panels": panels, "group_panels": padded * walk.depth * walk.window, "padded_rows": padded,
        "taps_first": int(blocks.channels_last),
        "n": walk.n, "groups": walk.groups, "rows": walk.rows, "depth": walk.depth, "window": walk.window,
        "channels": blocks.channels, "merge": merge, "sums_in_out": int(in_out),
        "sums_step": round_up(blocks.pixels(), 16) if not blocks.channels_last else width if blocks.once(walk) else mc,
        "taps": int(taps.ctypes.data), "w_taps": int(w_taps.ctypes.data),
        "plain": int(bool((w_taps == np.arange(len(w_taps))).all())),
        "channel_step": walk.x[1] if blocks.direct == 1 else d.slots * h.slots * w.slots * slot,
        "direct": blocks.direct,
        "run_taps": max(walk.taps[2], 1) if together else 1,
        "planes": d.length, "rows_staged": h.length,
        "columns": w.length, "slots_z": d.slots, "slots_r": h.slots, "slots_s": w.slots,
        "w_row": walk.w[0], "w_c": walk.w[1], "w_base": walk.w_base, "w_group": walk.w_group,
        "y_base": walk.y_base, "c_base": walk.c_base, "pitch": apart, "by_rows": int(walk.by_rows),
    }  # fmt: skip
    for names, numbers in (
        (("grid_o", "grid_p", "grid_q"), walk.grid),
        (("block_n", "block_o", "block_p", "block_q"), blocks.size),
        (("blocks_n", "blocks_o", "blocks_p", "blocks_q"), counts),
        (("unit_n", "unit_o", "unit_p", "unit_q"), units),
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
    return values, (taps, w_taps)
