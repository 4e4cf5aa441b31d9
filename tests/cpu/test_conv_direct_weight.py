"""The direct weight gradient: its tiles against loops, at every width, and whole gradients against the definition."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from conv_cases import Case
from helpers import assert_exact, exact_integers, from_float64, in_library, nan_filled, to_float64

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.conv.direct.weight_layout import Gradient
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import Arguments, lanes, store, tile_load, tile_store
from numbaprims.cpu.simd.tiles.taps_gradient import PIXELS, load_wide_bits, tile_inner_taps, tile_sums
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of

ARGS = Arguments(
    arrays=("out", "y", "x"), ints=("pixels", "whole", "count", "offsets", "gap", "y_step", "v_step", "bits")
)
FLOATS = {"f32": np.float32, "f64": np.float64}
WIDTHS = {
    "avx2": {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""},
    "sse": {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""},
}


def width(elem):
    return lanes(elem, target.current().vector_bytes)


def integers(shape, elem, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(FLOATS[elem])


def run(kernel, *arrays, **ints):
    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [array.ctypes.data for array in arrays]
    for name, value in ints.items():
        words[ARGS.slot(name)] = value
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)(words.ctypes.data, 0, 0, 1)


def make_inner(elem, MR, NT, W):
    @range_kernel("test_inner_taps", ARGS.types(out=elem, y=elem, x=elem), spec=(elem, MR, NT, W))
    def test_inner_taps(args, worker, lo, hi):
        sums = tile_inner_taps(
            args.y, args.y_step, args.v_step, args.x, args.pixels, args.whole, args.count, args.offsets, args.gap,
            MR, NT, W,
        )  # fmt: skip
        tile_store(args.out, NT * W, sums, MR, NT, W)

    return test_inner_taps


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("whole", [0, 1, 3])
def test_inner_products_over_pixels(elem, whole):
    """Vectors in one row and vectors over the end of one; lanes of neither take no part, whatever x holds there."""
    W, MR, NT, gap, count = width(elem), 3, 2, 5, 3
    cut, there = 1, W - 1
    offsets = np.array([2, 7], np.int64)
    pixels = np.zeros((count, PIXELS), np.int64)
    pixels[:, 0] = np.arange(count) * 2 * W
    pixels[:, 3:] = (1 << cut) - 1, (1 << there) - (1 << cut)
    x = np.full((count + 1) * 2 * W + 16, np.nan, FLOATS[elem])
    # filters lie `y_step` apart, vectors `v_step`
    y, y_step, v_step = integers(4 * MR * W * count, elem), 2 * W, 2 * MR * W
    expected = np.zeros((MR, NT, W))
    values = integers(x.size, elem, 1)
    read = [
        (i, t, v, lane, pixels[v, 0] + offsets[t] + lane + (0 if v < whole or lane < cut else gap))
        for i, t, v, lane in np.ndindex(MR, NT, count, W)
        if v < whole or lane < there
    ]
    for *_, at in read:
        x[at] = values[at]
    for i, t, v, lane, at in read:
        expected[i, t, lane] += y[i * y_step + v * v_step + lane] * x[at]
    out = np.full((MR, NT, W), np.nan, x.dtype)
    run(
        make_inner(elem, MR, NT, W), out, y, x, pixels=pixels.ctypes.data, whole=whole, count=count,
        offsets=offsets.ctypes.data, gap=gap, y_step=y_step, v_step=v_step,
    )  # fmt: skip
    np.testing.assert_array_equal(out, expected.astype(x.dtype))


def make_sums(elem, COUNT, W):
    @range_kernel("test_tile_sums", ARGS.types(out=elem, y=elem), spec=(elem, COUNT, W))
    def test_tile_sums(args, worker, lo, hi):
        added = tile_sums(tile_load(args.y, W, COUNT, 1, W))
        for i in range(len(added)):
            store(args.out, i * W, added[i])

    return test_tile_sums


@pytest.mark.parametrize("elem", FLOATS)
def test_sums_of_lanes(elem):
    W = width(elem)
    for count in (1, W - 1, W, W + 3, 2 * W + 1):
        y = integers((count, W), elem)
        out = np.full(-(-count // W) * W, np.nan, y.dtype)
        run(make_sums(elem, count, W), out, y)
        np.testing.assert_array_equal(out, np.append(y.sum(1), np.zeros(out.size - count)))


def make_bits(elem, W):
    @range_kernel("test_load_bits", ARGS.types(out=elem, y=elem), spec=(elem, W))
    def test_load_bits(args, worker, lo, hi):
        store(args.out, 0, load_wide_bits(args.y, 1, args.bits, W))

    return test_load_bits


@pytest.mark.parametrize("elem", FLOATS)
def test_lanes_by_bits(elem):
    W = width(elem)
    y = integers(W + 1, elem) + 10
    for bits in (0, 1, 2, (1 << W) - 2, (1 << W) - 1):
        out = np.full(W, np.nan, y.dtype)
        run(make_bits(elem, W), out, y, bits=bits)
        np.testing.assert_array_equal(out, np.where(bits >> np.arange(W) & 1, y[1:], 0))


#: Rows that no vector fills, whole vectors, rows shorter than one; several bands and slices; groups, strides.
CASES = (
    Case((1, 3, 61, 113), (11, 3, 7, 7), stride=2, padding=1),
    Case((3, 3, 37, 64), (20, 3, 3, 3), padding=1),
    Case((2, 2, 40, 99), (9, 2, 5, 3), stride=(1, 4)),
    Case((2, 4, 19, 9), (18, 2, 3, 4), groups=2, padding=2),
    Case((1, 1, 1, 70), (5, 1, 1, 4), stride=3),
)


def gradient(case, dy, x, dtype, **more):
    return numbaprims.conv_backward_weight(
        in_library(dy, dtype), in_library(x, dtype), case.w, algorithm="direct", **case.window, **more
    )


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(case, dtype):
    """Integers bit for bit: into a dense result, and added to c in one whose taps are not neighbours."""
    rng = np.random.default_rng(6)
    dy, x = (exact_integers(s, dtype, 2 * case.sums("weight"), rng) for s in case.operand_shapes("weight"))
    expected = case.expected("weight", dy, x)
    a, b = from_float64(dy, dtype), from_float64(x, dtype)
    out = nan_filled(case.w, dtype)
    gradient(case, a, b, dtype, out=in_library(out, dtype))
    assert_exact(out, expected, dtype)
    c = rng.integers(-3, 4, case.w).astype(np.float64)
    room = nan_filled((*case.w[:3], 2 * case.w[3]), dtype)
    added = in_library(from_float64(c, dtype), dtype)
    gradient(case, a, b, dtype, c=added, beta=2.0, out=in_library(room[..., ::2], dtype))
    assert_exact(room[..., ::2], expected + 2 * c, dtype)
    assert np.isnan(to_float64(room[..., 1::2], dtype)).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_elements_that_no_window_meets_do_not_matter(case):
    """NaN in x where only some taps meet it is in their sums only: lanes that are not there are not multiplied by 0."""
    rng = np.random.default_rng(7)
    dy, x = (rng.integers(-2, 3, s).astype(np.float32) for s in case.operand_shapes("weight"))
    x[..., -1] = np.nan
    expected = case.expected("weight", dy.astype(np.float64), x.astype(np.float64))
    np.testing.assert_array_equal(gradient(case, dy, x, "f32"), expected)


def test_dy_with_gaps_between_its_rows():
    case = CASES[1]
    rng = np.random.default_rng(8)
    dy, x = (rng.integers(-2, 3, s).astype(np.float32) for s in case.operand_shapes("weight"))
    room = np.full((*dy.shape[:3], dy.shape[3] + 3), np.nan, np.float32)
    room[..., : dy.shape[3]] = dy
    want = gradient(case, dy, x, "f32")
    np.testing.assert_array_equal(gradient(case, room[..., : dy.shape[3]], x, "f32"), want)
    np.testing.assert_array_equal(want, case.expected("weight", dy, x))


@pytest.mark.cpu
def test_slices_cover_all_bands():
    for case in CASES:
        first, second = (np.empty(s, np.float32) for s in case.operand_shapes("weight"))
        form = Gradient(
            problem_of("conv_backward_weight", first, second, case.w, **case.window), registry.target("cpu")
        )  # fmt: skip
        assert form.band * (form.bands - 1) + form.last == form.out_size[1] and form.last > 0
        assert (form.slices - 1) * form.slice_bands < form.all_bands <= form.slices * form.slice_bands
    assert form.regions.shared_bytes > 0


def test_refusals():
    x = np.empty((1, 9, 20, 20), np.float32)
    dy = np.empty((1, 4, 18, 18), np.float32)
    with pytest.raises(ValueError, match="up to 8 channels"):
        numbaprims.conv_backward_weight(dy, x, (4, 9, 3, 3), algorithm="direct")
    with pytest.raises(ValueError, match="nothing to compute"):
        numbaprims.conv_backward_weight(dy[:0, :], x[:0, :3], (4, 3, 3, 3), algorithm="direct")


@pytest.mark.skipif(target.current().arch != "x86_64", reason="names of x86 targets")
@pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="is one of them")
@pytest.mark.parametrize("name", WIDTHS)
def test_widths(name):
    """The tiles, and one whole gradient, with the vectors of narrower targets."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", "not f16"]
    done = subprocess.run(command, env=os.environ | WIDTHS[name], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:]
