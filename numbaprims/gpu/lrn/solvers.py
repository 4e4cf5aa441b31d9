"""The way to normalise local responses on a GPU."""

from __future__ import annotations

import math
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.launch import Addresses, Step, make_launcher, step
from numbaprims.gpu.lrn.kernels import RUN, THREADS, make_kernel
from numbaprims.gpu.pointwise.walk import divisor, wide_places
from numbaprims.gpu.solver import Solver
from numbaprims.ops._lrn_problem import Axis, axes_of

LAUNCH = 3e-6
AXES = 5


class Elements(Solver):
    """A thread for four elements; offsets of 64 bits where an array needs them."""

    name = "elements"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        issued = p.elements * (80.0 + 6.0 * p.taps) / (128.0 * target.multiprocessors * target.clock)
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
        # the outermost one with a window goes first: neighbours along the innermost one are threads side by side
        first = next((axis for axis in axes if axis.before or axis.after), axes[0])
        axes = [each for each in axes if each is not first]
        axes = [first] + [Axis(1, 0, 0, (0,) * len(p.strides))] * (AXES - 1 - len(axes)) + axes
        back = way == "gradient"
        far = max(sum((axis.size - 1) * abs(axis.steps[at]) for axis in axes) for at in range(len(p.strides)))
        wide = wide_places(far, p.elements)
        plane = math.prod(axis.size for axis in axes[1:])
        items = -(-first.size // RUN) * plane
        fixed = [items, first.size, *(each for axis in axes[1:] for each in divisor(axis.size, wide)), plane]
        fixed += [axis.after if back else axis.before for axis in axes]
        fixed += [axis.before if back else axis.after for axis in axes]
        # of the launch's arrays: out, dy where there is one, x
        for at in (0, 1 if p.direction == "backward" else 0, -1):
            fixed += [axis.steps[at] for axis in axes]

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            given = [each.pointer for each in arrays if each is not None]
            out, dy, x = given[0], given[-2], given[-1]
            numbers = (floats[0] / p.window, *floats[1:3])
            return (out, dy, x, at.get("p") or out, at.get("t") or out, *numbers, *fixed)

        return step(make_kernel(way, p.dtype, wide), -(-items // THREADS), values)


SOLVERS = (Elements(),)
