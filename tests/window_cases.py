"""Problems of windows, and what a solver must give for them."""

import dataclasses

import numpy as np
from helpers import assert_close, assert_exact, to_float64

from numbaprims import settings
from numbaprims.cpu import target
from numbaprims.cpu.windows import SOLVERS
from numbaprims.dtypes import DTYPES
from numbaprims.ops._pooling_problem import PoolingProblem
from numbaprims.reference import pooling as reference
from numbaprims.reference.convert import from_float64

LAYOUTS = ("channels_first", "channels_last", "strided")
FLOATS = ("f64", "f32", "f16", "bf16")
GUARD = 64


def make(op, size, kernel=0, stride=None, pad=0, *, n=2, c=3, dtype="f32", ceil=False, dilation=1, out=None, **more):
    """A problem, without strides, and the arguments of its outputs' sizes."""
    rank = len(size)
    spread = lambda v: tuple(v) if isinstance(v, (tuple, list)) else (v,) * rank  # noqa: E731
    if out is not None:
        none = (0,) * rank
        return PoolingProblem(
            op,
            "forward",
            dtype,
            n,
            c,
            size,
            spread(out),
            none,
            none,
            none,
            none,
            none,
            "channels_first",
            adaptive=True,
            **more,
        )
    kernel, stride, dilation = spread(kernel), spread(kernel if stride is None else stride), spread(dilation)
    pads = [p if isinstance(p, tuple) else (p, p) for p in spread(pad)]
    outs = []
    for s, k, t, d, (a, b) in zip(size, kernel, stride, dilation, pads, strict=True):
        free = s + a + b - d * (k - 1) - 1
        o = (-(-free // t) if ceil else free // t) + 1
        outs.append(o - (ceil and (o - 1) * t >= s + a))
    before, after = zip(*pads, strict=True)
    return PoolingProblem(
        op, "forward", dtype, n, c, size, tuple(outs), kernel, stride, before, after, dilation, "channels_first", **more
    )


def strides(shape, layout):
    """Of contiguous arrays, channels first or last, or with gaps everywhere."""
    order = [0, *range(2, len(shape)), 1] if layout == "channels_last" else range(len(shape))
    steps, step = [0] * len(shape), 2 if layout == "strided" else 1
    for axis in reversed(order):
        steps[axis] = step
        step *= shape[axis] + (layout == "strided")
    return tuple(steps)


class Room:
    """An array of a layout in the middle of guard elements."""

    def __init__(self, shape, dtype, layout, values=None):
        steps = strides(shape, layout)
        span = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
        self.flat = np.full(span + 2 * GUARD, 77, DTYPES[dtype].storage)
        itemsize = self.flat.itemsize
        self.view = np.lib.stride_tricks.as_strided(self.flat[GUARD:], shape, [s * itemsize for s in steps])
        self.steps = steps
        self.others = np.ones(self.flat.size, bool)
        np.lib.stride_tricks.as_strided(self.others[GUARD:], shape, steps)[...] = False
        if values is not None:
            self.view[...] = values

    def check(self):
        assert (self.flat[self.others] == 77).all(), "written outside of the result"


def run(solver, problem, layout, threads=1, cpu=None, **inputs):
    """{name: result} of a problem by a solver; None if it refuses."""
    cpu = cpu or target.current()
    p = problem
    full, small = (p.n, p.c, *p.size), (p.n, p.c, *p.out)
    back = p.direction == "backward"
    arrays = [Room(full if back else small, p.dtype, layout), None, None, None, None]
    if p.indices:
        arrays[1] = Room(small, "i64", layout, inputs.get("indices"))
    for at, name, shape in ((2, "x", full), (3, "dy", small), (4, "y", small)):
        if name in inputs:
            arrays[at] = Room(shape, p.dtype, layout, inputs[name])
    p = dataclasses.replace(p, layout=layout, strides=tuple(a and a.steps for a in arrays))
    if solver.why_not(p, cpu):
        return None
    assert solver.estimate(p, cpu) > 0
    with settings.config(threads=threads):
        launcher = solver.bind(p, cpu, next(iter(solver.configs(p, cpu))))
        # the data pointer alone is read: a view of one dimension stands for any strides
        launcher(*[None if a is None else a.flat[GUARD:] for a in arrays])
    for a in arrays[:2] if not back else arrays[:1]:
        if a is not None:
            a.check()
    return [None if a is None else a.view.copy() for a in arrays[:2]]


def values(problem, rng, shape):
    """Storage with ties, exact in every type and sum."""
    if problem.dtype in ("i8", "u8"):
        kind = DTYPES[problem.dtype].storage
        return rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, endpoint=True).astype(kind)
    return from_float64(rng.integers(-8, 9, shape) * 0.5, problem.dtype)


def check_forward(problem, rng, layout, solvers=SOLVERS, x=None):
    p = problem
    x = values(p, rng, (p.n, p.c, *p.size)) if x is None else x
    y, places = reference.forward(p, to_float64(x, p.dtype))
    ran = []
    for solver in solvers:
        found = run(solver, p, layout, x=x)
        if found is None:
            continue
        ran.append(solver.name)
        if p.op == "max" or p.dtype in ("i8", "u8"):
            assert_exact(found[0], y if p.dtype in FLOATS else np.rint(y), p.dtype, vacuous=True)
        else:
            assert_close(found[0], y, k=p.roundings(), dtype=p.dtype, vacuous=True)
        if p.indices:
            np.testing.assert_array_equal(found[1], places)
    assert "naive" in ran
    return ran


def check_backward(problem, rng, layout, solvers=SOLVERS, cpu=None):
    p = dataclasses.replace(problem, direction="backward")
    x, dy = values(p, rng, (p.n, p.c, *p.size)), values(p, rng, (p.n, p.c, *p.out))
    wide, up = to_float64(x, p.dtype), to_float64(dy, p.dtype)
    y, places = reference.forward(p, wide)
    inputs = {"dy": dy}
    if p.op == "max":
        inputs |= {"indices": places} if p.indices else {"x": x}
    elif p.op == "lp":
        inputs |= {"x": x, "y": from_float64(y, p.dtype)}
        y = to_float64(inputs["y"], p.dtype)
    want, ran = reference.backward(p, up, wide, y), []
    for solver in solvers:
        found = run(solver, p, layout, cpu=cpu, **inputs)
        if found is not None:
            ran.append(solver.name)
            assert_close(found[0], want, k=p.taps + 8, dtype=p.dtype, vacuous=True)
    assert "naive" in ran
    return ran
