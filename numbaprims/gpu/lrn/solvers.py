"""The way to normalise local responses on a GPU."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.launch import Addresses, Step, make_launcher, step
from numbaprims.gpu.lrn.kernels import THREADS, make_kernel
from numbaprims.gpu.solver import Solver
from numbaprims.ops._lrn_problem import Axis, axes_of

LAUNCH = 3e-6
AXES = 5


class Elements(Solver):
    """A thread an element; offsets of 64 bits where an array needs them."""

    name = "elements"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        issued = p.elements * (120.0 + 12.0 * p.taps) / (128.0 * target.multiprocessors * target.clock)
        passes = 2 if p.direction == "backward" else 1
        return float(passes * (LAUNCH + issued) + passes * p.bytes_moved() / (0.8 * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        if p.empty:
            return make_launcher(())
        if p.direction == "forward":
            return make_launcher([self.step(p, "forward")])
        size = p.elements * DTYPES[DTYPES[p.dtype].accumulate].itemsize
        return make_launcher([self.step(p, "terms"), self.step(p, "gradient")], {"p": size, "t": size})

    def step(self, p: Any, way: str) -> Step:
        """One kernel."""
        axes = axes_of(p)
        axes = [Axis(1, 0, 0, (0,) * len(p.strides))] * (AXES - len(axes)) + axes
        back = way == "gradient"
        far = max(sum((axis.size - 1) * abs(axis.steps[at]) for axis in axes) for at in range(len(p.strides)))
        wide = max(far, p.elements) >= (1 << 31) - 2 * THREADS
        fixed = [axis.size for axis in axes]
        fixed += [axis.after if back else axis.before for axis in axes]
        fixed += [axis.before if back else axis.after for axis in axes]
        # of the launch's arrays: out, dy where there is one, x
        for at in (0, 1 if p.direction == "backward" else 0, -1):
            fixed += [axis.steps[at] for axis in axes]

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            given = [each.pointer for each in arrays if each is not None]
            out, dy, x = given[0], given[-2], given[-1]
            numbers = (floats[0] / p.window, *floats[1:3])
            return (out, dy, x, at.get("p") or out, at.get("t") or out, *numbers, p.elements, *fixed)

        return step(make_kernel(way, p.dtype, wide), -(-p.elements // THREADS), values)


SOLVERS = (Elements(),)
