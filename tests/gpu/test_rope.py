"""Rotary position embedding on the emulated GPU against the definition."""

import numpy as np
import pytest
from helpers import caller_array, to_float64

import numbaprims

TOLERANCE = {"f64": 1e-14, "f32": 1e-6, "f16": 4e-3, "bf16": 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("interleaved", [False, True])
def test_both_ways(gpu, rng, dtype, interleaved):
    x = caller_array(rng.standard_normal((2, 3, 5, 11)), dtype)
    cos, sin = numbaprims.rope_frequencies(9, 8, dtype="float64" if dtype == "f64" else "float32")
    words = {"interleaved": interleaved}
    if not interleaved:
        words["positions"] = rng.integers(0, 9, (2, 5)).astype(np.int32)
    else:
        cos, sin = cos[:5], sin[:5]
    for name in ("rope", "rope_backward"):
        function = getattr(numbaprims, name)
        with numbaprims.config(device="reference"):
            want = to_float64(function(x, cos, sin, **words))
        with numbaprims.config(device="cuda"):
            have = to_float64(function(x, cos, sin, **words))
        np.testing.assert_allclose(have, want, atol=TOLERANCE[dtype], rtol=0)


def test_a_view(gpu, rng):
    x = rng.standard_normal((2, 2, 3, 4, 7, 12))[:, ::-1, :, ::2, :, ::-2]
    cos, sin = numbaprims.rope_frequencies(7, 6, dtype="float64")
    with numbaprims.config(device="cuda"):
        have = numbaprims.rope(x, cos, sin)
    np.testing.assert_allclose(have, numbaprims.rope(x, cos, sin), atol=1e-14)
