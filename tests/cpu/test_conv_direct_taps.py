"""Register tiles of direct convolutions over tables of taps against loops, at every width.

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
    scalar,
    splat,
    store_rows,
)
from numbaprims.cpu.simd.tiles.taps import (
    PLACE,
    grid_end,
    load_phases,
    load_phases_inside,
    pixels_end,
    tile_taps,
    tile_taps_pixels,
)


def make_phases(elem, PHASES, W):
    types = ARGS.types(out=elem, x=elem)

    @range_kernel("test_phases", types, spec=(elem, PHASES, W))
    def test_phases(args, worker, lo, hi):
        store_rows(args.out, W, load_phases(args.x, args.column, args.columns, PHASES, W))

    return test_phases


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("phases", [1, 2, 3, 4])
def test_phases(elem, phases):
    W = width(elem)
    x = surrounded(integers(phases * W + 3, elem))
    for column in (-phases - 1, 0, 4):
        out = np.full((phases, W), np.nan, x.dtype)
        run(make_phases(elem, phases, W), out, x, column=column, columns=x.size)
        padded = [at(x[None], 0, column + i) for i in range(phases * W)]
        np.testing.assert_array_equal(out, np.array(padded, x.dtype).reshape(W, phases).T)


def make_phases_inside(elem, PHASES, W):
    types = ARGS.types(out=elem, x=elem)

    @range_kernel("test_phases_inside", types, spec=(elem, PHASES, W))
    def test_phases_inside(args, worker, lo, hi):
        store_rows(args.out, W, load_phases_inside(args.x, args.column, PHASES, W))

    return test_phases_inside


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("phases", [1, 2, 3, 4])
def test_phases_inside(elem, phases):
    W = width(elem)
    x = surrounded(integers(phases * W + 3, elem))
    for column in (0, 3):
        out = np.full((phases, W), np.nan, x.dtype)
        run(make_phases_inside(elem, phases, W), out, x, column=column)
        np.testing.assert_array_equal(out, x[column : column + phases * W].reshape(W, phases).T)


def make_taps(elem, MR, NV, W, CROSS):
    types = ARGS.types(out=elem, x=elem, w=elem, c=elem, shifts=elem)

    @range_kernel("test_taps", types, spec=(elem, MR, NV, W, CROSS))
    def test_taps(args, worker, lo, hi):
        sums = tile_taps(args.x, args.places, args.table, args.w, args.left, args.column, MR, NV, W, CROSS)
        two = splat(scalar(2, elem), W)
        grid_end(
            args.out, args.rows * args.columns, args.columns, args.row, args.places, args.pitch, args.rows,
            args.columns, sums, two, args.shifts, args.c, args.rows * args.columns, args.columns, two, 1, NV,
        )  # fmt: skip

    return test_taps


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("filters", [1, 3])
def test_taps_on_a_grid(elem, filters):
    """Pixels of a grid from row to row: columns behind a row, rows behind the last and filters too many are dropped."""
    W, MR, NV, rows, count = width(elem), 3, 3, 2, 5
    columns, pitch = W + 1, W + 3
    x = integers(4 * NV * W, elem)
    taps = np.array([0, 3, pitch, 1, pitch + 2], np.int64)
    w, shifts = integers((count, MR), elem, 1), np.array([2, -1, 5], FLOATS[elem])
    index = np.arange(NV) * W
    places = np.stack([index, index // pitch, index % pitch, 0 * index], axis=1).astype(np.int64)
    c = integers((MR, rows, columns), elem, 2)
    out = np.full((MR, rows, columns), np.nan, x.dtype)
    run(
        make_taps(elem, MR, NV, W, 0), out, x, None, w, c, shifts, row=filters, rows=rows, columns=columns, pitch=pitch,
        left=count, table=taps.ctypes.data, places=places.ctypes.data,
    )  # fmt: skip
    expected = np.full_like(out, np.nan)
    for i, p, q in np.ndindex(filters, rows, columns):
        if p * pitch + q < NV * W:
            total = sum(w[t, i] * x[p * pitch + q + taps[t]] for t in range(count))
            expected[i, p, q] = 2 * total + shifts[i] + 2 * c[i, p, q]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("elem", FLOATS)
def test_taps_across_the_end_of_a_row(elem):
    """The pixels of rows without the columns behind them: the last vector of a tile is read from two rows."""
    W, MR, NV, count = width(elem), 2, 2, 4
    rows, columns = 2, W + W // 2
    pitch = columns + 3
    x = np.full(4 * pitch + W, np.nan, FLOATS[elem])
    x[: 3 * pitch] = integers(3 * pitch, elem)
    taps = np.array([0, 3, pitch, pitch + 2], np.int64)
    w, shifts = integers((count, MR), elem, 1), np.array([2, -1], FLOATS[elem])
    c = integers((MR, rows, columns), elem, 2)
    out = np.full((MR, rows, columns), np.nan, x.dtype)
    # vectors of the 3 W pixels, the one that crosses second in its tile
    index = np.array([0, W])
    row, column = np.divmod(index, columns)
    places = np.stack([row * pitch + column, row, column, np.minimum(columns - column, W)], axis=1).astype(np.int64)
    run(
        make_taps(elem, MR, NV, W, 1), out, x, None, w, c, shifts, row=MR, rows=rows, columns=columns, pitch=columns,
        left=count, table=taps.ctypes.data, places=places.ctypes.data, column=pitch - columns,
    )  # fmt: skip
    expected = np.full_like(out, np.nan)
    for i, p, q in np.ndindex(MR, rows, columns):
        if p * columns + q < NV * W:
            total = sum(w[t, i] * x[p * pitch + q + taps[t]] for t in range(count))
            expected[i, p, q] = 2 * total + shifts[i] + 2 * c[i, p, q]
    np.testing.assert_array_equal(out, expected)
    assert PLACE == places.shape[1]


def make_pixel_taps(elem, MP, NV, W):
    types = ARGS.types(out=elem, x=elem, w=elem, c=elem, shifts=elem)

    @range_kernel("test_pixel_taps", types, spec=(elem, MP, NV, W))
    def test_pixel_taps(args, worker, lo, hi):
        sums = tile_taps_pixels(args.x, args.pitch, args.table, args.w, args.left, MP, NV, W)
        two = splat(scalar(2, elem), W)
        pixels_end(
            args.out, args.columns, args.rows, args.columns, sums, two, args.shifts, args.c, args.columns, two, 1, NV
        )  # fmt: skip

    return test_pixel_taps


@pytest.mark.parametrize("elem", FLOATS)
@pytest.mark.parametrize("pixels, short", [(3, 1), (2, 0)])
def test_taps_of_pixels(elem, pixels, short):
    W, MP, NV, count, step = width(elem), 3, 2, 4, 6
    filters = NV * W - short
    x, taps = integers(64, elem), np.array([0, 5, 2, 17], np.int64)
    w, shifts = integers((count, NV * W), elem, 1), integers(NV * W, elem, 2)
    c = integers((MP, filters), elem, 3)
    out = np.full((MP, filters), np.nan, x.dtype)
    run(
        make_pixel_taps(elem, MP, NV, W), out, x, None, w, c, shifts,
        rows=pixels, columns=filters, pitch=step, left=count, table=taps.ctypes.data,
    )  # fmt: skip
    expected = np.full_like(out, np.nan)
    for i in range(pixels):
        total = sum(x[i * step + taps[t]] * w[t] for t in range(count))
        expected[i] = (2 * total + shifts)[:filters] + 2 * c[i]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.skipif(target.current().arch != "x86_64", reason="names of x86 targets")
@pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="is one of them")
@pytest.mark.parametrize("name", WIDTHS)
def test_widths(name):
    """The same with the vectors of narrower targets."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | WIDTHS[name], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:]
