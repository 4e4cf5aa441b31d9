"""Plans and data for the tests of FusionPlan.

Data are such that everything before an activation is exact in every type, folded or not: small integers, and powers of
two where a batch norm divides. A fused result then has one rounding, whatever was fused.
"""

import numpy as np
from helpers import ACTIVATION_ERRORS, NUMPY_FLOATS, assert_near, caller_array

import numbaprims
from numbaprims import FusionPlan, arrays
from numbaprims.dtypes import LONG_NAMES
from numbaprims.ops.examples import parameters
from numbaprims.reference.activation import activation as define_activation

FILTERS = (3, 5, 7, 9, 11)
MODES = ("spatial", "per_activation")
HALVES = tuple(dtype for dtype in NUMPY_FLOATS if dtype != "f64")
EPS = 0.0
F32 = np.float32


def integers(rng, shape, low=-1, high=1):
    return rng.integers(low, high, shape, endpoint=True).astype(np.float64)


class Data:
    """Arguments of a plan, as float64 and as arrays of its dtype, and the exact values behind each operator."""

    def __init__(self, dtype, seed=0):
        self.dtype, self.rng = dtype, np.random.default_rng(seed)

    def array(self, values):
        return caller_array(values, self.dtype)

    def images(self, shape):
        return integers(self.rng, shape) * (self.rng.random(shape) < 0.5)

    def statistics(self, shape):
        """scale, shift, mean, var, by which a batch norm divides by 4 or 8."""
        var = 4.0 ** integers(self.rng, shape, 1, 2)
        scale = 0.5 * np.where(self.rng.random(shape) < 0.3, -1.0, 1.0)
        shift = 1.0 - np.arange(var.size).reshape(shape) % 3  # of both signs
        return {"scale": scale, "shift": shift, "mean": integers(self.rng, shape), "var": var}

    def set(self, plan, operator, **values):
        plan.set_args(operator, **{name: self.array(value) for name, value in values.items()})


def convolved(x, weight, stride, padding):
    with numbaprims.config(device="reference"):
        return numbaprims.conv(x, weight, stride=stride, padding=padding)


def normalised(x, s, mode):
    view = (1, -1, 1, 1) if mode == "spatial" else s["mean"].shape
    mean, var, scale, shift = (s[name].reshape(view) for name in ("mean", "var", "scale", "shift"))
    return (x - mean) / np.sqrt(var) * scale + shift


def check(have, before, kind, dtype):
    """A result against the activation of what is exactly known before it."""
    want = define_activation(before, kind, **parameters(kind))
    assert np.isfinite(want).any() and (want != want.flat[0]).any() or kind == "threshold"
    assert_near(arrays.enter(have, "y")[0], want, dtype, ACTIVATION_ERRORS[kind].forward + 1)


def without_transforms():
    """The solver that only multiplies and adds: on ARM64 plans take Winograd's more often than calls do."""
    return "auto" if numbaprims.settings.current().device in ("cuda", "emulated") else "implicit_gemm"


def table_plan(
    data, letters, *, size=12, filter=1, stride=1, padding=0, mode="spatial", kind="relu", c=2, k=3, fold=True
):
    """(plan, x, the exact values before its activation) of a combination of the tables."""
    x = data.images((2, c, size, size))
    plan, before = FusionPlan(x.shape, LONG_NAMES[data.dtype]), x
    if "C" in letters:
        weight = data.images((k, c, filter, filter))
        weight[:, 0, 0, 0] = 1  # none is 0 everywhere
        conv = plan.conv(weight.shape, stride=stride, padding=padding, algorithm=without_transforms())
        data.set(plan, conv, weight=weight)
        before = convolved(x, weight, stride, padding)
    if "B" in letters:
        bias = integers(data.rng, before.shape[1])
        data.set(plan, plan.bias(), bias=bias)
        before = before + bias[:, None, None]
    if "N" in letters:
        norm = plan.batch_norm(mode=mode, eps=EPS, fold=fold)
        statistics = data.statistics(before.shape[1] if mode == "spatial" else (1, *before.shape[1:]))
        data.set(plan, norm, **statistics)
        before = normalised(before, statistics, mode)
    plan.activation(kind, **parameters(kind))
    assert plan.compile(strict=True)
    return plan, data.array(x), before


def real(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def small(*, dtype="float32"):
    return FusionPlan((2, 4, 6, 6), dtype)


def behind(*makers, dtype="float32"):
    plan = small(dtype=dtype)
    plan.conv((3, 4, 3, 3))
    for make in makers:
        make(plan)
    return plan


def complete():
    """A plan with its operators and arguments, and an input."""
    rng = np.random.default_rng(8)
    plan = small()
    conv, norm, add = plan.conv((3, 4, 3, 3)), plan.batch_norm(), plan.add()
    act = plan.activation("leaky_relu")
    assert plan.compile()
    plan.set_args(conv, weight=real(rng, 3, 4, 3, 3))
    plan.set_args(norm, **{name: rng.random(3).astype(np.float32) + 0.5 for name in ("scale", "shift", "mean", "var")})
    plan.set_args(add, added=real(rng, 2, 3, 4, 4))
    return plan, (conv, norm, add, act), real(rng, 2, 4, 6, 6)
