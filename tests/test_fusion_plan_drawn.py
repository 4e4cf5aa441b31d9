"""FusionPlan: drawn plans, joined, against their calls one by one and against the definition."""

import numpy as np
from helpers import caller_array
from hypothesis import given, strategies as st

import numbaprims
from numbaprims import FusionPlan
from numbaprims.dtypes import LONG_NAMES
from numbaprims.ops.examples import parameters

KINDS = ("relu", "tanh", "silu", "leaky_relu", "gelu", "hard_swish", "identity", "clipped_relu", "softplus")
#: Beside the largest value: what rounding to halves between calls may do to a few of them, one after another.
TOLERANCE = {"f16": 0.03, "f32": 1e-3, "f64": 1e-9}


class Drawn:
    """A plan of one to six operators that fit one another, with arguments, and its x."""

    def __init__(self, draw):
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.dtype, layout = self.pick("f32", "f16", "f64"), self.pick("NCHW", "NHWC")
        n, c, h, w = (draw(st.integers(low, high)) for low, high in ((1, 3), (1, 20), (1, 17), (1, 17)))
        shape = self.pick((n, c), (n, c, h, w), (n, h, w, c)) if layout == "NHWC" else self.pick((n, c), (n, c, h, w))
        self.plan = FusionPlan(shape, LONG_NAMES[self.dtype], layout)
        makers = (
            self.conv, self.conv, self.depthwise, self.product, self.norm, self.norm, self.activation, self.activation,
            self.pool, self.softmax, self.plan.bias, self.plan.scale, self.plan.add,
        )  # fmt: skip
        for _ in range(draw(st.integers(1, 6))):
            try:
                self.pick(*makers)()
            except ValueError:  # it does not fit
                continue
        self.x = self.lying(self.array(shape))

    def pick(self, *choices):
        return self.draw(st.sampled_from(choices))

    def array(self, shape):
        return caller_array(self.rng.standard_normal(shape), self.dtype)

    def lying(self, x):
        how = self.pick("plain", "gaps", "moved")
        if how == "gaps":
            wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)
            wide[..., :-1:2] = x
            return wide[..., :-1:2]
        return np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1) if how == "moved" else x

    def set(self, operator):
        values = {}
        for name, argument in operator.arguments.items():
            if argument.needed:
                terms = np.prod(argument.shape[1:]) if name == "weight" else 1
                drawn = self.rng.uniform(0.5, 1.5, argument.shape) / np.sqrt(terms)
                values[name] = caller_array(drawn, self.pick(*argument.dtypes))
        self.plan.set_args(operator, **values)

    @property
    def channels(self):
        return self.plan.result.channels

    def conv(self):
        c, f, groups = self.channels, self.pick(1, 3, 5), self.pick(1, 1, 2)
        groups = groups if c % groups == 0 else 1
        words = {"padding": self.pick(0, f // 2), "stride": self.pick(1, 2), "groups": groups}
        self.plan.conv((groups * self.draw(st.integers(1, 9)), c // groups, f, f), **words)

    def depthwise(self):
        self.plan.conv((self.channels, 1, 3, 3), padding=1, groups=self.channels)

    def product(self):
        self.plan.gemm((self.draw(st.integers(1, 40)), self.plan.result.shape[-1]))

    def norm(self):
        how = self.pick({}, {"fold": False}, {"mode": "per_activation"}, {"training": True})
        self.plan.batch_norm(**how)

    def activation(self):
        kind = self.pick(*KINDS)
        self.plan.activation(kind, **parameters(kind))

    def pool(self):
        self.plan.pool(self.pick("max", "avg"), self.pick(2, 3), stride=self.pick(1, 2))

    def softmax(self):
        self.plan.softmax(axis=self.pick(*range(len(self.plan.result.shape))))


def tuple_of(value):
    return value if isinstance(value, tuple) else (value,)


@given(st.data())
def test_drawn_plans(data):
    drawn = Drawn(data.draw)
    plan, x = drawn.plan, drawn.x
    for operator in plan.operators:
        drawn.set(operator)
    if not plan.operators:
        return
    assert plan.compile(calls=1), plan.reason
    bound = plan._bind()
    have, want = tuple_of(plan(x)), tuple_of(plan._apart(bound.runs, bound.arguments, x, None))
    for a, b in zip(have, want, strict=True):
        assert a.dtype == b.dtype and a.squeeze().strides == b.squeeze().strides
        np.testing.assert_array_equal(a, b)
    assert len(bound.runs) == 1 or bound.joined.why == ""
    outs = [np.empty(plan.result.shape, have[0].dtype) for _ in range(2)]
    assert tuple_of(plan(x, out=outs[0]))[0] is outs[0]
    plan._apart(bound.runs, bound.arguments, x, outs[1])
    np.testing.assert_array_equal(*outs)
    with numbaprims.config(device="reference"):
        exact = tuple_of(plan(x))
    for a, b in zip(have, exact, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(b)
        top = 1 + np.abs(b[finite]).max(initial=0)
        np.testing.assert_allclose(a[finite], b[finite], rtol=0, atol=TOLERANCE[drawn.dtype] * top)
