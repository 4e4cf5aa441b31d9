"""How a direct weight gradient is cut into slices and bands, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.conv.direct import weight
from numbaprims.cpu.conv.direct.layout import COPY, TILE_WAKES, Phases
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd.tiles.taps_gradient import PIXELS

READ_DY = 0.123  # cycles an element of dy takes, read from afar
COPY_DY = 0.205  # more where it is written into a panel
TILE = 82.0  # cycles a tile takes before its first and after its last vector of pixels
EDGE = 1.3  # a vector of pixels of two rows takes as long as so many of one


class Gradient(Phases):
    """MR filters x NT taps, whose lanes are pixels."""

    def __init__(self, problem: Any, target: Any) -> None:
        super().__init__(problem, target)
        p = problem
        # whole rows where they are shorter than a vector: one would meet the ends of several
        self.flat = self.out_size[2] >= self.W
        rows = int(self.out_size[1])
        # panels of dy need no copy where pixels of a band are whole vectors, one after the other
        packed = rows == 1 or self.out_steps[3] == self.out_size[2]
        self.dense = p.in_dtype == self.acc and packed and self.out_size[2] % self.W == 0
        if target.isa in ("avx512", "neon"):
            # a vector at the end of a row reads each tap twice, which fewer taps hide better
            tiles = {(5, 5): 1.0, (4, 6): 0.98, (6, 4): 0.98}
            if self.out_size[2] % self.W == 0:
                tiles = {(4, 6): 1.0, (6, 4): 1.0, (5, 5): 1.0, (3, 9): 1.0}
        else:
            tiles = {(3, 3): 1.0}
        self.MR, self.NT = min(
            tiles, key=lambda tile: round_up(self.filters, tile[0]) * round_up(self.count, tile[1]) / tiles[tile]
        )
        self.peak *= tiles[self.MR, self.NT]
        # a panel of dy stays in the first-level cache while the taps come by, each band adds to the sums
        most = max(1, target.l1d * 2 // 3 // (self.MR * self.vectors(1) * self.W * self.size))
        least = int(min(max(4.0, p.flops() / self.peak / (TILE_WAKES * self.rates.wake)), 16.0))
        self.bands = min(rows, max(ceil_div(rows, most), ceil_div(least, p.n * p.groups)))
        while self.copied_bytes(ceil_div(rows, self.bands)) > target.l2 // 2 and self.bands < rows:
            self.bands += 1
        self.band = ceil_div(rows, self.bands)
        self.bands = ceil_div(rows, self.band)
        self.rows = self.band_rows(self.band)
        self.all_bands = p.n * self.bands
        self.slice_bands = ceil_div(self.all_bands, min(self.all_bands, ceil_div(least, p.groups)))
        self.slices = ceil_div(self.all_bands, self.slice_bands)
        self.tap_tiles = ceil_div(self.count, self.NT)
        room = round_up(self.MR * self.NT, self.W)
        self.sums_step = ceil_div(self.filters, self.MR) * self.tap_tiles * room
        self.lay_out_copy()
        # the taps of the last tile that are not there repeat the last one
        self.taps = np.append(self.taps, np.repeat(self.taps[-1:], -self.count % self.NT))
        self.pixels = np.concatenate([self._pixels(height) for height in (self.band, self.last)])
        self.own |= {"panel": self.vectors(self.tallest) * self.MR * self.W * self.size}
        # a vector behind the last sums is read
        self.shared = {"sums": (self.slices * p.groups * self.sums_step + self.W) * self.size}

    def vectors(self, rows: int) -> int:
        """Vectors of pixels of so many rows of a band."""
        if self.flat:
            return ceil_div(rows * int(self.out_size[2]), self.W)
        return rows

    def _pixels(self, rows: int) -> np.ndarray:
        """The table of the kernel's `pixels` for a band of so many rows."""
        width, W = int(self.out_size[2]), self.W
        index = np.arange(self.vectors(rows))
        row, column = np.divmod(index * W, width) if self.flat else (index, 0 * index)
        cut = np.minimum(width - column, W)
        there = np.minimum(rows * width - index * W, W) if self.flat else cut
        here, behind = (1 << cut) - 1, (1 << there) - (1 << cut)
        table = np.stack([row * self.pitch + column, row, column, here, behind], axis=1)
        plain = cut == W
        head = [[len(index), plain.sum(), PIXELS * (len(index) + 1), 0, 0]]
        return np.concatenate([head, table[plain], table[~plain]]).astype(np.int64)

    def seconds(self, band: int, bands: int) -> float:
        each = READ_DY if self.dense else READ_DY + COPY_DY
        total = 0.0
        for count, height in self.heights(band, bands):
            width = int(self.out_size[2])
            crossing = height if not self.flat else 0 if width % self.W == 0 else height * (self.W - 1) / self.W
            vectors = self.vectors(height) + (EDGE - 1) * crossing
            tiles = ceil_div(self.filters, self.MR) * self.tap_tiles
            work = tiles * (2.0 * self.MR * self.NT * self.W * vectors / self.peak + self.rates.cycles(TILE))
            copied = self.copied_bytes(height) / self.size * COPY["planes"]
            total += count * (work + self.rates.cycles(copied + self.filters * self.vectors(height) * self.W * each))
        return total

    def estimate(self) -> float:
        p = self.problem
        sums = self.rates.cycles(p.groups * self.sums_step * self.slices * 0.41 + p.k * self.count * 1.64)
        work = p.n * p.groups * self.seconds(self.band, self.bands)
        return float(5 * self.rates.call + work + sums) + self.far_time()

    def program(self, only_pack: bool = False) -> Program:
        p, s = self.problem, self.problem.strides
        _, r, q = p.kernel
        channel, row, column = np.indices((self.depth, r, q)).reshape(3, -1)
        places = np.stack([channel * at[1] + row * at[3] + column * at[4] for at in (s.w, s.c)]).astype(np.int64)
        used = places if p.has_c else places[:1]
        values = {
            "groups": p.groups, "depth": self.depth, "filters": self.filters, "slices": self.slices,
            "slice_bands": self.slice_bands, "all_bands": self.all_bands, "bands": self.bands, "band": self.band,
            "in_h": p.x_size[1], "in_w": p.x_size[2], "out_h": p.y_size[1], "out_w": p.y_size[2],
            "stride_h": self.SH, "row": -self.pad[0], "column": -self.pad[1],
            "in_n": s.x[0], "in_c": s.x[1], "in_row": s.x[3], "out_n": s.y[0], "out_k": s.y[1], "out_row": s.y[3],
            "pitch": self.pitch, "copy_c": self.copy_c, "copy_phase": self.copy_phase, "copy_rows": self.rows,
            "taps": int(self.taps.ctypes.data), "tap_tiles": self.tap_tiles, "count": self.count,
            "pixels": int(self.pixels.ctypes.data), "sums_step": self.sums_step,
            "dense": int(self.dense), "w_k": s.w[0], "c_k": s.c[0], "has_c": int(p.has_c),
            "places": int(places.ctypes.data),
            "side_by_side": int((used == np.arange(self.count)).all()),
        }  # fmt: skip
        kernel = weight.make_gradient(p.in_dtype, self.acc, self.MR, self.NT, self.W, self.SW)
        end = weight.make_gradient_end(self.acc, p.out_dtype, self.MR, self.NT, self.W)
        phases = [(kernel, self.slices * p.groups, 1), (end, p.k, max(8, ceil_div(p.k, 16)))]
        return Program.of(
            weight.ARGS, values, phases, keep=(self.taps, self.pixels, places),
            parallel=self.estimate() > 3.75 * self.rates.wake, regions=self.regions,
        )  # fmt: skip
