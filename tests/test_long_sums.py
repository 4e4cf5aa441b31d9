"""Sums of many terms: every solver adds them in parts of bounded length, so that errors do not grow with the length."""

import numba
import numpy as np
import pytest
from conv_cases import Case
from helpers import assert_exact, caller_array, refused, solver_names, to_float64

import numbaprims
import numbaprims.jitted
from numbaprims.cpu import parts, target
from numbaprims.cpu.conv import long
from numbaprims.dispatch import call

pytestmark = pytest.mark.cpu

TERMS, PIXELS = 96, 150


@pytest.fixture
def short(monkeypatch):
    """Parts so short that tests have many."""
    monkeypatch.setattr(parts, "TERMS", TERMS)
    monkeypatch.setattr(long, "MOST", PIXELS)
    call.forget()
    yield
    call.forget()


def integers(rng, shape, dtype):
    return caller_array(rng.integers(-3, 4, shape).astype(np.float64), dtype)


def refusal(name, solver, *args, **kwargs):
    return numbaprims.explain(name, *args, **kwargs)[solver].refusal


#: It multiplies bytes, whose sums are exact, only.
OF_BYTES = ("dots",)


@pytest.mark.parametrize("solver", [name for name in solver_names("gemm") if name not in OF_BYTES])
def test_products_in_parts_are_exact(solver, short, rng):
    """Whole parts and a rest, batches, epilogues, any strides, one thread and several."""
    taken = 0
    for dtype in ("f16",) if solver == "amx_x4" else ("f32", "f64", "bf16"):
        for m, n, k, lead in (
            (3, 17, 5 * TERMS + 7, ()),
            (20, 18, 2 * TERMS, (2, 3)),
            (1, 40, TERMS + 1, ()),
            (2, 3, 400, ()),
        ):
            a, b = integers(rng, (*lead, m, k), dtype), integers(rng, (*lead, n, k), dtype)
            c, bias = integers(rng, (*lead, m, n), dtype), integers(rng, (n,), dtype)
            for right in (b.swapaxes(-1, -2), np.ascontiguousarray(b.swapaxes(-1, -2))):
                for more in ({}, {"c": c, "alpha": 0.5, "beta": 2.0, "bias": bias, "activation": "abs"}):
                    with numbaprims.config(accuracy="fast"):  # which pieces of float32 ask for
                        if refused("gemm", solver, a, right, **more):
                            continue
                    want = to_float64(a) @ to_float64(right)
                    if more:
                        want = np.abs(0.5 * want + 2.0 * to_float64(c) + to_float64(bias))
                    with numbaprims.config(algorithm={"gemm": solver}, accuracy="fast", threads=1):
                        one = numbaprims.gemm(a, right, **more)
                    with numbaprims.config(algorithm={"gemm": solver}, accuracy="fast", threads=3):
                        assert np.array_equal(numbaprims.gemm(a, right, **more), one)
                    assert_exact(one, want)
                    taken += 1
    assert taken > 3


def test_plans_and_compiled_code_give_the_same_bits(short, rng):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 1000), (1000, 20)))
    dy, x = (rng.standard_normal((3, channels, 9, 20)).astype(np.float32) for channels in (8, 5))

    @numba.njit
    def product(a, b):
        return numbaprims.gemm(a, b)

    want = numbaprims.gemm(a, b)
    assert np.array_equal(product(a, b), want) and np.array_equal(product(a, b), want)
    np.testing.assert_allclose(numbaprims.gemm.plan(b)(a), want, rtol=1e-4, atol=1e-4)
    found = [numbaprims.conv_backward_weight(dy, x, (8, 5, 3, 3), padding=1) for _ in range(2)]
    assert np.array_equal(*found)


#: Solvers of gradients of weights by tiles, and what they multiply.
TILES = {f"weight_gemm_amx{end}": kind for end, kind in (("", "bf16"), ("_x4", "x4"), ("_x3", "x3"), ("_x6", "x6"))}


@pytest.mark.parametrize("direction", ["weight", "bias"])
@pytest.mark.parametrize("solver", solver_names("conv"))
def test_gradients_in_parts(solver, direction, short, rng):
    """Several images in a part, one, slices of one (of rows and of columns), strides and padding."""
    taken = 0
    for shape, kernel, more in (
        ((7, 6, 6, 9), (3, 3), {"padding": 1}),
        ((2, 4, 40, 23), (3, 2), {"padding": (1, 0), "stride": (2, 1), "groups": 2}),
        ((1, 5, 1000), (5,), {"padding": 2, "dilation": 1}),
        ((1, 3, 5, 300), (5, 3), {"padding": (0, 1)}),
        ((2, 8, 30, 20), (3, 3), {"padding": 1, "groups": 8}),
        ((1, 2, 9, 11, 13), (3, 3, 3), {"padding": 1}),
        ((2, 8, 40, 31), (7, 7), {"padding": 3}),
    ):
        groups = more.get("groups", 1)
        case = Case(shape, (8, shape[1] // groups, *kernel), **more)
        x = rng.integers(-3, 4, shape).astype(np.float32)
        w_shape = (8, shape[1] // groups, *kernel)
        y_shape = numbaprims.conv(x, np.zeros(w_shape, np.float32), **more).shape
        dy = rng.integers(-3, 4, y_shape).astype(np.float32)
        if direction == "bias":
            if refusal("conv_backward_bias", solver, dy):
                continue
            want = dy.astype(np.float64).sum((0, *range(2, dy.ndim)))
            for dtype in ("f32", "bf16", "f16"):
                given = caller_array(dy.astype(np.float64), dtype)
                for threads in (1, 3):
                    with numbaprims.config(algorithm={"conv": solver}, threads=threads):
                        assert_exact(numbaprims.conv_backward_bias(given), want)
            taken += 1
            continue
        c = rng.integers(-3, 4, w_shape).astype(np.float32)
        ending = {"alpha": 0.5, "beta": -2.0, "c": c}
        dtype = {"bf16": "bf16", "x4": "f16"}.get(TILES.get(solver, ""), "f32")
        dy, x, ending["c"] = (caller_array(v.astype(np.float64), dtype) for v in (dy, x, c))
        with numbaprims.config(accuracy="fast"):
            if refused("conv", solver, dy, x, w_shape, function="conv_backward_weight", **more, **ending):
                continue
        want = 0.5 * case.expected("weight", dy.astype(np.float64), x.astype(np.float64)) - 2.0 * c
        found = []
        for threads in (1, 3):
            with numbaprims.config(algorithm={"conv": solver}, threads=threads, accuracy="fast"):
                found.append(to_float64(numbaprims.conv_backward_weight(dy, x, w_shape, **more, **ending)))
        eps = {"f32": 2e-5, "f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
        assert np.abs(found[0] - want).max() <= eps * np.abs(want).max(), (solver, shape)
        assert np.array_equal(*found)
        taken += 1
    if solver == "naive" or solver in TILES and direction == "weight":
        assert taken == 7


@pytest.mark.parametrize("stem, solver", [(stem, name) for stem in ("gemm", "gemv") for name in solver_names(stem)])
def test_errors_do_not_grow_with_the_length(stem, solver):
    """4e6 equal terms, whose rounding errors all have one sign: before, the definition lost 2 % and `inner` 0.09 %."""
    k = 1 << 22
    a = np.full((2, k), 0.1, np.float32)
    term = float(np.float32(0.1)) ** 2
    for right in (np.full((k, 2), 0.1, np.float32), a.T):
        given = (a if stem == "gemm" else right.T, right if stem == "gemm" else a[0])
        if refusal(stem, solver, *given):
            continue
        with numbaprims.config(algorithm={stem: solver}):
            got = getattr(numbaprims, stem)(*given)
        assert np.abs(got - k * term).max() <= 1e-3 * k * term, (solver, got)
        # four lanes add 2**16 terms of a part in order, which costs 5e-4; wider ones a half or a quarter of them
        if solver != "naive" and target.current().vector_bytes > 16:
            assert np.abs(got - k * term).max() <= 1e-4 * k * term, (solver, got)


def test_many_parts_are_added_pairwise(short):
    """Equal terms, whose rounding errors have one sign: 4200 parts in order lose 3e-5 and more."""
    k = 4200 * TERMS
    a, b = np.full((1, k), 0.1, np.float32), np.full((k, 3), 0.1, np.float32)
    with numbaprims.config(algorithm={"gemm": "naive"}):
        got = numbaprims.gemm(a, b)
    error = np.abs(got / (k * float(np.float32(0.1)) ** 2) - 1).max()
    in_order = np.cumsum(np.full(4200, got[0, 0] / np.float32(4200), np.float32))[-1] / got[0, 0] - 1
    assert error < 5e-6 and abs(in_order) > 3 * error


@pytest.mark.parametrize("op", ["sum", "mean", "norm1", "norm2", "sum_square", "log_sum", "logsumexp", "var"])
def test_rows_that_vectors_do_not_lie_along(op, rng):
    """Reversed, with gaps, one element for all of a row, and through any strides: by default and by `naive`."""
    n = 1 << 22
    x = rng.random(n, np.float32) + np.float32(0.5)
    equal = np.broadcast_to(np.float32(0.7), (n,))
    for given in (x[::-1], x[::4], x, *[equal] * (op != "var"), np.broadcast_to(x[: n >> 8], (256, n >> 8))):
        values = given.astype(np.float64)
        want = numbaprims.reduce(values, op)
        bound = 2.0**-24 * (n / 16384 + 600) * (1.0 if op.startswith("log") else want)
        for algorithm in ({}, {"reduce": "naive"}):
            with numbaprims.config(algorithm=algorithm):
                assert abs(float(numbaprims.reduce(given, op)) - want) <= bound, (op, given.strides, algorithm)


@pytest.mark.slow
def test_three_hundred_million_ones():
    row = np.ones(300_000_000, np.float32)
    a = np.broadcast_to(row, (2, row.size))
    assert (numbaprims.gemm(a, a.T) == row.size).all()
    assert (numbaprims.gemv(a, row) == row.size).all()
