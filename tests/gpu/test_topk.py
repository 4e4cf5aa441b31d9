"""The k first elements on the emulated GPU against the definition."""

import numpy as np
import pytest
from helpers import caller_array, to_float64

import numbaprims


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i32", "i64"])
@pytest.mark.parametrize("largest", [False, True])
def test_both_ways(gpu, rng, dtype, largest):
    x = np.round(3 * rng.standard_normal((2, 3, 20)))
    x = x.astype(np.int64 if dtype == "i64" else np.int32) if dtype[0] == "i" else x
    if dtype[0] != "i":
        x[0, 0, [3, 9]], x[1, 1, 5] = np.nan, -np.inf
        x = caller_array(x, dtype)
    for k, axis in ((5, 2), (2, 1), (20, -1)):
        with numbaprims.config(device="reference"):
            want = numbaprims.topk(x, k, axis, largest=largest)
        with numbaprims.config(device="cuda"):
            have = numbaprims.topk(x, k, axis, largest=largest)
        for one, other in zip(have, want, strict=True):
            np.testing.assert_array_equal(to_float64(one), to_float64(other))
