"""Results past the caches: the bits of those in them, nothing beside them, wherever lines begin; copies of elements."""

import dataclasses

import numpy as np
import pytest

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.rates import PROFILES
from numbaprims.cpu.resize import solvers


@pytest.mark.parametrize("dtype, mode", [("f", "nearest"), ("d", "nearest"), ("f", "linear")])
def test_lines_past_the_caches(rng, monkeypatch, dtype, mode):
    monkeypatch.setattr(solvers, "PAST", 0)
    for source, result in (((8, 24), (16, 48)), ((3, 7), (9, 48)), ((1, 16), (4, 64)), ((300, 33), (600, 64))):
        x = (rng.random((2, 3, *source)) * 200).astype(dtype)
        apart = np.empty((2, 3, result[0], result[1] + 1), dtype)[..., 1:]  # whose rows are no lines
        want = numbaprims.resize(x, result, mode=mode, out=apart)
        for start in (0, 1, 7, 15):
            whole = np.full(want.size + 64, 7, dtype)
            y = whole[start : start + want.size].reshape(want.shape)
            numbaprims.resize(x, result, mode=mode, out=y)
            np.testing.assert_array_equal(y, want)
            assert (whole[:start] == 7).all() and (whole[start + want.size :] == 7).all()


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_lines_that_are_written_at_once(rng, as_cpu, dtype):
    """Where the third level waits, of rows that are as long as two vectors; not what the second level holds."""
    near = dataclasses.replace(target.current(), l2=1 << 12, measured=PROFILES["sapphirerapids"])
    for source, result in (((8, 28), (16, 56)), ((14, 14), (28, 28)), ((16, 20), (32, 50)), ((5, 16), (15, 16))):
        source, result = ((h, w * 4 // np.dtype(dtype).itemsize) for h, w in (source, result))
        x = (rng.random((2, 3, *source)) * 200).astype(dtype)
        as_cpu(dataclasses.replace(near, l2=1 << 30))
        want = numbaprims.resize(x, result, mode="nearest")
        as_cpu(near)
        problem = numbaprims.explain(numbaprims.resize, x, result, mode="nearest").problem
        for machine in (near, dataclasses.replace(near, l2=1 << 30)):
            program = str(solvers.Lines().program(problem, machine, {}))
            # a line is one vector
            assert ("resize_whole_lines" in program) == (machine is near and near.vector_bytes == 64), program
        for start in (0, 1, 7, 15):
            whole = np.full(want.size + 64, 7, dtype)
            y = whole[start : start + want.size].reshape(want.shape)
            numbaprims.resize(x, result, mode="nearest", out=y)
            np.testing.assert_array_equal(y, want)
            assert (whole[:start] == 7).all() and (whole[start + want.size :] == 7).all()


@pytest.mark.parametrize("rows, ahead", [(20, 20 * 66), (600, 249 * 66)])
def test_lines_of_the_next_tile_are_asked_for(rng, as_cpu, rows, ahead):
    """The same bits; a tile of 64 KiB, or a plane."""
    near = dataclasses.replace(target.current(), l2=1 << 12, measured=PROFILES["sapphirerapids"])
    far = dataclasses.replace(near, measured=PROFILES["znver5"])
    x, found = rng.random((2, 3, rows // 2, 33), np.float32), []
    for machine, asked in ((near, ahead), (far, 0), (dataclasses.replace(near, l2=1 << 30), 0)):
        as_cpu(machine)
        problem = numbaprims.explain(numbaprims.resize, x, (rows, 66), mode="linear").problem
        (block,) = solvers.Lines().program(problem, machine, {}).runs[0].blocks
        assert block.fixed.get("ahead", 0) == asked
        found.append(numbaprims.resize(x, (rows, 66), mode="linear"))
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@pytest.mark.parametrize("dtype", ["u1", "e", "f", "d"])
@pytest.mark.parametrize("mode", ["nearest", "nearest_exact"])
def test_each_element_twice(rng, dtype, mode):
    """Rows shorter and longer than a vector, whatever lies between them, beside NumPy's repetition."""
    for h, w in ((1, 2), (3, 5), (7, 7), (5, 16), (4, 33), (2, 70), (1, 131)):
        x = (rng.random((2, 6, h, w)) * 200).astype(dtype)
        want = x.repeat(2, 2).repeat(2, 3)
        np.testing.assert_array_equal(numbaprims.resize(x, want.shape[2:], mode=mode), want)
        # planes and rows that do not lie one behind the other, with elements between them that stay
        whole = np.full((2, 8, 2 * h + 1, 2 * w + 3), 7, dtype)
        y = whole[:, 1:7:2, : 2 * h, 1 : 2 * w + 1]
        numbaprims.resize(x[:, ::2], y.shape[2:], mode=mode, out=y)
        np.testing.assert_array_equal(y, want[:, ::2])
        y[...] = 7
        assert (whole == 7).all()


@pytest.mark.parametrize("shape, result", [
    ((2, 3, 5, 20), (15, 60)), ((2, 3, 20, 20), (50, 50)), ((1, 3, 7, 9), (21, 18)), ((2, 3, 9, 20), (9, 40)),
    ((2, 3, 9, 20), (18, 20)), ((1, 2, 70, 40), (35, 20)), ((1, 2, 5, 6), (5, 70)), ((3, 2, 9), (18,)),
    ((2, 3, 4, 4, 4), (8, 8, 8)), ((1, 2, 3, 5, 40), (7, 10, 80)), ((1, 2, 1, 9), (700, 18)),
])  # fmt: skip
def test_equal_rows(rng, monkeypatch, shape, result):
    """Rows once, twice and more often, each a tile where it may be, beside an index of NumPy."""
    monkeypatch.setattr(solvers, "TILE_BYTES", 1)
    x = rng.random(shape, np.float32)
    want = x
    for axis, (n, m) in enumerate(zip(shape[2:], result, strict=True), 2):
        want = want.take(np.arange(m) * n // m, axis)
    out = np.empty_like(want)
    np.testing.assert_array_equal(numbaprims.resize(x, result, mode="nearest", out=out), want)


def test_which_elements_are_copied_twice():
    """By vectors as long as a register, or as a row; not what takes a table."""
    most = target.current().vector_bytes

    def lanes(shape, result, dtype="f", **words):
        x = np.zeros(shape, dtype)
        problem = numbaprims.explain(numbaprims.resize, x, result, **{"mode": "nearest", **words}).problem
        return solvers.Lines().twice(problem, target.current())

    assert lanes((1, 2, 32, 80), (64, 160)) == most // 4
    assert lanes((1, 2, 32, 80), (32, 160), "u1") == most
    assert lanes((2, 3, 4, 3), (8, 6)) == 4
    assert lanes((1, 2, 32, 80), (64, 161)) == lanes((1, 2, 32, 80), (96, 160)) == 0
    assert lanes((1, 2, 32, 80), (64, 160), mode="linear") == 0
    assert lanes((1, 32, 80, 3), (64, 160), layout="NHWC") == 0
