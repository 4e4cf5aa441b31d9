"""The way to compute CTC on a GPU, and what it is estimated to take."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.beams import FLOATS, INTS
from numbaprims.gpu.ctc import decode, kernels
from numbaprims.gpu.launch import make_launcher, step
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6
#: Seconds of a step's chain of loads, sums and barriers.
STEP = 3e-6


class Blocks(Solver):
    """A block for each sample, side by side over the states of a step; of a decoding, one for each step."""

    name = "blocks"

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        steps = p.steps * (3 if p.way == "backward" else 1) * -(-p.labels * 2 // kernels.THREADS or 1)
        waiting = steps * STEP * (p.width * p.width if p.way == "beam" else 1)
        return float(2 * LAUNCH + waiting + p.bytes_moved() / target.bandwidth)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        if p.way == "greedy":
            return _greedy(p)
        return _beams(p) if p.way == "beam" else _sums(p)


def _sums(p: Any) -> Launcher:
    wide = DTYPES[p.dtype].accumulate
    item, states, loss = DTYPES[wide].itemsize, 2 * p.labels + 1, p.way == "loss"
    rows = 2 if loss else p.steps + 1
    regions = {name: p.batch * rows * states * item for name in ("am", "ae")}
    fixed = (p.batch, p.labels, states, p.blank, *p.lies.x, rows)
    if loss:
        kernel = kernels.make_loss(p.dtype, wide if p.wide else p.dtype)
        ends = (p.lies.out[0], int(p.mean), int(p.zero_infinity))

        def values(a: Any, floats: Any, at: Any) -> tuple[Any, ...]:
            return (a[0].pointer, a[1].pointer, a[2].pointer, at["am"], at["ae"], *fixed, *ends)

        return make_launcher([step(kernel, p.batch, values)], regions)
    regions |= {name: p.batch * 2 * states * item for name in ("bm", "be")}
    regions |= {"found": p.batch * states * item, "chain": p.batch * 2 * p.labels * 8}
    more = (p.steps, p.classes, *p.lies.out, p.lies.dy, int(p.mean))

    def gradient(a: Any, floats: Any, at: Any) -> tuple[Any, ...]:
        own = [at[name] for name in ("am", "ae", "bm", "be", "found", "chain")]
        return (a[0].pointer, a[2].pointer, a[1].pointer, a[3].pointer, *own, *fixed, *more)

    return make_launcher([step(kernels.make_gradient(p.dtype, p.logits), p.batch, gradient)], regions)


def _greedy(p: Any) -> Launcher:
    rows = p.steps * p.batch
    regions = {"best": rows * 8, "value": rows * DTYPES[DTYPES[p.dtype].accumulate].itemsize}

    def best(a: Any, floats: Any, at: Any) -> tuple[Any, ...]:
        return (at["best"], at["value"], a[3].pointer, p.batch, p.classes, *p.lies.x)

    def path(a: Any, floats: Any, at: Any) -> tuple[Any, ...]:
        own = (a[0].pointer, a[1].pointer, a[2].pointer, at["best"], at["value"], a[4].pointer)
        return (*own, p.batch, p.steps, p.blank)

    steps = [
        step(decode.make_best(p.dtype), rows, best),
        step(decode.make_greedy(p.dtype), -(-p.batch // 32), path),
    ]
    return make_launcher(steps, regions)


def _beams(p: Any) -> Launcher:
    nodes = 1 + p.steps * p.width
    floats, ints = FLOATS * (p.width + 1), 4 * nodes + INTS * (p.width + 1)

    def values(a: Any, floats: Any, at: Any) -> tuple[Any, ...]:
        own = (*(each.pointer for each in a[:5]), at["floats"], at["ints"])
        return (*own, p.batch, p.steps, p.classes, p.blank, *p.lies.x, p.width, p.paths, nodes)

    kernel = decode.make_beams(p.dtype)
    return make_launcher(
        [step(kernel, -(-p.batch // 32), values)], {"floats": p.batch * floats * 8, "ints": p.batch * ints * 8}
    )


SOLVERS = (Blocks(),)
