"""Ways to run a recurrent network on a GPU, and what they are estimated to take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.dots import ROWS
from numbaprims.gpu.rnn.forward import Forward
from numbaprims.gpu.rnn.gradient import Gradient
from numbaprims.gpu.rnn.persistent import PersistentForward, share_of
from numbaprims.gpu.rnn.persistent_kernel import WARPS
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6
#: Latencies of a step within a launch (persistent_kernel.py).
STEP = 2e-6
#: Bytes a clock and multiprocessor from shared memory, and about as many from the second-level cache.
SHARED_RATE, L2_RATE = 128, 32
_LIMIT = (1 << 31) - (1 << 20)


class SingleGemm(Solver):
    """One input product for all steps; then a product for each direction and one cell kernel a step."""

    name = "single_gemm"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.batch * max(p.hidden, p.state) >= _LIMIT:
            return "its indices have 32 bits, and a state has more elements"
        if p.weights == "int8":
            return "it multiplies weights as they were given"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        yield {}

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        launches = p.layers * p.steps * (p.directions + 1)
        return float(launches * LAUNCH + p.flops() / target.peak(p.dtype) + p.bytes_moved() / target.bandwidth)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        make = Gradient if problem.way == "backward" else Forward
        return make(problem, target).program().launcher()


class Persistent(Solver):
    """One input product for all steps; then one launch a layer, whose blocks keep their recurrent weights."""

    name = "persistent"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.way == "backward":
            return "it has no gradient of its own"
        if p.weights == "int8":
            return "it multiplies weights as they were given"
        if p.projected or (p.cell == "gru" and not p.reset_after):
            return "a step takes two products, and it waits for the other blocks once"
        if p.state * DTYPES[p.dtype].itemsize % 16:
            return "it copies states 16 bytes at a time, and theirs are no multiple"
        if share_of(p, target).chunk == 0:
            return "the recurrent weights do not fit into the shared memory of all multiprocessors"
        if (p.steps + 1) * target.multiprocessors >= 1 << 32 or p.batch * p.state * p.directions >= _LIMIT:
            return "its counters have 32 bits"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        yield {}

    def estimate(self, problem: Any, target: Any) -> float:
        p, share, item = problem, share_of(problem, target), DTYPES[problem.dtype].itemsize
        high = 16 if share.tensor else ROWS
        tiles = -(-p.gates * share.units // high) * -(-p.batch // share.columns)
        read = (high + share.columns) * p.state  # elements of a tile
        products = tiles * read * item / SHARED_RATE / target.clock
        if share.tensor:  # a warp waits for its fragments and its sums, 64 clocks for 32 of k
            products = max(products, -(-tiles // WARPS) * p.state / 32 * 64 / target.clock)
        else:
            operations = high * share.columns * p.state + (read if item == 2 else 0)  # halves are converted
            rate = target.peak(DTYPES[p.dtype].accumulate) / 2 / target.multiprocessors
            products = max(products, tiles * operations / rate)
        step = STEP + products + p.batch * p.state * item / L2_RATE / target.clock
        inputs = p.flops() - 2.0 * p.layers * p.directions * p.rows * p.gates * p.hidden * p.state
        once = inputs / target.peak(p.dtype) + p.bytes_moved() / target.bandwidth
        return float(p.layers * (p.steps * step + LAUNCH) + once)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        return PersistentForward(problem, target).program().launcher()


SOLVERS = (SingleGemm(), Persistent())
