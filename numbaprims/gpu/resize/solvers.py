"""The way to resize on a GPU."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.launch import Addresses, make_launcher, step
from numbaprims.gpu.resize.kernels import THREADS, make_kernel, make_tables
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6


class Elements(Solver):
    """A thread an element; offsets of 64 bits where an array needs them."""

    name = "elements"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        issued = (p.elements * 60.0 + 4.0 * p.flops()) / (128.0 * target.multiprocessors * target.clock)
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
        wide = max(far, p.elements) >= (1 << 31) - 2 * THREADS
        fixed = [p.elements, p.size[1], *p.result, *along, *p.strides[0], *p.strides[1]]

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (arrays[0].pointer, arrays[1].pointer, at["first"], at["count"], at["weight"], *fixed)

        way = "copy" if p.copies else "forward" if p.direction == "forward" else "gradient"
        table = make_tables(p.mode, p.align_corners, p.antialias, acc)
        kernel = make_kernel(way, p.dtype, p.layout == "channels_last", wide)
        return make_launcher(
            [step(table, -(-sum(m) // THREADS), tables), step(kernel, -(-p.elements // THREADS), values)], size
        )


SOLVERS = (Elements(),)
