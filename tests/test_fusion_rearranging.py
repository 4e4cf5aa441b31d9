"""Layers of a fused network that rearrange, norms of rows and attention: their definitions, and where results lie."""

import numpy as np
import pytest
from fusion_cases import RELU, agrees, array, conv, norm
from helpers import SEEDS
from hypothesis import given, strategies as st

import numbaprims
from numbaprims.fusion.layers import (
    Activation,
    Add,
    Attention,
    Call,
    Concat,
    Constant,
    Flatten,
    Gather,
    GroupNorm,
    LayerNorm,
    Linear,
    MatMul,
    MaxPool,
    Multiply,
    Permute,
    Reshape,
    Residual,
    RMSNorm,
    Scale,
    SelfAttention,
    Softmax,
    View,
    Wired,
)

pytestmark = pytest.mark.cpu


def linear(outputs, inputs):
    return Linear(array(outputs, inputs) / inputs**0.5, array(outputs))


def block(size, heads, mask=None):
    attend = [LayerNorm(array(size), array(size)), linear(3 * size, size), SelfAttention(heads=heads, mask=mask)]
    hidden = [RMSNorm(array(size)), linear(2 * size, size), Activation("gelu"), linear(size, 2 * size)]
    return [Residual([*attend, linear(size, size)]), Residual(hidden)]


def view(*shape, offset=0, like=None):
    """A part of an image of sizes `like`, from an offset on."""
    steps = np.cumprod([1, *(like or shape)[:0:-1]])[::-1].tolist()
    return View(shape, steps, offset)


TOKEN = [(Constant(array(1, 4)), (0,)), (Concat([(), ()]), (1, 0)), (Constant(array(7, 4)), (0,)), (Add(), (2, 3))]
THREE = [
    (linear(24, 8), (0,)), *[(View((2, 5, 4), (4, 24, 1), 8 * at), (1,)) for at in range(3)],
    (Attention(causal=True, scale=0.5), (2, 3, 4)), (Permute((0, 2, 1, 3)), (5,)), (Flatten(), (6,)),
]  # fmt: skip
SCORES = [
    (Permute((0, 2, 1)), (0,)),
    (MatMul(), (0, 1)),
    (Softmax(), (2,)),
    (MatMul(), (3, 0)),
    (Softmax(axis=1), (4,)),
]
SHUFFLE = [Reshape((3, 2, 4, 5)), Permute((0, 2, 1, 3, 4)), Reshape((6, 4, 5)), view(3, 4, 5, offset=60)]
TURNED = [Permute((0, 2, 3, 1)), LayerNorm(array(4)), Permute((0, 3, 1, 2)), Scale(array(4))]
# what reads a view or a constant may not write over what others read later
BEFORE = [(conv(4, 4), (0,)), (view(4, 2, 3), (1,)), (RELU, (2,)), (Scale(-2.0), (1,)), (Add(), (3, 4))]
KNOWN = [(Constant(array(4, 2, 3)), (0,)), (RELU, (1,)), (Add(), (0, 2))]
PARTS = [
    (conv(6, 4), (0,)), (view(2, 3, 5, offset=30), (1,)), (view(4, 3, 5), (1,)),
    (Concat([(), [MaxPool(3, 1, 1)]]), (2, 3)),
]  # fmt: skip
NETWORKS = {
    "a transformer": ([block(8, 2), block(8, 4), LayerNorm(), View((8,), (1,))], (2, 5, 8)),
    "a mask": (block(6, 3, array(3, 4, 4)), (1, 4, 6)),
    "attention of three": (Wired(THREE), (3, 5, 8)),
    "scores": (Wired(SCORES), (2, 5, 3)),
    "a token": ([conv(4, 3), Reshape((4, -1)), Permute((0, 2, 1)), Wired(TOKEN), Activation("tanh")], (2, 3, 2, 3)),
    "known gates": (Wired([(Constant(array(4, 1, 3)), (0,)), (Multiply(), (0, 1)), (RELU, (2,))]), (2, 4, 5, 3)),
    "a shuffle": ([conv(6, 4), *SHUFFLE, conv(3, 3, 3), RELU], (2, 4, 4, 5)),
    "channels last and back": ([conv(4, 3), Residual(TURNED)], (2, 3, 5, 4)),
    "groups": ([conv(6, 3), GroupNorm(3, array(6), array(6), 1e-3), RELU, GroupNorm(1)], (2, 3, 4, 4)),
    "an input that is turned": ([Permute((0, 2, 1)), LayerNorm()], (2, 3, 4)),
    "a result that is turned": ([norm(3), Permute((0, 2, 3, 1))], (2, 3, 4, 5)),
    "nothing but an order": ([Permute((0, 2, 1)), Reshape((2, 6))], (2, 3, 4)),
    "a view that is read before": (Wired(BEFORE), (2, 4, 2, 3)),
    "a constant that is read again": (Wired(KNOWN), (2, 4, 2, 3)),
    "elements by their numbers": (
        [conv(4, 3), Gather([2, 0, -1, 2]), Residual([Gather([3, 2, 1, 0])]), Gather(np.arange(2))],
        (2, 3, 4, 3),
    ),
    "windows": ([linear(24, 4), Reshape((2, 3, 24)), SelfAttention(heads=2, mask=array(2, 2, 3, 3))], (2, 6, 4)),
    "parts side by side": (Wired(PARTS), (2, 4, 3, 5)),
    "functions": ([norm(3), Permute((0, 2, 1)), Call(np.ascontiguousarray), Reshape((12,)), Scale(2.0)], (2, 3, 4)),
}


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, device):
    layers, shape = NETWORKS[name]
    net = numbaprims.fuse(layers, shape)
    with numbaprims.config(device=device):
        for n in (shape[0], 1, 3):
            y = agrees(net, array(n, *shape[1:]))
            assert np.ptp(y) > 0
    if device == "cpu":
        kinds = [segment.joined._kinds for segment in net._segments if segment.joins]
        assert len(kinds) == 1 + (name == "functions")
        assert all(len(each) >= 3 and all(kind.extra.launch for kind in each.values()) for each in kinds)


def test_values_of_a_transformer():
    """Against NumPy's formulas in float64: the definitions behind `run_reference` are the layers' own."""
    x = array(2, 5, 8).astype(np.float64)
    first, second = block(8, 2)
    normed, product, _, out = first.body
    h = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * normed.weight + normed.bias
    parts = np.split(h @ product.weight.T + product.bias, 3, -1)
    q, k, v = (each.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3) for each in parts)
    e = np.exp(q @ k.swapaxes(-1, -2) / 2)
    y = (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(2, 5, 8) @ out.weight.T + out.bias + x
    net = numbaprims.fuse(first, x.shape, dtype="float64")
    np.testing.assert_allclose(net(x), y, rtol=1e-12, atol=1e-12)
    scaled = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * second.body[0].weight
    norms = numbaprims.fuse([first, second.body[0]], x.shape, dtype="float64")
    np.testing.assert_allclose(norms(x), scaled, rtol=1e-12, atol=1e-12)
    grouped = numbaprims.fuse(GroupNorm(2, eps=0.5), (2, 4, 3), dtype="float64")
    x = array(2, 4, 3).astype(np.float64)
    rows = x.reshape(2, 2, 6)
    want = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(grouped(x), want.reshape(x.shape), rtol=1e-12, atol=1e-12)


@given(st.data(), SEEDS)
def test_views_are_numpys(data, seed):
    """Any order, reversed sizes and parts of images, one after another: what NumPy's own views have."""
    image = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    x = np.random.default_rng(seed).standard_normal((2, *image))
    layers, want = [], x
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(("permute", "reshape", "part")))
        size = want.shape[1:]
        if kind == "permute":
            dims = 0, *data.draw(st.permutations(range(1, want.ndim)))
            layers.append(Permute(dims))
            want = want.transpose(dims)
        elif kind == "reshape":
            shape = data.draw(st.sampled_from(((-1,), (*size, 1), (1, *size), size[::-1])))
            layers.append(Reshape(shape))
            want = want.reshape(len(x), *shape)
        else:
            axis = data.draw(st.integers(0, len(size) - 1))
            start = data.draw(st.integers(0, size[axis] - 1))
            steps = np.cumprod([1, *size[:0:-1]])[::-1].tolist()
            shape = *size[:axis], size[axis] - start, *size[axis + 1 :]
            layers.append(View(shape, steps, start * steps[axis]))
            want = want[(slice(None),) * (axis + 1) + (slice(start, None),)]
    with numbaprims.config(device="reference"):
        for network in (layers, [Scale(1.0), *layers, Activation("identity")]):
            if 2 <= want.ndim <= 5:
                net = numbaprims.fuse(network, x.shape, dtype="float64")
                np.testing.assert_array_equal(net(x), want)
                assert net.output_shape == want.shape


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (lambda: Permute((1, 0)), (2, 3), "must be 0 and then"),
        (lambda: Permute((0, 1, 1)), (2, 3), "each once"),
        (lambda: Permute((0, 2, 1)), (2, 3), "takes 3 dimensions"),
        (lambda: View((2,), (1, 1)), (2, 3), "must have one length"),
        (lambda: View((2, 2), (3, 1)), (2, 4), "reads element 4 of images that have 4"),
        (lambda: View((2,), (1,), -1), (2, 4), "offset"),
        (lambda: Reshape((-1, -1)), (2, 4), "may be -1"),
        (lambda: Reshape((3,)), (2, 4), "images of 4 elements"),
        (lambda: Reshape((3, -1)), (2, 4), "images of 4 elements"),
        (lambda: SelfAttention(heads=2), (2, 5, 8), r"3 \* 2 \* width"),
        (lambda: SelfAttention(heads=0), (2, 5, 8), "heads"),
        (lambda: Gather([0, 4]), (2, 4), "images of more than 4 elements"),
        (lambda: Gather([-5]), (2, 4), "images of more than 4 elements"),
        (lambda: Gather([0.5]), (2, 4), "must be integers"),
        (lambda: Gather([[1]]), (2, 4), "one dimension"),
        (lambda: Softmax(0), (2, 4), "axis is 0; it must be one of the image's"),
        (lambda: Softmax(2), (2, 4), "axis is 2"),
        (lambda: Wired([(MatMul(), (0, 0))]), (2, 4), "matrices of each image"),
        (lambda: Wired([(MatMul(), (0, 0))]), (2, 3, 4), r"\(0, 3, 4\)"),
        (lambda: GroupNorm(2, activation="relux"), (2, 4, 3), "relux"),
        (lambda: LayerNorm(array(3)), (2, 4), "weight"),
        (lambda: LayerNorm(normalized_dims=0), (2, 4), "normalized_dims"),
        (lambda: GroupNorm(3), (2, 4, 2), "groups"),
        (lambda: LayerNorm(array(2, 2).astype(int)), (2, 2, 2), "floating point"),
        (lambda: Wired([(Attention(), (0, 0))]), (2, 1, 2, 3), "reads 3 values, not 2"),
    ],
)
def test_refusals(layer, shape, words):
    with pytest.raises((TypeError, ValueError), match=words):
        numbaprims.fuse(layer(), shape)


@pytest.mark.parametrize("layer", [LayerNorm(array(4), array(4)), RMSNorm(array(4)), GroupNorm(3, array(6), array(6))])
def test_norms_apply_the_activation_behind_them(layer):
    """And only that: a norm has no weights for what is affine."""
    net = numbaprims.fuse([Scale(2.0), layer, Activation("silu"), RELU, layer, Scale(array(6)), RELU], (2, 6, 4))
    with numbaprims.config(device="cpu"):
        agrees(net, array(2, 6, 4))
        agrees(numbaprims.fuse([LayerNorm(), Scale(array(4)), RELU], (2, 6, 4), layout="NHWC"), array(2, 6, 4))
    kinds = [type(item.layer) for item in net._fused.items]
    assert kinds == [Scale, type(layer), Activation, type(layer), Scale]
    assert net._fused.items[1].layer.activation == ("silu", {}) and "in its epilogue" in net.explain()


def test_views_are_no_launches():
    net = numbaprims.fuse(
        [Linear(array(12, 4)), View((2, 3, 2), (6, 2, 1)), Permute((0, 2, 1, 3)), LayerNorm()], (2, 4)
    )
    assert "launches: 2," in net.explain() and "View(shape=(2, 3, 2), strides=(6, 2, 1))" in net.explain()
