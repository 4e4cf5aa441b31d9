"""The solvers that work on packed panels, and the sizes of their blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from numbaprims.cpu.gemm import blocked, cost
from numbaprims.cpu.gemm.arguments import ARGS, PRIVATE, SHARED, batch_offsets, bias_dtype, common_ints
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address, finish_kernel, make_finish
from numbaprims.cpu.gemm.long import in_parts, is_long
from numbaprims.cpu.gemm.multiply import make_direct, make_multiply, rows_ahead
from numbaprims.cpu.gemm.pack import make_pack
from numbaprims.cpu.gemm.variants import variants
from numbaprims.cpu.gemm.vnni import make_multiply_vnni, make_pack_groups
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.simd.dot import byte_kind, dot_feature
from numbaprims.cpu.solver import Config, Regions, Solver, run
from numbaprims.dtypes import DTYPES

SLACK = 256  # bytes behind a packed block: panels may be written a vector past their end
SIGN_BITS = -0x7F7F7F80  # 0x80808080 as int32: XOR of four signed bytes with it adds 128 to each
# MR of packed panels with 512-bit vectors, the best first: at 2048^3 12 x 2 ran at 223 GFLOP/s, 14 x 2 at 216.
HEIGHTS = (12, 10, 8, 14)
# Of a product with fewer operations no blocks are cut for other threads.
FEW_FLOPS = 2e6
# The part of its multiply-adds that `direct` reaches with 16 registers and fewer columns than a tile has.
NARROW = 0.5
# Multiply-adds of a vector as long as `direct` takes to widen an element of A in 16 bits, which each tile does anew:
# float16 took 1.5 to 1.7 times as long as float32 in tiles of two vectors, 2.8 in those of one (Zen 4).
WIDENED = 1.3
# What is left of that where rows of B do not begin lines, as NumPy's do not: 256^3 took 278 us, 238 where they do (an
# Emerald Rapids).
ACROSS = 0.87
# Rows of B so many bytes apart just fill the first level, and what else comes from a third level that waits pushes them
# out: 64 x 3136 x 576 takes 2.5 ms for 1.95 as estimated otherwise (Emerald Rapids and Granite Rapids).
LINES, FULL = 256, 0.82
# What packing a panel of B anew for each block of rows costs there: 512 x 4608 by 49 rows of B 3.2 ms, 2.6 as estimated
# otherwise (Emerald Rapids), 2.6 and 2.1 (Granite Rapids).
AGAIN = -0.04
# A row tile of few rows reads B from the second-level cache at this part of its rate, at best.
READ_B = 0.55


def padding(size: int, tile: int) -> float:
    """By how much whole tiles exceed a size."""
    return round_up(size, tile) / max(size, 1)


def best_height(problem: Any, target: Any, heights: tuple[int, ...]) -> int:
    """MR of packed panels: that of least padding, or 6 where registers are few."""
    return best_of(problem, heights) if target.isa in ("avx512", "neon") else 6


def best_of(problem: Any, heights: tuple[int, ...]) -> int:
    """The first of `heights` whose padding is within 2 % of the least."""
    least = min(padding(problem.m, height) for height in heights)
    return next(height for height in heights if padding(problem.m, height) <= 1.02 * least)


def block_columns(problem: Any, mc: int, most: int, nr: int) -> int:
    """Columns of a worker's block: all up to `most` where the rows alone make 8 blocks or one thread computes them,
    else a quarter.

    Each block of columns reads A anew: 1760 x 128 x 1760 in four of them ran at 89 GFLOP/s, in one at 104.
    """
    whole = problem.batch * ceil_div(problem.m, mc) >= 8 or problem.flops() <= FEW_FLOPS
    columns = problem.n if whole else ceil_div(problem.n, 4)
    return max(nr, min(most, round_up(columns, nr)))


def keeps_sums_in_out(problem: Any) -> bool:
    """Whether out can hold the sums: its own type, rows with unit stride, and no C that may be out itself."""
    return problem.out_dtype == problem.accumulate and problem.strides.out[1] == 1 and not problem.has_c


def dot_kind(problem: Any, target: Any) -> str | None:
    """The dot instructions that a product uses: "u8s8", "bf16", or None where its types are widened."""
    if problem.accumulate == "i32":
        return "u8s8"
    # without the instruction a pair costs two multiply-adds and the widening of both: f32 panels are faster; so are
    # they where it takes as long as four: 1024 cubed ran at 83 GFLOP/s by it, at 153 so (Emerald Rapids)
    able = dot_feature("bf16", lanes("f32", target.vector_bytes)) != "portable" and target.rates.dots > 1
    return "bf16" if problem.a_dtype == "bf16" and able else None


def heights(target: Any) -> tuple[int, ...]:
    """Every MR of packed panels."""
    return HEIGHTS if target.isa in ("avx512", "neon") else (6,)


def sum_bytes(problem: Any, elements: int) -> int:
    """Bytes of sums that out cannot hold."""
    return 0 if keeps_sums_in_out(problem) else elements * DTYPES[problem.accumulate].itemsize


class Panels(Solver):
    """What solvers on packed panels share."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.k == 0:
            return "k is 0: there is nothing to pack"
        return None

    def panels(self, problem: Any, target: Any) -> tuple[int, int, int]:
        """(bytes of an element of packed panels, elements of k that one instruction takes, and that are added to k in B
        for the sums of its columns)."""
        kind = dot_kind(problem, target)
        if kind is None:
            return DTYPES[problem.accumulate].itemsize, 1, 0
        group = 2 if kind == "bf16" else 4
        return 4 // group, group, group if kind == "u8s8" else 0

    def _blocks(self, problem: Any, target: Any, config: Config) -> dict[str, int]:
        """Sizes of blocks, and of elements of packed ones."""
        MR, NR = int(config["mr"]), int(config["nv"]) * lanes(problem.accumulate, target.vector_bytes)
        size, group, extra = self.panels(problem, target)
        # blocks of equal size, not full ones and a rest
        kc = round_up(ceil_div(problem.k, ceil_div(problem.k, int(config["kc"]) * group)), max(4, group))
        mc = round_up(ceil_div(problem.m, ceil_div(problem.m, int(config["mc"]))), MR)
        nc = round_up(ceil_div(problem.n, ceil_div(problem.n, int(config["nc"]))), NR)
        return {
            "mr": MR, "nr": NR, "kc": kc, "mc": mc, "nc": nc, "k_blocks": ceil_div(problem.k, kc),
            "m_blocks": ceil_div(problem.m, mc), "n_blocks": ceil_div(problem.n, nc),
            "k_group": group, "k_extra": extra, "panel_size": size,
        }  # fmt: skip

    @staticmethod
    def _packed(blocks: dict[str, int]) -> tuple[int, int]:
        """Bytes of a block of A and of one of B."""
        a, b = blocks["mc"] * blocks["kc"], blocks["nc"] * (blocks["kc"] + blocks["k_extra"])
        return a * blocks["panel_size"] + SLACK, b * blocks["panel_size"] + SLACK

    def _ints(self, problem: Any, target: Any, config: Config, offsets: Any) -> dict[str, int]:
        """Kernels and sizes of blocks."""
        acc = problem.accumulate
        W = lanes(acc, target.vector_bytes)
        in_out = keeps_sums_in_out(problem)
        finish = 0
        if problem.ends or not in_out:
            finish = finish_kernel(problem, bias_dtype(problem), W).address
        return (
            common_ints(problem, offsets, activation_address(problem, target))
            | {"finish": finish, "sums_in_out": int(in_out)}
            | self.kernels(problem, target, int(config["mr"]), int(config["nv"]), W)
            | self._blocks(problem, target, config)
        )

    def kernels(self, problem: Any, target: Any, MR: int, NV: int, W: int) -> dict[str, int]:
        """Addresses of the pack and multiply kernels."""
        acc, kind = problem.accumulate, dot_kind(problem, target)
        if kind is None:
            return {
                "pack_a": make_pack(problem.a_dtype, acc, MR, W).address,
                "pack_b": make_pack(problem.b_dtype, acc, NV * W, W).address,
                "multiply": make_multiply(acc, MR, NV, W).address,
            }
        group = self.panels(problem, target)[1]
        exact, flip, feature = kind == "u8s8", 0, dot_feature("u8s8", W)
        if exact:
            kind, flip = byte_kind(problem.a_dtype == "i8", W)
        signs = SIGN_BITS if flip else 0
        return {
            "flip": flip,
            "pack_a": make_pack_groups(problem.a_dtype, MR, W, group, signs, False, feature).address,
            "pack_b": make_pack_groups(problem.b_dtype, NV * W, W, group, 0, exact, feature).address,
            "multiply": make_multiply_vnni(kind, MR, NV, W, group, exact).address,
        }


@in_parts
class Blocked(Panels):
    """B packed once and shared, blocks of rows to the workers."""

    name = "blocked"

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        mr = best_height(problem, target, HEIGHTS)
        kc = 4096 // DTYPES[problem.accumulate].itemsize
        rows = max(48, target.l2 * 5 // 8 // 4096)  # the block of A: five eighths of the second-level cache
        default = {"mr": mr, "nv": 2, "kc": kc, "mc": min(rows, 160) // mr * mr, "nc": 1024}
        yield from variants(
            problem, default,
            {"mr": heights(target), "kc": (kc // 2, kc), "mc": (rows // 2, rows), "nc": (512, 1024, 2048)},
        )  # fmt: skip

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        a, b = self._packed(self._blocks(problem, target, config))
        sums = sum_bytes(problem, problem.batch * problem.m * problem.n)
        return Regions({"packed_b": b, "sums": sums}, {"packed_a": a})

    def estimate(self, problem: Any, target: Any) -> float:
        W = lanes(problem.accumulate, target.vector_bytes)
        config = next(iter(self.configs(problem, target)))
        steps = problem.batch * ceil_div(problem.k, int(config["kc"])) * ceil_div(problem.n, int(config["nc"]))
        return (
            cost.launch_time(target, "blocked")
            + 2 * steps * target.rates.phase
            + cost.multiply_time(problem, target, int(config["mr"]), 2 * W, 0.94, dot_kind(problem, target))
            + cost.b_time(problem, target)
            + cost.packed_a_time(problem, target)
        )

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        offsets = batch_offsets(problem)
        ints = self._ints(problem, target, config, offsets)
        panels = ints["nc"] // ints["nr"]
        # at least 8 tiles a step, so that workers end together
        groups = min(ceil_div(8, ints["m_blocks"]), panels)
        ints["group"] = ceil_div(panels, groups) * ints["nr"]
        ints["groups"] = groups = ceil_div(ints["nc"], ints["group"])
        phases = [
            (blocked.make_pack_b(), panels, ceil_div(panels, 8)),
            (blocked.make_shared(), ints["m_blocks"] * groups, 1),
        ]
        steps = problem.batch * ints["n_blocks"] * ints["k_blocks"]
        return Program.of(
            SHARED, ints, phases, steps=steps, keep=(offsets,), parallel=cost.worth_threads(problem, target),
            regions=self.regions(problem, target, config),
        )  # fmt: skip


@in_parts
class Private(Panels):
    """Each worker packs for its own block of out."""

    name = "private"

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        mr = best_height(problem, target, HEIGHTS)
        W = lanes(problem.accumulate, target.vector_bytes)
        kc = 2048 // DTYPES[problem.accumulate].itemsize
        nc = block_columns(problem, 192, 512, 2 * W)
        default = {"mr": mr, "nv": 2, "kc": kc, "mc": round_up(192, mr), "nc": nc}
        yield from variants(
            problem, default,
            {"mr": heights(target), "kc": (kc // 2, kc, 2 * kc), "mc": (96, 192), "nc": (nc, 2 * nc)},
        )  # fmt: skip

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        blocks = self._blocks(problem, target, config)
        a, b = self._packed(blocks)
        return Regions(own={"packed_a": a, "packed_b": b, "sums": sum_bytes(problem, blocks["mc"] * blocks["nc"])})

    def estimate(self, problem: Any, target: Any) -> float:
        mc = int(next(iter(self.configs(problem, target)))["mc"])
        return self.packed_time(problem, target) + cost.b_time(problem, target, ceil_div(problem.m, mc))

    def packed_time(self, problem: Any, target: Any) -> float:
        """The product once B is packed."""
        config, W = next(iter(self.configs(problem, target))), lanes(problem.accumulate, target.vector_bytes)
        return (
            cost.launch_time(target, "private")
            + cost.multiply_time(problem, target, int(config["mr"]), 2 * W, 0.96, dot_kind(problem, target))
            + cost.packed_a_time(problem, target, ceil_div(problem.n, int(config["nc"])))
        )

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        offsets = batch_offsets(problem)
        ints = self._ints(problem, target, config, offsets)
        tiles = problem.batch * ints["m_blocks"] * ints["n_blocks"]
        return Program.of(
            PRIVATE, ints, [(blocked.make_private(), tiles, 1)], keep=(offsets,),
            parallel=cost.worth_threads(problem, target), regions=self.regions(problem, target, config),
        )  # fmt: skip


class Prepacked(Private):
    """`Private` for plans: B comes packed, one copy for every number of rows."""

    name = "prepacked"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.batch != 1:
            return "a plan packs one B, and the rows of a batch that does not collapse have no common step"
        if is_long(problem):
            return f"sums of k = {problem.k} are cut into parts, and one copy of B serves one of them"
        return super().why_not(problem, target)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        # kc and the panels' width must not depend on m: the packed copy serves every m
        mr = best_height(problem, target, (14, 12, 8))
        if dot_kind(problem, target) == "u8s8" and problem.m <= 4:
            # of one row in a tile of 8 the other 7 cost as much: 1 x 1000 x 2048 took 88 us, and 8 rows 92 (Zen 4)
            mr = (1, 2, 4, 4)[problem.m - 1]
        W = lanes(problem.accumulate, target.vector_bytes)
        nc = max(2 * W, min(512, round_up(ceil_div(problem.n, 4), 2 * W)))
        kc = 1024 // DTYPES[problem.accumulate].itemsize
        yield {"mr": mr, "nv": 2, "kc": kc, "mc": round_up(192, mr), "nc": nc}

    def estimate(self, problem: Any, target: Any) -> float:
        return self.packed_time(problem, target) + cost.PACKED_SHOWN * cost.far_time(problem, target, "packed")

    def packing(self, problem: Any, target: Any, config: Config) -> tuple[Program, int]:
        """The program that packs its third array into its sixth, and the bytes of that."""
        offsets = batch_offsets(problem)
        ints = self._ints(problem, target, config, offsets)
        elements = ints["k_blocks"] * (ints["kc"] + ints["k_extra"]) * round_up(problem.n, ints["nr"])
        phases = [(blocked.make_prepare(), ints["k_blocks"], 1)]
        program = Program.of(ARGS, ints | {"groups": 1}, phases, keep=(offsets,), parallel=False)
        return program, elements * ints["panel_size"] + SLACK

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        program, size = self.packing(problem, target, config)
        packed = np.zeros(size + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        run(program, packed, None, weights, None, None, packed)
        return packed


@in_parts
class Direct(Solver):
    """A read where it lies, and B too if its rows have unit stride: for small products, and for skinny ones whose
    packing would cost as much as the product."""

    name = "direct"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if dot_kind(problem, target) is not None:
            return "dot instructions need packed groups of k, and this solver packs nothing"
        if problem.k == 0:
            return "k is 0"
        return None

    @staticmethod
    def _packs_b(problem: Any) -> bool:
        """Whether vectors cannot be loaded from the rows of B: a panel of it is packed, no wider than a tile."""
        return problem.strides.b[1] != 1 and problem.n > 1

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        default = self._default(problem, target)
        kc, mc, nc = (int(default[name]) for name in ("kc", "mc", "nc"))
        choices = {"kc": (kc // 2, kc, 2 * kc), "mc": (mc // 2, mc, 2 * mc)}
        if not self._packs_b(problem):  # a packed panel is one tile wide
            choices["nc"] = (nc // 2, nc, 2 * nc)
        return variants(problem, default, choices)

    def _default(self, problem: Any, target: Any) -> Config:
        W = lanes(problem.accumulate, target.vector_bytes)
        wide = target.isa in ("avx512", "neon")
        nc = block_columns(problem, 96, 1024, 2 * W)
        if self._packs_b(problem):
            nv = 1 if problem.n <= W else 2
            # four sums do not hide the latency of a multiply-add
            mr = best_of(problem, (8, 10, 9)) if wide else 8 if nv == 1 else 4
            mc = (480 if problem.m > 1920 or problem.flops() <= FEW_FLOPS else 120) // mr * mr
            return {"mr": mr, "nv": nv, "kc": 1024, "mc": mc, "nc": nv * W, "packed_a": 0}
        if not wide:
            if problem.n <= W:
                return {"mr": 8, "nv": 1, "kc": 768, "mc": 192, "nc": nc, "packed_a": 0}
            # 6 rows share the vectors of B that are read from its rows: 16 % more than 4 where no more rows are padded
            mr = 6 if padding(problem.m, 6) <= 1.13 * padding(problem.m, 4) else 4
            if problem.n <= 2 * W:  # A is read once: the longer its pieces, the better
                return {"mr": mr, "nv": 2, "kc": 768, "mc": 192, "nc": nc, "packed_a": 0}
            # 35x8457x2560 took 25.4 ms with rows of A where they lie, copied 19.7 (AVX2 on a Zen 4)
            packed = int(problem.n >= 256)
            return {"mr": mr, "nv": 2, "kc": 384 if packed else 192, "mc": 96, "nc": nc, "packed_a": packed}
        if problem.m <= 16 and problem.n > W and cost.in_memory(problem, target):
            # as many rows of B side by side as the second level's prefetchers follow: 4x8457x2560 took 7.1 ms by 4 x 4
            # and 128 of k, 3.9 so, and read 22 GB/s of 31 (Zen 4)
            mr = next((height for height in (1, 2, 4, 6) if height >= problem.m), best_of(problem, (8, 10, 9)))
            return {"mr": mr, "nv": 2, "kc": 64, "mc": 96 // mr * mr, "nc": nc, "packed_a": 0}
        if problem.m <= 6 and problem.n > W:
            # few rows: wider tiles, so that there are sums enough to hide the latency and longer pieces of B's rows
            mr, nv = next(shape for shape in ((1, 8), (2, 6), (4, 4), (6, 4)) if shape[0] >= problem.m)
            return {"mr": mr, "nv": nv, "kc": 128, "mc": mr, "nc": max(nv * W, nc), "packed_a": 0}
        if problem.n <= W:
            return {"mr": 8, "nv": 1, "kc": 512, "mc": 168, "nc": nc, "packed_a": 0}
        mr = best_of(problem, (8, 10, 9))
        kc = 192 if target.l1d >= 49152 else 128  # the block of B: half of the first-level cache
        if problem.n >= 256 and padding(problem.m, mr) > 1.05 * padding(problem.m, 12):
            return {"mr": 12, "nv": 2, "kc": 192, "mc": 144, "nc": 2 * nc, "packed_a": 1}
        return {"mr": mr, "nv": 2, "kc": kc, "mc": 96 // mr * mr, "nc": nc, "packed_a": 0}

    def _blocks(self, problem: Any, target: Any, config: Config) -> dict[str, int]:
        """Sizes of blocks."""
        MR, NR = int(config["mr"]), int(config["nv"]) * lanes(problem.accumulate, target.vector_bytes)
        mc = round_up(ceil_div(problem.m, ceil_div(problem.m, int(config["mc"]))), MR)
        nc = round_up(ceil_div(problem.n, ceil_div(problem.n, int(config["nc"]))), NR)
        kc = round_up(ceil_div(problem.k, ceil_div(problem.k, int(config["kc"]))), 4)
        return {
            "kc": kc, "mc": mc, "nc": nc, "m_blocks": ceil_div(problem.m, mc), "n_blocks": ceil_div(problem.n, nc),
            "mr": MR, "nr": NR,
        }  # fmt: skip

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        size, blocks = DTYPES[problem.accumulate].itemsize, self._blocks(problem, target, config)
        mc, nc, kc = (blocks[name] for name in ("mc", "nc", "kc"))
        a = mc * kc * size + SLACK if config["packed_a"] else 0
        b = nc * kc * size + SLACK if self._packs_b(problem) else 0
        return Regions(own={"packed_a": a, "packed_b": b, "sums": sum_bytes(problem, mc * nc)})

    def estimate(self, problem: Any, target: Any) -> float:
        W = lanes(problem.accumulate, target.vector_bytes)
        config = next(iter(self.configs(problem, target)))
        mr, nr = int(config["mr"]), int(config["nv"]) * W
        packings = ceil_div(problem.n, int(config["nc"])) if config["packed_a"] else 0
        # rows of B that lie a multiple of 4 kB apart share the sets of the first-level cache: each row tile then
        # reads them from the second
        panels = self._packs_b(problem)
        m_blocks = ceil_div(problem.m, int(config["mc"]))
        row = problem.strides.b[0] * DTYPES[problem.b_dtype].itemsize
        shared = not panels and problem.m > 16
        waits = target.rates.waits
        if target.isa in ("avx512", "neon"):
            efficiency = 0.78 if shared and row % 4096 == 0 else 0.94
            if waits and shared and row % LINES == 0:
                efficiency = min(efficiency, FULL)
        else:
            # half as wide vectors load twice as often, from a copy of A without jumps
            efficiency = 0.98 if config["packed_a"] else 0.86
            if shared:
                efficiency *= cost.aliased(target, row, int(self._blocks(problem, target, config)["kc"]))
        if target.isa not in ("avx512", "neon") and problem.n < 2 * W:
            efficiency *= NARROW  # four to eight sums of one vector do not hide the latency of a multiply-add
        if panels:
            # a panel of B is read where it was just written
            efficiency += AGAIN if waits and m_blocks > 1 else 0.04
        if waits and not panels:
            efficiency *= ACROSS
        if DTYPES[problem.a_dtype].itemsize == 2 and not config["packed_a"]:
            efficiency /= 1 + WIDENED / int(config["nv"])
        tiles = problem.batch * ceil_div(problem.m, mr) if problem.m <= 6 else 0
        read = tiles * problem.k * problem.n * DTYPES[problem.b_dtype].itemsize / (READ_B * target.rates.l2)
        multiply = max(cost.multiply_time(problem, target, mr, nr, efficiency), read)
        if panels:
            multiply += cost.b_time(problem, target, m_blocks)
        else:
            few = waits and problem.m <= 16
            far = cost.far_time(problem, target, "rows" if few else "direct", m_blocks)
            multiply = max(multiply, far) + (1.0 if waits and not few else cost.SHOWN) * far
        multiply += cost.a_time(problem, target) if waits else 0.0
        return (
            cost.launch_time(target, "direct_panels" if panels else "direct")
            + multiply
            + cost.pack_time(target, problem.a_order, problem.batch * packings * problem.k * problem.m, "column")
        )

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        acc = problem.accumulate
        W = lanes(acc, target.vector_bytes)
        MR, NV, packed_a = int(config["mr"]), int(config["nv"]), bool(config["packed_a"])
        offsets = batch_offsets(problem)
        in_out = keeps_sums_in_out(problem)
        finish = 0
        if problem.ends or not in_out:
            finish = make_finish(acc, problem.out_dtype, bias_dtype(problem), W).address
        panelled, blocks = self._packs_b(problem), self._blocks(problem, target, config)
        ahead = 0 if panelled else rows_ahead(blocks["mc"], MR)
        ints = common_ints(problem, offsets, activation_address(problem, target)) | {
            "multiply": make_direct(
                problem.a_dtype, acc if panelled else problem.a_dtype, acc, MR, NV, W, packed_a, ahead
            ).address,
            "pack_b": make_pack(problem.b_dtype, acc, NV * W, W).address if panelled else 0,
            "pack_a": make_pack(problem.a_dtype, acc, MR, W).address if packed_a else 0,
            "finish": finish, "sums_in_out": int(in_out),
        } | blocks  # fmt: skip
        tiles = problem.batch * ints["m_blocks"] * ints["n_blocks"]
        return Program.of(
            PRIVATE, ints, [(blocked.make_direct_driver(), tiles, 1)], keep=(offsets,),
            parallel=cost.worth_threads(problem, target), regions=self.regions(problem, target, config),
        )  # fmt: skip
