"""The solver `fft_weight`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims import fourier
from numbaprims.cpu.conv.fft.gradient import make_back, make_correlate, make_square_phase
from numbaprims.cpu.conv.fft.solvers import LEAST, NV, common_refusal, sizes
from numbaprims.cpu.conv.fft.transform_in import make_input
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.conv.winograd import driver, gradient
from numbaprims.cpu.conv.winograd.pixels import DENSE, make_read
from numbaprims.cpu.conv.winograd.solvers import filter_order, form_of, launch_ints, table_and_pieces
from numbaprims.cpu.conv.winograd.table import CALL, forward_pose, pose_words
from numbaprims.cpu.gemm.cost import ceil_div, peak, round_up, worth_threads
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES

# Bytes of the spectra of one block of tiles: 2 to 10 MB took the same time, 20 a tenth to twice as much more.
BLOCK_BYTES = 5 << 20
# Cycles of two vector units of 16 lanes for an element of a spectrum, one of the way back and one of the result.
SPECTRUM, BACK, RESULT = 0.533, 0.41, 1.435
# How many times as long as in a loop that only moves them take the bytes of sums that later blocks add to, in the
# third-level cache, and of those that the second-level cache or most of the third does not hold, in memory.
AGAIN, FAR = 0.735, 1.92


@in_parts
class FftWeight(Solver):
    """The weight's gradient by spectra: x's times the conjugate of y's gradient, added up over all tiles.

    A tile of N x N takes about 2 N^2 products for each pair of channels, whatever the window, and has
    (N - R + 1) x (N - S + 1) outputs; the way back is taken once.  Stride 1.
    """

    name = "fft_weight"
    amplification = 24

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "weight":
            return f"direction {problem.direction} is not the weight's gradient"
        return common_refusal(problem)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        for n in sorted(sizes(problem), key=lambda n: self._seconds(problem, target, n)):
            yield {"n": n, "tiles": self._tiles(problem, target, n)[1]}

    def is_valid(self, problem: Any, target: Any, config: Config) -> bool:
        tiles = config.get("tiles")
        fit = set(config) == {"n", "tiles"} and config["n"] in sizes(problem)
        return fit and isinstance(tiles, int) and 1 <= tiles <= 4096

    def _sizes(self, problem: Any, target: Any, n: int) -> tuple[int, int, int]:
        """Padded channels of x and y, and elements of one tile's spectra."""
        q = forward_pose(problem)
        W = lanes(problem.accumulate, target.vector_bytes)
        c, k = round_up(q.x_channels, W), round_up(q.out_channels, NV * W)
        return c, k, n * n * (c + 2 * k)

    def _tiles(self, problem: Any, target: Any, n: int) -> tuple[int, int]:
        """Tiles in all images, and those of a block."""
        p = problem
        tiles = p.n * ceil_div(p.y_size[1], n - p.kernel[1] + 1) * ceil_div(p.y_size[2], n - p.kernel[2] + 1)
        size = self._sizes(p, target, n)[2] * DTYPES[p.accumulate].itemsize
        return tiles, ceil_div(tiles, ceil_div(tiles, max(12, BLOCK_BYTES // size)))

    def estimate(self, problem: Any, target: Any) -> float:
        return min(self._seconds(problem, target, n) for n in sizes(problem))

    def _seconds(self, problem: Any, target: Any, n: int) -> float:
        """Of a call with tiles of n x n."""
        p, size = problem, DTYPES[problem.accumulate].itemsize
        W = lanes(p.accumulate, target.vector_bytes)
        scale = W / 16  # the constants are for 16 lanes
        c, k, _ = self._sizes(p, target, n)
        there = round_up(p.group_k, W)
        tiles, block = self._tiles(p, target, n)
        blocks = ceil_div(tiles, block)
        pairs = n * n * c * k
        products = 4.0 * pairs * tiles / (peak(p, target) * 1.02)
        spectra = n * n * tiles * (c + 2 * there) * SPECTRUM
        back = n * n * c * there * BACK + c * there * p.kernel[1] * p.kernel[2] * RESULT
        sums, rates = pairs * size, target.rates
        near, far = AGAIN / rates.l3, FAR / rates.memory
        each = near if sums < rates.third(target.l3) * 3 / 4 else far
        again = (2 * blocks - 1) * sums * each if blocks > 1 else 0.0
        if n * n * W * NV * W * size > target.l2:
            again += sums * far
        group = products + rates.vectors((spectra + back) / scale) + again + blocks * 10 / 3 * rates.phase
        return float(5 * rates.call + p.groups * group)

    def _words(self, problem: Any, target: Any, config: Config) -> tuple[dict[str, int], dict[str, int]]:
        """The table, and that of y's gradient as an input."""
        p, q, acc = problem, forward_pose(problem), problem.accumulate
        W, N, rows = lanes(acc, target.vector_bytes), int(config["n"]), int(config["tiles"])
        c, k, _ = self._sizes(problem, target, N)
        (R, S), NR = p.kernel[1:], NV * W
        m_h, m_w = N - R + 1, N - S + 1
        tiles_h, tiles_w = ceil_div(q.out[0], m_h), ceil_div(q.out[1], m_w)
        tiles = q.n * tiles_h * tiles_w
        c_blocks, panels = c // W, k // NR
        # whole vectors of channels a line of the cache further apart than their elements, or they would share its sets
        v_step, u_step = rows * 2 * W, rows * 2 * NR
        v_block, u_group = N * N // 2 * v_step + W, N * N * u_step + W
        codes = fourier.real_forward(N), fourier.complex_forward(N)
        mr = min(W, 8 if target.isa in ("avx512", "neon") else 4)
        kernels = {
            "read": make_read(q.x_dtype, acc, form_of(p.x_order, q.x_steps), W),
            "input": make_input(acc, N, W, *codes),
            "output": make_input(acc, N, W, *codes, NV, True),
            "products": make_correlate(acc, mr, NV, W),
            "weights": make_back(
                acc, p.w_dtype, N, N - LEAST + 1, NV, W, filter_order(q, p.kernel[1:]) == DENSE,
                fourier.real_backward(N), fourier.complex_backward(N),
            ),
        }  # fmt: skip
        words = (
            pose_words(q)
            | driver.kernel_words(kernels)
            | {
                "taps_h": R, "taps_w": S, "m_h": m_h, "m_w": m_w, "tiles_h": tiles_h, "tiles_w": tiles_w,
                "tiles": tiles, "block": rows, "blocks": ceil_div(tiles, rows), "rows": rows, "c_blocks": c_blocks,
                "panels": panels, "vectors": NV, "positions": N * N, "v_step": v_step, "v_block": v_block,
                "v_tile": 2 * W, "v_part": W, "in_h": N, "in_w": N, "u_step": u_step, "u_group": u_group,
                "m_panel": N * N * W * NR + 64 // DTYPES[acc].itemsize, "sum_size": DTYPES[acc].itemsize,
            }
        )  # fmt: skip
        mine = words | {
            "x_channels": q.out_channels, "x_h": q.out[0], "x_w": q.out[1], "pad_h": 0, "pad_w": 0, "v_step": u_step,
            "v_block": u_group, "v_tile": 2 * NR, "v_part": NR, "in_h": m_h, "in_w": m_w,
            "read": make_read(q.out_dtype, acc, form_of(p.y_order, q.out_steps), W).address,
        }  # fmt: skip
        mine |= dict(zip(("x_sn", "x_sc", "x_sh", "x_sw"), q.out_steps, strict=True))
        return words, mine

    @staticmethod
    def _regions(words: dict[str, int]) -> Regions:
        size, square = words["sum_size"], words["m_panel"] * words["sum_size"]
        mine = words["blocks"] == 1  # a worker keeps the sums of one square
        shared = {
            "all_v": words["c_blocks"] * words["v_block"] * size + 64,
            "all_u": words["panels"] * words["u_group"] * size + 64,
            "all_m": 0 if mine else words["c_blocks"] * words["panels"] * square,
        }
        return Regions(shared, {"m": square if mine else 0, "room": words["room"]})

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return self._regions(self._words(problem, target, config)[0])

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        words, mine = self._words(problem, target, config)
        W = lanes(problem.accumulate, target.vector_bytes)
        other, none = table_and_pieces(mine, ((0,), (0,)))
        table, places = table_and_pieces(words | {"y_table": int(other.ctypes.data)}, ((0,), (0,)))
        phases = [
            (gradient.make_both_inputs(), words["c_blocks"] + ceil_div(words["out_channels"], W), 1),
            (make_square_phase(), words["c_blocks"] * words["panels"], 1),
        ]
        ints = launch_ints(table, problem, activation_address(problem, target))
        steps = words["groups"] * words["blocks"]
        return Program.of(
            CALL, ints, phases, steps=steps, keep=(table, places, other, none), parallel=worth_threads(problem, target),
            regions=self._regions(words),
        )  # fmt: skip
