"""The solvers F(2x2, 3x3), F(4x4, 3x3) and F(6x6, 3x3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from numbaprims import settings
from numbaprims.arrays import DTYPES
from numbaprims.cook_toom import Matrix, filtering, program
from numbaprims.cpu.conv.arguments import ARGS
from numbaprims.cpu.conv.winograd import cost, driver
from numbaprims.cpu.conv.winograd.products import make_products
from numbaprims.cpu.conv.winograd.table import TABLE, Pose, pose, pose_words
from numbaprims.cpu.conv.winograd.transform_in import LAST, PLANES, STRIDED, make_input
from numbaprims.cpu.conv.winograd.transform_out import make_output
from numbaprims.cpu.conv.winograd.weights import make_weights
from numbaprims.cpu.drivers import Program
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.simd import lanes
from numbaprims.dispatch.solver import Config, Launcher, Solver

R = 3


def form_of(order: str, steps: tuple[int, int, int, int], width: int) -> int:
    """How lanes of channels are read or written."""
    if order == "last" and steps[1] in (0, 1):
        return LAST
    return PLANES if steps[3] == 1 or width == 1 else STRIDED


def with_ones(matrix: Matrix) -> Matrix:
    """A matrix with one more column of ones."""
    return tuple((*row, type(row[0])(1)) for row in matrix)


class Winograd(Solver):
    """F(M x M, 3 x 3): stride 1."""

    M: ClassVar[int]

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction not in ("forward", "data"):
            return f"direction {p.direction} is not one of forward and data"
        if p.kernel != (1, R, R) or p.x_size[0] != 1 or p.padding[0] != 0:
            return f"it takes windows of 3 x 3, not {' x '.join(map(str, p.kernel))}"
        if p.stride != (1, 1, 1) or p.dilation != (1, 1, 1):
            return "it takes stride 1 and dilation 1"
        if p.accumulate not in ("f32", "f64"):
            return "the transforms need fractions, which integers have not"
        if settings.current().accuracy == "high":
            return "its rounding errors exceed those of the definition, which accuracy 'high' excludes"
        return None

    def _blocks(self, problem: Any, q: Pose, target: Any, scale: float = 1.0) -> cost.Blocks:
        """The cut into blocks of tiles, `scale` times as large as the rule says."""
        wide = target.isa in ("avx512", "neon")
        size, NR = DTYPES[problem.accumulate].itemsize, 2 * lanes(problem.accumulate, target.vector_bytes)
        tiles = cost.count_tiles(q, self.M)
        most = int(scale * cost.block_size(q, target, self.M + R - 1, size, NR, tiles))
        return cost.cut(tiles, most, cost.HEIGHTS if wide else (6, 4))

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        q = pose(problem)
        known: list[Config] = []
        for scale in (1.0, 0.5, 2.0):
            blocks = self._blocks(problem, q, target, scale)
            own = blocks.blocks * q.groups >= cost.OWN_BLOCKS
            for scheme in ("blocks", "shared") if own else ("shared", "blocks"):
                config = {"mr": blocks.height, "nv": 2, "tiles": blocks.tiles, "scheme": scheme}
                if config not in known:
                    known.append(config)
                    yield config

    def estimate(self, problem: Any, target: Any) -> float:
        q = pose(problem)
        return cost.estimate(problem, q, target, self.M, self.M + R - 1, self._blocks(problem, q, target))

    def _words(self, q: Pose, target: Any, problem: Any, config: Config) -> dict[str, int]:
        """The table, less what depends on the scheme."""
        acc = problem.accumulate
        W, M, N = lanes(acc, target.vector_bytes), self.M, self.M + R - 1
        MR, NV = int(config["mr"]), int(config["nv"])
        NR = NV * W
        tiles_h, tiles_w = ceil_div(q.out[0], M), ceil_div(q.out[1], M)
        tiles = q.n * tiles_h * tiles_w
        block = min(int(config["tiles"]), tiles)
        rows = round_up(block, MR)
        c_blocks = ceil_div(q.x_channels, W)
        panels = ceil_div(q.out_channels, NR)
        size = DTYPES[acc].itemsize
        # positions one line of the cache further apart than their elements, or they would share its sets
        v_step, m_step = c_blocks * rows * W + W, rows * NR + W
        u_step = c_blocks * W * NR
        f = filtering(M, R)
        combined = bool(problem.scaled or problem.has_c)
        x_order, out_order = (
            (problem.x_order, problem.y_order) if problem.direction == "forward" else (problem.y_order, problem.x_order)
        )
        dense = q.w_steps[3] == 1 and q.w_steps[2] == R and q.w_steps[1] == R * R
        kernels = {
            "input": make_input(
                q.x_dtype, acc, M, N, W, form_of(x_order, q.x_steps, q.x[1]), program(f.b_t)
            ),
            "products": make_products(acc, MR, NV, W),
            "output": make_output(
                acc, q.out_dtype, q.bias_dtype, M, N, NV, W, form_of(out_order, q.out_steps, q.out[1]), combined,
                program(f.a_t), program(with_ones(f.a_t)),
            ),
            "weights": make_weights(q.w_dtype, acc, R, N, NV, W, dense, program(f.g)),
        }  # fmt: skip
        return (
            pose_words(q)
            | {name: kernel.address for name, kernel in kernels.items()}
            | {
                "tiles_h": tiles_h, "tiles_w": tiles_w, "tiles": tiles, "block": block,
                "blocks": ceil_div(tiles, block), "rows": rows, "c_blocks": c_blocks, "channels": c_blocks * W,
                "panels": panels, "vectors": NV, "positions": N * N, "v_step": v_step, "m_step": m_step,
                "u_step": u_step, "u_group": panels * N * N * u_step, "sum_size": size,
                "far": int(cost.result_bytes(q) > target.l2),
            }
        )  # fmt: skip

    @staticmethod
    def _bytes(words: dict[str, int]) -> tuple[int, int, int]:
        """Of one transformed block, one panel of products, and all transformed filters."""
        size = words["sum_size"]
        return tuple(
            round_up(elements * size + 64, 64)
            for elements in (
                words["positions"] * words["v_step"], words["positions"] * words["m_step"],
                words["groups"] * words["u_group"],
            )
        )  # type: ignore[return-value]  # fmt: skip

    def _layout(self, problem: Any, words: dict[str, int], config: Config) -> tuple[dict[str, int], int, int]:
        """Where everything lies in the workspace, and its shared bytes and those of a worker."""
        v, m, u = self._bytes(words)
        shared = 0 if problem.prepared else u
        if config["scheme"] == "blocks":
            return {"worker_at": shared, "worker_bytes": v + m, "m_at": v}, shared, v + m
        return {"v_at": shared, "worker_at": shared + v, "worker_bytes": m}, shared + v, m

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        words = self._words(pose(problem), target, problem, config)
        _, shared, worker = self._layout(problem, words, config)
        return shared + worker

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        q = pose(problem)
        words = self._words(q, target, problem, config)
        packed = np.empty(self._bytes(words)[2] + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        table = self._table(words)
        tiles = q.groups * words["panels"]
        program = Program(_ints(table, problem, 0), [(driver.make_weight_phase(), tiles, 1)], keep=(table,))
        launch = make_launcher(program, parallel=tiles > 1)
        launch(packed, None, weights, None, None, packed)
        return packed

    @staticmethod
    def _table(words: dict[str, int]) -> np.ndarray:
        return np.array([words.get(name, 0) for name in TABLE], np.int64)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        q = pose(problem)
        words = self._words(q, target, problem, config)
        places, shared, worker = self._layout(problem, words, config)
        table = self._table(words | places)
        steps = 1
        phases = [] if problem.prepared else [(driver.make_weight_phase(), q.groups * words["panels"], 1)]
        if config["scheme"] == "blocks":
            phases.append((driver.make_blocks(), q.groups * words["blocks"], 1))
        else:
            steps = q.groups * words["blocks"]
            phases += [
                (driver.make_input_phase(), words["c_blocks"], 1),
                (driver.make_panel_phase(), words["panels"], 1),
            ]
        ints = _ints(table, problem, activation_address(problem, target))
        program = Program(ints, phases, steps=steps, keep=(table,))
        return make_launcher(program, parallel=problem.flops() > 2e6, shared=shared, per_worker=worker)


def _ints(table: np.ndarray, problem: Any, activation: int) -> list[int]:
    values = {
        "geometry": int(table.ctypes.data), "activation": activation, "has_c": int(problem.has_c),
        "has_bias": int(problem.bias), "bias_step": problem.strides.bias,
    }  # fmt: skip
    return [values.get(name, 0) for name in ARGS.ints]


class Winograd2(Winograd):
    """F(2x2, 3x3)."""

    name = "winograd_2x2"
    M = 2


class Winograd4(Winograd):
    """F(4x4, 3x3)."""

    name = "winograd_4x4"
    M = 4


class Winograd6(Winograd):
    """F(6x6, 3x3)."""

    name = "winograd_6x6"
    M = 6
