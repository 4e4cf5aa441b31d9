"""The one road of gemv, ger, gemm and convolutions: repeated calls, what they keep, what they check all the same."""

import gc
import weakref

import numpy as np
import pytest
from helpers import KNOWN, assert_close

import numbaprims
from numbaprims.ops import product


def integers(shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(dtype)


def conv_calls(dtype):
    """Each call, and what it is to give."""
    x, w, c = integers((2, 4, 6, 6), dtype), integers((4, 4, 3, 3), dtype), integers((2, 4, 6, 6), dtype, 1)
    bias, out = np.arange(4, dtype=dtype), np.empty((2, 4, 6, 6), dtype)
    plain = numbaprims.conv(x, w, padding=1)
    up = numbaprims.conv_transpose(x, w, stride=2)
    data = numbaprims.conv_backward_data(x, w, x.shape, padding=1)
    weight = numbaprims.conv_backward_weight(x, c, w.shape, padding=1)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    def in_place():
        np.copyto(out, c)
        return numbaprims.conv(x, w, padding=1, c=out, beta=2.0, out=out)

    def behind():
        made = numbaprims.conv(last, w, padding=1)
        assert made.strides[1] == made.itemsize  # a result lies as its operand does
        return made

    return [
        (lambda: numbaprims.conv(x, w, bias, padding=1), plain + bias[:, None, None]),
        (lambda: numbaprims.conv(x, w, padding=[1, 1], stride=[1, 1]), plain),
        (lambda: numbaprims.conv(x, w, padding=1, c=c, beta=1.0), plain + c),
        (lambda: numbaprims.conv(x, w, padding=1, c=c[0, :, :1, :1], beta=1.0), plain + c[0, :, :1, :1]),
        (in_place, plain + 2 * c),
        (behind, plain),
        (lambda: numbaprims.conv_transpose(x, w, stride=2), up),
        (lambda: numbaprims.conv_transpose(x, w, bias, stride=2, activation="relu"),
         np.maximum(up + bias[:, None, None], 0)),
        (lambda: numbaprims.conv_backward_data(x, w, x.shape, padding=1, c=c, beta=-1.0), data - c),
        (lambda: numbaprims.conv_backward_weight(x, c, w.shape, padding=1, c=w, beta=1.0), weight + w),
        (lambda: numbaprims.conv_backward_bias(x), x.astype(np.float32).sum((0, 2, 3)).astype(dtype)),
    ]  # fmt: skip


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_repeated_convolution_takes_the_short_way(dtype, monkeypatch):
    """Also a transposed one, and one with c: native code knows later calls, and no array is looked at in Python."""
    calls = conv_calls(dtype)
    with monkeypatch.context() as patch:
        for call, expected in calls:
            patch.undo()
            for turn in range(KNOWN + 2):
                if turn == KNOWN:
                    patch.setattr(product, "_enter", lambda *given: pytest.fail("the long way"))
                # integers whose sums are exact in float32 are so by any solver but the transforms
                assert_close(call(), expected.astype(np.float64), k=40)


@pytest.mark.cpu
def test_what_differs_between_calls_of_one_kind_is_checked():
    x, w = integers((1, 2, 5, 5)), integers((2, 2, 3, 3))
    out, c = np.empty((1, 2, 5, 5), np.float32), np.zeros((1, 2, 5, 5), np.float32)
    for _ in range(4):
        numbaprims.conv(x, w, padding=1, c=c, beta=1.0, out=out)
    with pytest.raises(ValueError, match="shares memory with x"):
        numbaprims.conv(x, w, padding=1, c=c, beta=1.0, out=x)
    room = np.zeros(60, np.float32)
    with pytest.raises(ValueError, match="only out=c itself"):
        numbaprims.conv(
            x, w, padding=1, c=room[:50].reshape(c.shape), beta=1.0, out=room[10:].reshape(c.shape)
        )  # fmt: skip
    with pytest.raises(ValueError, match="c is not given"):
        numbaprims.conv(x, w, padding=1, beta=1.0, out=out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        numbaprims.conv(x, w, padding=1, c=c, beta=1.0, out=out)


def test_integers_take_beta_0_or_1_in_every_call():
    a, c = np.ones((4, 4), np.int8), np.ones((4, 4), np.int32)
    x, w, d = np.ones((1, 1, 3, 3), np.int8), np.ones((1, 1, 1, 1), np.int8), np.ones((1, 1, 3, 3), np.int32)
    for _ in range(3):
        assert (numbaprims.gemm(a, a, c=c, beta=1.0) == 5).all() and (numbaprims.conv(x, w, c=d, beta=1.0) == 2).all()
        with pytest.raises(ValueError, match="beta=2.0"):
            numbaprims.gemm(a, a, c=c, beta=2.0)
        with pytest.raises(ValueError, match="beta=2.0"):
            numbaprims.conv(x, w, c=d, beta=2.0)


def test_in_place_and_beside_are_told_apart():
    """Arrays that lie alike in both: an update in place need not read what it adds to, one of another array must."""
    x, y = np.float32([1, 2, 3]), np.float32([1, 10, 100])
    for _ in range(4):
        a, out = np.full((3, 3), 5, np.float32), np.full((3, 3), 7, np.float32)
        np.testing.assert_array_equal(numbaprims.ger(x, y, a=out, out=out), np.outer(x, y) + 7)
        np.testing.assert_array_equal(numbaprims.ger(x, y, a=a, out=out), np.outer(x, y) + 5)
        v, w = np.full(3, 5, np.float32), np.full(3, 7, np.float32)
        np.testing.assert_array_equal(numbaprims.gemv(a, x, y=w, beta=1.0, out=w), np.full(3, 37))
        np.testing.assert_array_equal(numbaprims.gemv(a, x, y=v, beta=1.0, out=w), np.full(3, 35))


def test_a_call_keeps_none_of_its_arrays():
    vectors, matrices, images = ((5,), (5,)), ((5, 5), (5, 5)), ((1, 2, 5, 5), (3, 2, 3, 3))
    of = {"gemv": ((5, 5), (5,)), "ger": vectors, "gemm": matrices, "linear": matrices, "conv": images}
    alive = {}
    for name, shapes in (of | {"softmax": ((7, 5),)}).items():
        given = [integers(shape) for shape in shapes]
        for _ in range(4):
            result = getattr(numbaprims, name)(*given)
        alive[name] = [weakref.ref(x) for x in (*given, result)]
        del given, result
    gc.collect()  # once: seconds, beside all that other tests have left
    assert not [name for name, refs in alive.items() if any(ref() is not None for ref in refs)]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_halves_stored_as_float32(layout):
    """Every solver of a convolution that takes them writes elements of four bytes."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, 8, 6, 8) if layout == "NCHW" else (2, 6, 8, 8)).astype(np.float16)
    for groups in (1, 8):
        w = rng.integers(-3, 4, (8, 8 // groups, 3, 3)).astype(np.float16)
        words = {"groups": groups, "layout": layout, "out_dtype": "f32"}
        want = numbaprims.conv(x.astype(np.float64), w.astype(np.float64), groups=groups, layout=layout)
        for row in numbaprims.explain("conv", x, w, **words):
            if row.refusal is None:
                y = numbaprims.conv(x, w, algorithm=row.solver, **words)
                np.testing.assert_allclose(y, want, atol=1e-3, err_msg=row.solver)
