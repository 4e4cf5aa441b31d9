"""Attention on the emulated GPU against the definition."""

import numpy as np
import pytest
from helpers import caller_array, to_float64

import numbaprims

TOLERANCE = {"f64": 1e-12, "f32": 4e-6, "f16": 3e-3, "bf16": 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", ["", "bool", "float"])
def test_both_ways(gpu, rng, dtype, mask):
    causal = mask != "bool"

    def draw(*shape):
        return caller_array(rng.standard_normal(shape), dtype)

    q, k, v = draw(2, 4, 5, 7), draw(2, 2, 35, 7).swapaxes(-1, -2), draw(2, 2, 35, 34)
    k = np.ascontiguousarray(k).swapaxes(-1, -2)
    dout, words = draw(2, 4, 5, 34), {"causal": causal}
    if mask == "bool":
        words["mask"] = rng.random((5, 35)) < 0.6
        words["mask"][1] = False
    elif mask:
        words["mask"] = draw(4, 1, 35)
    with numbaprims.config(device="reference"):
        out, lse = numbaprims.attention_train(q, k, v, **words)
        wanted = [out, out, lse, *numbaprims.attention_backward(dout, q, k, v, out, lse, **words)]
    with numbaprims.config(device="cuda"):
        found = [numbaprims.attention(q, k, v, **words), *numbaprims.attention_train(q, k, v, **words)]
        found += numbaprims.attention_backward(dout, q, k, v, out, lse, **words)
    for have, want in zip(found, wanted, strict=True):
        have, want = to_float64(have), to_float64(want)
        assert (np.isneginf(have) == np.isneginf(want)).all()
        have, want = np.where(np.isinf(want), 0, have), np.where(np.isinf(want), 0, want)
        np.testing.assert_allclose(have, want, atol=TOLERANCE[dtype] * max(1.0, np.abs(want).max()), rtol=0)


def test_refusals(gpu, rng):
    wide, apart = rng.standard_normal((1, 2, 513)), rng.standard_normal((2, 3, 1, 2, 8))[:, ::2]
    for x, words in ((wide, "more than 512 elements"), (apart, "not evenly apart")):
        with numbaprims.config(device="cuda"), pytest.raises(NotImplementedError, match=words):
            numbaprims.attention(x, x, x)
