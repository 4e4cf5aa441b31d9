"""Every activation and its gradient inside a user's own `@njit`."""

import numpy as np
import pytest
from helpers import in_domain
from test_jitted import check, compiled, drawn, same

from numbaprims.ops.activation_kinds import ALIASES, KINDS

pytestmark = pytest.mark.cpu
PARAMETERS = {
    "leaky_relu": "negative_slope=p", "clipped_relu": "alpha=p", "elu": "alpha=p", "celu": "alpha=p",
    "softplus": "beta=p, threshold=9", "power": "alpha=2, beta=0.25, gamma=p", "hard_tanh": "min_val=-p, max_val=p",
    "clip": "min=None, max=p", "threshold": "threshold=p, value=-1.5", "gelu": "approximate='tanh'",
    "shrink": "p, 0.25", "hard_shrink": "lambd=p", "soft_shrink": "p", "glu": "axis=0", "prelu": "weight=w",
}  # fmt: skip
# a kind compiles in 0.3 s here; what differs between dtypes is the same for all of them
ALSO_DOUBLE = ("tanh", "gelu", "prelu", "glu", "softplus", "clip")


@pytest.mark.parametrize("name", [*KINDS, *ALIASES])
def test_every_kind_in_both_directions(rng, name):
    kind = KINDS[ALIASES.get(name, (name, {}))[0]]
    saved = {"x": ", x", "y": ", y", "": ""}[kind.reads]
    words = f", {PARAMETERS[name]}" if name in PARAMETERS else ""
    for dtype in (np.float32, np.float64)[: 1 + (name in ALSO_DOUBLE)]:
        forward = compiled("x, p, w", f"nb.{name}(x{words})")
        backward = compiled("dy, x, y, p, w", f"nb.{name}_backward(dy{saved}{words})")
        for shape in ((2, 8), (40, 32), (0, 4)):
            x = drawn(rng, *shape, dtype=dtype)
            x = in_domain(x, name)
            # 1.0, 2.0 and 6.0 are values that have kernels of their own somewhere
            for p in (0.5, 1.0, 2.0, 6.0):
                weight = drawn(rng, shape[1] if p > 1 else 1, dtype=dtype)
                y = forward[1](x, p, weight)
                same(forward[0](x, p, weight), y)
                dy = drawn(rng, *y.shape, dtype=dtype)
                same(*(f(dy, x, y, p, weight) for f in backward))


@pytest.mark.parametrize(
    "expression",
    [
        "nb.activation(x, 'leaky_relu')",
        "nb.activation(x, 'leaky_relu', negative_slope=0.5)",
        "nb.activation(x, 'relu6', out=x)",
        "nb.activation(x, 'gelu', approximate='tanh')",
        "nb.activation(x, 'glu')",
        "nb.gelu(x)",
        "nb.gelu_backward(x, x)",
        "nb.softplus(x)",
        "nb.hard_tanh_backward(x, x)",
        "nb.clip(x)",
        "nb.activation(x, 'glu', axis=-2)",
        "nb.activation(x, 'clip', min=0.25)",
        "nb.activation(x, 'prelu', weight=x[0, :1])",
        "nb.activation(x, 'prelu', weight=x[0])",
        "nb.activation_backward(x, None, x, 'tanh')",
        "nb.activation_backward(x, x, x, 'swish')",
        "nb.activation_backward(x, x, None, 'celu', alpha=2)",
        "nb.activation_backward(x, None, None, 'identity')",
        "nb.activation_backward(x[:, :3], x, None, 'glu')",
        "nb.activation_backward(x, x, None, 'prelu', weight=x[0])",
        "nb.prelu(x, x[:1, :1])",
        "nb.prelu_backward(x, x * 2, x[0, :1], out=x)",
        "nb.tanh(x, out=x)",
        "nb.tanh(x[::-1, ::2])",
        "nb.tanh(x[2, 3:4].reshape(()))",
        "nb.square_backward(x, x, out=x)",
    ],
)
def test_calls(rng, expression):
    check("x", expression, drawn(rng, 4, 6))
