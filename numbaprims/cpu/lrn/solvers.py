"""The ways to normalise local responses, and what each is estimated to take."""

from __future__ import annotations

import math
from typing import Any

from numbaprims.cpu.lrn.kernels import ARGS, AXES, BLOCK, make_kernel
from numbaprims.cpu.program import Bind, Part, Program, Region, array, join
from numbaprims.cpu.simd import FLOAT_SLOT, lanes
from numbaprims.cpu.solver import Regions, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.ops._lrn_problem import Axis, axes_of

VECTOR_CYCLES = 50
"""Of a logarithm, an exponential and what stands around them."""
TILE_BYTES = 65536
"""What a tile moves at least, where there are more tiles than any machine has workers."""
TILES = 64


class Lines(Solver):
    """Lines of elements that lie side by side in every array."""

    name = "lines"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if any(step != 1 for step in axes_of(problem)[-1].steps):
            return "the innermost elements do not lie side by side in every array"
        return None

    def lanes(self, problem: Any, target: Any) -> int:
        return lanes(DTYPES[problem.dtype].accumulate, target.vector_bytes)

    def estimate(self, problem: Any, target: Any) -> float:
        line = axes_of(problem)[-1].size
        W = self.lanes(problem, target)
        vectors = problem.elements / line * -(-line // W)
        passes = 2 if problem.direction == "backward" else 1
        cycles = passes * vectors * (VECTOR_CYCLES + 2 * problem.taps)
        moved = problem.bytes_moved()
        return float(target.rates.call + target.rates.cycles(cycles) + moved / target.bandwidth(moved))

    def program(self, problem: Any, target: Any, config: Any) -> Program:
        p = problem
        if p.direction == "forward":
            return self.phase(p, target, "forward", {"out": 0, "x": 1})
        size = p.elements * DTYPES[DTYPES[p.dtype].accumulate].itemsize
        places = [Region("p"), Region("t")]
        terms = Part(self.phase(p, target, "terms", {"dy": 1, "x": 2}), [*places, array(1), array(2)], [0, 1, 2])
        end = Part(
            self.phase(p, target, "gradient", {"out": 0, "dy": 1, "x": 2}),
            [array(0), array(1), array(2), *places], [0, 1, 2],
        )  # fmt: skip
        return join([terms, end], shared={"p": size, "t": size})

    def phase(self, p: Any, target: Any, way: str, given: dict[str, int]) -> Program:
        """One kernel; `given` are the arrays of the launch that it takes."""
        *outer, line = axes_of(p)
        outer = [Axis(1, 0, 0, (0,) * len(p.strides))] * (AXES - len(outer)) + outer
        axes = [*outer, line]
        W, acc = self.lanes(p, target), DTYPES[p.dtype].accumulate
        # what stands between the phases is contiguous in the order of the axes
        steps = [math.prod(axis.size for axis in axes[at + 1 :]) for at in range(len(axes))]
        ints: dict[str, int] = {}
        for at, (axis, d) in enumerate(zip(axes, "0123b", strict=True)):
            back = way == "gradient"
            ints[f"size_{d}"] = axis.size
            ints[f"before_{d}"], ints[f"after_{d}"] = (axis.after, axis.before) if back else (axis.before, axis.after)
            ints |= {f"{name}_{d}": axis.steps[number] for name, number in given.items()}
            ints |= {f"{name}_{d}": steps[at] for name in ("p", "t")}
        rows, blocks = math.prod(axis.size for axis in outer), -(-line.size // BLOCK)
        bytes_of_row = min(BLOCK, line.size) * DTYPES[p.dtype].itemsize
        band = max(1, min(-(-rows * blocks // TILES), -(-TILE_BYTES // bytes_of_row), rows))
        tiles = blocks * -(-rows // band)
        along = bool(line.before or line.after)
        ints |= {"rows": rows, "band": band, "blocks": blocks, "window": p.window}
        room = (BLOCK + line.before + line.after + 4 * W) * DTYPES[acc].itemsize
        held = ["p", "t", "dy", "x"] if way == "terms" else [*given, *(("p", "t") if way == "gradient" else ())]
        binds = {name: array(number) for number, name in enumerate(held)}
        binds |= {name: Bind(FLOAT_SLOT + number) for number, name in enumerate(ARGS.floats)}
        phases = [(make_kernel(way, p.dtype, along, W), tiles, max(1, tiles // TILES))]
        return Program.of(
            ARGS, ints, phases, binds=binds, regions=Regions(own={"line": room, "powers": room}),
            **target.rates.waking(self.estimate(p, target)),
        )  # fmt: skip


class Naive(Lines):
    """An element after the other, however they lie."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def lanes(self, problem: Any, target: Any) -> int:
        return 1


SOLVERS = (Lines(), Naive())
