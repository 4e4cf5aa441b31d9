"""How a direct convolution is cut into tiles, and what it costs."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from numbaprims.cpu.conv.arguments import itemsize
from numbaprims.cpu.conv.depthwise.work import far_time
from numbaprims.cpu.conv.direct import pixels as of_pixels, planes as of_planes
from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.gemm.pack import make_pack
from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.regions import Regions, whole_lines
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.simd.tiles.taps import PLACE

SLACK = 256  # bytes behind panels, which may be written a vector past their end
COPY = {"planes": 0.287, "pixels": 0.492}  # cycles an element of the padded copy takes
TILE = 49.2  # cycles a tile takes before its first and after its last tap
TILE_WAKES = 50  # times as long as waking threads takes a tile of the program: there are 4 to 16 of them, or fewer
CROSSED = 124.0  # and more, of 16 registers, where vectors cross the ends of rows, which are stored in pieces (Zen 3)
ALONE = 0.6  # a vector of pixels alone takes as long as so many tiles of NV
STREAM = 2  # times the last cache: from there on results are written past the caches
FAR = 0.1  # part of the time that reading the copy takes, where it exceeds the first-level cache


class DirectLayout(abc.ABC):
    """What both have in common: a convolution, or the data gradient of one with stride 1 (flipped windows over dy)."""

    band: int
    bands: int
    least: int
    taps: np.ndarray
    shared: dict[str, int]
    own: dict[str, int]
    """Bytes of regions of scratch memory."""

    def __init__(self, problem: Any, target: Any) -> None:
        p, s = problem, problem.strides
        self.problem, self.target = problem, target
        self.acc = p.accumulate
        self.size = itemsize(self.acc)
        self.W = lanes(self.acc, target.vector_bytes)
        data = p.direction == "data"
        (_, R, S), (_, DH, DW), (_, self.SH, self.SW) = p.kernel, p.dilation, p.stride
        self.in_size, self.out_size = (p.y_size, p.x_size) if data else (p.x_size, p.y_size)
        self.in_steps, self.out_steps = (s.y, s.x) if data else (s.x, s.y)
        self.depth, self.filters = (p.group_k, p.group_c) if data else (p.group_c, p.group_k)
        self.reach = (R - 1) * DH, (S - 1) * DW
        pad = p.padding[1:]
        self.pad = tuple(r - one for r, one in zip(self.reach, pad, strict=True)) if data else pad
        self.count = self.depth * R * S
        self.w_k, w_c = (s.w[1], s.w[0]) if data else (s.w[0], s.w[1])
        self.w_group = p.group_k * s.w[0]
        # of each tap: channel, and row and column in the input
        self.tap_c, r, q = np.indices((self.depth, R, S)).reshape(3, -1)
        self.tap_h, self.tap_w = r * DH, q * DW
        w_r, w_q = (R - 1 - r, S - 1 - q) if data else (r, q)
        w_taps = self.tap_c * w_c + w_r * s.w[3] + w_q * s.w[4]
        steps = np.diff(w_taps)
        self.w_step = int(steps[0]) if len(steps) else 1
        self.w_taps = None if w_taps[0] == 0 and (steps == self.w_step).all() else w_taps.astype(np.int64)
        self.waits = p.activation.kind != "identity" and p.out_dtype != self.acc
        # the register tiles of a long sum reach 97 % of the peak
        self.wide = target.isa in ("avx512", "neon")
        self.peak = (1.08 if self.wide else 1.0) * float(cost.peak(p, target))
        self.rates = target.rates

    def cut(self, width: int) -> None:
        """Blocks of panels, `width` filters each, and the bytes of panels and scratch memory."""
        p = self.problem
        self.rows = self.band_rows(self.band)
        self.panels = ceil_div(self.filters, width)
        # where there are too few rows for them: threads want tiles
        blocks = min(self.panels, max(ceil_div(self.least, max(1, p.n * p.groups * self.bands)), 1 + self.halves))
        self.block = ceil_div(self.panels, blocks) * width
        self.blocks = ceil_div(self.filters, self.block)
        panel = width * self.count + self.W
        self.panel_bytes = whole_lines(self.panels * panel * self.size + SLACK)
        self.packed = p.groups * self.panel_bytes
        self.shared = {"weights": 0 if p.prepared else self.packed}

    @property
    def regions(self) -> Regions:
        """Of the scratch memory."""
        return Regions(self.shared, self.own)

    def band_rows(self, band: int) -> int:
        """Input rows of so many rows of the result."""
        return int((band - 1) * self.SH + self.reach[0] + 1)

    def choose_bands(self, panels: int = 1) -> None:
        """Rows of a band, and of the last one, which takes the rest: of least cost among those whose copy fits into a
        cache, if there are enough of them for threads.

        Where bands of one image do not share out evenly, two blocks of its `panels` do: each thread then copies all.
        """
        p, rows = self.problem, int(self.out_size[1])
        whole = p.flops() / self.peak
        self.least = int(min(max(4.0, whole / (TILE_WAKES * self.rates.wake)), 16.0))
        bands = min(rows, ceil_div(self.least, max(1, p.n * p.groups)))
        pairs = [
            (band, count)
            for band in range(1, rows // bands + 1)
            for count in {rows // band, ceil_div(rows, band)}
            if count >= bands and self.copied_bytes(max(band, rows - (count - 1) * band)) <= self.target.l2 // 2
        ]

        def cost(pair: tuple[int, int]) -> tuple[float, bool]:
            # two threads draw the bands in order: what the later one takes beyond its half counts half
            band, count = pair
            odd, even = (count // 2) * band, (count - 1) // 2 * band + rows - (count - 1) * band
            late = max(odd, even) * 2 / rows - 1
            seconds = self.seconds(band, count)
            uneven = seconds * late / (2 * max(1, p.n * p.groups))
            if p.n * p.groups > 1 or panels < 2:
                return seconds + uneven, False
            copied = sum(n * self.copied_bytes(height) for n, height in self.heights(band, count)) / self.size
            twice = self.rates.cycles(copied * COPY["planes"]) / 2 + seconds * (panels % 2) / (2 * panels)
            return seconds + min(uneven, twice), twice < uneven

        self.band, self.bands = min(pairs or [(1, rows)], key=cost)
        self.halves = cost((self.band, self.bands))[1]

    @property
    def last(self) -> int:
        """Rows of the last band."""
        return int(self.out_size[1] - (self.bands - 1) * self.band)

    @property
    def tallest(self) -> int:
        """Rows of the largest band."""
        return max(self.band, self.last)

    @abc.abstractmethod
    def copied_bytes(self, band: int) -> int:
        """Bytes of the copy of a band."""

    @abc.abstractmethod
    def seconds(self, band: int, bands: int) -> float:
        """What the tiles and copies of one group of one image cost with so many bands of so many rows."""

    def heights(self, band: int, bands: int) -> list[tuple[int, int]]:
        """(how many bands, of how many rows)."""
        return [(bands - 1, band), (1, int(self.out_size[1]) - (bands - 1) * band)]

    def estimate(self) -> float:
        """Seconds of the whole."""
        p = self.problem
        total = 10 / 3 * self.rates.call + p.n * p.groups * self.seconds(self.band, self.bands)
        if not p.prepared:
            each = cost.PACK_ACROSS if self.w_taps is None else cost.PACK_SCALAR
            total += self.rates.cycles(p.groups * self.filters * self.count * each)
        return float(total) + self.far_time()

    def far_time(self) -> float:
        """Of bytes beyond the caches, which count where there are a few multiply-adds for each."""
        return far_time(self.problem, self.target) if self.problem.depthwise else 0.0

    def make_program(
        self, kernel: RangeKernel, width: int, only_pack: bool, more: dict[str, int], keep: Any
    ) -> Program:
        """The whole, or the packing of the weights of a plan; `more` are the integers of one of them."""
        p, s = self.problem, self.problem.strides
        in_size, out_size, in_steps, out_steps = self.in_size, self.out_size, self.in_steps, self.out_steps
        values = {
            "groups": p.groups, "depth": self.depth, "filters": self.filters,
            "blocks": self.blocks, "block": self.block, "bands": self.bands, "band": self.band,
            "in_h": in_size[1], "in_w": in_size[2], "out_h": out_size[1], "out_w": out_size[2],
            "stride_h": self.SH, "stride_w": self.SW, "row": -self.pad[0], "column": -self.pad[1],
            "in_n": in_steps[0], "in_c": in_steps[1], "in_row": in_steps[3], "in_column": in_steps[4],
            "out_n": out_steps[0], "out_k": out_steps[1], "out_row": out_steps[3], "out_column": out_steps[4],
            "c_n": s.c[0], "c_k": s.c[1], "c_row": s.c[3], "c_column": s.c[4],
            "w_group": self.w_group, "w_k": self.w_k, "w_step": self.w_step,
            "w_taps": 0 if self.w_taps is None else int(self.w_taps.ctypes.data),
            "taps": int(self.taps.ctypes.data), "count": self.count, "copy_rows": self.rows,
            "has_bias": int(p.bias), "bias_step": s.bias, "activation": activation_address(p, self.target),
            "pack": make_pack(p.w_dtype, self.acc, width, self.W).address, "panel_bytes": self.panel_bytes,
        } | more  # fmt: skip
        phases = [(kernel, p.n * p.groups * self.blocks * self.bands, 1)]
        if only_pack or not p.prepared:
            count = p.groups * self.panels
            pack = (of_planes.make_pack_filters(p.w_dtype, self.acc, width, self.W), count, ceil_div(count, 8))
            phases = [pack] if only_pack else [pack, *phases]
        return Program.of(
            of_planes.ARGS, values, phases, keep=(self.taps, self.w_taps, keep),
            parallel=not only_pack and self.estimate() > 3.75 * self.rates.wake, regions=self.regions,
        )  # fmt: skip

    @abc.abstractmethod
    def program(self, only_pack: bool = False) -> Program:
        """The whole, or the packing of the weights of a plan."""


class Phases(DirectLayout):
    """What copies bands of planes: the columns of each row sorted by their remainder modulo the stride."""

    def __init__(self, problem: Any, target: Any) -> None:
        super().__init__(problem, target)
        self.extra = self.reach[1] // self.SW
        self.pitch = max(self.out_size[2] + self.extra, self.W)

    def copied_bytes(self, band: int) -> int:
        return int(self.band_rows(band) * self.depth * self.pitch * self.SW * self.size)

    def lay_out_copy(self) -> None:
        """The places of rows, remainders and channels in the copy, and of each tap."""
        # a vector behind the last row, and one behind the last pixel of the band
        self.copy_phase = ceil_div(self.band_rows(self.tallest), self.SH) * self.pitch + 2 * self.W
        self.copy_c = self.SH * self.SW * self.copy_phase
        i, j = self.tap_h, self.tap_w
        taps = self.tap_c * self.copy_c + (i % self.SH * self.SW + j % self.SW) * self.copy_phase
        self.taps = (taps + i // self.SH * self.pitch + j // self.SW).astype(np.int64)
        self.own = {"copy": self.depth * self.copy_c * self.size}


class Planes(Phases):
    """Operands whose columns are neighbours: MR filters x NV vectors of pixels."""

    def __init__(self, problem: Any, target: Any) -> None:
        super().__init__(problem, target)
        self.MR, self.NV = (8, 3) if self.wide else (4, 3)
        # vectors of a row by themselves, or of the grid from row to row: whichever leaves fewer lanes unused
        whole = round_up(self.out_size[2], self.W)
        self.across = whole // self.W if whole <= self.out_size[2] + self.extra else 0
        # one vector of a tile may cross the end of a row, its lanes there being read from the next row; without, the
        # `extra` columns behind each row are computed too (3.6 % of 11 x 11 with a stride of 4)
        self.cross = int(self.extra > 0 and self.out_size[2] >= self.NV * self.W and self.out_size[2] % self.W > 0)
        self.choose_bands(ceil_div(self.filters, self.MR))
        self.cut(self.MR)
        self.lay_out_copy()
        self.places = np.concatenate([self._places(rows) for rows in (self.band, self.last)])
        waiting = self.block * self.tallest * self.out_size[2] if self.waits else 0
        self.own |= {"shifts": self.block * self.size, "waiting": waiting * self.size}

    def vectors(self, rows: int) -> int:
        """Vectors of pixels of so many rows of a band."""
        if self.cross:
            return ceil_div(rows * self.out_size[2], self.W)
        return rows * self.across or ceil_div((rows - 1) * self.pitch + int(self.out_size[2]), self.W)

    def stream(self) -> int:
        """Whether the result is written past the caches, which it exceeds: no line of it is read before.

        3x3 of VGG with 16 images, 205 MB, took 5 to 19 % less, 7x7/2 of 51 MB 6 % more.
        """
        p = self.problem
        steps = (self.out_steps[0], self.out_steps[1], self.out_steps[3])
        whole = self.out_size[2] % self.W == 0 and all(step * self.size % 64 == 0 for step in steps)
        plain = not p.has_c and p.activation.kind == "identity" and p.out_dtype == self.acc
        nbytes = p.n * p.groups * self.filters * self.out_size[1] * self.out_size[2] * self.size
        return int(whole and plain and nbytes > STREAM * self.target.l3)

    def _places(self, rows: int) -> np.ndarray:
        """The table of the kernel's `places` for a band of so many rows."""
        index = np.arange(self.vectors(rows))
        whole = len(index) - len(index) % self.NV
        width = int(self.out_size[2])
        if self.cross:
            whole, order = self._order(index * self.W % width + self.W > width)
            index = np.array(order, np.int64)
            row, column = np.divmod(index * self.W, width)
        elif self.across:
            row, column = index // self.across, index % self.across * self.W
        else:
            row, column = np.divmod(index * self.W, self.pitch)
        cut = np.minimum(width - column, self.W)
        table = np.stack([row * self.pitch + column, row, column, cut], axis=1)
        head = [[len(index), whole, PLACE * (len(table) + 1), 0]]
        return np.concatenate([head, table]).astype(np.int64)

    def _order(self, crosses: Any) -> tuple[int, list[int]]:
        """How many vectors are in tiles of NV, whose last one alone may cross the end of a row, and their order."""
        plain, crossing = (np.flatnonzero(crosses == one).tolist() for one in (False, True))
        order: list[int] = []
        while len(plain) >= self.NV - 1 and len(plain) + len(crossing) >= self.NV:
            order += [plain.pop(0) for _ in range(self.NV - 1)]
            near = crossing and (not plain or crossing[0] <= plain[0] + self.NV)
            order.append((crossing if near else plain).pop(0))
        return len(order), order + plain + crossing

    def seconds(self, band: int, bands: int) -> float:
        pixels = self.NV * self.W
        begins = TILE + (CROSSED if self.cross and not self.wide else 0.0)
        work = 2.0 * self.MR * pixels * self.count / self.peak + self.rates.cycles(begins)
        largest = max(rows for count, rows in self.heights(band, bands) if count)
        if self.copied_bytes(largest) > self.target.l1d:
            work += FAR * self.size * (pixels + self.W) * self.count / self.problem.kernel[2] / self.rates.l2
        total = 0.0
        for count, height in self.heights(band, bands):
            whole, rest = divmod(self.vectors(height), self.NV)
            tiles = ceil_div(self.filters, self.MR) * (whole + rest * ALONE)
            total += count * (tiles * work + self.rates.cycles(self.copied_bytes(height) / self.size * COPY["planes"]))
        return total

    def program(self, only_pack: bool = False) -> Program:
        p = self.problem
        kernel = of_planes.make_planes(
            p.in_dtype, self.acc, self.MR, self.NV, self.W, self.SW, int(p.has_c), int(self.waits), self.cross,
            self.stream(),
        )  # fmt: skip
        more = {
            "pitch": self.pitch, "copy_c": self.copy_c, "copy_phase": self.copy_phase,
            "places": int(self.places.ctypes.data),
        }  # fmt: skip
        return self.make_program(kernel, self.MR, only_pack, more, self.places)


class Pixels(DirectLayout):
    """Operands whose channels are neighbours: MP pixels x NV vectors of filters."""

    def __init__(self, problem: Any, target: Any) -> None:
        super().__init__(problem, target)
        # 8 pixels x 3 vectors, which need one more address register than there are, ran at a third of the speed
        tiles = {(6, 4): 1.0, (7, 3): 0.97, (7, 2): 0.9, (7, 1): 0.6}
        if not self.wide:
            tiles = {(4, 2): 1.0, (7, 1): 0.7}

        def slowness(tile: tuple[int, int]) -> float:
            return round_up(self.out_size[2], tile[0]) * round_up(self.filters, tile[1] * self.W) / tiles[tile]

        self.MP, self.NV = min(tiles, key=slowness)
        self.peak *= tiles[self.MP, self.NV]
        # input columns of a row of the result, whole tiles of it
        self.pitch = (round_up(self.out_size[2], self.MP) - 1) * self.SW + self.reach[1] + 1
        self.choose_bands()
        self.cut(self.NV * self.W)
        self.taps = ((self.tap_h * self.pitch + self.tap_w) * self.depth + self.tap_c).astype(np.int64)
        waiting = self.tallest * self.out_size[2] * min(self.block, self.filters) if self.waits else 0
        self.own = {"copy": self.copied_bytes(self.tallest) + self.W * self.size, "waiting": waiting * self.size}

    def copied_bytes(self, band: int) -> int:
        return int(self.band_rows(band) * self.pitch * self.depth * self.size)

    def seconds(self, band: int, bands: int) -> float:
        width = self.NV * self.W
        work = 2.0 * self.MP * width * self.count / self.peak + self.rates.cycles(TILE)
        panel = width * self.count * self.size
        if panel > self.target.l1d // 2:
            work += FAR * panel / self.rates.l2
        tiles = ceil_div(self.filters, width) * ceil_div(self.out_size[2], self.MP)
        copied = sum(count * self.copied_bytes(height) for count, height in self.heights(band, bands)) / self.size
        return float(self.out_size[1] * tiles * work + self.rates.cycles(copied * COPY["pixels"]))

    def program(self, only_pack: bool = False) -> Program:
        p = self.problem
        kernel = of_pixels.make_pixels(
            p.in_dtype, self.acc, self.MP, self.NV, self.W, int(p.has_c), int(self.waits)
        )  # fmt: skip
        return self.make_program(kernel, self.NV * self.W, only_pack, {"pitch": self.pitch}, None)
