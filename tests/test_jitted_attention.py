"""Attention inside a user's own `@njit`: the bits, results and errors of the public call."""

import numpy as np
import pytest
from numba.core.errors import TypingError
from test_jitted import check, compiled, refuse_alike

import numbaprims

pytestmark = pytest.mark.cpu
CALLS = {
    "plain": "nb.attention(q, k, v)",
    "causal": "nb.attention(q, k, v, causal=True, scale=0.25)",
    "float mask": "nb.attention(q, k, v, mask=m, causal=c)",
    "bool mask": "nb.attention(q, k, v, mask=m > 0, scale=s)",
    "decode": "nb.attention(q[:, :, :1], k, v)",
    "strides": "nb.attention(q[:, ::2, ::-1], k, v[..., ::2])",
    "out": "nb.attention(q, k, v, out=y)",
    "train": "nb.attention_train(q, k, v, mask=m)",
}  # fmt: skip


@pytest.mark.parametrize("label", CALLS)
def test_calls(rng, label):
    q, k, v = (
        rng.standard_normal((2, heads, rows, 9)).astype(np.float32) for heads, rows in ((4, 7), (2, 37), (2, 37))
    )
    mask, y = rng.standard_normal((7, 37)).astype(np.float32), np.empty((2, 4, 7, 9), np.float32)
    for causal in (False, True):
        check("q, k, v, m, y, c, s", CALLS[label], q, k, v, mask, y, causal, 0.5)


def test_the_gradient(rng):
    q, k, v = (rng.standard_normal((3, rows, 8)) for rows in (5, 6, 6))
    out, lse = numbaprims.attention_train(q, k, v, causal=True)
    text = "nb.attention_backward(d, q, k, v, y, l, causal=True)"
    check("d, q, k, v, y, l", text, np.ones_like(out), q, k, v, out, lse)


def test_refusals():
    q = np.ones((2, 3, 4), np.float32)
    with pytest.raises(ValueError, match="beside q"):
        compiled("q, k", "nb.attention(q, k, k)")[0](q, q[..., :3].copy())
    with pytest.raises(ValueError, match="it must be"):
        compiled("q", "nb.attention(q, q, q)")[0](q[0])


def test_tables_of_rope():
    for call in ("nb.rope_frequencies(n, 8)", "nb.rope_frequencies(n, 6, base=500.0, dtype='float64')"):
        check("n", call, 9)
        refuse_alike(*compiled("n", call), -1)
    with pytest.raises(TypingError, match="dtype is float16; 'float32' or 'float64'"):
        compiled("n", "nb.rope_frequencies(n, 8, dtype='float16')")[0](3)
