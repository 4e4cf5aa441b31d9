"""Gradients of the weight as a sum over pixels: dw[k, tap, c] = dy[k, pixels] x[c, pixels moved by the tap]^T.

Bound: 2 N K P Q C R S / groups operations at the peak of fused multiply-adds.  A box of some 400 pixels is packed at
a time: dy once for each block of channels, x once for each block of filters, and not once for each tap, because the
taps read one padded copy at different places.  Sums of whole slices of pixels, whose number follows from the problem,
are added in order: the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from numbaprims.cpu.conv.arguments import geometry_table
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.conv.weight_gradient.arguments import DRIVE, ENDS
from numbaprims.cpu.conv.weight_gradient.driver import make_drive, make_end_drive
from numbaprims.cpu.conv.weight_gradient.kernels import make_end, make_multiply, make_patches
from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.pack import make_pack
from numbaprims.cpu.gemm.pieces import EDGE
from numbaprims.cpu.gemm.solvers import SLACK
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES

# MR of a tile with 32 registers of 64 bytes, the best first.
HEIGHTS = (12, 13, 14, 10, 8)
APART = 64
"""Elements: the sums of slices begin at multiples of them."""
TILES = 16
"""Tiles there should be: enough for the threads of a machine to end together."""
LEAST_FLOPS = 2e7
"""Of a tile that is cut further for that."""


def height(problem: Any, target: Any) -> int:
    """Filters of a tile: those of least padding."""
    if target.isa not in ("avx512", "neon"):
        return 6
    least = min(round_up(problem.group_k, mr) for mr in HEIGHTS)
    return next(mr for mr in HEIGHTS if round_up(problem.group_k, mr) <= 1.01 * least)


def gather_lanes(run: int, W: int) -> int:
    """Lanes of the vectors that copy rows of a window: no more than a row takes, which would reach into more lines."""
    return next((lanes for lanes in (2, 4, 8, 16) if lanes >= run and lanes < W), W)


def uses_patches(problem: Any, W: int) -> bool:
    """Whether vectors run along (c, r, s) instead of along channels, too few of which would leave most of them empty.

    Gathering costs a copy of each row of a window for each pixel; 3 channels of 7 x 7 fill 147 lanes of 160 then.
    """
    by_channels = round_up(problem.group_c, W) * problem.taps
    together = round_up(problem.group_c * problem.taps, W)
    return bool(together < 0.6 * by_channels)


def box(problem: Any, pixels: int) -> tuple[int, int, int]:
    """Images, planes and lines of y that are packed together: about `pixels`, in parts of equal size."""
    o, p, q = problem.y_size
    lines = max(1, pixels // q)
    if lines < p:
        return 1, 1, ceil_div(p, ceil_div(p, lines))
    planes = max(1, lines // p)
    if planes < o:
        return 1, ceil_div(o, ceil_div(o, planes)), p
    images = min(max(1, planes // o), problem.n)
    return ceil_div(problem.n, ceil_div(problem.n, images)), o, p


class Cut:
    """How a problem is cut: boxes of pixels, slices of boxes, blocks of filters and channels."""

    def __init__(self, problem: Any, target: Any, config: Config) -> None:
        p = problem
        W = lanes(p.accumulate, target.vector_bytes)
        self.mr, self.nr = int(config["mr"]), int(config.get("nr", 2 * W))
        # what is multiplied of a panel of few channels: a vector, or a tile
        self.least = int(config.get("nr", W))
        self.box = box(p, int(config["pixels"]))
        counts = [ceil_div(size, part) for size, part in zip((p.n, *p.y_size[:2]), self.box, strict=True)]
        self.chunks_o, self.chunks_p = counts[1], counts[2]
        self.chunks = counts[0] * counts[1] * counts[2]
        self.patches = uses_patches(p, self.least)
        most_k = round_up(256, self.mr)
        self.k_block = min(most_k, round_up(ceil_div(p.group_k, ceil_div(p.group_k, most_k)), self.mr))
        self.c_block = p.group_c if self.patches else min(round_up(p.group_c, self.nr), 512)
        # a slice's sums are written and read once more: 5 % of the time of 512 pixels
        all_pixels = p.n * p.pixels
        want = max(1, min(ceil_div(TILES, self.blocks(p)), all_pixels // 512, self.chunks))
        self.slice_chunks = ceil_div(self.chunks, want)
        self.slices = ceil_div(self.chunks, self.slice_chunks)
        # smaller blocks pack dy or x once more, which tiles of less than 0.1 ms are not worth
        while self.slices * self.blocks(p) < TILES // 2 and p.flops() > LEAST_FLOPS * self.slices * self.blocks(p):
            if not self.patches and self.c_block >= 2 * max(self.nr, self.k_block // 2):
                self.c_block = round_up(self.c_block // 2, self.nr)
            elif self.k_block >= 6 * self.mr:
                self.k_block = round_up(self.k_block // 2, self.mr)
            else:
                break

    def blocks(self, problem: Any) -> int:
        """Blocks of sums."""
        p = problem
        return int(p.groups * ceil_div(p.group_k, self.k_block) * ceil_div(p.group_c, self.c_block))


@in_parts
class WeightGemm(Solver):
    """Packed pixels: filters times channels for each tap, or times the patches of few channels."""

    name = "weight_gemm"
    tile_bytes: ClassVar[int] = 0
    """Of 32 pixels of a panel, where they are copied once more for tiles."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "weight":
            return "it computes gradients of the weight"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        yield {"mr": height(problem, target), "pixels": 400}

    def peak(self, problem: Any, target: Any) -> float:
        """Operations a second that its products reach."""
        return 0.88 * cost.peak(problem, target)

    def kernels(self, problem: Any, target: Any, cut: Cut) -> dict[str, int]:
        """Addresses of the kernels of products."""
        W = lanes(problem.accumulate, target.vector_bytes)
        return {"multiply": make_multiply(problem.accumulate, cut.mr, 2, W).address}

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        cut = Cut(p, target, next(iter(self.configs(p, target))))
        columns = round_up(p.group_c * p.taps, cut.least) if cut.patches else round_up(p.group_c, cut.least) * p.taps
        all_pixels = p.n * p.pixels
        padded = 2.0 * all_pixels * p.groups * round_up(p.group_k, cut.mr) * columns
        rates = target.rates
        seconds = cost.launch_time(target, "private") + padded / self.peak(p, target)
        order = "column" if p.y_order == "channels_last" else "row"
        seconds += cost.pack_time(target, order, all_pixels * p.k * ceil_div(p.group_c, cut.c_block), "column")
        if cut.patches:
            rows = p.group_c * p.kernel[0] * p.kernel[1]
            gathered = all_pixels * p.groups * ceil_div(p.group_k, cut.k_block) * rows
            seconds += rates.cycles(gathered * (4.1 + p.kernel[2] * 0.205))
        else:
            halo = p.n * p.c * (p.pixels if p.taps == 1 else p.x_size[0] * p.x_size[1] * p.x_size[2] * 1.2)
            order = "column" if p.x_order == "channels_last" else "row"
            seconds += cost.pack_time(target, order, halo * ceil_div(p.group_k, cut.k_block), "column")
        # sums: each box adds to them, slices are read again, and what out cannot hold goes through a transpose
        sums = p.k * p.group_c * p.taps
        seconds += rates.cycles(sums * cut.chunks * 0.123)
        if cut.slices > 1 or p.taps > 1 and not cut.patches or p.out_dtype != p.accumulate or p.has_c or p.scaled:
            seconds += rates.cycles(sums * (cut.slices * 0.41 + 1.23))
        return float(seconds)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return self._ints(problem, target, config)[1]

    def _ints(self, problem: Any, target: Any, config: Config) -> tuple[dict[str, int], Regions, tuple[Any, ...]]:
        """The words of DRIVE, its regions, and what the words point to."""
        p, s, acc = problem, problem.strides, problem.accumulate
        cut = Cut(p, target, config)
        W = lanes(acc, target.vector_bytes)
        size = DTYPES[acc].itemsize
        mr, nr = cut.mr, cut.nr
        compact = [taps == 1 for taps in p.kernel]
        # x by rows is packed through transposes of whole vectors: of a stride's elements all are taken along
        compact[2] = compact[2] and (s.x[4] != 1 or p.stride[2] == 1)
        step = [1 if short else stride for short, stride in zip(compact, p.stride, strict=True)]
        source = [stride if short else 1 for short, stride in zip(compact, p.stride, strict=True)]
        boxes = [
            (count - 1) * stride + (taps - 1) * gap + 1
            for count, stride, taps, gap in zip((*cut.box[1:], p.y_size[2]), step, p.kernel, p.dilation, strict=True)
        ]
        pixels = cut.box[0] * cut.box[1] * cut.box[2] * p.y_size[2]
        merge_x = p.padding[2] == 0 and source[1] * s.x[3] == boxes[2] * source[2] * s.x[4]
        merge_x = merge_x and (boxes[2] - 1) * source[2] < p.x_size[2]
        lines = p.y_size[2] * s.y[4] == s.y[3] or p.y_size[1] == 1
        planes = lines and (p.y_size[1] * p.y_size[2] * s.y[4] == s.y[2] or p.y_size[0] == 1)
        channels, taps = p.group_c, p.taps
        whole = cut.patches
        # rows of a window that lie side by side in x: with the channels last those of all channels at once
        unit = channels if s.x[1] == 1 and p.dilation[2] == 1 and s.x[4] == channels and channels > 1 else 1
        run = p.kernel[2] * unit
        width = round_up(channels * taps, W)
        # the order of sums of one filter: (tap, channel), or that of the patches
        c_step, tap_step = (taps, 1) if whole and unit == 1 else (1, channels)
        k_step = channels * taps
        places, way, in_out = self._places(p, c_step)
        if whole and unit > 1:
            in_out = in_out and bool((places[0] == np.arange(taps) * channels).all())
        in_out = in_out and cut.slices == 1
        shifts = np.array(
            [
                ((z * p.dilation[0] * boxes[1] + r * p.dilation[1]) * boxes[2] + t * p.dilation[2]) * nr
                for z in range(p.kernel[0]) for r in range(p.kernel[1]) for t in range(p.kernel[2])
            ] if not whole else [0], np.int64,
        )  # fmt: skip
        slice_step = round_up(p.k * k_step, APART)
        x_bytes = pixels * width * size if whole else cut.box[0] * boxes[0] * boxes[1] * boxes[2] * nr * size
        # one box, and nothing to add to it: its sums end where they are, in the second-level cache
        fused = cut.chunks == 1 and not in_out and not whole
        if fused:
            k_step, tap_step, c_step, slice_step = taps * nr, nr, 1, 0
        room = ceil_div(pixels, EDGE) * self.tile_bytes
        joined = way == 0 and c_step != 1
        if joined:
            places = np.zeros((2, 1), np.int64)
        end = {
            "kernel": 0 if in_out else make_end(acc, p.out_dtype, W).address, "slices": cut.slices,
            "slice_step": slice_step, "k_step": k_step, "tap_step": tap_step, "c_step": c_step,
            "taps": 1 if joined else taps, "places": int(places.ctypes.data), "out_k": s.w[0], "out_c": s.w[1],
            "c_k": s.c[0], "c_c": s.c[1], "has_c": int(p.has_c), "way": way, "joined": int(joined),
            "out_size": DTYPES[p.out_dtype].itemsize,
        }  # fmt: skip
        words = ENDS.table(end)
        table = geometry_table(p)
        regions = Regions(
            {"sums": 0 if in_out or fused else cut.slices * slice_step * size},
            {
                "packed_x": x_bytes + SLACK + nr * size,
                "packed_y": round_up(cut.k_block, mr) * pixels * size + SLACK,
                "places": 8 * pixels,
                "own_sums": cut.k_block * k_step * size if fused else 0,
                "tiles": ceil_div(cut.k_block, mr) * room,
                "tile_room": room,
            },
        )
        ints = {
            "geometry": int(table.ctypes.data), "taps": len(shifts), "shifts": int(shifts.ctypes.data),
            "patches": make_patches(p.x_dtype, acc, gather_lanes(run, W)).address if whole else 0,
            "pack_x": make_pack(p.x_dtype, acc, nr, W).address, "pack_y": make_pack(p.y_dtype, acc, mr, W).address,
            "in_size": DTYPES[p.x_dtype].itemsize, "sum_size": size,
            "mr": mr, "nr": nr, "box_n": cut.box[0], "box_o": cut.box[1], "box_p": cut.box[2],
            "chunks_o": cut.chunks_o, "chunks_p": cut.chunks_p, "chunks": cut.chunks,
            "slice_chunks": cut.slice_chunks, "k_block": cut.k_block, "k_blocks": ceil_div(p.group_k, cut.k_block),
            "c_block": cut.c_block, "c_blocks": ceil_div(channels, cut.c_block),
            "step_d": step[0], "step_h": step[1], "step_w": step[2],
            "src_d": source[0], "src_h": source[1], "src_w": source[2],
            "box_d": boxes[0], "box_h": boxes[1], "box_w": boxes[2],
            "merge_x": int(merge_x), "merge_y": 2 if planes else int(lines),
            "width": width, "unit": unit, "run": run,
            "columns": channels * taps, "fused": int(fused),
            "sums_in_out": int(in_out), "k_step": s.w[0] if in_out else k_step,
            "tap_step": int(places[0, 1] - places[0, 0]) if in_out and len(shifts) > 1 else tap_step,
            "slice_step": slice_step, "end": int(words.ctypes.data),
        } | self.kernels(p, target, cut)  # fmt: skip
        return ints, regions, (table, shifts, words, places)

    @staticmethod
    def _places(problem: Any, c_step: int) -> tuple[np.ndarray, int, bool]:
        """Where taps lie in out and in c, the way of the end, and whether out can hold the sums."""
        p = problem
        at = np.indices(p.kernel).reshape(3, -1)
        places = np.stack([np.asarray(steps[2:], np.int64) @ at for steps in (p.strides.w, p.strides.c)])
        steps = [p.strides.w] + ([p.strides.c] if p.has_c else [])
        offsets = list(places[: len(steps)])
        natural = np.arange(p.taps)
        contiguous = all((row == natural).all() for row in offsets)
        if c_step == 1 or p.taps == 1:
            along = all(s[1] == 1 or p.group_c == 1 for s in steps)
        else:
            along = contiguous and all(s[1] == p.taps or p.group_c == 1 for s in steps)
        # a step of 0 is a row of length 1, or c repeated
        if along:
            way = 0
        elif contiguous and c_step == 1:
            way = 1
        else:
            way = 2
        even = p.taps == 1 or len(set(np.diff(places[0]))) == 1
        in_out = along and even and p.out_dtype == p.accumulate and not p.has_c and not p.scaled
        return places, way, in_out

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p = problem
        ints, regions, keep = self._ints(p, target, config)
        slices = ceil_div(ints["chunks"], ints["slice_chunks"])
        tiles = slices * p.groups * ints["k_blocks"] * ints["c_blocks"]
        phases = [(make_drive(), tiles, 1)]
        if not ints["sums_in_out"] and not ints["fused"]:
            phases.append((make_end_drive(), p.k, max(1, 4096 // (p.group_c * p.taps), ceil_div(p.k, 32))))
        return Program.of(
            DRIVE, ints, phases, keep=keep, parallel=cost.worth_threads(p, target), regions=regions,
        )  # fmt: skip
