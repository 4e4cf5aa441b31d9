"""Convolution by spectra of tiles: both tile sizes, windows up to the largest, and how large its error is."""

import numpy as np
import pytest
from conv_cases import Case

import numbaprims
from numbaprims.cpu import target as _target
from numbaprims.cpu.conv.fft import Fft, FftWeight
from numbaprims.dispatch.explain import problem_of


@pytest.mark.parametrize(
    "case",
    [
        Case((1, 20, 31, 45), (35, 20, 5, 5), padding=2),
        Case((2, 17, 40, 33), (9, 17, 13, 13), padding=6),
        Case((1, 6, 50, 70), (4, 3, 29, 29), padding=14, groups=2),
        Case((1, 5, 60, 9), (6, 5, 29, 1), padding=(3, 0)),
        Case((3, 4, 8, 8), (3, 4, 7, 8), padding=(6, 7)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_error_is_that_of_short_sums(case, dtype, layout):
    """The error grows with the logarithm of the tile and the square root of the channels: below a thousandth of a
    percent of the largest output in float32, whatever the window."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(case.x).astype(dtype), rng.standard_normal(case.w).astype(dtype)
    expected = case.expected("forward", x.astype(np.longdouble), w.astype(np.longdouble))
    given = x if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
    y = numbaprims.conv(given, w, algorithm="fft", layout=layout, **case.window)
    y = y if layout == "NCHW" else np.moveaxis(y, -1, 1)
    assert np.abs(expected).max() > 1
    assert np.abs(y - expected).max() <= 8 * np.finfo(dtype).eps * np.abs(expected).max()
    dy = rng.standard_normal(y.shape).astype(dtype)
    back = case.expected("data", dy.astype(np.longdouble), w.astype(np.longdouble))
    dx = numbaprims.conv_backward_data(dy, w, x.shape, algorithm="fft", **case.window)
    assert np.abs(dx - back).max() <= 8 * np.finfo(dtype).eps * np.abs(back).max()
    dw = case.expected("weight", dy.astype(np.longdouble), x.astype(np.longdouble))
    given = [a if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (dy, x)]
    got = numbaprims.conv_backward_weight(*given, w.shape, algorithm="fft_weight", layout=layout, **case.window)
    assert np.abs(got - dw).max() <= 12 * np.finfo(dtype).eps * np.abs(dw).max()


def test_both_tiles_give_the_same():
    from numbaprims.cpu.conv.fft import solvers

    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((1, 8, 40, 40)).astype(np.float32), rng.standard_normal((8, 8, 7, 7)).astype(np.float32)
    problem, target = problem_of("conv", x, w, padding=3), _target.current()
    configs = list(Fft().configs(problem, target))
    assert {config["n"] for config in configs} == set(solvers.SIZES)
    results = []
    for config in configs:
        out = np.full((1, 8, 40, 40), np.nan, np.float32)
        launch = Fft().bind(problem, target, config)
        launch(out, x, w, None, None, None, None, f0=1.0)
        results.append(out)
        assert Fft().workspace(problem, target, config) > 4 * 2 * 8 * 8 * config["n"] ** 2  # the filters' spectra
    for out in results[1:]:
        np.testing.assert_allclose(out, results[0], atol=1e-5 * np.abs(results[0]).max())


@pytest.mark.parametrize("n", [16, 32])
def test_gradient_in_blocks_of_tiles(n):
    """One block keeps the sums of a square at a time, several those of all squares; either way the epilogue comes once,
    and no thread count changes a bit."""
    rng = np.random.default_rng(n)
    dy = rng.standard_normal((3, 2 * 37, 21, 40)).astype(np.float32)
    x = rng.standard_normal((3, 2 * 19, 23, 41)).astype(np.float32)
    c = rng.standard_normal((2 * 37, 19, 5, 6)).astype(np.float32)
    window = {"padding": (1, 2), "groups": 2}
    case = Case(x.shape, c.shape, **window)
    solver, target = FftWeight(), _target.current()
    wide = {"alpha": 0.5, "beta": -2.0, "c": c}
    problem = problem_of("conv_backward_weight", dy, x, c.shape, **wide, **window)
    assert solver.why_not(problem, target) is None
    want = 0.5 * case.expected("weight", dy.astype(np.float64), x.astype(np.float64)) - 2.0 * c
    for tiles in (200, 7, 1):
        config, found = {"n": n, "tiles": tiles}, []
        assert solver.is_valid(problem, target, config)
        for threads in (1, 3):
            out = np.full(c.shape, np.nan, np.float32)
            with numbaprims.config(threads=threads):
                solver.bind(problem, target, config)(out, dy, x, c, None, None, None, 0.5, -2.0)
            found.append(out)
        assert np.abs(found[0] - want).max() <= 1e-5 * np.abs(want).max()
        assert np.array_equal(*found)
        assert solver.workspace(problem, target, config) > 4 * n * n * 16 * 32
    assert not solver.is_valid(problem, target, {"n": n, "tiles": 0})
    assert not solver.is_valid(problem, target, {"n": 8, "tiles": 4})


def test_the_gradient_is_chosen_where_windows_are_large():
    for size, solver in ((11, "fft_weight"), (7, "fft_weight"), (3, "winograd_weight")):
        dy, x = np.empty((1, 64, 56, 56), np.float32), np.empty((1, 64, 56, 56), np.float32)
        found = numbaprims.explain("conv_backward_weight", dy, x, (64, 64, size, size), padding=size // 2)
        assert found.chosen.solver == solver


def test_refusals():
    x = np.ones((1, 2, 40, 40), np.float32)
    for change, words in (
        ({"stride": 2}, "stride 1"),
        ({"dilation": 2}, "stride 1 and dilation 1"),
    ):
        row = numbaprims.explain("conv", x, np.ones((2, 2, 5, 5), np.float32), **change)["fft"]
        assert words in row.refusal
    assert "too small" in numbaprims.explain("conv", x, np.ones((2, 2, 30, 30), np.float32))["fft"].refusal
    row = numbaprims.explain("conv_backward_weight", x[:, :, :11, :11], x, (2, 2, 30, 30))["fft_weight"]
    assert "too small" in row.refusal
    assert "direction forward" in numbaprims.explain("conv", x, np.ones((2, 2, 5, 5), np.float32))["fft_weight"].refusal
    with numbaprims.config(accuracy="high"):
        assert "accuracy" in numbaprims.explain("conv", x, np.ones((2, 2, 5, 5), np.float32))["fft"].refusal
