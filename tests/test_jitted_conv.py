"""Convolutions and their gradients inside a user's own `@njit`: the bits, shapes and errors of the public calls."""

import numpy as np
import pytest
from helpers import in_turn
from test_jitted import check, compiled, drawn, refuse_alike, same

from numbaprims.cpu.call_sites import Site

pytestmark = pytest.mark.cpu
LINE, PLANES, VOLUME, LAST = (2, 4, 19), (2, 4, 9, 8), (1, 4, 5, 6, 7), (2, 9, 8, 4)
#: A label -> (expression of x, w, b and a number k, shape of x, shape of w).
CALLS = {
    "plain": ("nb.conv(x, w)", PLANES, (6, 4, 3, 3)),
    "one": ("nb.conv(x, w, b)", (1, 1, 1, 1), (6, 1, 1, 1)),
    "line": ("nb.conv(x, w, b, stride=k, padding=k)", LINE, (6, 4, 3)),
    "volume": ("nb.conv(x, w, padding=1)", VOLUME, (6, 4, 3, 3, 3)),
    "last": ("nb.conv(x, w, b, layout='NHWC', stride=(k, 1), padding=((1, 0), (0, k)), activation='relu')", LAST,
             (6, 4, 3, 3)),
    "dilated": ("nb.conv(x, w, dilation=(1, k), padding=(k, 4))", PLANES, (6, 4, 3, 2)),
    "beyond": ("nb.conv(x, w, padding=((0, 5), (4, k)), stride=k)", PLANES, (6, 4, 2, 2)),
    "same": ("nb.conv(x, w, padding='same', stride=k)", PLANES, (6, 4, 3, 4)),
    "valid": ("nb.conv(x, w, padding='valid')", PLANES, (6, 4, 3, 4)),
    "groups": ("nb.conv(x, w, b, groups=2, alpha=0.5)", PLANES, (6, 2, 3, 3)),
    "depthwise": ("nb.conv(x, w, b, groups=4, padding=1, activation='silu')", PLANES, (4, 1, 3, 3)),
    "added": ("nb.conv(x, w, c=b.reshape((6, 1, 1)), beta=k - 2.0)", PLANES, (6, 4, 3, 3)),
    "named": ("nb.conv(x, w, algorithm='naive')", PLANES, (6, 4, 3, 3)),
    "out": ("nb.conv(x, w, out=np.empty((2, 6, 7, 6), x.dtype))", PLANES, (6, 4, 3, 3)),
    "winograd": ("nb.conv(x, w, padding=1)", (2, 32, 20, 20), (32, 32, 3, 3)),
    "transposed": ("nb.conv_transpose(x, w, b, stride=k, padding=1, output_padding=k - 1)", PLANES, (4, 6, 3, 3)),
    "transposed last": ("nb.conv_transpose(x, w, stride=(k, 1), groups=2, dilation=2, padding=((1, 0), (0, 1)), "
                        "layout='NHWC', activation='tanh')", LAST, (4, 3, 3, 2)),
    "transposed line": ("nb.conv_transpose(x, w, b, stride=k)", LINE, (4, 6, 3)),
    "data": ("nb.conv_backward_data(nb.conv(x, w, stride=k), w, x.shape, stride=k)", PLANES, (6, 4, 3, 3)),
    "data, scaled": ("nb.conv_backward_data(x, w, (2, 3, 10, 9), alpha=0.5, c=b[:1], beta=1)", PLANES, (4, 3, 2, 2)),
    "transposed, data": ("nb.conv_transpose_backward_data(x, w, stride=k, padding=1)", PLANES, (6, 4, 3, 3)),
    "transposed, weight": ("nb.conv_transpose_backward_weight(nb.conv_transpose(x, w, stride=k), x, w.shape, stride=k)",
                           PLANES, (4, 6, 3, 3)),
    "weight": ("nb.conv_backward_weight(nb.conv(x, w, padding=k), x, w.shape, padding=k)", PLANES, (6, 4, 3, 3)),
    "weight, last": ("nb.conv_backward_weight(nb.conv(x, w, layout='NHWC'), x, (6, 4, 3, 2), layout='NHWC')", LAST,
                     (6, 4, 3, 2)),
    "bias": ("nb.conv_backward_bias(x)", PLANES, (6,)),
    "bias, last": ("nb.conv_backward_bias(x, layout='NHWC')", LAST, (6,)),
}  # fmt: skip


@pytest.fixture
def compiled_alone(monkeypatch):
    """Fails where a call went through Python that might have been recorded."""
    direct, real = [], Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: direct.append(1) or real(*given))
    yield
    assert not direct, "every launch was recorded"


@pytest.mark.parametrize("label, dtype", in_turn(CALLS, [np.float32, np.float64]))
def test_calls(rng, compiled_alone, label, dtype):
    expression, *shapes = CALLS[label]
    inside, outside = compiled("x, w, b, k", expression)
    for k in (1, 2, 1):
        x, w, b = (drawn(rng, *shape, dtype=dtype) for shape in (*shapes, (6 if "depth" not in label else 4,)))
        same(inside(x, w, b, k), outside(x, w, b, k))


def test_a_result_lies_as_x_does(rng, compiled_alone):
    inside, outside = compiled("x, w", "nb.conv_backward_data(nb.conv(x, w), w, x.shape), nb.conv(x, w)")
    x, w = drawn(rng, *PLANES), drawn(rng, 6, 4, 3, 2)
    for given in (np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), x.copy("F"), x[:, ::2, ::-1]):
        for got, want in zip(
            inside(given, w[:, : given.shape[1]]), outside(given, w[:, : given.shape[1]]), strict=True
        ):
            same(got, want)
            assert got.strides == want.strides


def test_gradients_are_added_where_they_lie(rng):
    expression = "nb.conv_backward_weight(dy, x, dw.shape, c=dw, beta=1.0, out=dw)"
    check("dy, x, dw", expression, drawn(rng, 2, 6, 7, 7), drawn(rng, 2, 4, 9, 8), drawn(rng, 6, 4, 3, 2))


def test_integers_are_summed_in_int32(rng):
    w = rng.integers(-100, 100, (5, 3, 3, 3)).astype(np.int8)
    for dtype in (np.int8, np.uint8):
        check("x, w", "nb.conv(x, w, activation='relu')", rng.integers(0, 100, (2, 3, 7, 7)).astype(dtype), w)


@pytest.mark.parametrize(
    "expression",
    [
        "nb.conv(x, w[:, :3])",
        "nb.conv(x, w, groups=2)",
        "nb.conv(x, w[:, :, 0])",
        "nb.conv(x[0, 0], w[0, 0])",
        "nb.conv(x, w, stride=0)",
        "nb.conv(x, w, padding=-1)",
        "nb.conv(x, w, padding='some')",
        "nb.conv(x, w, padding=(1, 2, 3))",
        "nb.conv(x, w, dilation=9)",
        "nb.conv(x, w, beta=1.0)",
        "nb.conv(x, w, layout='CHWN')",
        "nb.conv(x, w, algorithm='none')",
        "nb.conv(x, w, w[0, 0, 0])",
        "nb.conv(x, w, out=x)",
        "nb.conv_transpose(x, w)",
        "nb.conv_transpose(x, w[:4], output_padding=1)",
        "nb.conv_transpose(x, w[:4], padding=8)",
        "nb.conv_backward_data(x, w, (2, 4, 9, 9))",
        "nb.conv_backward_data(x, w[:4], (2, 4, 9))",
        "nb.conv_backward_weight(x, x, (4, 4, 2, 1))",
        "nb.conv_backward_bias(x[0, 0])",
    ],
)
def test_errors_are_those_of_the_public_call(rng, expression):
    x, w = drawn(rng, *PLANES), drawn(rng, 6, 4, 3, 3)
    inside, outside = compiled("x, w", expression)
    refuse_alike(inside, outside, x, w)
