"""Layers, and what a fused network has to be, for the tests of fusion."""

import numpy as np

from numbaprims.fusion.layers import Activation, BatchNorm, Conv

RELU = Activation("relu")


def array(*shape, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def norm(c, seed=0):
    return BatchNorm(array(c, seed=1), array(c, seed=2), array(c, seed=3), np.abs(array(c, seed=4)) + 0.5)


def conv(k, c, size=1, **words):
    return Conv(array(k, c, size, size) / c, array(k), padding=size // 2, **words)


def agrees(net, x):
    kept = x.copy()
    y, expected = net(x), net.run_reference(x)
    assert y.dtype == x.dtype and y.shape == (len(x), *net.output_shape[1:]) == expected.shape
    bound = {"float64": 1e-11, "float32": 1e-5, "float16": 2e-2}[str(x.dtype)] * max(1.0, abs(expected).max(initial=0))
    np.testing.assert_allclose(y, expected, rtol=0, atol=bound)
    np.testing.assert_allclose(net.layer_by_layer(x), expected, rtol=0, atol=bound)
    out = np.full_like(y, np.nan)
    assert net(x, out=out) is out and np.array_equal(out, y)
    for _ in range(2):  # from the second call on what is known of a network is one native call
        assert np.array_equal(net(x), y)
    assert np.array_equal(x, kept), "the caller's x is not overwritten"
    return y
