"""Results past the caches: the bits of those in them, and nothing beside them, wherever lines begin."""

import numpy as np
import pytest

import numbaprims
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
