"""Direct convolutions whose images are cut into several bands, in every form of the tiles, against the definition."""

import numpy as np
import pytest
from conv_cases import Case, arguments, from_layout, operand_layouts, to_layout
from helpers import assert_exact, exact_integers, from_float64, in_library, nan_filled, to_float64

import numbaprims
from numbaprims.cpu.conv.direct import layout
from numbaprims.cpu.conv.direct.layout import Pixels, Planes
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.reference import conv as reference

#: The windows of first layers: rows that no vector fills and rows of whole vectors, bands of one row and of many,
#: a last band that is shorter and one that is larger than the others.
CASES = (
    Case((1, 3, 61, 113), (11, 3, 7, 7), stride=2, padding=1),
    Case((1, 2, 118, 227), (9, 2, 11, 11), stride=4),
    Case((2, 3, 37, 64), (20, 3, 3, 3), padding=1),
    Case((1, 3, 30, 99), (8, 3, 5, 3), stride=(1, 3)),
    Case((1, 4, 19, 70), (18, 2, 3, 4), groups=2, padding=1),
)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bands(case, layout, dtype):
    """Integers bit for bit, with c, bias and activation; out has a gap behind each row."""
    rng = np.random.default_rng(5)
    sums = case.sums("forward")
    x, w = (exact_integers(shape, dtype, 2 * sums, rng) for shape in (case.x, case.w))
    bias, c = rng.integers(-3, 4, case.w[0]).astype(np.float64), rng.integers(-3, 4, case.y()).astype(np.float64)
    expected = np.maximum(reference.finish(case.expected("forward", x, w), bias=bias, c=c, beta=2.0), 0)
    more, window = arguments(case, "forward", layout)
    of = operand_layouts("forward", layout)
    a, b = (in_library(from_float64(to_layout(v, lay), dtype), dtype) for v, lay in zip((x, w), of, strict=True))
    shift = in_library(from_float64(bias, dtype), dtype)
    shape = to_layout(expected, layout).shape
    room = nan_filled((*shape[:2], shape[2] + (layout == "NHWC"), shape[3] + (layout == "NCHW") * 5), dtype)
    out = room[:, :, : shape[2], : shape[3]]
    added = in_library(from_float64(to_layout(c, layout), dtype), dtype)
    numbaprims.conv(
        a, b, shift, *more, c=added, beta=2.0, activation="relu", out=in_library(out, dtype), algorithm="direct",
        **window,
    )  # fmt: skip
    assert_exact(from_layout(out, layout), expected, dtype)
    assert np.isnan(to_float64(room[:, :, : shape[2], shape[3] :], dtype)).all()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("offset", [0, 1])
def test_results_past_the_caches(monkeypatch, dtype, offset):
    """Results of any size where they begin a cache line, and the plain way where they do not."""
    monkeypatch.setattr(layout, "STREAM", 0)
    case = Case((2, 3, 21, 80 + 16 * offset), (11, 3, 3, 3), padding=1)
    rng = np.random.default_rng(9)
    x, w = (exact_integers(shape, dtype, 2 * case.sums("forward"), rng) for shape in (case.x, case.w))
    bias = rng.integers(-3, 4, case.w[0]).astype(np.float64)
    expected = reference.finish(case.expected("forward", x, w), bias=bias)
    a, b, shift = (from_float64(values, dtype) for values in (x, w, bias))
    assert Planes(problem_of("conv", a, b, shift, **case.window), registry.target("cpu")).stream()
    room = np.full(expected.size + 16, np.nan, a.dtype)
    begin = -room.ctypes.data % 64 // room.itemsize + offset
    out = room[begin : begin + expected.size].reshape(expected.shape)
    numbaprims.conv(a, b, shift, out=out, algorithm="direct", **case.window)
    assert_exact(out, expected, dtype)
    assert np.isnan(room[:begin]).all() and np.isnan(room[begin + expected.size :]).all()


def planes(case):
    x, w = (np.empty(shape, np.float32) for shape in (case.x, case.w))
    return Planes(problem_of("conv", x, w, **case.window), registry.target("cpu"))


@pytest.mark.cpu
def test_every_pixel_has_one_lane():
    """Vectors that go on in the next row, in the order of tiles, cover the pixels of a band once."""
    forms = [form for form in map(planes, CASES) if form.cross]
    assert forms
    for form in forms:
        for rows in {form.band, form.last}:
            table = form._places(rows)
            count, whole = table[0, :2]
            assert count == len(table) - 1 and whole % form.NV == 0
            seen = np.zeros((rows + 1, form.out_size[2]), int)
            for at, (_, row, column, lanes) in enumerate(table[1:]):
                seen[row, column : column + form.W] += 1
                if lanes < form.W:
                    assert at >= whole or at % form.NV == form.NV - 1
                    seen[row + 1, : form.W - lanes] += 1
            assert (seen[:rows] == 1).all()


@pytest.mark.cpu
def test_bands_add_up():
    for case in CASES:
        for kind in (Planes, Pixels):
            x, w = (np.empty(shape, np.float32) for shape in (case.x, case.w))
            form = kind(problem_of("conv", x, w, **case.window), registry.target("cpu"))
            assert form.band * (form.bands - 1) + form.last == form.out_size[1]
            assert 0 < form.last < 2 * form.band or form.bands == 1
            assert form.tallest * case.x[0] * form.bands >= form.out_size[1]
