"""Pooling and its gradients inside a user's own `@njit`: sizes from numbers at run time, bits of the public call."""

import numpy as np
import pytest
from helpers import in_turn
from test_jitted import check, compiled, drawn, refuse_alike, same

from numbaprims.cpu.call_sites import Site

pytestmark = pytest.mark.cpu
PLANES, VOLUME, LAST = (2, 3, 9, 8), (2, 3, 5, 4, 6), (2, 9, 8, 3)
CALLS = {
    "max": ("nb.max_pool(x, k)", PLANES),
    "line": ("nb.max_pool(x, k, stride=k - 1, padding=1)", (2, 3, 11)),
    "window": ("nb.max_pool(x, (k, 2), stride=(2, 1), padding=((1, 0), (0, 1)), dilation=(1, k))", PLANES),
    "places": ("nb.max_pool(x, k, stride=2, padding=1, ceil_mode=k > 2, return_indices=True)", PLANES),
    "same": ("nb.avg_pool(x, k, stride=2, padding='same', count_include_pad=k > 2)", PLANES),
    "valid": ("nb.avg_pool(x, k, padding='valid')", VOLUME),
    "last": ("nb.avg_pool(x, (k, k), layout='NHWC', ceil_mode=True)", LAST),
    "adaptive": ("nb.adaptive_max_pool(x, (k, 2), return_indices=True)", PLANES),
    "adaptive avg": ("nb.adaptive_avg_pool(x, k, layout='NHWC')", LAST),
    "global": ("nb.global_avg_pool(x)", VOLUME),
    "global max": ("nb.global_max_pool(x, layout='NHWC')", LAST),
    "out": ("nb.max_pool(x, 2, out=x[:, :, :4, :4].copy())", PLANES),
    "backward": ("nb.max_pool_backward(nb.max_pool(x, k), x, k)", PLANES),
    "global backward": ("nb.global_max_pool_backward(x[:, :, :1, :1], x)", PLANES),
    "avg backward": ("nb.avg_pool_backward(x, (17 + k, k + 14), k, stride=2, ceil_mode=False)", (2, 3, 9, 8)),
    "adaptive backward": ("nb.adaptive_avg_pool_backward(x, 4 * k)", PLANES),
}


@pytest.mark.parametrize("label, dtype", in_turn(CALLS, [np.float32, np.float64]))
def test_calls(rng, monkeypatch, label, dtype):
    expression, shape = CALLS[label]
    direct = []
    real = Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: direct.append(1) or real(*given))
    inside, outside = compiled("x, k", expression)
    for k in (2, 3, 2):
        x = drawn(rng, *shape, dtype=dtype)
        same(inside(x, k), outside(x, k))
    assert not direct, "every launch was recorded"


def test_places_instead_of_x(rng):
    expression = "nb.max_pool_backward(dy, None, 2, indices=i, size=(9, 8))"
    i = rng.integers(0, 72, (2, 3, 4, 4))
    check("dy, i", expression, drawn(rng, 2, 3, 4, 4), i)


@pytest.mark.parametrize(
    "expression",
    [
        "nb.max_pool(x, (2, 2, 2))",
        "nb.max_pool(x, 0)",
        "nb.max_pool(x, 2, stride=0)",
        "nb.max_pool(x, 2, padding=2)",
        "nb.avg_pool(x, 20)",
        "nb.avg_pool(x, 2, padding='some')",
        "nb.max_pool(x[0, 0], 2)",
        "nb.adaptive_avg_pool(x, 0)",
        "nb.max_pool_backward(x, x, 2)",
        "nb.avg_pool_backward(x, -3, 2)",
    ],
)
def test_errors_are_those_of_the_public_call(rng, expression):
    x = drawn(rng, *PLANES)
    inside, outside = compiled("x", expression)
    refuse_alike(inside, outside, x)
