"""Layers, and what a fused network has to be, for the tests of fusion."""

import numpy as np
from hypothesis import strategies as st

import numbaprims
from numbaprims.fusion.layers import (
    Activation,
    Add,
    AvgPool,
    BatchNorm,
    Bias,
    Call,
    Concat,
    Constant,
    Conv,
    Dropout,
    Gather,
    GroupNorm,
    LayerNorm,
    MaxPool,
    Multiply,
    PReLU,
    Reshape,
    Residual,
    RMSNorm,
    Scale,
    Softmax,
    View,
    Wired,
)

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


SMOOTH = ("relu", "leaky_relu", "tanh", "sigmoid", "gelu", "hard_swish", "softplus", "abs", "clipped_relu", "mish")
#: Kinds of layers; those with branches often, since what is read twice is what goes wrong.
DRAWN = ("pool norm activation prelu scale bias dropout conv call rows turned known " + 4 * "residual concat ").split()


class Drawn:
    """A network, layer by layer; every choice is Hypothesis's."""

    def __init__(self, draw, shape, layout):
        self.draw, self.layout = draw, layout
        self.layers, self.shape = self.sequence(shape, 2)

    def sequence(self, shape, depth):
        found = []
        for _ in range(self.draw(st.integers(0, 5))):
            layer, shape = self.layer(shape, depth)
            found.append(layer)
        return found, shape

    def layer(self, shape, depth):
        n, c, h, w = shape
        kind = self.draw(st.sampled_from(DRAWN))
        seed = self.draw(st.integers(0, 99))
        if kind == "pool":
            k = self.draw(st.integers(1, min(3, h, w)))
            s, p = self.draw(st.integers(1, 2)), self.draw(st.integers(0, k // 2))
            words = {"ceil_mode": self.draw(st.booleans())}
            layer = self.draw(st.sampled_from((MaxPool, AvgPool)))(k, s, p, **words)
            y = numbaprims.max_pool(np.empty((0, *shape[1:]), np.float32), k, stride=s, padding=p, **words)
            return layer, (n, *y.shape[1:])
        if kind in ("residual", "concat") and depth:
            if kind == "residual":
                body, out = self.sequence(shape, depth - 1)
                if out[2:] == shape[2:]:
                    body = body if out == shape else [*body, conv(c, out[1])]
                    return Residual(body, self.draw(st.sampled_from(((), [norm(c)], [AvgPool(1)])))), shape
                return body, out
            branches = [self.sequence(shape, depth - 1) for _ in range(self.draw(st.integers(1, 3)))]
            if self.draw(st.booleans()):  # rows behind rows
                first = branches[0][1]
                same = [each for each in branches if (each[1][1], each[1][3]) == (first[1], first[3])]
                joined = Concat([each for each, _ in same], 2 if self.layout == "NCHW" else 1)
                return joined, (n, first[1], sum(out[2] for _, out in same), first[3])
            same = [each for each in branches if each[1][2:] == branches[0][1][2:]]
            return Concat([each for each, _ in same]), (n, sum(out[1] for _, out in same), *same[0][1][2:])
        if kind == "conv":
            k = self.draw(st.integers(1, 5))
            return conv(k, c, self.draw(st.sampled_from((1, 3)))), (n, k, h, w)
        if kind in ("rows", "turned", "known"):
            return self.rearranged(kind, shape, seed)
        simple = {
            "norm": norm(c, seed), "prelu": PReLU(array(c, seed=seed)), "scale": Scale(array(c, seed=seed)),
            "bias": Bias(array(1, seed=seed)), "dropout": Dropout(), "call": Call(np.tanh),
        }  # fmt: skip
        return simple.get(kind) or Activation(self.draw(st.sampled_from(SMOOTH))), shape

    def rearranged(self, kind, shape, seed):
        """Norms and softmax of images, and images in another order or without a part."""
        n, c, h, w = shape
        image = shape[1:] if self.layout == "NCHW" else (h, w, c)
        if kind == "rows":
            layer = self.draw(st.sampled_from((GroupNorm(c), LayerNorm(normalized_dims=3), Softmax(2), RMSNorm())))
            return layer, shape
        if kind == "known":
            wide = [size if self.draw(st.booleans()) else 1 for size in image]
            layer = Add() if wide == list(image) else Multiply()
            return Wired([(Constant(array(*wide, seed=seed)), (0,)), (layer, (0, 1))]), shape
        order = self.draw(st.permutations((1, 2, 3)))
        start = self.draw(st.integers(0, image[0] - 1))
        sizes = image[0] - start, *image[1:]
        steps = image[1] * image[2], image[2], 1
        axes = [axis - 1 for axis in order]
        part = View([sizes[axis] for axis in axes], [steps[axis] for axis in axes], start * steps[0])
        gather = Gather(self.draw(st.permutations(range(part.shape[0]))))
        layers = self.draw(st.sampled_from(([part], [part, Reshape(part.shape)], [part, gather])))
        c, h, w = part.shape if self.layout == "NCHW" else (part.shape[2], *part.shape[:2])
        return layers, (n, c, h, w)
