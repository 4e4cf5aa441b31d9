"""The solvers that work on packed panels, and the sizes of their blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims.arrays import DTYPES
from numbaprims.cpu.gemm import blocked
from numbaprims.cpu.gemm.activation import activation_address
from numbaprims.cpu.gemm.arguments import argument_types, batch_offsets, common_ints, int_words
from numbaprims.cpu.jit import Program
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.simd import lanes
from numbaprims.dispatch.solver import Config, Launcher, Solver

SLACK = 256  # bytes behind a packed block: panels may be written a vector past their end


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def tile_shape(target: Any, acc: str) -> tuple[int, int, int]:
    """MR, NV, W of the register tile.

    32 vector registers (AVX-512, NEON) hold 14 x 2 sums, two vectors of B and a broadcast; 16 registers 6 x 2.
    """
    W = lanes(acc, target.vector_bytes)
    return (14, 2, W) if target.isa in ("avx512", "neon") else (6, 2, W)


def needs_finish(problem: Any, in_out: bool) -> int:
    return int(not in_out or problem.bias != "none" or problem.activation.kind != "identity")


class _Packed(Solver):
    """What the two solvers on packed panels share."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.accumulate not in ("f32", "f64"):
            return "it sums in float32 or float64 only"
        if problem.k == 0:
            return "k is 0: there is nothing to pack"
        return None


class Blocked(_Packed):
    """B packed once and shared, blocks of rows to the workers."""

    name = "blocked"

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        MR, NV, W = tile_shape(target, problem.accumulate)
        size = DTYPES[problem.accumulate].itemsize
        kc = 256 * 4 // size
        yield {"kc": kc, "mc": MR * 12, "nc": 4096}

    def estimate(self, problem: Any, target: Any) -> float:
        return 5e-6 + problem.flops() / 100e9 + 2e-10 * problem.k * (problem.n + problem.m)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        acc = problem.accumulate
        size = DTYPES[acc].itemsize
        MR, NV, W = tile_shape(target, acc)
        NR = NV * W
        k_blocks = ceil_div(problem.k, int(config["kc"]))
        kc = ceil_div(ceil_div(problem.k, k_blocks), 8) * 8
        mc = min(int(config["mc"]), ceil_div(problem.m, MR) * MR)
        nc = min(int(config["nc"]), ceil_div(problem.n, NR) * NR)
        m_blocks, n_blocks = ceil_div(problem.m, mc), ceil_div(problem.n, nc)
        in_out = problem.out_dtype == acc and problem.strides.out[1] == 1
        # at least 8 tiles a step, so that workers end together
        groups = min(max(1, ceil_div(8, m_blocks)), nc // NR)
        group = ceil_div(ceil_div(nc, groups), NR) * NR
        groups = ceil_div(nc, group)
        shared = nc * kc * size + SLACK
        worker = mc * kc * size + SLACK
        sums = 0 if in_out else problem.batch * problem.m * problem.n * size
        worker = ceil_div(worker, 64) * 64
        offsets = batch_offsets(problem)
        ints = common_ints(problem, offsets, activation_address(problem, target))
        ints |= {
            "kc": kc, "mc": mc, "nc": nc, "k_blocks": k_blocks, "m_blocks": m_blocks, "n_blocks": n_blocks,
            "groups": groups, "group": group, "finish": needs_finish(problem, in_out), "sums_in_out": int(in_out),
            "shared_bytes": ceil_div(shared, 64) * 64 + ceil_div(sums, 64) * 64, "worker_bytes": worker,
            "sums_at": ceil_div(shared, 64) * 64,
        }  # fmt: skip
        types = argument_types(problem)
        pack = blocked.make_pack_b(types, NR, W, acc, size)
        multiply = blocked.make_multiply(types, MR, NV, W, acc, size)
        program = Program(
            int_words(ints),
            [(pack, nc // NR, max(1, nc // NR // 8)), (multiply, m_blocks * groups, 1)],
            steps=problem.batch * n_blocks * k_blocks,
            keep=(offsets,),
        )
        return make_launcher(
            program, parallel=problem.flops() > 2e6, shared=ints["shared_bytes"], per_worker=worker
        )


class Private(_Packed):
    """Each worker packs for its own block of out."""

    name = "private"

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        MR, NV, W = tile_shape(target, problem.accumulate)
        yield {"kc": 256, "mc": MR * 12, "nc": NV * W * 8}

    def estimate(self, problem: Any, target: Any) -> float:
        return 4e-6 + problem.flops() / 90e9 + 2e-10 * problem.k * (problem.n + problem.m)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        acc = problem.accumulate
        size = DTYPES[acc].itemsize
        MR, NV, W = tile_shape(target, acc)
        NR = NV * W
        k_blocks = ceil_div(problem.k, int(config["kc"]))
        kc = ceil_div(ceil_div(problem.k, k_blocks), 8) * 8
        mc = min(int(config["mc"]), ceil_div(problem.m, MR) * MR)
        nc = min(int(config["nc"]), ceil_div(problem.n, NR) * NR)
        m_blocks, n_blocks = ceil_div(problem.m, mc), ceil_div(problem.n, nc)
        in_out = problem.out_dtype == acc and problem.strides.out[1] == 1
        a_bytes = ceil_div(mc * kc * size + SLACK, 64) * 64
        b_bytes = ceil_div(nc * kc * size + SLACK, 64) * 64
        worker = a_bytes + b_bytes + (0 if in_out else ceil_div(mc * nc * size, 64) * 64)
        offsets = batch_offsets(problem)
        ints = common_ints(problem, offsets, activation_address(problem, target))
        ints |= {
            "kc": kc, "mc": mc, "nc": nc, "m_blocks": m_blocks, "n_blocks": n_blocks, "a_bytes": a_bytes,
            "b_bytes": b_bytes, "worker_bytes": worker, "finish": needs_finish(problem, in_out),
            "sums_in_out": int(in_out),
        }  # fmt: skip
        kernel = blocked.make_private(argument_types(problem), MR, NV, W, acc, size)
        program = Program(
            int_words(ints), [(kernel, problem.batch * m_blocks * n_blocks, 1)], keep=(offsets,)
        )
        return make_launcher(program, parallel=problem.flops() > 2e6, per_worker=worker)
