"""A quantised ResNet-50 whole: its 53 convolutions, 16 sums, pools and fully connected layer, step by step.

Each step is held to the definition of the very integers that it was given, so that an error has one place. Scales are
chosen by the results' range, as calibration does.
"""

import numpy as np
import pytest

import numbaprims

pytestmark = pytest.mark.cpu
#: Bottleneck blocks of a stage, and their inner channels.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
SIDE = 64


class Network:
    """Runs layers and counts them; an activation is (integers, scale), of zero point `zero`."""

    def __init__(self, rng):
        self.rng, self.count = rng, 0

    def step(self, call, want, zero):
        """A layer whose result, as float64, is `want`: call(scale) in integers."""
        self.count += 1
        scale = np.float32(max(np.abs(want).max(), 1e-3) / (255 if zero == 0 else 127))
        have = call(scale)
        off = np.abs(have - np.clip(np.rint(want / float(scale)) + zero, 0, 255))
        # halves go to either side
        assert off.max() <= 1 and (off > 0).mean() < 0.01, self.count
        return have, scale

    def conv(self, x, filters, size, stride=1, relu=True, zero=0):
        """A convolution with its folded normalisation; a relu is the range of its result."""
        values, scale = x
        channels = values.shape[1]
        w = self.rng.integers(-127, 128, (filters, channels, size, size)).astype(np.int8)
        scales = (self.rng.uniform(0.5, 1.5, filters) / (64 * size * channels**0.5)).astype(np.float32)
        bias = self.rng.integers(-2000, 2000, filters).astype(np.int32)
        pad, at = size // 2, 0 if relu else 128
        wide = np.pad(values.astype(np.float64) - zero, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, (size, size), (2, 3))[:, :, ::stride, ::stride]
        sums = np.einsum("nchwrs,kcrs->nkhw", windows, w.astype(np.float64), optimize=True) + bias[:, None, None]
        want = sums * (float(scale) * scales.astype(np.float64))[:, None, None]
        call = lambda y: numbaprims.qlinear_conv(  # noqa: E731
            values, scale, zero, w, scales, 0, y, np.uint8(at), bias, stride=stride, padding=pad
        )
        return self.step(call, np.maximum(want, 0) if relu else want, at)

    def add(self, x, y, zero):
        """The sum of a block with what it began with, whose zero points are 128 and `zero`; then relu."""
        want = (x[0] - 128.0) * float(x[1]) + (y[0] - float(zero)) * float(y[1])
        call = lambda s: numbaprims.qlinear_add(  # noqa: E731
            x[0], x[1], 128, y[0], y[1], zero, s, np.uint8(0), activation="relu"
        )
        return self.step(call, np.maximum(want, 0), 0)


def test_a_quantised_resnet50_runs_whole(rng):
    net = Network(rng)
    image = rng.standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)
    quantised = net.step(lambda s: numbaprims.quantize(image, s, np.uint8(128)), image.astype(np.float64), 128)
    x = net.conv(quantised, 64, 7, stride=2, zero=128)
    pooled = numbaprims.max_pool(x[0], 3, stride=2, padding=1)
    net.count += 1
    x = pooled, x[1]
    assert pooled.shape == (1, 64, SIDE // 4, SIDE // 4) and pooled.dtype == np.uint8
    for stage, (blocks, inner) in enumerate(STAGES):
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            y = net.conv(net.conv(x, inner, 1), inner, 3, stride=stride)
            y = net.conv(y, 4 * inner, 1, relu=False)
            begun, zero = (net.conv(x, 4 * inner, 1, stride=stride, relu=False), 128) if block == 0 else (x, 0)
            x = net.add(y, begun, zero)
    mean = (x[0] * float(x[1])).mean((2, 3), keepdims=True)
    features, scale = net.step(lambda s: numbaprims.qlinear_global_avg_pool(x[0], x[1], 0, s, np.uint8(0)), mean, 0)
    rows, w = features.reshape(1, 2048), rng.integers(-127, 128, (2048, 1000)).astype(np.int8)
    bias = rng.integers(-500, 500, 1000).astype(np.int32)
    want = (rows.astype(np.float64) @ w + bias) * float(scale) * 0.001
    plain = lambda s: numbaprims.qlinear_gemm(rows, scale, 0, w, 0.001, 0, s, np.uint8(128), bias)  # noqa: E731
    logits, last = net.step(plain, want, 128)
    planned = numbaprims.qlinear_gemm.plan(scale, 0, w, 0.001, last, np.uint8(128), bias)
    np.testing.assert_array_equal(planned(rows), logits)
    scores = numbaprims.dequantize(logits, last, np.uint8(128))
    np.testing.assert_allclose(scores, want, atol=1.01 * float(last))
    # quantize, 53 convolutions, the pool, 16 sums, the average, the product
    assert net.count == 1 + 53 + 1 + 16 + 1 + 1
