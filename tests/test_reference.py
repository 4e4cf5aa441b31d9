"""The oracle itself: definitions against torch and finite differences, helpers against what they promise."""

import doctest
import math

import numpy as np
import pytest
from helpers import (
    FLOATS,
    LAYOUTS,
    PRECISION,
    SEEDS,
    assert_close,
    assert_exact,
    exact_integers,
    from_float64,
    has_module,
    in_domain,
    lay_out,
    nan_filled,
    to_float64,
)
from hypothesis import given, strategies as st

from numbaprims import datasets, shapes
from numbaprims.ops import activation_kinds
from numbaprims.ops.activation_kinds import ALIASES, KINDS, resolve
from numbaprims.reference.activation import activation, activation_backward
from numbaprims.reference.gemm import gemm, linear
from numbaprims.reference.gemv import gemv
from numbaprims.reference.ger import ger

needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
INF, NAN = math.inf, math.nan
# Both sides of every kink, the ends of the float range that matter, halves for round.
POINTS = np.array([
    -INF, -100, -20.5, -6, -3.000001, -3, -2.9999, -1, -0.5, -1e-3, -0.0, 0.0, 1e-3, 0.5, 1, 1.5, 2.5, 2.9999,
    3, 3.1, 6, 20, 20.5, 100, INF, NAN,
])  # fmt: skip
# kind -> sets of parameters other than the defaults
OTHERS: dict[str, list[dict]] = {
    "leaky_relu": [{"negative_slope": 0.3}],
    "clipped_relu": [{"alpha": 3.0}],
    "elu": [{"alpha": 1.5}],
    "celu": [{"alpha": 0.5}],
    "softplus": [{"beta": 2.0, "threshold": 5.0}],
    "power": [{"alpha": 1.0, "beta": 2.0, "gamma": 3.0}, {"alpha": 7.0, "beta": 1.0, "gamma": -1.5}],
    "gelu": [{"approximate": "tanh"}],
    "hard_tanh": [{"min_val": -3.0, "max_val": 1.5}],
    "clip": [{"min": -1.0, "max": 1.0}, {"min": 0.5}, {"max": 0.5}],
}
REQUIRED = {"threshold": {"threshold": 1.0, "value": -7.0}}
#: Kinds that are constant between their jumps.
STEPS = ("round", "sign", "floor", "ceil")
CASES = [
    (kind, parameters)
    for kind in KINDS
    if kind not in ("prelu", "glu")
    for parameters in [REQUIRED.get(kind, {}), *OTHERS.get(kind, [])]
]


def in_torch(kind: str):
    """The function of torch that computes a kind, with our parameter names."""
    import torch
    import torch.nn.functional as F

    own = {
        "identity": lambda x: x * 1,
        "clipped_relu": lambda x, alpha=6.0: F.hardtanh(x, 0.0, alpha),
        "power": lambda x, alpha=0.0, beta=1.0, gamma=1.0: (alpha + beta * x) ** gamma,
        "hard_sigmoid": F.hardsigmoid,
        "hard_swish": F.hardswish,
        "hard_tanh": F.hardtanh,
        "log_sigmoid": F.logsigmoid,
        "shrink": lambda x, lambd=0.5, by=0.0: F.hardshrink(x, lambd),
        "tanh_shrink": F.tanhshrink,
        "soft_shrink": F.softshrink,
        "clip": lambda x, min=-INF, max=INF: torch.clamp(x, min, max),
    }
    return own.get(kind) or getattr(torch, kind, None) or getattr(F, kind)


@needs_torch
@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_activation_is_torchs(kind, parameters):
    import torch

    # 16 times: what no vector fills is left to torch's scalar code, which gives other gradients of NaN
    first = slice(len(POINTS))
    x = torch.tensor(POINTS).repeat(16).requires_grad_()
    y = in_torch(kind)(x, **parameters)
    dy = torch.linspace(1, 2, len(POINTS), dtype=torch.float64)
    y.backward(dy.repeat(16))
    found = activation(POINTS, kind, **parameters)
    if kind == "sign":
        found[np.isnan(POINTS)] = 0.0  # NaN stays NaN; torch's sign gives 0
    np.testing.assert_allclose(found, y.detach().numpy()[first], 1e-12, 1e-13)
    ours, theirs = activation_backward(dy.numpy(), POINTS, kind, **parameters), x.grad.numpy()[first]
    same = np.ones(len(POINTS), bool)
    if kind == "softsign":
        same[np.isinf(POINTS)] = False  # the slope at infinity is 0; torch's inf/inf gives NaN
    if kind == "abs":
        same[np.isnan(POINTS)] = False  # NaN stays NaN; torch's sgn gives 0
    if kind == "power":
        same[np.isinf(POINTS)] = False  # torch multiplies 0 by infinity
    # torch keeps the 1/6 of hard_sigmoid in float32
    np.testing.assert_allclose(ours[same], theirs[same], 1e-7 if kind == "hard_sigmoid" else 1e-12, 1e-13)


@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_gradient_is_the_slope(kind, parameters):
    kinks = np.array([-3.0, -1.0, 0.0, 0.5, 1.0, 1.5, 3.0, 6.0])
    x = np.linspace(-6.2, 6.2, 97)
    x = x if kind == "power" else in_domain(x, kind)
    x = x[np.abs(x[:, None] - kinks).min(1) > 1e-3]
    if kind in STEPS:
        x = x[np.abs(2 * x - np.rint(2 * x)) > 0.02]
    h = 1e-6
    numeric = (activation(x + h, kind, **parameters) - activation(x - h, kind, **parameters)) / (2 * h)
    exact = activation_backward(np.full_like(x, 3.0), x, kind, **parameters)
    np.testing.assert_allclose(exact, 3.0 * numeric, 1e-6, 1e-7)
    assert kind in STEPS or np.abs(exact).max() > 0.1


@pytest.mark.parametrize("kind", ["relu", "clipped_relu", "hard_tanh", "clip", "leaky_relu", "elu", "round", "abs"])
def test_nan_goes_through(kind):
    assert np.isnan(activation(np.array([NAN]), kind)).all()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (6, 3), (7,)])
def test_prelu(shape, rng):
    x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
    for weight in (np.array([0.25]), *([np.array([0.25, -0.5, 2.0])] if len(shape) > 1 else [])):
        y = activation(x, "prelu", weight=weight)
        dx, dweight = activation_backward(dy, x, "prelu", weight=weight)
        assert dweight.shape == weight.shape
        if has_module("torch"):
            import torch

            tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(weight, requires_grad=True)
            ty = torch.nn.functional.prelu(tx, tw)
            ty.backward(torch.tensor(dy))
            for ours, theirs in ((y, ty.detach()), (dx, tx.grad), (dweight, tw.grad)):
                np.testing.assert_allclose(ours, theirs.numpy(), 1e-12, 1e-13)
        for i in range(weight.size):
            step = np.zeros_like(weight)
            step[i] = 1e-6
            ends = [(dy * activation(x, "prelu", weight=weight + s)).sum() for s in (step, -step)]
            np.testing.assert_allclose(dweight[i], (ends[0] - ends[1]) / 2e-6, 1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_glu(axis, rng):
    x = rng.standard_normal((4, 6, 8))
    y = activation(x, "glu", axis=axis)
    dy = rng.standard_normal(y.shape)
    dx = activation_backward(dy, x, "glu", axis=axis)
    for index in [(0, 0, 0), (3, 5, 7), (1, 4, 2)]:
        step = np.zeros_like(x)
        step[index] = 1e-6
        slope = (dy * (activation(x + step, "glu", axis=axis) - activation(x - step, "glu", axis=axis))).sum() / 2e-6
        np.testing.assert_allclose(dx[index], slope, 1e-6, 1e-8)
    if has_module("torch"):
        import torch

        theirs = torch.nn.functional.glu(torch.tensor(x), axis).numpy()
        np.testing.assert_allclose(y, theirs, 1e-12)


def test_kinds_are_resolved():
    assert resolve("swish", {}) == ("silu", {})
    assert resolve("relu6", {}) == ("clipped_relu", {"alpha": 6.0})
    assert resolve("clip", {"min": None, "max": 2}) == ("clip", {"min": -INF, "max": 2.0})
    for kind in [*KINDS, *ALIASES]:
        if kind not in ("prelu", "threshold"):
            name, full = resolve(kind, {})
            assert name in KINDS and list(full) == list(KINDS[name].parameters)
    for kind, parameters, error, words in [
        ("rleu", {}, ValueError, "kind is 'rleu'; it must be one of identity, relu"),
        ("relu", {"alpha": 1.0}, TypeError, "relu got 'alpha'; it takes no parameters"),
        ("elu", {"beta": 1.0}, TypeError, "elu got 'beta'; it takes alpha"),
        ("relu6", {"alpha": 1.0}, TypeError, "relu6 got 'alpha'; it takes no parameters"),
        ("threshold", {"threshold": 1.0}, TypeError, "threshold needs value"),
        ("prelu", {}, TypeError, "prelu needs weight"),
        ("elu", {"alpha": "big"}, TypeError, "alpha of elu is 'big'; it must be a number"),
        ("elu", {"alpha": "3"}, TypeError, "alpha of elu is '3'; it must be a number"),
        ("glu", {"axis": 0.5}, TypeError, "axis of glu is 0.5; it must be an int"),
        ("gelu", {"approximate": "erf"}, ValueError, "approximate is 'erf'; it must be 'none' or 'tanh'"),
        ("hard_tanh", {"min_val": 2.0}, ValueError, "min_val is 2.0 and max_val 1.0"),
        ("celu", {"alpha": 0.0}, ValueError, "alpha is 0; celu divides by it"),
        ("softplus", {"beta": 0.0}, ValueError, "beta is 0; softplus divides by it"),
    ]:
        with pytest.raises(error, match=words):
            resolve(kind, parameters)


@pytest.mark.parametrize("module", [activation_kinds, shapes, datasets])
def test_examples_run(module):
    failed, tried = doctest.testmod(module)
    assert failed == 0 < tried


# ---------------------------------------------------------------- products


def test_gemm_by_triple_loop(rng):
    a, b = rng.standard_normal((2, 1, 3, 4)), rng.standard_normal((5, 4, 6))
    c, bias = rng.standard_normal((3, 6)), rng.standard_normal(6)
    y = gemm(a, b, c=c, alpha=0.5, beta=-2.0, bias=bias, activation=("leaky_relu", {"negative_slope": 0.1}))
    assert y.shape == (2, 5, 3, 6)
    for i, j, m, n in np.ndindex(y.shape):
        want = 0.5 * sum(a[i, 0, m, k] * b[j, k, n] for k in range(4)) - 2.0 * c[m, n] + bias[n]
        assert math.isclose(y[i, j, m, n], want if want > 0 else 0.1 * want, rel_tol=1e-12)
    swapped = gemm(a.swapaxes(-1, -2), b.swapaxes(-1, -2), trans_a=True, trans_b=True)
    np.testing.assert_array_equal(swapped, gemm(a, b))


def test_gemm_of_nothing_and_of_no_sum():
    assert gemm(np.zeros((0, 4)), np.zeros((4, 3))).shape == (0, 3)
    c = np.array([[1.0, NAN]])
    np.testing.assert_array_equal(gemm(np.zeros((1, 0)), np.zeros((0, 2)), c=c, beta=2.0), [[2.0, NAN]])
    np.testing.assert_array_equal(gemm(np.zeros((1, 0)), np.zeros((0, 2)), c=c, beta=0.0), [[0.0, 0.0]])


def test_gemm_of_integers_wraps_around():
    a = np.full((1, 140_000), -128, np.int8)
    want = (140_000 * 128 * 128 + 2**31) % 2**32 - 2**31
    assert gemm(a, a.T).dtype == np.int32 and gemm(a, a.T)[0, 0] == want < 0
    assert gemm(a, a.T, bias=np.array([7], np.int32), activation="relu")[0, 0] == 0
    x = np.full((1, 3), 255, np.uint8)
    assert gemm(x, np.full((3, 1), -128, np.int8), c=np.array([[5]], np.int32), beta=1.0)[0, 0] == -97915


def test_linear_gemv_and_ger_agree_with_gemm(rng):
    x, w, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((5, 4)), rng.standard_normal(5)
    np.testing.assert_allclose(linear(x, w, b), x @ w.T + b, 1e-12)
    np.testing.assert_allclose(linear(x[0, 0], w), w @ x[0, 0], 1e-12)
    u, v = rng.standard_normal(5), rng.standard_normal(4)
    np.testing.assert_allclose(gemv(w, v, y=u, alpha=2.0, beta=3.0), 2 * w @ v + 3 * u, 1e-12)
    np.testing.assert_allclose(gemv(w, u, trans=True), w.T @ u, 1e-12)
    np.testing.assert_allclose(ger(u, v, a=w, alpha=-0.5), w - 0.5 * np.outer(u, v), 1e-12)


# ---------------------------------------------------------------- helpers


@pytest.mark.parametrize("dtype", FLOATS)
def test_conversions_round_once_to_the_nearest_even(dtype, rng):
    eps = PRECISION[dtype].out
    for value, want in [(1 + eps / 2, 1.0), (1 + 1.5 * eps, 1 + 2 * eps), (-0.0, -0.0), (-INF, -INF)]:
        got = to_float64(from_float64(value, dtype), dtype)
        assert got == want and np.signbit(got) == np.signbit(want)
    if dtype != "f64":
        # Halfway in this type, and above halfway by less than float32 can tell.
        assert to_float64(from_float64(1 + eps / 2 + 2.0**-50, dtype), dtype) == 1 + eps
        assert to_float64(from_float64(1e300, dtype), dtype) == INF
    smallest = PRECISION[dtype].smallest
    assert to_float64(from_float64(smallest, dtype), dtype) == smallest
    if dtype != "f64":
        assert to_float64(from_float64(smallest / 2, dtype), dtype) == 0
    assert np.isnan(to_float64(from_float64(NAN, dtype), dtype))
    stored = from_float64(rng.standard_normal(1000) * 10.0 ** rng.integers(-40, 38, 1000), dtype)
    np.testing.assert_array_equal(from_float64(to_float64(stored, dtype), dtype), stored)


def test_bfloat16_is_that_of_ml_dtypes(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = rng.standard_normal(10_000).astype(np.float32)
    theirs = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(from_float64(values, "bf16"), theirs.view(np.uint16))
    np.testing.assert_array_equal(to_float64(theirs), theirs.astype(np.float64))


@given(SEEDS, st.sampled_from([*FLOATS, "i8", "u8"]), st.integers(1, 400))
def test_sums_of_exact_integers_are_exact_in_any_order(seed, dtype, n):
    rng = np.random.default_rng(seed)
    a, b = exact_integers(n, dtype, n, rng), exact_integers(n, dtype, n, rng)
    if dtype in PRECISION:
        np.testing.assert_array_equal(to_float64(from_float64(a, dtype), dtype), a)
    kind = {"f64": np.float64, "i8": np.int32, "u8": np.int32}.get(dtype, np.float32)
    products = a.astype(kind) * b.astype(kind)
    sums = {int(np.cumsum(rng.permutation(products), dtype=kind)[-1]) for _ in range(3)}
    assert sums == {sum(int(x) * int(y) for x, y in zip(a, b, strict=True))}


@pytest.mark.parametrize("dtype", [*FLOATS, "i8", "i32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_keep_the_values(layout, dtype):
    values = from_float64(np.arange(24.0).reshape(2, 3, 4), dtype)
    x = lay_out(values, layout)
    expected = np.broadcast_to(values[:1], values.shape) if layout == "broadcast" else values
    np.testing.assert_array_equal(x, expected)
    assert x.dtype == values.dtype and not np.shares_memory(x, values)
    for shape in ((0, 3), (3, 0), (), (1, 1)):
        assert lay_out(from_float64(np.zeros(shape), dtype), layout).shape == shape


def test_nan_filled():
    for dtype in FLOATS:
        assert np.isnan(to_float64(nan_filled((2, 3), dtype, "padded"), dtype)).all()
    assert (nan_filled((2, 2), "i8") == 0x55).all()


def test_comparisons_can_fail(rng):
    want = rng.standard_normal((8, 8))
    for dtype in FLOATS:
        good = from_float64(want, dtype)
        assert_close(good, want, k=1, dtype=dtype)
        assert_exact(good, want, dtype)
        bad = good.copy()
        bad[3, 5] = from_float64(want[3, 5] + 64 * PRECISION[dtype].out, dtype)
        with pytest.raises(AssertionError, match=r"1 of 64 elements are wrong \(\w+\); the first at \(3, 5\)"):
            assert_close(bad, want, k=1, dtype=dtype)
        with pytest.raises(AssertionError, match=r"the first at \(3, 5\)"):
            assert_exact(bad, want, dtype)
    # one last bit everywhere is within the bound of each element for k = 100, and not random
    with pytest.raises(AssertionError, match="RMS error"):
        assert_close((want + 40 * 2.0**-23).astype(np.float32), want, k=100, dtype="f32")
    with pytest.raises(AssertionError, match="tolerance .* exceeds all values"):
        assert_close(want, want, k=1 << 60, dtype="f64")
    with pytest.raises(AssertionError, match="shape"):
        assert_close(want[:1], want, k=1)


@pytest.mark.parametrize("check", [assert_exact, lambda a, b, **k: assert_close(a, b, k=1, **k)])
def test_vacuous_comparisons_are_refused_unless_said(check):
    for x, words in [
        (np.zeros((0, 3)), "empty"),
        (np.zeros(3), "all zero"),
        (np.array([1, NAN, INF]), "finite"),
    ]:
        with pytest.raises(AssertionError, match=words):
            check(x, x)
        check(x, x, vacuous=True)
    with pytest.raises(AssertionError):
        check(np.array([1.0, 2.0, INF]), np.array([1.0, NAN, INF]), vacuous=True)
    with pytest.raises(AssertionError):
        check(np.array([1.0, -INF]), np.array([1.0, INF]), vacuous=True)
