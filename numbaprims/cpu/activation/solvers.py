"""The ways to compute an activation, and what each is estimated to take."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.activation import kernels, naive, prelu, rows
from numbaprims.cpu.activation.arguments import ARGS
from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dtypes import DTYPES

# Elements of a tile.  Contiguous tiles are a multiple of every vector and page; some 2 us of the cheapest
# kinds.
TILE = 16384

# G elements of float32 a second and core with AVX-512 on data in the first caches (Zen 5, 4.1 GHz); what is
# not listed is bound by the caches.  Gradients of what computes an exponential are taken as half as fast.
RATES = {
    "softsign": 20.0, "sqrt": 12.3, "exp": 12.0, "elu": 9.5, "selu": 9.9, "celu": 6.9, "sigmoid": 9.9, "silu": 9.7,
    "glu": 9.0, "tanh": 9.0, "gelu": 5.4, "gelu_tanh": 6.9, "mish": 7.9, "softplus": 4.2, "softplus_1": 5.3,
    "log": 10.5, "power": 1.0,
}  # fmt: skip
CHEAP = 24.0
# With less, the arithmetic takes longer than memory.
MEMORY_BOUND = 6.0
READS_Y = ("sigmoid", "tanh", "exp")

# Bytes a second that one core moves to and from the second-level cache, the third, and memory.
L2_BANDWIDTH, L3_BANDWIDTH, MEMORY_BANDWIDTH = 200e9, 105e9, 48e9
# Seconds to enter the drivers: in the calling thread, with others.
SERIAL_LAUNCH, PARALLEL_LAUNCH = 0.6e-6, 4e-6


def compute_lanes(dtype: str, target: Any, registers: int) -> int:
    """Lanes of a step of so many registers, in the type that is computed in."""
    return lanes(DTYPES[dtype].accumulate, target.vector_bytes) * registers


def step_registers(kind: str, target: Any, streaming: bool = False) -> int:
    """Registers of a step.

    With 32 registers four chains of the longer formulas hide their latencies: 2 to 10 % on data in the caches.
    Streaming, the formulas that memory hides lose 4 % that way, to bursts of stores behind bursts of arithmetic; what
    has next to no arithmetic gains 0 to 8 %.
    """
    rate = RATES.get(kind, CHEAP)
    many = not MEMORY_BOUND <= rate < CHEAP if streaming else rate < CHEAP
    return 4 if target.vector_bytes == 64 and many else 2


def compute_kernel(problem: Any, target: Any, streaming: bool = False) -> RangeKernel:
    """The kernel that computes contiguous elements of the problem: all solvers use it, and so give the same bits."""
    kind, dtype = problem.kind, problem.dtype
    W = compute_lanes(dtype, target, step_registers(kind, target, streaming))
    if problem.direction == "forward":
        if "weight" in problem.operands or "gate" in problem.operands:
            return kernels.make_binary(kind, dtype, W, streaming)
        return kernels.make_forward(kind, dtype, W, streaming)
    if "gate" in problem.operands:
        return kernels.make_glu_backward(dtype, W)
    if "weight" in problem.operands:
        return kernels.make_prelu_backward(dtype, W, streaming)
    reads = next((name for name in ("x", "y") if name in problem.operands), "")
    return kernels.make_backward(kind, dtype, W, reads, streaming)


def arithmetic_seconds(problem: Any, target: Any) -> float:
    """What one core takes for the arithmetic."""
    rate = RATES.get(problem.kind, CHEAP)
    if problem.direction != "forward" and problem.kind in RATES:
        rate = CHEAP if problem.kind in READS_Y else rate / 2
    width = target.vector_bytes / 64 * 4 / DTYPES[DTYPES[problem.dtype].accumulate].itemsize
    return float(problem.n / (rate * 1e9 * width))


def memory_seconds(problem: Any, target: Any) -> float:
    """What one core takes to move the operands, the results written through the caches."""
    moved = problem.bytes_moved()
    if moved <= target.l2:
        return float(moved / L2_BANDWIDTH)
    if moved <= target.l3:
        return float(moved / L3_BANDWIDTH)
    results = 2 if "dgate" in problem.operands else 1
    written = problem.n * DTYPES[problem.dtype].itemsize * results
    # a line that is stored to is read first, unless an operand lies there
    return float((moved + (0 if problem.in_place else written)) / MEMORY_BANDWIDTH)


def contiguous_half(problem: Any) -> int:
    """The elements from the first half of glu's axis to the second, where both are contiguous; else 0."""
    loops = problem.loops
    offsets = dict(zip(problem.operands, loops.offsets, strict=True))
    half: int = offsets.pop("gate", 0)
    if len(loops.shape) > 1 or problem.layout != "rows" or offsets.pop("dgate", half) != half or any(offsets.values()):
        return 0
    return half


class _Elementwise(Solver):
    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction == "weight":
            return "it computes one result for each element, and this is a sum"
        return None


def _program(
    problem: Any, kernel: RangeKernel, compute: RangeKernel | None, n: int, tile: int, tiles: int, work:
    float, plan: Any = None, half: int = 0,
) -> Program:  # fmt: skip
    """`work`: seconds that one core takes."""
    ints = {"n": n, "tile": tile, "half": half}
    if compute is not None:
        ints["compute"] = compute.address
    if plan is not None:
        ints["plan"] = plan.ctypes.data
    # a few us of work for each chunk that a worker takes
    chunk = max(1, min(tiles // 8, int(5e-6 * tiles / work)))
    parallel = work > 2.5 * PARALLEL_LAUNCH
    return Program.of(ARGS, ints, [(kernel, tiles, chunk)], keep=(plan, compute), parallel=parallel)


class Vector(_Elementwise):
    """Contiguous arrays, one vector kernel over all of them."""

    name = "vector"
    streaming = False

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.layout != "contiguous" and not contiguous_half(problem):
            return super().why_not(problem, target) or "the arrays are not contiguous in one order of dimensions"
        return super().why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        return SERIAL_LAUNCH + max(arithmetic_seconds(problem, target), memory_seconds(problem, target))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        work = self.estimate(problem, target)
        tiles = -(-problem.n // TILE)
        kernel = compute_kernel(problem, target, self.streaming)
        return _program(problem, kernel, None, problem.n, TILE, tiles, work, half=contiguous_half(problem))


class Stream(Vector):
    """The same for arrays larger than the caches, results written past them."""

    name = "stream"
    streaming = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        if "dgate" in problem.operands:
            return "the halves of glu's gradient need not begin at the same place of a cache line"
        return super().why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        # whatever the size, results go to memory; in place, nothing is gained
        work = max(arithmetic_seconds(problem, target), problem.bytes_moved() / MEMORY_BANDWIDTH)
        return float(SERIAL_LAUNCH + work * 1.01)


class Rows(_Elementwise):
    """Any strides: blocks through the kernel for contiguous elements."""

    name = "rows"

    def estimate(self, problem: Any, target: Any) -> float:
        block = problem.inner if problem.layout == "rows" and problem.inner >= rows.SHORTEST_RUN else rows.BLOCK
        work = arithmetic_seconds(problem, target) + 1.2 * memory_seconds(problem, target)
        if block == rows.BLOCK:
            work += len(problem.operands) * problem.n * 1e-9  # gathered and scattered
        return float(SERIAL_LAUNCH + work + problem.n / block * 20e-9)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        plan, tiles, tile = rows.plan_rows(problem)
        kernel = rows.make_rows(DTYPES[problem.dtype].itemsize)
        compute = compute_kernel(problem, target)
        return _program(problem, kernel, compute, problem.n, tile, tiles, self.estimate(problem, target), plan)


class ChannelSums(Solver):
    """The gradient of prelu's weight in chunks of each channel, summed in a fixed order."""

    name = "channel_sums"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.direction == "weight" else "it computes the gradient of prelu's weight only"

    def estimate(self, problem: Any, target: Any) -> float:
        return 2 * SERIAL_LAUNCH + memory_seconds(problem, target) + problem.loops.shape[0] * 5e-9

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return _sums(problem, target, self.estimate(problem, target), problem.layout)


class Naive(Solver):
    """One element at a time, wherever it lies."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        return float(SERIAL_LAUNCH + 100e-9 * problem.n)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        if problem.direction == "weight":
            return _sums(problem, target, self.estimate(problem, target), "strided")
        kernel = naive.make_elements(DTYPES[problem.dtype].itemsize)
        plan, tiles = naive.plan_elements(problem), -(-problem.n // naive.TILE)
        compute = compute_kernel(problem, target)
        work = self.estimate(problem, target)
        return _program(problem, kernel, compute, problem.n, naive.TILE, tiles, work, plan)


def _sums(problem: Any, target: Any, work: float, layout: str) -> Program:
    dtype = problem.dtype
    compute = DTYPES[dtype].accumulate
    size = DTYPES[dtype].itemsize
    channels = problem.loops.shape[0]
    plan, each = prelu.plan_channels(problem, layout)
    if layout == "channels":
        W = compute_lanes(dtype, target, 4)
        tile = prelu.DEPTH
        sums = prelu.make_channels_sums(dtype, compute, size, W)
        tiles = -(-each // tile) * -(-channels // W)
    else:
        vectors = layout == "rows"
        tile = prelu.CHUNK
        sums = prelu.make_rows_sums(dtype, compute, size, compute_lanes(dtype, target, 4) if vectors else 1, vectors)
        tiles = -(-each // tile) * channels
    ints = {"n": each, "tile": tile, "plan": plan.ctypes.data, "channels": channels}
    chunk = max(1, min(tiles // 8, int(5e-6 * tiles / work)))
    combine = prelu.make_combine(dtype, compute)
    return Program.of(
        ARGS, ints, [(sums, tiles, chunk), (combine, channels, 4096)], keep=(plan,),
        parallel=work > 2.5 * PARALLEL_LAUNCH, shared=-(-each // tile) * channels * DTYPES[compute].itemsize,
    )  # fmt: skip


SOLVERS = (Vector(), Stream(), Rows(), ChannelSums(), Naive())
