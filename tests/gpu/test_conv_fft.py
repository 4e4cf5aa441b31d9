"""Fourier convolution on a GPU: spectra against numpy.fft, every direction, layout and form against the definition."""

import dataclasses

import numpy as np
import pytest
from conv_cases import FUNCTIONS, Case, amplification, arguments, from_layout, operand_layouts, refused, to_layout
from helpers import assert_close, from_float64, in_library, to_float64
from ptx_emulator import launch

import numbaprims
from numbaprims import arrays
from numbaprims.device_arrays import DeviceLibrary
from numbaprims.dispatch import registry
from numbaprims.gpu.conv import SOLVERS
from numbaprims.gpu.conv.fft import Fft
from numbaprims.gpu.conv.fft.spectra import make_spectra
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.target import A100, H200
from numbaprims.ops.conv import PROBLEMS
from numbaprims.reference import conv as reference

FFT = Fft()


def pairs(tile):
    """The pairs of a real spectrum, as tile.py orders them: (re, im) of each."""
    n = len(tile)
    z = np.fft.fft(np.fft.rfft(tile, axis=1), axis=0)
    found = np.empty((n * n // 2, 2))
    for begin, column in ((0, z[:, 0]), (n // 2, z[:, n // 2])):
        found[begin] = column[0].real, column[n // 2].real
        inner = column[1 : n // 2]
        found[begin + 1 : begin + n // 2] = np.stack([inner.real, inner.imag], 1)
    inner = z[:, 1 : n // 2].T.reshape(-1)
    found[n:] = np.stack([inner.real, inner.imag], 1)
    return found


def written(re, im, form, role, n):
    """What is written for pairs: [pair, part of the depth, part of the width]."""
    real = np.isin(np.arange(len(re)), (0, n // 2))
    nothing = np.zeros_like(re)
    if role == "wide":
        re, im = re / n**2, im / n**2
    if form == "four":
        if role == "plain":
            return np.stack([re, im], 1)[..., None]
        rows = np.where(real, (re, nothing), (re, -im)), np.where(real, (nothing, im), (im, re))
        return np.stack(rows, 0).transpose(2, 0, 1)
    if role == "plain":
        return np.where(real, (nothing, im, -re), (re + im, re, im)).T[..., None]
    return np.where(real, (nothing, im, re), (re, -im - re, re - im)).T[..., None]


@pytest.mark.parametrize(
    "n, form, role, order, lanes",
    [(16, "four", "plain", "channels", "items"), (16, "three", "plain", "channels", "pixels"),
     (16, "four", "wide", "tiles", "pixels"), (32, "three", "wide", "tiles", "pixels")],
)  # fmt: skip
def test_spectra(rng, n, form, role, order, lanes):
    """Tiles that overlap, with padding before them and less than a tile behind; slices begin at any tile."""
    channels, images, size, pad, step, part = 3, 2, (21, 18), (3, 2), (9, 8), (n - 1, n - 2)
    grid, first, tiles = (2, 2), 1, 7
    x = rng.standard_normal((images, channels, *size)).astype(np.float32)
    depths, widths = (2 if form == "four" else 3), (2 if (form, role) == ("four", "wide") else 1)
    shape = (n * n // 2, depths, widths, *((channels, tiles) if order == "tiles" else (tiles, channels)))
    got = np.full(shape, np.nan, np.float32)
    steps = [stride // 4 for stride in got.strides]
    if order == "channels":
        steps[3:] = steps[:2:-1]
    kernel = make_spectra("f32", "f32", n, form, role, order, lanes)
    items = channels * tiles
    launch(
        kernel, -(-items // (16 if n == 16 else 8)), kernel.threads, got, x, items, shape[4], first, *grid, *step, *pad,
        *part, *size, channels, 1, 1, 0, 0, 0, 0, *(stride // 4 for stride in x.strides[:2]), 0,
        *(stride // 4 for stride in x.strides[2:]), steps[0], 0, *steps[3:], steps[1], steps[2],
    )  # fmt: skip
    got = got if order == "tiles" else got.swapaxes(3, 4)
    wide = np.zeros((images, channels, 64, 64))
    wide[:, :, pad[0] : pad[0] + size[0], pad[1] : pad[1] + size[1]] = x
    for tile in range(tiles):
        image, (row, column) = (tile + first) // 4, divmod((tile + first) % 4, 2)
        corner = row * step[0], column * step[1]
        for channel in range(channels):
            seen = np.zeros((n, n))
            seen[: part[0], : part[1]] = wide[
                image, channel, corner[0] : corner[0] + part[0], corner[1] : corner[1] + part[1]
            ]
            want = written(*pairs(seen).T, form, role, n)
            np.testing.assert_allclose(got[..., channel, tile], want, atol=2e-6 * n * np.abs(want).max())


def compare(case, direction, layout="NCHW", dtype="f32", config=None):
    """One call against the definition, within the bound that the tests of all solvers set; gives the workspace.  With a
    config, which the public function would choose itself, the solver is bound by hand."""
    rng = np.random.default_rng(7)
    first, second = (from_float64(rng.standard_normal(shape), dtype) for shape in case.operand_shapes(direction))
    values = [to_float64(z, dtype) for z in (first, second)]
    expected = case.expected(direction, *values)
    layouts = operand_layouts(direction, layout)
    a, b = (to_device(in_library(to_layout(z, of), dtype)) for z, of in zip((first, second), layouts, strict=True))
    places, window = arguments(case, direction, layout)
    result = "NCHW" if direction == "weight" else layout
    problem, target = PROBLEMS[FUNCTIONS[direction]](a, b, *places, **window), registry.target("emulated")
    if config is None:
        config = next(iter(FFT.configs(problem, target)))
        got = getattr(numbaprims, FUNCTIONS[direction])(a, b, *places, algorithm="fft", **window)
    else:
        assert FFT.is_valid(problem, target, config)
        got = to_device(in_library(from_float64(np.full(to_layout(expected, result).shape, np.nan), dtype), dtype))
        FFT.bind(problem, target, config)(*(arrays.enter(z, "z")[0] for z in (got, a, b)), f0=1.0)
    sums = case.sums(direction)
    largest = np.abs(values[0]).max() * np.abs(values[1]).max() * np.sqrt(sums)
    got = from_layout(got.to_host(), result)
    assert_close(got, expected, k=amplification("fft") * sums, dtype=dtype, max_abs=largest / 8)
    return FFT.workspace(problem, target, config)


IN_GROUPS = Case((2, 4, 14, 25), (6, 2, 5, 4), padding=((2, 1), (0, 3)), groups=2)


@pytest.mark.parametrize(
    "direction, layout",
    [("forward", "NCHW"), ("forward", "NHWC"), ("data", "NCHW"), ("data", "NHWC"), ("weight", "NCHW")],
)
def test_directions(gpu, direction, layout):
    """Groups, unequal padding, windows that are not square; more than one block of items, the last not full.  Of the
    weight's gradient with channels last, see the mutants."""
    compare(IN_GROUPS, direction, layout)


@pytest.mark.parametrize("direction", ["forward", "weight"])
def test_three_products(gpu, direction):
    """Tiles of 32, and a window that leaves 4 results of a tile; three products for a complex one."""
    case = Case((1, 3, 30, 36), (5, 3, 29, 3), padding=(9, 1)) if direction == "forward" else Case(
        (2, 3, 9, 14), (5, 3, 3, 5), padding=1
    )  # fmt: skip
    compare(case, direction, config={"n": 32 if direction == "forward" else 16, "form": "three", "gemm": "tiled"})


def test_lines(gpu):
    """One dimension: images of one row."""
    compare(Case((2, 3, 40), (4, 3, 6), padding=2), "forward", config={"n": 16, "form": "four", "gemm": "tiled"})


@pytest.mark.parametrize("direction", ["forward", "weight"])
def test_slices(gpu, monkeypatch, direction):
    """Tiles in slices, the last one shorter; sums over them add up.  No more memory is asked for than was announced."""
    asked = []
    real = DeviceLibrary.scratch

    def scratch(self, nbytes):
        asked.append(nbytes)
        return real(self, nbytes)

    monkeypatch.setattr(DeviceLibrary, "scratch", scratch)
    monkeypatch.setattr("numbaprims.gpu.conv.transformed.SLICE", 8)
    monkeypatch.setattr("numbaprims.gpu.conv.transformed.MOST_WORKSPACE", 1 << 16)
    # 12 tiles: 8 and 4
    case = dataclasses.replace(IN_GROUPS, x=(3, *IN_GROUPS.x[1:]))
    needed = compare(case, direction, config={"n": 16, "form": "four", "gemm": "tiled"})
    assert sum("_plain_" in launched.entry for launched in gpu.launches) == 2
    assert sum(asked) == needed


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
def test_depth(gpu, direction):
    """Three dimensions: taps along the first are more channels, its stride and dilation planes that are left out."""
    window = (
        {"padding": (2, 1, 1)}
        if direction == "data"
        else {"padding": (2, 1, 1), "stride": (2, 1, 1), "dilation": (2, 1, 1)}
    )
    compare(
        Case((2, 4, 5, 6, 15), (6, 2, 3, 3, 4), groups=2, **window), direction,
        config={"n": 16, "form": "four", "gemm": "tiled"},
    )  # fmt: skip


def test_half_precision(gpu):
    """Spectra are float32."""
    compare(Case((2, 3, 13, 9), (5, 3, 5, 5), padding=2), "forward", dtype="f16")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_ending(gpu, layout):
    """alpha, beta c into c itself, bias of each group and an activation."""
    rng = np.random.default_rng(8)
    case = IN_GROUPS
    x, w, c, bias = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.w, case.y(), case.w[:1]))
    old = to_device(to_layout(c, layout))
    ending = {"alpha": -0.5, "beta": 2.0, "activation": ("leaky_relu", {"negative_slope": 0.25})}
    numbaprims.conv(
        to_device(to_layout(x, layout)), to_device(w), to_device(bias), c=old, out=old, layout=layout, algorithm="fft",
        **ending, **case.window,
    )  # fmt: skip
    expected = reference.finish(case.expected("forward", x.astype(float), w), c=c, bias=bias, **ending)
    assert_close(from_layout(old.to_host(), layout), expected, k=8 * 60, max_abs=30.0)


def test_plans(gpu):
    """Spectra of the filters are made once."""
    rng = np.random.default_rng(9)
    x, w = (to_device(rng.standard_normal(s).astype(np.float32)) for s in (IN_GROUPS.x, IN_GROUPS.w))
    plan = numbaprims.conv.plan(IN_GROUPS.x, w, algorithm="fft", **IN_GROUPS.window)
    plain = numbaprims.conv(x, w, algorithm="fft", **IN_GROUPS.window)
    np.testing.assert_array_equal(plan(x).to_host(), plain.to_host())
    gpu.launches.clear()
    np.testing.assert_array_equal(plan(x).to_host(), plain.to_host())
    assert not [launched.entry for launched in gpu.launches if "_wide_" in launched.entry]


def test_not_a_number(gpu):
    """NaN and infinities reach the results whose tile they are in, and no others."""
    x, w = np.ones((1, 1, 12, 40), np.float32), np.ones((1, 1, 5, 5), np.float32)
    x[0, 0, 3, 2] = np.nan
    got = numbaprims.conv(to_device(x), to_device(w), algorithm="fft").to_host()
    assert np.isnan(got[0, 0, :4, :3]).all()
    np.testing.assert_allclose(got[..., 24:], 25.0, rtol=1e-6)


def test_refusals(gpu):
    x, w = (np.zeros(s, np.float32) for s in ((1, 4, 40, 40), (4, 4, 5, 5)))

    def why(x, w, **window):
        return refused("fft", "forward", to_device(x), to_device(w), **window)

    assert why(x, w) is None
    assert "stride 1" in why(x, w, stride=2)
    assert "dilation 1" in why(x, w, dilation=2)
    assert "too small for windows of 30 x 1" in why(x, np.zeros((4, 4, 30, 1), np.float32))
    assert "a sum" in numbaprims.explain("conv_backward_bias", to_device(x))["fft"].refusal
    with numbaprims.config(accuracy="high"):
        assert "accuracy 'high'" in why(x, w)
    many = [np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), s, (0,) * 4) for s in
            ((1, 4096, 40, 40), (4096, 4096, 5, 5))]  # fmt: skip
    assert "2 GiB" in FFT.why_not(PROBLEMS["conv"](*many), H200)


def test_choice():
    """Large windows go to it by the formulas, small ones do not; small images take small tiles."""

    def problem(x, w, **window):
        shapes = [(s, tuple(4 * int(np.prod(s[i + 1 :])) for i in range(4))) for s in (x, w)]
        a, b = (np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), *of) for of in shapes)
        return PROBLEMS["conv"](a, b, **window)

    def best(p, target):
        able = [solver for solver in SOLVERS if solver.why_not(p, target) is None]
        return min(able, key=lambda solver: solver.estimate(p, target)).name

    for target in (A100, H200):
        assert best(problem((32, 64, 56, 56), (64, 64, 9, 9), padding=4), target) == "fft"
        assert best(problem((32, 64, 56, 56), (64, 64, 3, 3), padding=1), target) != "fft"
        assert best(problem((1, 4, 8, 8), (4, 4, 5, 5), padding=2), target) != "fft"
    large = problem((16, 64, 224, 224), (64, 64, 13, 13), padding=6)
    configs = list(FFT.configs(large, H200))
    assert configs[0]["n"] == 32 and all(FFT.is_valid(large, H200, config) for config in configs)
    assert next(iter(FFT.configs(problem((1, 64, 14, 14), (64, 64, 5, 5), padding=2), H200)))["n"] == 16
