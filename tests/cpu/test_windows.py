"""Windows: every solver against the definition, the definition against torch."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from helpers import assert_close, assert_exact, has_module, to_float64

from numbaprims import settings
from numbaprims.cpu import target
from numbaprims.cpu.windows import SOLVERS, channels, disjoint, maxima
from numbaprims.dtypes import DTYPES
from numbaprims.ops._pooling_problem import PoolingProblem
from numbaprims.reference import pooling as reference
from numbaprims.reference.convert import from_float64

pytestmark = pytest.mark.cpu

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


#: (size, kernel, stride, padding, more)
SHAPES = [
    ((7, 7), 3, 2, 1, {}),
    ((14, 9), 3, 1, 1, {}),
    ((13, 37), 2, 2, 0, {}),
    ((12, 70), (3, 5), (2, 3), (1, 2), {}),
    ((11, 35), 3, 2, ((0, 1), (1, 2)), {}),
    ((6, 8), 2, 5, 0, {}),  # strides with gaps
    ((7, 50), 3, 2, 1, {"ceil": True}),
    ((5, 18), 3, 1, 2, {"dilation": 2}),
    ((3, 2), 5, 1, 2, {}),  # windows larger than the plane
    ((1, 90), (1, 40), (1, 3), (0, 20), {}),  # more taps than are written out
    ((19,), 3, 2, 1, {}),
    ((67,), 2, 1, 0, {"ceil": True}),
    ((4, 5, 6), 2, 2, 1, {}),
    ((5, 3, 40), (2, 3, 3), (1, 2, 2), (1, 1, 0), {}),
    ((6, 6), 6, 6, 0, {}),  # the whole plane
    ((13, 45), 0, None, 0, {"out": (6, 7)}),
    ((7, 5), 0, None, 0, {"out": 1}),
]
OPS = [("max", {}), ("max", {"indices": "i64"}), ("avg", {}), ("avg", {"count_include_pad": False}), ("lp", {"p": 2.0}),
       ("lp", {"p": 1.0}), ("lp", {"p": 3.0})]  # fmt: skip
#: Those that meet every shape.
ALL = ({"indices": "i64"}, {"count_include_pad": False})
LAYOUTS = ("channels_first", "channels_last", "strided")
FAST = {"channels_first": {"planes", "whole"}, "channels_last": {"channels"}, "strided": {"naive"}}


#: Every other shape, and with --slow the others: each kernel takes a while to compile.
HALVES = pytest.mark.parametrize("half", (0, pytest.param(1, marks=pytest.mark.slow)))


def shapes(how, half):
    return SHAPES[half::2] if how in ALL else SHAPES[half : half + 1]


@HALVES
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op, how", OPS, ids=str)
def test_forward(op, how, layout, half, rng):
    for size, kernel, stride, pad, more in shapes(how, half):
        p = make(op, size, kernel, stride, pad, c=5 if layout == "channels_last" else 3, **more, **how)
        assert FAST[layout] & set(check_forward(p, rng, layout))


@HALVES
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op, how", [o for o in OPS if o[1] != {"p": 1.0}], ids=str)
def test_gradient(op, how, layout, half, rng):
    for size, kernel, stride, pad, more in shapes(how, half):
        p = make(op, size, kernel, stride, pad, **more, **how)
        assert FAST[layout] & set(check_backward(p, rng, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ("f64", "f16", "bf16", "i8", "u8"))
def test_types(dtype, layout, rng):
    lanes = 40 if layout == "channels_last" else 3
    for size in ((8, 70),) if layout == "channels_first" else ((9, 11),):
        for op, how in (("max", {"indices": "i64"}), ("avg", {})):
            p = make(op, size, 3, 2, 1, c=lanes, dtype=dtype, **how)
            check_forward(p, rng, layout)
            if dtype in FLOATS:
                check_backward(p, rng, layout)
    if dtype in ("i8", "u8"):  # halves go to the even one
        check_forward(make("avg", (6, 6), 2, 2, 0, c=lanes, dtype=dtype), rng, layout)
        check_forward(make("avg", (6, 6), 6, 6, 0, c=lanes, dtype=dtype), rng, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_infinities_and_ties(layout, rng):
    for size, kernel in (((9, 12), 3), ((9, 70), 3), ((9, 12), (9, 12))):
        for how in ({}, {"indices": "i64"}):
            p = make("max", size, kernel, 2, 0 if kernel != 3 else 1, c=5, **how)
            x = rng.integers(0, 2, (p.n, p.c, *size)).astype(np.float32)
            x[0, 0] = -np.inf
            x[0, 1, 2, 3:7] = x[0, 2] = np.nan
            x[0, 3, 0, 0], x[0, 3, 4, 4] = np.inf, np.nan
            x[1, 1], x[1, 2] = 0.0, -np.inf
            x[1, 2, 5, 5] = np.nan
            check_forward(p, rng, layout, x=x)


@pytest.mark.parametrize("op, how", OPS[:4], ids=str)
def test_definition_is_torchs(op, how, rng):
    if not has_module("torch"):
        pytest.skip("needs torch")
    import torch
    import torch.nn.functional as F

    for size, kernel, stride, pad, more in SHAPES:
        if not isinstance(pad, int) and any(isinstance(side, tuple) for side in pad):
            continue
        p = make(op, size, kernel, stride, pad, dtype="f64", **more, **how)
        if more.get("dilation") and op == "avg" or any(2 * b > k for b, k in zip(p.before, p.kernel, strict=True)):
            continue
        x, rank = torch.tensor(rng.standard_normal((p.n, p.c, *size)), requires_grad=True), len(size)
        indexed = {"return_indices": True} if op == "max" else {}
        if p.adaptive:
            found = getattr(F, f"adaptive_{op}_pool{rank}d")(x, p.out, **indexed)
        else:
            words = {"dilation": p.dilation, **indexed} if op == "max" else how
            pool = getattr(F, f"{op}_pool{rank}d")
            found = pool(x, p.kernel, p.stride, p.before, ceil_mode=more.get("ceil", False), **words)
        y, places = found if op == "max" else (found, None)
        mine, indices = reference.forward(p, x.detach().numpy())
        np.testing.assert_allclose(mine, y.detach().numpy(), rtol=1e-13)
        if op == "max":
            np.testing.assert_array_equal(indices, places)
        dy = torch.tensor(rng.standard_normal(y.shape))
        dx = reference.backward(p, dy.numpy(), x.detach().numpy())
        np.testing.assert_allclose(torch.autograd.grad(y, x, dy)[0].numpy(), dx, rtol=1e-12, atol=1e-15)


def test_lp_is_torchs(rng):
    if not has_module("torch"):
        pytest.skip("needs torch")
    import torch
    import torch.nn.functional as F

    x = torch.tensor(rng.uniform(0.5, 2, (2, 3, 8, 9)), requires_grad=True)
    for power in (1.0, 2.0, 3.5):
        p = make("lp", (8, 9), 3, 2, 0, dtype="f64", p=power)
        y = F.lp_pool2d(x, power, 3, 2)
        dy = torch.tensor(rng.standard_normal(y.shape))
        mine = reference.forward(p, x.detach().numpy())[0]
        np.testing.assert_allclose(mine, y.detach(), rtol=1e-12)
        dx = reference.backward(p, dy.numpy(), x.detach().numpy(), mine)
        np.testing.assert_allclose(dx, torch.autograd.grad(y, x, dy)[0], rtol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_any_number_of_workers_gives_the_same_bits(layout, rng):
    for op, how in OPS[1:3]:
        for back in ("forward", "backward"):
            p = make(op, (40, 70), 3, 2, 1, n=2, c=24, **how)
            p = dataclasses.replace(p, direction=back)
            x, dy = (rng.standard_normal((p.n, p.c, *shape)).astype(np.float32) for shape in (p.size, p.out))
            y, places = reference.forward(p, x)
            inputs = {"x": x}
            if back == "backward":
                inputs = {"dy": dy, "x": x, "y": y, "indices": places}
            for solver in SOLVERS:
                results = [run(solver, p, layout, threads, **inputs) for threads in (1, 2, 3)]
                if results[0] is not None:
                    for one, two, three in zip(*results, strict=True):
                        np.testing.assert_array_equal(one, two)
                        np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_beyond_the_caches_are_written_past_them(dtype, rng):
    """Planes that begin anywhere in a line, of fewer and of more elements than one."""
    cpu = dataclasses.replace(target.current(), l3=0)
    for size in ((3, 5), (9, 13), (16, 16)):
        p = make("max", size, 2, dtype=dtype, indices="i64")
        check_backward(p, rng, "channels_first", SOLVERS[1:], cpu)


@pytest.mark.parametrize("dtype", FLOATS)
def test_windows_around_each_element(dtype, rng):
    """Windows of as many elements as a row has; planes of more than one vector; windows that are wholly in a row."""
    for size, kernel, pad in (((5, 3), 3, 1), ((1, 40), 3, 1), ((6, 9), (1, 5), (0, 2)), ((9, 7), (3, 1), (1, 0))):
        p = make("max", size, kernel, 1, pad, dtype=dtype, indices="i64")
        check_backward(p, rng, "channels_first", SOLVERS[1:])


@pytest.mark.parametrize("dtype", FLOATS)
def test_windows_side_by_side(dtype, rng, monkeypatch):
    """Rows of less than half a vector and of more than one, rows and columns that no window has, any workers."""
    made = []
    for name in ("make_forward", "make_backward"):
        make_kernel = getattr(disjoint, name)
        monkeypatch.setattr(disjoint, name, lambda *words, make=make_kernel: made.append(words) or make(*words))
    few = [((14, 14), 2), ((5, 35), 2)]
    for size, kernel in [*few, ((7, 6), (3, 2)), ((3, 4, 2), (1, 2, 2)), ((70,), 2)] if dtype == "f32" else few:
        for op, how in OPS[::2][:2]:
            p = make(op, size, kernel, dtype=dtype, n=3, c=5, **how)
            before = len(made)
            check_forward(p, rng, "channels_first", SOLVERS[1:])
            x = values(p, rng, (p.n, p.c, *size))
            one, three = (run(SOLVERS[1], p, "channels_first", threads, x=x)[0] for threads in (1, 3))
            assert len(made) == before + 3 and one.tobytes() == three.tobytes()
        exact = [o * k for o, k in zip(p.out, p.kernel, strict=True)]
        check_backward(make("avg", exact, kernel, dtype=dtype, n=3, c=5), rng, "channels_first", SOLVERS[1:])
        check_backward(make("avg", [n + 1 for n in exact], kernel, dtype=dtype), rng, "channels_first", SOLVERS[1:])
        assert len(made) == before + 4


@pytest.mark.parametrize("l3", (0, 1 << 40))
@pytest.mark.parametrize("dtype", ("f32", "bf16", "f64"))
def test_largest_of_windows_side_by_side(dtype, l3, rng, monkeypatch):
    """From x and by places, past the caches and into them; rows of less than a vector, of odd ones, of lines."""
    made = []
    make_kernel = disjoint.make_maxima
    monkeypatch.setattr(disjoint, "make_maxima", lambda *words: made.append(words) or make_kernel(*words))
    cpu = dataclasses.replace(target.current(), l3=l3)
    for size, kernel in (((4, 6), 2), ((6, 36), 2), ((9, 70), (3, 2)), ((4, 256), 2), ((34,), 2)):
        p = make("max", size, kernel, dtype=dtype)
        before = len(made)
        for indices in ("", "i64"):
            check_backward(dataclasses.replace(p, indices=indices), rng, "channels_first", SOLVERS, cpu)
        assert len(made) == before + 2
    x, dy = values(p, rng, (p.n, p.c, 34)), values(p, rng, (p.n, p.c, 17))
    x[0, 0, 3], x[0, 1, 4:6] = from_float64(np.array([np.nan]), dtype)[0], from_float64(np.array([-np.inf]), dtype)[0]
    back = dataclasses.replace(p, direction="backward")
    found, want = (
        run(solver, back, "channels_first", cpu=cpu, x=x, dy=dy)[0]
        for solver in (next(s for s in SOLVERS if s.name == name) for name in ("planes", "naive"))
    )
    assert (found == want).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_largest_of_channels(dtype, rng, monkeypatch):
    """From x, no places: windows that move by an element, over rows together, and others, which add to dx."""
    made = []
    for module in (maxima, channels):
        make_kernel = module.make_maxima
        monkeypatch.setattr(module, "make_maxima", lambda *words, make=make_kernel: made.append(words) or make(*words))
    solver = next(each for each in SOLVERS if each.name == "channels")
    for size, kernel, stride, pad, c in (
        ((9, 5), 3, 1, 1, 37), ((2, 3), 3, 1, 1, 3), ((1, 4), (1, 2), 1, 0, 16), ((7, 6), 5, 1, (2, 4), 5),
        ((40, 3), (2, 3), 1, (0, (2, 0)), 21), ((9, 6), 3, 2, 1, 37), ((8, 8), 2, 2, 0, 64), ((6,), 3, 2, 1, 70),
    ):  # fmt: skip
        p = dataclasses.replace(make("max", size, kernel, stride, pad, n=2, c=c, dtype=dtype), direction="backward")
        x, dy = (from_float64(rng.integers(-2, 3, (2, c, *each)).astype(float), dtype) for each in (size, p.out))
        x[0, 0, 0], x[1, 1, -1] = (from_float64(np.array([each]), dtype)[0] for each in (-np.inf, np.nan))
        places = reference.forward(p, to_float64(x, dtype))[1]
        before = len(made)
        found = [run(solver, p, "channels_last", threads, x=x, dy=dy)[0] for threads in (1, 3)]
        want = run(solver, dataclasses.replace(p, indices="i64"), "channels_last", dy=dy, indices=places)[0]
        np.testing.assert_array_equal(to_float64(found[0], dtype), to_float64(want, dtype))
        np.testing.assert_array_equal(found[0], found[1])
        assert len(made) == before + 2 * (stride == 1 or dtype in ("f32", "f64"))


def test_places_outside_of_a_plane_are_left_out(rng):
    p = dataclasses.replace(make("max", (4, 4), 2, indices="i64"), direction="backward")
    dy = np.ones((2, 3, 2, 2), np.float32)
    for solver, bad in itertools.product(SOLVERS[1:], (-1, 16, 2**40)):
        found = run(solver, p, "channels_first", dy=dy, indices=np.full(dy.shape, bad))
        assert found is None or not found[0].any()
    assert math.prod(p.out) == 4
