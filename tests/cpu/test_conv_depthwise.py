"""Building blocks of depthwise convolutions against loops: windows and pixels; at every width.

Small integers, so that sums are exact in any order; NaN all around what may be read, so that a lane which should not
have been read shows.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from cpu_tiles import ARGS, FLOATS, WIDTHS, at, integers, run, surrounded, width

from numbaprims.cpu import target
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import (
    load_first,
    scalar,
    splat,
    tile_load,
    tile_store,
    tile_zeros,
)
from numbaprims.cpu.simd.tiles.pixels import pixel_end, pixel_gradient, pixel_window
from numbaprims.cpu.simd.tiles.window import window_end, window_gradient, window_rows, window_spread


def make_window(elem, RT, R, S, SH, SW, W, SPREAD):
    types = ARGS.types(out=elem, x=elem, none=elem, w=elem)
    COUNT = RT * SH * SW if SPREAD else RT

    @range_kernel("test_window", types, spec=(elem, RT, R, S, SH, SW, W, SPREAD))
    def test_window(args, worker, lo, hi):
        if SPREAD:
            sums = window_spread(
                args.x, args.none, args.pitch, args.row, args.rows, args.column, args.columns, args.w, S, 1,
                RT, R, S, SH, SW, W,
            )  # fmt: skip
        else:
            sums = window_rows(
                args.x, args.none, args.pitch, args.row, args.rows, args.column, args.columns, args.w, S, 1, 0,
                RT, R, S, SH, SW, W,
            )  # fmt: skip
        tile_store(args.out, W, sums, COUNT, 1, W)

    return test_window


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1), (1, 2)])
def test_windows_walk_over_a_plane(elem, stride):
    """All corners of a plane that is smaller than a tile, and its middle."""
    (SH, SW), W, RT, R, S = stride, width(elem), 3, 3, 5
    x = surrounded(integers((7, W + 3), elem))
    w = integers((R, S), elem, 1)
    kernel = make_window(elem, RT, R, S, SH, SW, W, 0)
    for row in (-2, 1, 5):
        for column in (-3, 0, W - 2):
            out = np.full((RT, W), np.nan, x.dtype)
            run(kernel, out, x, np.zeros_like(x[0]), w, row=row, rows=7, column=column, columns=W + 3, pitch=W + 3)
            expected = [
                [
                    sum(at(x, row + i * SH + r, column + lane * SW + s) * w[r, s] for r in range(R) for s in range(S))
                    for lane in range(W)
                ]
                for i in range(RT)
            ]
            np.testing.assert_array_equal(out, np.array(expected, x.dtype))


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1), (1, 2)])
def test_windows_spread_over_a_plane(elem, stride):
    (SH, SW), W, RT, R, S = stride, width(elem), 2, 3, 4
    y = surrounded(integers((5, W + 1), elem))
    w = integers((R, S), elem, 1)
    kernel = make_window(elem, RT, R, S, SH, SW, W, 1)
    for row in (-1, 0, 4):
        for column in (-1, 2):
            out = np.full((RT * SH, SW * W), np.nan, y.dtype)
            run(kernel, out, y, np.zeros_like(y[0]), w, row=row, rows=5, column=column, columns=W + 1, pitch=W + 1)
            expected = np.zeros_like(out)
            for i, j in np.ndindex(out.shape):
                for r, s in np.ndindex(R, S):
                    if (i - r) % SH == 0 and (j - s) % SW == 0:
                        expected[i, j] += at(y, row + (i - r) // SH, column + (j - s) // SW) * w[r, s]
            np.testing.assert_array_equal(out, expected)


def make_window_gradient(elem, RT, R, S, SH, SW, W):
    types = ARGS.types(out=elem, x=elem, none=elem, w=elem)
    TAPS = R * S

    @range_kernel("test_window_gradient", types, spec=(elem, RT, R, S, SH, SW, W))
    def test_window_gradient(args, worker, lo, hi):
        sums = window_gradient(
            tile_zeros(elem, TAPS, 1, W), args.x, args.none, args.pitch, args.row, args.rows, args.column, args.columns,
            args.w, W, args.left, RT, R, S, SH, SW,
        )  # fmt: skip
        tile_store(args.out, W, sums, TAPS, 1, W)

    return test_window_gradient


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 2)])
def test_gradient_of_windows(elem, stride):
    """Lanes from `left` on take no part, whatever x holds there."""
    (SH, SW), W, RT, R, S = stride, width(elem), 2, 3, 5
    x, left = integers((6, 2 * W + 3), elem), W - 1
    x[:, 1 + left * SW + S - 1 :] = np.inf
    x = surrounded(x)
    y = integers((RT, W), elem, 2)
    out = np.full((R * S, W), np.nan, x.dtype)
    kernel = make_window_gradient(elem, RT, R, S, SH, SW, W)
    columns = x.shape[1]
    run(kernel, out, x, np.zeros_like(x[0]), y, row=-1, rows=6, column=-1, columns=columns, pitch=columns, left=left)
    expected = np.zeros_like(out)
    for r, s, i, lane in np.ndindex(R, S, RT, left):
        expected[r * S + s, lane] += at(x, i * SH + r - 1, lane * SW + s - 1) * y[i, lane]
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(out, expected)


def make_window_end(elem, RT, NV, W):
    types = ARGS.types(out=elem, x=elem, c=elem)

    @range_kernel("test_window_end", types, spec=(elem, RT, NV, W))
    def test_window_end(args, worker, lo, hi):
        two, three, one = load_first(args.x, 0, W, W), load_first(args.x, W, W, W), load_first(args.x, 2 * W, W, W)
        sums = tile_load(args.x, NV * W, RT, NV, W)
        window_end(
            args.out, args.pitch, args.row, args.rows, args.column, args.columns, sums, two, args.c, args.pitch, three,
            one, 1, NV,
        )  # fmt: skip

    return test_window_end


@pytest.mark.parametrize("elem", FLOATS)
def test_window_end_stays_inside(elem):
    W, RT, NV = width(elem), 3, 2
    sums = integers((RT, NV * W), elem)
    sums.ravel()[: 3 * W] = np.repeat([2, 3, 1], W)
    c = integers((4, W + 5), elem, 1)
    for row in (-1, 0, 2):
        for column in (-2, 0, W):
            out = np.full((6, W + 5), np.nan, c.dtype)
            run(
                make_window_end(elem, RT, NV, W), out[1:], sums, None, None, c,
                row=row, rows=4, column=column, columns=W + 5, pitch=W + 5,
            )  # fmt: skip
            expected = np.full_like(out, np.nan)
            for i, lane in np.ndindex(RT, NV * W):
                p, q = row + i, column + lane
                if 0 <= p < 4 and 0 <= q < W + 5:
                    expected[1 + p, q] = 2 * sums[i, lane] + 3 * c[p, q] + 1
            np.testing.assert_array_equal(out, expected)


def make_pixels(elem, RT, QT, R, S, SH, SW, W, SPREAD):
    types = ARGS.types(out=elem, x=elem, none=elem, w=elem, c=elem)
    HIGH, WIDE = (RT * SH, QT * SW) if SPREAD else (RT, QT)

    @range_kernel("test_pixels", types, spec=(elem, RT, QT, R, S, SH, SW, W, SPREAD))
    def test_pixels(args, worker, lo, hi):
        sums = pixel_window(
            args.x, args.none, args.columns * args.pitch, args.pitch, args.row, args.rows, args.column, args.columns,
            args.left, args.w, SPREAD, RT, QT, R, S, SH, SW, W,
        )  # fmt: skip
        two = splat(scalar(2, elem), W)
        pixel_end(
            args.out, WIDE * args.pitch, args.pitch, 0, HIGH, 0, WIDE - 1, args.left, sums, two, args.c,
            WIDE * args.pitch, args.pitch, two, two, 1, WIDE,
        )  # fmt: skip

    return test_pixels


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("spread", [0, 1])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)])
def test_windows_of_pixels(elem, spread, stride):
    """out = 2 sums + 2 c + 2; the last pixel of each row and the channels that are not there stay as they were."""
    (SH, SW), W, RT, QT, R, S = stride, width(elem), 2, 3, 3, 2
    channels = W - 1
    x = surrounded(integers((4, 5, channels), elem))
    w = np.zeros((R, S, W), FLOATS[elem])
    w[..., :channels] = integers((R, S, channels), elem, 1)
    high, wide = (RT * SH, QT * SW) if spread else (RT, QT)
    c = surrounded(integers((high, wide, channels), elem, 2))
    kernel = make_pixels(elem, RT, QT, R, S, SH, SW, W, spread)
    for row, column in ((-1, -1), (1, 0), (3, 4)):
        out = np.full((high, wide, channels), np.nan, x.dtype)
        none = np.zeros(W, x.dtype)
        run(kernel, out, x, none, w, c, row=row, rows=4, column=column, columns=5, pitch=channels, left=channels)
        expected = np.full_like(out, np.nan)
        for i, j in np.ndindex(high, wide - 1):
            total = np.zeros(channels, x.dtype)
            for r, s in np.ndindex(R, S):
                if not spread:
                    total += at(x, row + i * SH + r, column + j * SW + s) * w[r, s, :channels]
                elif (i - r) % SH == 0 and (j - s) % SW == 0:
                    total += at(x, row + (i - r) // SH, column + (j - s) // SW) * w[r, s, :channels]
            expected[i, j] = 2 * total + 2 * c[i, j] + 2
        np.testing.assert_array_equal(out, expected)


def make_pixel_gradient(elem, QT, R, S, SW, W):
    types = ARGS.types(out=elem, x=elem, none=elem, w=elem)
    TAPS = R * S

    @range_kernel("test_pixel_gradient", types, spec=(elem, QT, R, S, SW, W))
    def test_pixel_gradient(args, worker, lo, hi):
        sums = pixel_gradient(
            tile_zeros(elem, TAPS, 1, W), args.x, args.none, args.columns * args.pitch, args.pitch, args.row, args.rows,
            args.column, args.columns, args.w, args.pitch, args.left, QT, R, S, SW,
        )  # fmt: skip
        tile_store(args.out, W, sums, TAPS, 1, W)

    return test_pixel_gradient


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("SW", [1, 2])
def test_gradient_of_pixels(elem, SW):
    W, QT, R, S = width(elem), 3, 3, 2
    channels = W - 1
    x, y = surrounded(integers((3, 5, channels), elem)), surrounded(integers((QT, channels), elem, 1))
    out = np.full((R * S, W), np.nan, x.dtype)
    kernel = make_pixel_gradient(elem, QT, R, S, SW, W)
    none = np.zeros(W, x.dtype)
    run(kernel, out, x, none, y, row=-1, rows=3, column=-1, columns=5, pitch=channels, left=channels)
    expected = np.zeros_like(out)
    for r, s, j in np.ndindex(R, S, QT):
        expected[r * S + s, :channels] += at(x, r - 1, j * SW + s - 1) * y[j]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.skipif(target.current().arch != "x86_64", reason="names of x86 targets")
@pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="is one of them")
@pytest.mark.parametrize("name", WIDTHS)
def test_widths(name):
    """The same with the vectors of narrower targets."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | WIDTHS[name], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:]
