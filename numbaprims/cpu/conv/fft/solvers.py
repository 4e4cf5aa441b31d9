"""The solver `fft`: overlap and save on tiles of 16 x 16 or 32 x 32."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from numbaprims import fourier, settings
from numbaprims.cpu.conv.fft.products import make_products
from numbaprims.cpu.conv.fft.transform_in import make_input
from numbaprims.cpu.conv.fft.transform_out import make_output
from numbaprims.cpu.conv.fft.weights import make_weights
from numbaprims.cpu.conv.winograd import driver
from numbaprims.cpu.conv.winograd.cost import filter_seconds
from numbaprims.cpu.conv.winograd.pixels import make_read, make_write
from numbaprims.cpu.conv.winograd.solvers import form_of, launch_ints
from numbaprims.cpu.conv.winograd.table import CALL, TABLE, pose, pose_words
from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver, run
from numbaprims.dtypes import DTYPES

SIZES = (16, 32)
NV = 2
HEIGHTS = (14, 12, 10, 8)
BLOCKS = (24, 12, 48)  # tiles of a block at most: with more, the spectra of 64 channels leave the second-level cache
# Cycles of two vector units of 16 lanes for an element of a spectrum, there or back: tiles of 32 x 32 leave the
# first-level cache.
SPECTRUM = {16: 0.4715, 32: 0.902}
SPILLED = 1.5  # times as long as by lanes they take in 16 registers (Zen 3)
SHOWN = 0.15  # of the products or the filters' way, whichever is shorter, what the other does not hide
# How many times as long the filters' spectra that are written anew take as in a loop that only moves their bytes: in
# four times the second-level cache and in half of the third, at the third's rate; beyond, at that of memory.  They are
# written line by line, each in a page of its own.
FRESH = 6.3, 21.0, 21.6
LEAST = 4  # outputs of a tile along a side: with fewer, most of a spectrum is for nothing


def count_tiles(problem: Any, n: int) -> int:
    """Tiles of all images of one group."""
    q = pose(problem)
    return q.n * ceil_div(q.out[0], n - problem.kernel[1] + 1) * ceil_div(q.out[1], n - problem.kernel[2] + 1)


def _blocks(tiles: int, most: int) -> tuple[int, int]:
    """Height of the register tile and tiles of a block: those that multiply the fewest rows that are not there."""
    found = [(mr, min(round_up(ceil_div(tiles, ceil_div(tiles, most)), mr), round_up(tiles, mr))) for mr in HEIGHTS]
    return min(found, key=lambda size: (ceil_div(tiles, size[1]) * size[1], -size[0]))


def common_refusal(problem: Any) -> str | None:
    """What neither of the solvers takes."""
    p = problem
    if not p.planar:
        return "it takes two dimensions"
    if not sizes(p):
        return f"its largest tile has a side of {SIZES[-1]}, too small for windows of {p.kernel[1]} x {p.kernel[2]}"
    if p.stride != (1, 1, 1) or p.dilation != (1, 1, 1):
        return "it takes stride 1 and dilation 1"
    if p.accumulate not in ("f32", "f64"):
        return "spectra of integers are no integers"
    if settings.current().accuracy == "high":
        return "its rounding errors exceed those of the definition, which accuracy 'high' excludes"
    return None


def sizes(problem: Any) -> list[int]:
    """Sides of tiles that fit a window."""
    return [n for n in SIZES if max(problem.kernel[1:]) <= n - LEAST + 1]


class Fft(Solver):
    """Spectra of overlapping tiles, a small product for each frequency, and back (Mathieu, Henaff and LeCun 2014).

    A tile of N x N takes about 2 N^2 products for each pair of channels, whatever the window, and gives
    (N - R + 1) x (N - S + 1) outputs.  Stride 1.  Filters are transformed once in a plan, to 2 N^2 numbers each.
    """

    name = "fft"
    amplification = 8

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction not in ("forward", "data"):
            return f"direction {problem.direction} is not one of forward and data"
        return common_refusal(problem)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        for n in sorted(sizes(problem), key=lambda n: self._seconds(problem, target, n)):
            for most in BLOCKS:
                mr, block = _blocks(count_tiles(problem, n), most)
                yield {"n": n, "mr": mr, "tiles": block}

    def is_valid(self, problem: Any, target: Any, config: Config) -> bool:
        n = config.get("n")
        return (
            set(config) == {"n", "mr", "tiles"}
            and n in sizes(problem)
            and config.get("mr") in HEIGHTS
            and isinstance(config.get("tiles"), int)
            and 1 <= int(config["tiles"]) <= 1024
        )

    def estimate(self, problem: Any, target: Any) -> float:
        return min(self._seconds(problem, target, n) for n in sizes(problem))

    @staticmethod
    def _seconds(problem: Any, target: Any, n: int) -> float:
        """Products or the way of the filters' spectra, whichever is longer, and spectra there and back."""
        q = pose(problem)
        tiles = count_tiles(problem, n)
        mr, block = _blocks(tiles, BLOCKS[0])
        blocks = ceil_div(tiles, block)
        W = lanes(problem.accumulate, target.vector_bytes)
        channels, results = round_up(q.x_channels, W), round_up(q.out_channels, NV * W)
        pairs = 2.0 * n * n * q.groups * channels * results
        products = 2.0 * pairs * blocks * round_up(block, mr) / (1.02 * cost.peak(problem, target))
        spectra = n * n * q.groups * tiles * (channels + round_up(q.out_channels, W)) * SPECTRUM[n] * 16 / W
        if target.isa not in ("avx512", "neon"):
            spectra *= SPILLED
        filters = pairs * DTYPES[problem.accumulate].itemsize
        rates, stream, fresh = target.rates, blocks * filters * filter_seconds(filters, target), 0.0
        if not problem.prepared:
            fresh = filters * FRESH[filters > 4 * target.l2] / rates.l3
            if filters > max(4 * target.l2, rates.third(target.l3) / 2):
                fresh = filters * FRESH[2] / rates.memory
        shown = 1.0 if rates.waits else SHOWN
        seconds = max(products, stream) + shown * min(products, stream) + rates.vectors(spectra) + fresh
        # the other solvers' estimates are as much above their times
        return float(5 * rates.call + 1.15 * seconds)

    def _words(self, problem: Any, target: Any, config: Config) -> dict[str, int]:
        acc = problem.accumulate
        q = pose(problem)
        W, N = lanes(acc, target.vector_bytes), int(config["n"])
        R, S = problem.kernel[1:]
        m_h, m_w, NR = N - R + 1, N - S + 1, NV * W
        tiles_h, tiles_w = ceil_div(q.out[0], m_h), ceil_div(q.out[1], m_w)
        tiles = q.n * tiles_h * tiles_w
        block = min(int(config["tiles"]), tiles)
        mr = int(config["mr"])
        rows = round_up(block, mr)
        c_blocks, panels = ceil_div(q.x_channels, W), ceil_div(q.out_channels, NR)
        u_step = 2 * c_blocks * W * NR
        x_order, out_order = (
            (problem.x_order, problem.y_order) if problem.direction == "forward" else (problem.y_order, problem.x_order)
        )
        kernels = {
            "read": make_read(q.x_dtype, acc, form_of(x_order, q.x_steps), W),
            "write": make_write(acc, q.out_dtype, q.bias_dtype, form_of(out_order, q.out_steps), W),
            "input": make_input(acc, N, W, fourier.real_forward(N), fourier.complex_forward(N)),
            "products": make_products(acc, N, mr, NV, W),
            "output": make_output(acc, N, NV, W, fourier.real_backward(N), fourier.complex_backward(N)),
            "weights": make_weights(
                q.w_dtype, acc, N, NV, W, fourier.real_forward(N), fourier.complex_forward(N),
            ),
        }  # fmt: skip
        return (
            pose_words(q)
            | driver.kernel_words(kernels, problem.prepared)
            | {
                "taps_h": R, "taps_w": S, "m_h": m_h, "m_w": m_w, "combined": 1,
                "tiles_h": tiles_h, "tiles_w": tiles_w, "tiles": tiles, "block": block,
                "blocks": ceil_div(tiles, block), "rows": rows, "c_blocks": c_blocks, "channels": c_blocks * W,
                "panels": panels, "vectors": NV, "positions": N * N,
                # a line of the cache further apart than their elements, or pairs would share its sets
                "v_step": 2 * c_blocks * rows * W + W, "m_step": rows * NR + W,
                "v_block": rows * W, "v_tile": W, "v_part": c_blocks * rows * W, "in_h": N, "in_w": N,
                "u_step": u_step, "u_group": panels * N * N * u_step, "sum_size": DTYPES[acc].itemsize,
            }
        )  # fmt: skip

    @staticmethod
    def _bytes(words: dict[str, int]) -> tuple[int, int, int]:
        """Of one block's spectra, one panel of products, and all filters' spectra."""
        size, positions = words["sum_size"], words["positions"]
        return (
            positions // 2 * words["v_step"] * size + 64,
            positions * words["m_step"] * size + 64,
            words["groups"] * words["u_group"] * size + 64,
        )

    def _regions(self, problem: Any, words: dict[str, int]) -> Regions:
        v, m, u = self._bytes(words)
        own = {"held": 8, "v": v, "m": m, "room": words["room"]}
        return Regions({"filters": 0 if problem.prepared else u}, own)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return self._regions(problem, self._words(problem, target, config))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        words = self._words(problem, target, config)
        packed = np.empty(self._bytes(words)[2] + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        table = TABLE.table({name: words.get(name, 0) for name in TABLE.slots})
        tiles = words["groups"] * words["panels"]
        ints, phases = launch_ints(table, problem, 0), [(driver.make_weight_phase(), tiles, 1)]
        regions = Regions(own={"room": words["weights_room"]})
        run(Program.of(CALL, ints, phases, keep=(table,), regions=regions), packed, None, weights, None, None, packed)
        return packed

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        words = self._words(problem, target, config)
        table = TABLE.table({name: words.get(name, 0) for name in TABLE.slots})
        phases = [] if problem.prepared else [(driver.make_weight_phase(), words["groups"] * words["panels"], 1)]
        phases += driver.tile_phases(words)
        ints = launch_ints(table, problem, activation_address(problem, target))
        return Program.of(
            CALL,
            ints,
            phases,
            keep=(table,),
            parallel=cost.worth_threads(problem, target),
            regions=self._regions(problem, words),
        )
