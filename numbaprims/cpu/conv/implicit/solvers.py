"""The solvers that convolve as a product without a column matrix (Chetlur et al. 2014): implicit_gemm, gemm_1x1."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from numbaprims.cpu.conv.arguments import bias_dtype
from numbaprims.cpu.conv.implicit.blocks import PRIVATE, Costs, block_rows, choose, pitch, words
from numbaprims.cpu.conv.implicit.channels_last import make_channels_last, make_multiply_rows, make_open
from numbaprims.cpu.conv.implicit.gather import make_gather, make_stage
from numbaprims.cpu.conv.implicit.passes import Pass, flat, inside, passes, too_many
from numbaprims.cpu.conv.implicit.planes import make_planes
from numbaprims.cpu.conv.implicit.tiles import HELD, IMPLICIT, PASS, make_pack_driver
from numbaprims.cpu.conv.implicit.transpose import make_stage_channels_last, make_transpose
from numbaprims.cpu.conv.implicit.weights import make_pack_weights
from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address, make_finish
from numbaprims.cpu.gemm.multiply import make_direct, make_multiply, rows_ahead
from numbaprims.cpu.program import PER_WORKER, Phase, Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver, run
from numbaprims.dtypes import DTYPES

SLACK = 1024  # bytes behind a part of the workspace: vectors may reach past its end
HEIGHTS = (12, 10, 8, 14)
# Vectors of a tile of the product where pixels are its rows -> how many of them
CHANNELS_LAST_HEIGHTS = {4: 6, 3: 8, 2: 8, 1: 8}
# What blocks of planes are favoured by where there are many pixels: 1x512x28x28x128 takes 246 us on two near cores and
# 262 on two far ones in planes, transposed 247 and 329.
EVEN = 0.98
# How many times as long blocks of planes take with 16 registers, copied and where they lie: 1x256x56x56x128 takes 4.4
# and 3.4 ms, transposed 3.1 (Zen 3).
HALVED = 1.35, 1.12
START = 5.83  # calls of a program that beginning takes as long as


def channels_last(problem: Any) -> bool:
    """Whether vectors of the result lie along its channels."""
    walk = passes(problem)[0]
    return walk.y[1] in (0, 1) and walk.y[4] != 1


L = TypeVar("L", bound="Layout")


class Layout:
    """One problem cut into tiles, and where everything lies in the workspace."""

    one_image = False
    """Whether sums are always kept where the result goes, so that a tile may not hold several images."""

    def __init__(self, problem: Any, target: Any, config: Config) -> None:
        self.problem = problem
        self.acc = problem.accumulate
        self.in_dtype = self._in_dtype(problem)
        self.size = DTYPES[self.acc].itemsize
        self.W = lanes(self.acc, target.vector_bytes)
        self.MR, self.NV = int(config["mr"]), int(config["nv"])
        self.NR = self.NV * self.W
        self.transposed = bool(config["transposed"])
        self.channels_last = self.transposed or self._channels_last(problem)
        self.width = self.NR if self.channels_last else self.MR
        self.walks = self._walks(problem)
        self.parallel = cost.worth_threads(problem, target)
        costs = Costs(
            self.W, self.size, target.l1d, target.l2, self.width, self.MR, int(config["kc"]), self.parallel,
            self.one_image, 0.0 if problem.prepared else cost.PACK_ACROSS, target.rates,
        )  # fmt: skip
        most = round_up(int(config["mc"]), self.width)
        largest = max(self.walks, key=lambda walk: walk.flops())
        found = []
        for direct in self._ways(bool(config.get("direct", 0))):
            mc = block_rows(largest, costs, self.channels_last, self.transposed, direct, most)
            blocks = [choose(walk, mc, costs, self.channels_last, self.transposed, direct) for walk in self.walks]
            seconds = sum(costs.total(walk, mc, each) for walk, each in zip(self.walks, blocks, strict=True))
            found.append((seconds, direct, mc, blocks))
        _, self.direct, self.mc, self.blocks = min(found, key=lambda way: way[0])
        self.seconds = sum(
            costs.total(walk, self.mc, each, balanced=False) for walk, each in zip(self.walks, self.blocks, strict=True)
        )
        self.m_blocks = ceil_div(largest.rows, self.mc)
        self.in_out = self.one_image or (problem.out_dtype == self.acc and not problem.has_c)
        self.table, self.keep = self._table()
        self.panel_bytes = sum(self._panels(walk) for walk in self.walks) * self.size
        tiles = max(math.prod(each.counts(walk)) for walk, each in zip(self.walks, self.blocks, strict=True))
        self.private = not problem.prepared and tiles <= PRIVATE
        each = list(zip(self.walks, self.blocks, strict=True))
        first = max(
            blocks.pixels() * 8 if self.channels_last else blocks.channels * walk.window * self.NR * self.size
            for walk, blocks in each
        )
        staged = 0
        if self.direct != 1:
            staged = max(
                blocks.staged(walk) * (pitch(walk, self.size, self.W) if self.channels_last else blocks.channels)
                for walk, blocks in each
            )
        sums = max(
            (
                int(row[PASS.slot("sums_step")]) * (blocks.pixels() if self.channels_last else self.mc)
                for row, blocks in zip(self.table, self.blocks, strict=True)
                if self.transposed or not row[PASS.slot("sums_in_out")]
            ),
            default=0,
        )
        transposed = max(self.width * round_up(blocks.pixels(), 16) for blocks in self.blocks) if self.transposed else 0
        packed = 0
        if self.private:
            rows = self.width if self.channels_last else self.mc
            packed = max(rows * blocks.channels * walk.window for walk, blocks in each)
        elements = {"staged": staged, "sums": sums, "transposed": transposed, "some_weights": packed}
        self.regions = Regions(
            {"weights": 0 if problem.prepared or self.private else self.panel_bytes + SLACK, "workers": 8},
            {"panel": first + SLACK, "held": 8 * HELD.words}
            | {name: count * self.size + SLACK for name, count in elements.items()},
        )

    def _channels_last(self, problem: Any) -> bool:
        return channels_last(problem)

    def _in_dtype(self, problem: Any) -> str:
        return str(problem.in_dtype)

    def _walks(self, problem: Any) -> list[Pass]:
        walks = [walk for walk in passes(problem) if walk.pixels]
        return [flat(walk, problem.has_c) for walk in walks] if self.channels_last else walks

    def _ways(self, one_tap: bool) -> list[int]:
        """How patches may be read: 0 gathered, 1 in the input itself, 2 in the copy, without panels."""
        walks = [walk for walk in self.walks if walk.window]
        plain = all(inside(walk) for walk in walks)
        if self.channels_last:
            own = self.in_dtype == self.acc and all(walk.x[1] in (0, 1) for walk in walks)
            return [1] if plain and own else [0]
        if not one_tap:
            return [0]
        ways = [2]
        if plain and all(walk.stride == (1, 1, 1) and walk.size == walk.grid and walk.x[4] == 1 for walk in walks):
            ways.append(1)
        return ways

    def _panels(self, walk: Pass) -> int:
        return walk.groups * round_up(walk.rows, self.width) * walk.depth * walk.window

    def _table(self) -> tuple[np.ndarray, tuple[Any, ...]]:
        rows: list[dict[str, int]] = []
        keep: list[Any] = []
        start = 0
        for walk, blocks in zip(self.walks, self.blocks, strict=True):
            p = self.problem
            row, arrays = words(
                walk, blocks, self.width, self.mc, start, self.in_out, p.has_c, p.ends, pitch(walk, self.size, self.W)
            )
            rows.append(row)
            keep += arrays
            start += self._panels(walk)
        table = PASS.table(*rows)
        return table, (table, *keep)

    def ints(self, kernels: dict[str, int]) -> dict[str, int]:
        """The integers of IMPLICIT."""
        p = self.problem
        return kernels | {
            "table": int(self.table.ctypes.data), "passes": len(self.walks), "has_c": int(p.has_c),
            "has_bias": int(p.bias), "bias_step": p.strides.bias, "in_size": DTYPES[self.in_dtype].itemsize,
            "w_size": DTYPES[p.w_dtype].itemsize, "out_size": DTYPES[p.out_dtype].itemsize, "acc_size": self.size,
            "width": self.width, "nr": self.NR, "mc": self.mc, "m_blocks": self.m_blocks,
            "private": int(self.private), "ended": self.ended(),
        }  # fmt: skip

    def ended(self) -> int:
        """What the product itself does at the end of the sums (see IMPLICIT); 0 where that is a pass over them."""
        p = self.problem
        in_out = self.table[:, PASS.slot("sums_in_out")].all()  # else they are moved there, by what ends them
        if self.channels_last or self.direct != 1 or p.direction != "forward" or not in_out:
            return 0
        if not p.ends or p.scaled or p.has_c or p.requantized or (p.bias and p.strides.bias != 1):
            return 0
        return {"identity": 1, "relu": 2, "clipped_relu": 3}.get(p.activation.kind, 0)

    def count(self, name: str) -> int:
        """A word of the table, summed over the passes."""
        return int(self.table[:, PASS.slot(name)].sum())

    def kernels(self, target: Any) -> dict[str, int]:
        """Addresses of the kernels, by the types and the form of the sums."""
        p, acc, W = self.problem, self.acc, self.W
        in_dtype = self.in_dtype
        finish = 0
        ended = self.ended()
        if not ended and (p.ends or not self.table[:, PASS.slot("sums_in_out")].all()):
            finish = make_finish(acc, p.out_dtype, bias_dtype(p), W).address
        common = {
            "pack": make_pack_weights(p.w_dtype, acc, W).address,
            "finish": finish, "activation": activation_address(p, target),
        }  # fmt: skip
        if self.channels_last:
            return common | {
                "stage": make_stage_channels_last(in_dtype, acc, W).address,
                "multiply": make_multiply_rows(acc, self.MR, self.NV, W).address,
                "transpose": make_transpose(acc, W).address if self.transposed else 0,
            }
        stage = make_stage(in_dtype, acc, W).address
        if self.direct:
            b_dtype = in_dtype if self.direct == 1 else acc
            ahead = rows_ahead(self.mc, self.MR)
            multiply = make_direct(acc, b_dtype, acc, self.MR, self.NV, W, True, ahead, ended > 0)
            return common | {"stage": stage, "multiply": multiply.address}
        return common | {
            "stage": stage, "gather": make_gather(acc, self.NV, W).address,
            "multiply": make_multiply(acc, self.MR, self.NV, W).address,
        }  # fmt: skip

    def program(self, target: Any, phases: list[Phase], keep: tuple[Any, ...]) -> Program:
        """Phases whose arguments are those of IMPLICIT."""
        return Program.of(
            IMPLICIT, self.ints(self.kernels(target)), phases, keep=keep, parallel=self.parallel,
            regions=self.regions,
        )  # fmt: skip

    def pack(self, target: Any, weights: Any) -> np.ndarray:
        """The panels of the weights, for plans."""
        packed = np.zeros(self.panel_bytes + SLACK, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        tiles = self.count("pack_tiles")
        ints, phases = self.ints(self.kernels(target)), [(make_pack_driver(), tiles, 1)]
        program = Program.of(IMPLICIT, ints, phases, keep=self.keep, parallel=False)
        run(program, packed, None, weights, None, None, packed)
        return packed


@functools.lru_cache(maxsize=256)
def _known(
    cls: type[Layout], problem: Any, strides: Any, target: Any, config: tuple[tuple[str, int | str], ...]
) -> Layout:
    return cls(problem, target, dict(config))


def lay_out(cls: type[L], problem: Any, target: Any, config: Config) -> L:
    """The layout of a problem, kept: choosing, binding and preparing all ask for it."""
    form: Any = cls
    layout = _known(form, problem, problem.strides, target, tuple(config.items()))
    assert isinstance(layout, cls)
    return layout


class ImplicitGemm(Solver):
    """Patches gathered a tile at a time, or read in rows of channels."""

    name = "implicit_gemm"
    version = 4
    one_tap = False

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction not in ("forward", "data"):
            return f"it computes results and data gradients, not direction {problem.direction}"
        if problem.accumulate not in ("f32", "f64"):
            return "it sums in float32 or float64 only"
        return too_many(problem)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        rows = problem.group_k if problem.direction == "forward" else problem.group_c
        size = DTYPES[problem.accumulate].itemsize
        wide = target.isa in ("avx512", "neon")
        vectors = ceil_div(rows, lanes(problem.accumulate, target.vector_bytes))
        nv = min((4, 3, 2, 1) if wide else (2, 1), key=lambda n: round_up(vectors, n))
        # a panel of weights takes a quarter of the second-level cache
        panel = target.l2 // 4 // target.vector_bytes
        way = {
            "mr": CHANNELS_LAST_HEIGHTS[nv] if wide else 6, "nv": nv, "kc": panel // nv, "mc": 1 << 20,
            "transposed": 0, "direct": 0,
        }  # fmt: skip
        ways = [way]
        if wide and nv > 1:
            # 49 pixels are 54 in tiles of 6 rows, 50 in tiles of 10; 98 and 196 are what they are in tiles of 14
            ways += [way | {"mr": mr, "nv": 2, "kc": panel // 2} for mr in (10, 14)]

        def seconds(way: dict[str, int]) -> float:
            return self._seconds(problem, target, way)

        if channels_last(problem):
            return sorted(ways, key=seconds)
        mr = 6
        if wide:
            padded = {height: round_up(rows, height) for height in HEIGHTS}
            mr = next(height for height in HEIGHTS if padded[height] <= 1.02 * min(padded.values()))
        kc = (768 if self.one_tap else 2048) // size
        planes = {"mr": mr, "nv": 2, "kc": kc, "mc": 252, "transposed": 0, "direct": int(self.one_tap)}
        return sorted((planes, *(way | {"transposed": 1} for way in ways)), key=seconds)

    @staticmethod
    def _seconds(problem: Any, target: Any, config: Config) -> float:
        """Of the products and of what they copy."""
        found = float(lay_out(Layout, problem, target, config).seconds)
        if target.isa not in ("avx512", "neon") and not config["transposed"] and not channels_last(problem):
            return found * HALVED[1 if config["direct"] else 0]
        return found * EVEN if config["direct"] and problem.pixels > 400 else found

    def estimate(self, problem: Any, target: Any) -> float:
        config = next(iter(self.configs(problem, target)))
        return float(START * target.rates.call + self._seconds(problem, target, config))

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return lay_out(Layout, problem, target, config).regions

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return lay_out(Layout, problem, target, config).pack(target, weights)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        layout = lay_out(Layout, problem, target, config)
        tiles = layout.count("tiles")
        phases = [Phase(make_planes(), tiles, 1, one_queue=True)]
        if layout.channels_last:
            phases = [Phase(make_open(), 1, PER_WORKER), Phase(make_channels_last(), tiles, 1)]
        if not problem.prepared and not layout.private:
            tiles = layout.count("pack_tiles")
            phases.insert(0, Phase(make_pack_driver(), tiles, max(1, tiles // 8)))
        return layout.program(target, phases, layout.keep)


class Gemm1x1(ImplicitGemm):
    """Kernels of one element without padding: a product whose patches lie ready."""

    name = "gemm_1x1"
    version = 4
    one_tap = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kernel != (1, 1, 1) or problem.padding != (0, 0, 0):
            return "the kernel has more than one element, or there is padding"
        return super().why_not(problem, target)
