"""The ways to compute CTC, and what each is estimated to take."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.ctc import decode, kernels
from numbaprims.cpu.ctc.decode import make_beams, make_greedy
from numbaprims.cpu.ctc.kernels import make_gradient, make_loss
from numbaprims.cpu.program import Phase, Program, array
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.beams import FLOATS, INTS

#: Cycles of a state's step, of a label that is gathered, and of a step besides, forwards.
STATE, GATHER, STEP = 1.2, 2.5, 70
#: Steps ahead whose labels are asked for, where a row of classes has more bytes than a core fetches by itself.
AHEAD, NEAR = 2, 512


class Vectors(Solver):
    """A sample a tile: of a loss, mantissas and exponents of a vector of states at a time."""

    name = "vectors"

    def lanes(self, problem: Any, target: Any) -> int:
        """Of a vector."""
        return lanes(DTYPES[problem.dtype].accumulate, target.vector_bytes)

    def seconds(self, problem: Any, target: Any) -> float:
        """Of one core."""
        p, W = problem, self.lanes(problem, target)
        steps = p.steps * p.batch
        if p.way == "greedy":
            cycles = steps * (STEP + 2 * p.classes / (W if p.order == "rows" else 1))
        elif p.way == "beam":
            cycles = steps * (STEP + 2 * p.classes + 4 * p.width * p.width)
        else:
            cycles = steps * (STEP + p.labels * (GATHER + 32 * STATE / W))
        if p.way == "backward":
            cycles += steps * (STEP + p.labels * (2 * GATHER + 48 * STATE / W) + p.classes * (1 + 4 * p.logits) / W)
            cycles += steps * p.classes * 4 if p.order != "rows" else 0
        moved = p.bytes_moved()
        return float(max(target.rates.cycles(cycles), moved / target.bandwidth(moved)))

    def estimate(self, problem: Any, target: Any) -> float:
        return float(target.rates.call + self.seconds(problem, target))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, W = problem, self.lanes(problem, target)
        make = self.decoding if p.way in ("greedy", "beam") else self.summing
        args, kernel, ints, own, binds = make(p, W)
        strides = dict(zip(("x_t", "x_n", "x_c"), p.lies.x, strict=True))
        ints = {"steps": p.steps, "classes": p.classes, "blank": p.blank, **strides, **ints}
        return Program.of(
            args, ints, [Phase(kernel, p.batch, 1, one_queue=True)], regions=Regions(own=own), binds=binds,
            parallel=self.seconds(p, target) > 4 * target.rates.wake,
        )  # fmt: skip

    def summing(self, p: Any, W: int) -> tuple[Any, ...]:
        """Of the loss and its gradient: arguments, kernel, integers, a worker's regions, binds."""
        loss, wide, item = p.way == "loss", DTYPES[p.dtype].accumulate, DTYPES[p.dtype].itemsize
        part, rows = -(-(p.labels + 1) // W) * W + 2 * W, 2 if loss else p.steps + 1
        bytes_of = part * DTYPES[wide].itemsize
        own = {"states": 6 * rows * bytes_of, "skips": bytes_of}
        if not loss:
            own |= {"after": 4 * bytes_of, "found": bytes_of, "sums": -(-p.classes // W) * W * DTYPES[wide].itemsize}
        out = (0, *p.lies.out, 0) if loss else p.lies.out
        ints = {
            "batch": p.batch, "labels": p.labels, "part": part, "rows": rows, "mean": int(p.mean), "dy_n": p.lies.dy,
            "zero_infinity": int(p.zero_infinity), "ahead": AHEAD * p.lies.x[0] if p.classes * item > NEAR else 0,
            **dict(zip(("out_t", "out_n", "out_c"), out, strict=True)),
        }  # fmt: skip
        kernel = make_loss(p.dtype, wide if p.wide else p.dtype, W) if loss else make_gradient(p.dtype, p.logits, W)
        binds = None if loss else {name: array(at) for at, name in enumerate(("out", "x", "dy", "table"))}
        return kernels.ARGS, kernel, ints, own, binds

    def decoding(self, p: Any, W: int) -> tuple[Any, ...]:
        """The same of a decoding."""
        nodes = 1 + p.steps * p.width
        ints = {"width": p.width, "paths": p.paths, "nodes": nodes}
        beam = p.way == "beam"
        kernel = make_beams(p.dtype) if beam else make_greedy(p.dtype, W)
        parts = 8 * (p.width + 1)
        own = {"floats": FLOATS * parts, "integers": 8 * 4 * nodes + INTS * parts} if beam else {}
        return decode.ARGS, kernel, ints, own, None


class Naive(Vectors):
    """A state after the other."""

    name = "naive"

    def lanes(self, problem: Any, target: Any) -> int:
        return 1


SOLVERS = (Vectors(), Naive())
