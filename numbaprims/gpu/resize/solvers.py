"""The way to resize on a GPU."""

from __future__ import annotations

import math
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.launch import Addresses, by_alignment, make_launcher, step
from numbaprims.gpu.pointwise.walk import divisor, wide_places
from numbaprims.gpu.resize.kernels import LANES, THREADS, make_kernel, make_tables
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6


class Elements(Solver):
    """A thread for a pixel of four channels; offsets of 64 bits where an array needs them."""

    name = "elements"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        issued = (p.elements * 30.0 + 2.0 * p.flops()) / (128.0 * target.multiprocessors * target.clock)
        return float(2 * LAUNCH + issued + p.bytes_moved() / (0.8 * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        if p.empty:
            return make_launcher(())
        acc = "f64" if p.dtype == "f64" else "f32"
        m, n, taps = p.to, p.size[2:], [p.taps(axis) for axis in range(3)]
        along = [*m, *n, *taps]
        fractions = [*(step[0] for step in p.steps), *(step[1] for step in p.steps)]
        size = {
            "first": 4 * sum(m), "count": 4 * sum(m),
            "weight": sum(a * b for a, b in zip(m, taps, strict=True)) * DTYPES[acc].itemsize,
        }  # fmt: skip

        def tables(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (at["first"], at["count"], at["weight"], *along, *fractions, p.cubic_coeff)

        grids = ((*p.size[:2], *p.result), (*p.size[:2], *p.source))
        far = max(
            sum((size - 1) * abs(step) for size, step in zip(grid, steps, strict=True))
            for grid, steps in zip(grids, p.strides, strict=True)
        )
        (n, c), last, pixels = p.size[:2], p.layout == "channels_last", math.prod(p.result)
        strides = [list(steps) for steps in p.strides]
        if not last and all(steps[0] == c * steps[1] for steps in strides):  # planes one behind the other
            n, c = 1, n * c
        blocks = -(-c // LANES)
        items = n * blocks * pixels
        wide = wide_places(far, items)
        sizes = [each for size in (blocks, *p.result) for each in divisor(size, wide)]
        fixed = [items, c, *sizes, *along, *strides[0], *strides[1]]

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (arrays[0].pointer, arrays[1].pointer, at["first"], at["count"], at["weight"], *fixed)

        way = "copy" if p.copies else "forward" if p.direction == "forward" else "gradient"
        table = make_tables(p.mode, p.align_corners, p.antialias, acc)

        def launcher(packed: bool) -> Launcher:
            kernel = make_kernel(way, p.dtype, "packed" if packed else "last" if last else "first", wide)
            return make_launcher(
                [step(table, -(-sum(m) // THREADS), tables), step(kernel, -(-items // THREADS), values)], size
            )

        rest = [abs(each) for steps in strides for each in (steps[0], *steps[2:])]
        if not last or c % LANES or any(steps[1] != 1 for steps in strides) or any(each % LANES for each in rest):
            return launcher(False)
        return by_alignment(launcher, dict.fromkeys((0, 1), LANES * DTYPES[p.dtype].itemsize))


SOLVERS = (Elements(),)
