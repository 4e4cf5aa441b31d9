"""reduce and functions of elements inside a user's own `@njit`: the bits, results and errors of the public call."""

import numpy as np
import pytest
from test_jitted import check, compiled

pytestmark = pytest.mark.cpu
CALLS = {
    "all": "nb.reduce(x, 'sum')",
    "axis": "nb.reduce(x, 'logsumexp', axis=k)",
    "kept": "nb.reduce(x, 'var', axis=(0, 2), keepdims=True)",
    "tuple": "nb.reduce(x, 'norm2', (0, -1))",
    "place": "nb.reduce(x, 'argmax', axis=k, nan='omit')",
    "truth": "nb.reduce(x, 'any', axis=-1)",
    "binary": "nb.binary(x, x[0], 'add')",
    "compared": "nb.binary(x[:, :1], x, 'less')",
    "factors": "nb.binary(x, x, 'mul', alpha1=0.5, c=x[0], beta=float(k))",
    "chosen": "nb.where(x > 0, x, x[0])",
    "scaled": "nb.scale(x, 3.0)",
    "cast": "nb.cast(x, 'int8')",
    "no axes": "nb.reduce(x, 'sum', axis=())",
    "no axes, kept": "nb.reduce(x, 'max', axis=(), keepdims=True)",
    "out": "nb.reduce(x, 'max', axis=1, out=y)",
}


@pytest.mark.parametrize("label", CALLS)
def test_calls(rng, label):
    x = rng.standard_normal((4, 37, 6)).astype(np.float32)
    for k in (1, -1):
        check("x, y, k", CALLS[label], x, np.empty((4, 6), np.float32), k)


def test_refusals():
    x = np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match="axis is 7 and x is"):
        compiled("x, k", "nb.reduce(x, 'sum', axis=k)")[0](x, 7)
    with pytest.raises(ValueError, match="op is 'median'"):
        compiled("x", "nb.reduce(x, 'median')")[0](x)
