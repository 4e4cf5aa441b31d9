"""The solvers F(2x2, 3x3), F(4x4, 3x3) and F(6x6, 3x3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from numbaprims import settings
from numbaprims.cook_toom import Matrix, filtering, program
from numbaprims.cpu.conv.winograd import cost, driver
from numbaprims.cpu.conv.winograd.pieces import Axis, best_axis, whole
from numbaprims.cpu.conv.winograd.pixels import (
    ANY_ORDER,
    CHANNELS_LAST,
    DENSE,
    PLANES,
    REVERSED,
    STRIDED,
    make_read,
    make_read_weights,
    make_write,
)
from numbaprims.cpu.conv.winograd.products import make_products
from numbaprims.cpu.conv.winograd.table import CALL, TABLE, Pose, pose, pose_words
from numbaprims.cpu.conv.winograd.transform_in import LINE, PLACES, make_input
from numbaprims.cpu.conv.winograd.transform_out import make_output
from numbaprims.cpu.conv.winograd.weights import make_weights
from numbaprims.cpu.gemm.cost import ceil_div, round_up, worth_threads
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver, run
from numbaprims.dtypes import DTYPES

R = 3
MOST_TAPS = 196  # 14 x 14: W filters of W channels take 200 kB of a worker's part of the workspace


def form_of(order: str, steps: tuple[int, int, int, int]) -> int:
    """How lanes of channels are read or written."""
    if order == "channels_last" and steps[1] in (0, 1):
        return CHANNELS_LAST
    return PLANES if steps[3] == 1 else STRIDED


def with_ones(matrix: Matrix) -> Matrix:
    """A matrix with one more column of ones."""
    return tuple((*row, type(row[0])(1)) for row in matrix)


def common_refusal(problem: Any) -> str | None:
    """What no solver of the family takes."""
    p = problem
    if not p.planar:
        return "it takes images, without a depth"
    if p.dilation[1:] != (1, 1):
        return "it takes dilation 1"
    if p.accumulate not in ("f32", "f64"):
        return "the transforms need fractions, which integers have not"
    if settings.current().accuracy == "high":
        return "its rounding errors exceed those of the definition, which accuracy 'high' excludes"
    return None


def filter_order(q: Pose, taps: tuple[int, int]) -> int:
    """How filters lie."""

    def lie(*steps: int) -> bool:
        # steps of axes with one element are 0
        given = zip(q.w_steps[-len(steps) :], steps, (q.x_channels, *taps)[-len(steps) :], strict=True)
        return all(have == want or size == 1 for have, want, size in given)

    if lie(taps[0] * taps[1], taps[1], 1):
        return DENSE
    return REVERSED if lie(-taps[1], -1) else ANY_ORDER


def table_and_pieces(words: dict[str, int], firsts: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """The table, and the first taps of pieces that it points to."""
    places = np.zeros((2, PLACES), np.int64)
    for row, taps in zip(places, firsts, strict=True):
        row[: len(taps)] = taps
    words = words | {"pieces": int(places.ctypes.data)}
    return TABLE.table({name: words.get(name, 0) for name in TABLE.slots}), places


def launch_ints(table: np.ndarray, problem: Any, activation: int) -> dict[str, int]:
    """What a driver takes beside arrays and factors."""
    return {
        "geometry": int(table.ctypes.data), "activation": activation, "has_c": int(problem.has_c),
        "has_bias": int(problem.bias), "bias_step": problem.strides.bias,
    }  # fmt: skip


def table_words(
    problem: Any,
    q: Pose,
    target: Any,
    axes: tuple[Axis, Axis],
    block: tuple[int, int, int],
    products: RangeKernel,
    line: int = LINE,
) -> dict[str, int]:
    """The table of a problem for blocks of (tiles, their rows in memory, vectors of a panel)."""
    acc = problem.accumulate
    W = lanes(acc, target.vector_bytes)
    h, w = axes
    size, rows, NV = block
    NR = NV * W
    tiles = cost.count_tiles(q, axes)
    x_blocks = ceil_div(q.x_channels, W)
    c_blocks = x_blocks * cost.pieces_of(axes)
    positions = cost.positions_of(axes)
    panels = ceil_div(q.out_channels, NR)
    # positions one line of the cache further apart than their elements, or they would share its sets
    apart = 64 // DTYPES[acc].itemsize
    v_step, m_step = c_blocks * rows * W + apart, rows * NR + apart
    u_step = c_blocks * W * NR + apart
    of_h, of_w = filtering(h.m, h.r), filtering(w.m, w.r)
    tile, piece, n, stride = (h.m, w.m), (h.r, w.r), (h.n, w.n), (h.stride, w.stride)
    x_order, out_order = (
        (problem.x_order, problem.y_order) if problem.direction == "forward" else (problem.y_order, problem.x_order)
    )
    taps = problem.kernel[1:]
    kernels = {
        "read": make_read(q.x_dtype, acc, form_of(x_order, q.x_steps), W),
        "write": make_write(acc, q.out_dtype, q.bias_dtype, form_of(out_order, q.out_steps), W),
        "read_weights": make_read_weights(q.w_dtype, acc, filter_order(q, taps), W),
        "input": make_input(acc, tile, n, stride, n, 1, W, program(of_h.b_t), program(of_w.b_t), line),
        "products": products,
        "output": make_output(acc, tile, n, NV, W, program(of_h.a_t), program(with_ones(of_w.a_t)), line),
        "weights": make_weights(acc, taps, piece, stride, n, NV, W, program(of_h.g), program(of_w.g)),
    }  # fmt: skip
    return (
        pose_words(q)
        | driver.kernel_words(kernels, problem.prepared)
        | {
            "combined": int(problem.scaled or problem.has_c), "taps_h": taps[0], "taps_w": taps[1],
            "tiles_h": ceil_div(q.out[0], h.m), "tiles_w": ceil_div(q.out[1], w.m), "tiles": tiles, "block": size,
            "blocks": ceil_div(tiles, size), "rows": rows, "mr": rows, "c_blocks": c_blocks, "channels": c_blocks * W,
            "panels": panels, "vectors": NV, "positions": positions, "x_blocks": x_blocks,
            "pieces_w": len(w.firsts), "v_step": v_step, "m_step": m_step,
            "u_step": u_step, "u_group": panels * positions * u_step, "sum_size": DTYPES[acc].itemsize,
            "far": int(cost.result_bytes(q) > target.l2),
        }
    )  # fmt: skip


class Winograd(Solver):
    """What all of them share: tiles, products in the transforms' domain, and the way back.

    The error of an element, in 2^-24 sum |x w| for float32, measured with random numbers over 16 to 512 channels: at
    most 4.2 with F(2x2), 48 with F(4x4), 77 with F(6x6); 4.3 by the definition in one order.  float16 and bfloat16 are
    transformed in float32, which leaves them half a unit of their last place, as the definition does.  Accuracy
    "high" excludes all of them.
    """

    version = 2
    amplification = 24
    worth: ClassVar[float] = 1.0
    """By how much longer it may take for its lost digits not to be worth it."""

    def axes(self, problem: Any) -> tuple[Axis, Axis]:
        """The cut along the height and the width."""
        raise AssertionError("a solver names its axes")

    def _refusal(self, problem: Any) -> str | None:
        """What neither of the two directions takes."""
        if problem.direction not in ("forward", "data"):
            return f"direction {problem.direction} is not one of forward and data"
        return common_refusal(problem)

    def _blocks(self, problem: Any, q: Pose, target: Any, scale: float = 1.0) -> cost.TileBlocks:
        """The cut into blocks of tiles, `scale` times as large as the rule says."""
        wide = target.isa in ("avx512", "neon")
        size, NR = DTYPES[problem.accumulate].itemsize, 2 * lanes(problem.accumulate, target.vector_bytes)
        axes = self.axes(problem)
        most = int(scale * cost.block_size(q, target, axes, size, NR))
        flop = cost.peak(problem, target)
        u = cost.filter_bytes(q, axes, size, NR)
        stream = 0.0
        if u > target.l2 * 3 // 4:
            stream = cost.filter_seconds(u, target)
            if not problem.prepared:  # panels then are where their worker has written them
                stream = cost.WRITTEN / target.rates.memory
        return cost.cut(
            cost.count_tiles(q, axes), most, cost.HEIGHTS if wide else (6, 4), q.groups * ceil_div(q.out_channels, NR),
            target.rates.vectors(cost.IN) * flop / (2 * NR), stream * size * flop / 2,
        )  # fmt: skip

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        q = pose(problem)
        known: list[Config] = []
        for scale in (1.0, 0.5, 2.0):
            blocks = self._blocks(problem, q, target, scale)
            config: Config = {"mr": blocks.height, "nv": 2, "tiles": blocks.tiles}
            if config not in known:
                known.append(config)
                yield config

    def is_valid(self, problem: Any, target: Any, config: Config) -> bool:
        # the blocks that other rates of this CPU gave are right too
        wide, tiles = target.isa in ("avx512", "neon"), config.get("tiles")
        known = set(config) == {"mr", "nv", "tiles"} and config["mr"] in (cost.HEIGHTS if wide else (6, 4))
        return known and config["nv"] == 2 and isinstance(tiles, int) and 1 <= tiles <= 1 << 16

    def estimate(self, problem: Any, target: Any) -> float:
        q = pose(problem)
        seconds = cost.estimate(problem, q, target, self.axes(problem), self._blocks(problem, q, target))
        return seconds * self.worth

    def _words(self, q: Pose, target: Any, problem: Any, config: Config) -> dict[str, int]:
        """The table."""
        mr, nv = int(config["mr"]), int(config["nv"])
        axes = self.axes(problem)
        block = min(int(config["tiles"]), cost.count_tiles(q, axes))
        products = make_products(problem.accumulate, mr, nv, lanes(problem.accumulate, target.vector_bytes))
        words = table_words(problem, q, target, axes, (block, round_up(block, mr), nv), products)
        return words | {"mr": mr}

    @staticmethod
    def _bytes(words: dict[str, int]) -> tuple[int, int, int]:
        """Of one transformed block, one panel of products, and all transformed filters."""
        size = words["sum_size"]
        return tuple(
            elements * size + 64
            for elements in (
                words["positions"] * words["v_step"], words["positions"] * words["m_step"],
                words["groups"] * words["u_group"],
            )
        )  # type: ignore[return-value]  # fmt: skip

    def _regions(self, problem: Any, words: dict[str, int]) -> Regions:
        v, m, u = self._bytes(words)
        own = {"held": 8, "v": v, "m": m, "room": words["room"]}
        return Regions({"filters": 0 if problem.prepared else u}, own)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return self._regions(problem, self._words(pose(problem), target, problem, config))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        q = pose(problem)
        words = self._words(q, target, problem, config)
        packed = np.empty(self._bytes(words)[2] + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        table, places = self._table(problem, words)
        tiles = q.groups * words["panels"]
        program = Program.of(
            CALL, launch_ints(table, problem, 0), [(driver.make_weight_phase(), tiles, 1)], keep=(table, places),
            regions=Regions(own={"room": words["weights_room"]}),
        )  # fmt: skip
        run(program, packed, None, weights, None, None, packed)
        return packed

    def _table(self, problem: Any, words: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
        h, w = self.axes(problem)
        return table_and_pieces(words, (h.firsts, w.firsts))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        q = pose(problem)
        words = self._words(q, target, problem, config)
        table, places = self._table(problem, words)
        phases = [] if problem.prepared else [(driver.make_weight_phase(), q.groups * words["panels"], 1)]
        phases += driver.tile_phases(words)
        ints = launch_ints(table, problem, activation_address(problem, target))
        return Program.of(
            CALL,
            ints,
            phases,
            keep=(table, places),
            parallel=worth_threads(problem, target),
            regions=self._regions(problem, words),
        )


class _Square(Winograd):
    """F(M x M, 3 x 3): stride 1."""

    M: ClassVar[int]

    def axes(self, problem: Any) -> tuple[Axis, Axis]:
        return whole(self.M, R), whole(self.M, R)

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kernel != (1, R, R):
            return f"it takes windows of 3 x 3, not {' x '.join(map(str, problem.kernel))}"
        if problem.stride[1:] != (1, 1):
            return "it takes stride 1"
        return self._refusal(problem)


class Winograd2(_Square):
    """F(2x2, 3x3): 16 products for 36."""

    name = "winograd_2x2"
    amplification = 4
    M = 2


class Winograd4(_Square):
    """F(4x4, 3x3): 36 products for 144."""

    name = "winograd_4x4"
    M = 4


class Winograd6(_Square):
    """F(6x6, 3x3): 64 products for 324."""

    name = "winograd_6x6"
    M = 6
    worth = 1.08


class WinogradPieces(Winograd):
    """Windows of any size and stride, cut into pieces whose products add up in the transforms' domain."""

    name = "winograd_pieces"
    worth = 1.08

    def axes(self, problem: Any) -> tuple[Axis, Axis]:
        out = pose(problem).out
        taps, strides = problem.kernel[1:], problem.stride[1:]
        return best_axis(taps[0], strides[0], out[0]), best_axis(taps[1], strides[1], out[1])

    def why_not(self, problem: Any, target: Any) -> str | None:
        refusal = self._refusal(problem)
        if refusal is not None:
            return refusal
        if problem.direction == "data" and problem.stride[1:] != (1, 1):
            return "the data gradient of a stride is no convolution of one stride"
        if problem.kernel == (1, R, R) and problem.stride[1:] == (1, 1):
            return "3 x 3 with stride 1 has solvers of its own"
        taps = problem.kernel[1] * problem.kernel[2]
        if not 1 < taps <= MOST_TAPS:
            return f"it takes windows of 2 to {MOST_TAPS} taps, not {taps}"
        if max(len(axis.firsts) for axis in self.axes(problem)) > PLACES:
            return f"the stride cuts the window into more than {PLACES} pieces along an axis"
        return None
