"""Windows: every solver against the definition, the definition against torch."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from helpers import has_module, to_float64
from window_cases import FLOATS, LAYOUTS, check_backward, check_forward, make, run, values

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.windows import SOLVERS, channels, disjoint, maxima
from numbaprims.reference import pooling as reference
from numbaprims.reference.convert import from_float64

pytestmark = pytest.mark.cpu

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
    ((2,), 3, 2, 0, {"ceil": True}),  # the only window reaches beyond
    ((2, 9), 3, 2, 0, {"ceil": True}),
]
OPS = [("max", {}), ("max", {"indices": "i64"}), ("avg", {}), ("avg", {"count_include_pad": False}), ("lp", {"p": 2.0}),
       ("lp", {"p": 1.0}), ("lp", {"p": 3.0})]  # fmt: skip
#: Those that meet every shape.
ALL = ({"indices": "i64"}, {"count_include_pad": False})
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


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradient_of_the_mean_of_planes(dtype, rng):
    """Planes of few elements, as many at a time as a vector has lanes and what is left, and of more; any workers."""
    whole = next(each for each in SOLVERS if each.name == "whole")
    for size in ((7, 7), (3, 1), (9, 9)):
        p = make("avg", size, c=21, out=1, dtype=dtype)
        check_backward(p, rng, "channels_first", [whole, SOLVERS[-1]])
        p, dy = dataclasses.replace(p, direction="backward"), values(p, rng, (2, 21, 1, 1))
        one, three = (run(whole, p, "channels_first", threads, dy=dy)[0] for threads in (1, 3))
        np.testing.assert_array_equal(one, three)


def test_places_outside_of_a_plane_are_left_out(rng):
    p = dataclasses.replace(make("max", (4, 4), 2, indices="i64"), direction="backward")
    dy = np.ones((2, 3, 2, 2), np.float32)
    for solver, bad in itertools.product(SOLVERS[1:], (-1, 16, 2**40)):
        found = run(solver, p, "channels_first", dy=dy, indices=np.full(dy.shape, bad))
        assert found is None or not found[0].any()
    assert math.prod(p.out) == 4


@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_what_is_asked_for_changes_nothing(rng, as_cpu, kernel, stride, padding):
    """Of rows that no cache holds, where a core gains by it; behind the last ones too."""
    x = rng.standard_normal((3, 70, 28, 28)).astype(np.float32)
    words = {"stride": stride, "padding": padding}

    def found():
        y, places = numbaprims.max_pool(x, kernel, return_indices=True, **words)
        forward = numbaprims.max_pool(x, kernel, **words), numbaprims.avg_pool(x, kernel, **words)
        return *forward, numbaprims.max_pool_backward(y, None, kernel, indices=places, size=x.shape[2:], **words)

    machine = dataclasses.replace(target.current(), l2=1 << 16, l3=1 << 18)
    as_cpu(dataclasses.replace(machine, measured=machine.rates._replace(ahead=0)))
    want = found()
    as_cpu(dataclasses.replace(machine, measured=machine.rates._replace(ahead=4096)))
    for a, b in zip(found(), want, strict=True):
        np.testing.assert_array_equal(a, b)
