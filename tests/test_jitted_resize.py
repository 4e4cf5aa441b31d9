"""Resizing and its gradient inside a user's own `@njit`: sizes from numbers at run time, bits of the public call."""

import numpy as np
import pytest
from test_jitted import compiled, drawn, same

from numbaprims.cpu.call_sites import Site

pytestmark = pytest.mark.cpu
CALLS = {
    "nearest": ("nb.resize(x, 4 * k)", (2, 3, 9, 8)),
    "linear": ("nb.resize(x, (k, 13), mode='linear', align_corners=True)", (2, 3, 9, 8)),
    "cubic": ("nb.resize(x, 5 * k, mode='cubic', cubic_coeff=-0.25 * k, layout='NHWC')", (2, 9, 8, 3)),
    "backward": ("nb.resize_backward(x, (2, 3, 4 * k, 5), mode='linear')", (2, 3, 9, 8)),
}


@pytest.mark.parametrize("label", CALLS)
def test_calls(rng, monkeypatch, label):
    expression, shape = CALLS[label]
    direct = []
    real = Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: direct.append(1) or real(*given))
    inside, outside = compiled("x, k", expression)
    for k in (2, 3, 2):
        x = drawn(rng, *shape, dtype=np.float32)
        same(inside(x, k), outside(x, k))
    assert not direct, "every launch was recorded"


@pytest.mark.parametrize("expression", ["nb.resize(x, 0)", "nb.resize(x)", "nb.resize(x, (2, 2, 2))"])
def test_errors_are_those_of_the_public_call(rng, expression):
    x = drawn(rng, 2, 3, 9, 8)
    inside, outside = compiled("x", expression)
    with pytest.raises(ValueError) as wanted:
        outside(x)
    with pytest.raises(ValueError, match="^" + __import__("re").escape(str(wanted.value)) + "$"):
        inside(x)
