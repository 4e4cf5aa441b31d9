"""Cumulative sums on the emulated GPU against the definition."""

import numpy as np
import pytest
from helpers import caller_array, to_float64

import numbaprims

TOLERANCE = {"f64": 1e-13, "f32": 1e-5, "f16": 2e-2, "bf16": 0.2, "i32": 0, "i64": 0}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("solver", ["rows", "each"])
def test_both_ways(gpu, rng, dtype, solver):
    whole = dtype[0] == "i"
    x = rng.integers(-9, 9, (2, 3, 70)) if whole else rng.standard_normal((2, 3, 70))
    x = x.astype(np.int64 if dtype == "i64" else np.int32) if whole else caller_array(x, dtype)
    for axis, words in ((2, {}), (1, {"exclusive": True}), (2, {"exclusive": True, "reverse": True})):
        with numbaprims.config(device="reference"):
            want = numbaprims.cumsum(x, axis, **words)
        with numbaprims.config(device="cuda", algorithm={"scan": solver}):
            have = numbaprims.cumsum(x, axis, **words)
        have, want = (each if whole else to_float64(each) for each in (have, want))
        np.testing.assert_allclose(have, want, atol=TOLERANCE[dtype], rtol=0)


def test_products(gpu, rng):
    for x in (rng.uniform(0.5, 1.5, (3, 70)), rng.integers(-3, 4, (3, 70))):
        for axis, words in ((0, {}), (1, {"exclusive": True, "reverse": True})):
            with numbaprims.config(device="reference"):
                want = numbaprims.cumprod(x, axis, **words)
            with numbaprims.config(device="cuda"):
                np.testing.assert_allclose(numbaprims.cumprod(x, axis, **words), want, rtol=1e-12)


def test_int64_wraps(gpu):
    x = np.int64([2**62, 2**62, 5])[::-1]
    with numbaprims.config(device="cuda"):
        np.testing.assert_array_equal(numbaprims.cumsum(x), np.cumsum(x))


def test_products_out_of_range(gpu):
    """What overflows or vanishes does so where it does in order, whatever products of neighbours are."""
    x = np.full((4, 200), 1.01, np.float32)
    x[0, ::2], x[0, 1::2] = 1e30, 1e-30
    x[1, 40:44] = 1e-20, 1e-20, 1e30, 1e30
    x[2, 70:74] = 1e30, 1e30, 1e-30, 1e-30
    x[3, [33, 150]] = 0, np.inf
    with np.errstate(all="ignore"), numbaprims.config(device="cuda", algorithm={"scan": "rows"}):
        np.testing.assert_allclose(numbaprims.cumprod(x, 1), np.cumprod(x, 1, dtype=np.float32), rtol=1e-4)
        want = np.cumprod(x[:, ::-1], 1, dtype=np.float32)[:, ::-1]
        np.testing.assert_allclose(numbaprims.cumprod(x, 1, reverse=True), want, rtol=1e-4)
