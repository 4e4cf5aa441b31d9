"""Networks that are called with more than one array, and give more than one."""

import pickle

import numpy as np
import pytest
from fusion_cases import RELU, array, conv

import numbaprims
from numbaprims.fusion.layers import (
    Activation,
    Add,
    Attention,
    Call,
    Concat,
    Constant,
    Given,
    Linear,
    MaskedAttention,
    MaxPool,
    Multiply,
    Scale,
    Wired,
)


def both(net, x, *given):
    """What a network gives, which is the same layer by layer, by its definition and once it is known."""
    first = net(x, *given)
    results = first if isinstance(first, tuple) else (first,)
    for _ in range(2):
        for found in (net(x, *given), net.layer_by_layer(x, *given)):
            for y, want in zip(found if isinstance(found, tuple) else (found,), results, strict=True):
                np.testing.assert_allclose(y, want, rtol=0, atol=1e-5)
    np.testing.assert_allclose(net.run_reference(x, *given), results[-1], rtol=0, atol=1e-5)
    return first


@pytest.mark.parametrize("truth", [False, True])
def test_attention_with_a_mask_of_each_call(truth):
    q = array(2, 3, 5, 4)
    steps = [(Given((1, 1, 5, 5)), ()), (MaskedAttention(scale=0.4), (0, 0, 0, 1)), (RELU, (2,))]
    net = numbaprims.fuse(Wired(steps), q.shape)
    for seed in range(3):
        for images in (1, 2):
            mask = array(images, 1, 5, 5, seed=seed)
            mask = mask > -0.5 if truth else mask
            want = np.maximum(numbaprims.attention(q, q, q, mask=mask, scale=0.4), 0)
            np.testing.assert_allclose(both(net, q, mask), want, rtol=0, atol=1e-6)
    assert net._again is not None and not net._segments[0].joined.why
    again = pickle.loads(pickle.dumps(net))
    assert np.array_equal(again(q, mask), net(q, mask))
    with pytest.raises(ValueError, match="one shape|broadcast|mask"):
        numbaprims.fuse(Wired([(Given((1, 1, 5, 6)), ()), *steps[1:]]), q.shape)


def test_kinds_of_given_arrays_are_told_apart():
    """The same x with arrays of other sizes, types and memory orders."""
    x = array(2, 4, 6)
    net = numbaprims.fuse(Wired([(Given((2, 4, 6)), ()), (Multiply(), (0, 1)), (RELU, (2,))]), x.shape)
    for given in (array(2, 4, 6, seed=1), array(1, 4, 6, seed=2), np.asfortranarray(array(2, 4, 6, seed=3))):
        for _ in range(3):
            np.testing.assert_allclose(net(x, given), np.maximum(x * given, 0), rtol=1e-6)


def test_results():
    """Values in the middle, an input, one twice; what a stack would overwrite is a result of its own."""
    x, more = array(2, 3, 6, 7), array(2, 3, 6, 7, seed=1)
    steps = [
        (Given(x.shape), ()), (conv(3, 3), (0,)), (Activation("tanh"), (2,)), (Scale(2.0), (3,)), (Add(), (4, 1)),
        (MaxPool(2), (5,)), (Concat([[], []]), (3, 1)),
    ]  # fmt: skip
    net = numbaprims.fuse(Wired(steps, results=(5, 3, 1, 3, 7, 6)), x.shape)
    for _ in range(3):
        total, inner, given, again, joined, pooled = net(x, more)
        np.testing.assert_allclose(total, 2 * inner + more, rtol=1e-5, atol=1e-5)
        assert given is more and again is inner
        assert np.array_equal(joined, np.concatenate([inner, more], 1))
        assert np.array_equal(pooled, numbaprims.max_pool(total, 2))
        np.testing.assert_allclose(inner, net.layer_by_layer(x, more)[1], atol=1e-6)
    assert [item.nodes for item in net._fused.items][:2] == [[2, 3], [4, 5]]
    plain = numbaprims.fuse(Wired(steps, results=(6,)), x.shape)
    assert np.array_equal(plain(x, more), pooled), "one result is no tuple"
    out = np.empty_like(pooled)
    assert plain(x, more, out=out) is out and np.array_equal(out, pooled)


def test_results_around_functions_that_are_called():
    x = array(2, 3, 4)
    steps = [
        (RELU, (0,)),
        (Call(np.tanh, (3, 4)), (1,)),
        (Scale(3.0), (2,)),
        (Given((1, 3, 4)), ()),
        (Multiply(), (2, 4)),
    ]
    net = numbaprims.fuse(Wired(steps, results=(1, 3, 2, 5)), x.shape)
    given = array(1, 3, 4, seed=5)
    for _ in range(3):
        positive, scaled, inner, product = both(net, x, given)
        np.testing.assert_allclose(positive, np.maximum(x, 0))
        np.testing.assert_allclose(inner, np.tanh(positive), rtol=1e-6)
        np.testing.assert_allclose(scaled, 3 * inner, rtol=1e-6)
        np.testing.assert_allclose(product, given * inner, rtol=1e-6)
    assert len(net._segments) == 3


def test_images_are_counted_by_values_of_images():
    """In front of which what is given once for all images is numbered."""
    x, given = array(2, 3, 4), array(1, 3, 4, seed=5)
    steps = [(Given((1, 3, 4)), ()), (Call(np.tanh, (3, 4)), (0,)), (Multiply(), (2, 1)), (Concat([[], RELU]), (3, 2))]
    net = numbaprims.fuse(Wired(steps), x.shape)
    want = np.concatenate([np.tanh(x) * given, np.maximum(np.tanh(x), 0)], 1)
    np.testing.assert_allclose(both(net, x, given), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_concatenations_along_any_dimension(axis, layout):
    x = array(2, 3, 4, 5)
    net = numbaprims.fuse(
        Concat([[Scale(-1.0)], [], RELU, Constant(array(3, 4, 5, seed=2))], axis), x.shape, layout=layout
    )
    known = np.broadcast_to(array(3, 4, 5, seed=2), x.shape)
    want = np.concatenate([-x, x, np.maximum(x, 0), known], axis)
    np.testing.assert_allclose(both(net, x), want, rtol=0, atol=1e-6)


def test_values_that_are_known_are_copied_for_the_caller():
    values = array(3, 4)
    net = numbaprims.fuse(Wired([(Constant(values), (0,)), (Add(), (0, 1))], (1, 2)), (2, 3, 4))
    for _ in range(3):
        known, total = net(np.ones((2, 3, 4), np.float32))
        assert np.array_equal(known, np.stack([values] * 2)) and np.array_equal(total, known + 1)
        known[:] = 0
    alone = numbaprims.fuse(Constant(values), (2, 3, 4))
    alone(array(2, 3, 4))[:] = 7
    assert np.array_equal(alone(array(2, 3, 4))[0], values)


def test_refusals():
    x = array(2, 3, 4)
    net = numbaprims.fuse(Wired([(Given((2, 3, 4)), ()), (Add(), (0, 1))], (2, 0)), x.shape)
    with pytest.raises(TypeError, match="0 arrays are given beside x; this plan takes 1"):
        net(x)
    with pytest.raises(ValueError, match=r"layers\[0\] is a float32 array \(2, 3, 5\); this plan takes \(2, 3, 4\)"):
        net(x, array(2, 3, 5))
    with pytest.raises(TypeError, match="2 results; out is for one"):
        net(x, x, out=x.copy())
    with pytest.raises(ValueError, match="results is"):
        Wired([(RELU, (0,))], (2,))
    with pytest.raises(ValueError, match=r"layers\[0\] gives several results"):
        numbaprims.fuse([Wired([(RELU, (0,))], (1, 0))], x.shape)
    with pytest.raises(ValueError, match="which reads 0 values, not 1"):
        Wired([(Given((1, 2)), (0,))])
    with pytest.raises(ValueError, match="which reads None values, not 0"):
        Wired([(Call(np.tanh), ())])
    with pytest.raises(ValueError, match="axis is 3 of 3 dimensions"):
        numbaprims.fuse(Concat([[], []], 3), x.shape)
    with pytest.raises(ValueError, match="axis"):
        Concat([[]], 0)
    with pytest.raises(ValueError, match="differ along dimension 1 only"):
        numbaprims.fuse(Concat([[], Linear(array(2, 4))], 1), x.shape)
    joined = numbaprims.fuse(Concat([[], Linear(array(2, 4))], 2), x.shape)
    assert joined(x).shape == (2, 3, 6)


def test_attention_of_other_lengths():
    """Keys and values that are given, as a decoder reads what an encoder gave."""
    q, k = array(2, 3, 5, 4), array(2, 3, 7, 4)
    net = numbaprims.fuse(Wired([(Given(k.shape), ()), (Attention(), (0, 1, 1))]), q.shape)
    np.testing.assert_allclose(both(net, q, k), numbaprims.attention(q, k, k), rtol=0, atol=1e-6)
