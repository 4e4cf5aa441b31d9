"""Activations: every kind, both directions, every type and solver, against the definition."""

import ctypes

import numpy as np
import pytest
from helpers import (
    ACTIVATION_ERRORS,
    NUMPY_FLOATS,
    assert_near,
    from_float64,
    in_library,
    nan_filled,
    solver_names,
    to_float64,
)

import numbaprims
from numbaprims import arrays
from numbaprims.ops import activation as ops
from numbaprims.ops.activation_kinds import DOMAINS, KINDS, resolve
from numbaprims.reference import activation as reference

SOLVERS = solver_names("activation")
DTYPES = NUMPY_FLOATS
# Parameters that types hold exactly and that keep arguments exact, so that errors are those of the kernels.
PARAMETERS = {
    "leaky_relu": [{"negative_slope": 0.125}, {"negative_slope": -2.0}],
    "clipped_relu": [{"alpha": 1.5}, {}],
    "elu": [{"alpha": 1.25}, {}],
    "celu": [{"alpha": 0.5}, {"alpha": -2.0}],
    "softplus": [{}, {"beta": 2.0, "threshold": 8.25}],
    "power": [{"alpha": 1.0, "beta": 0.5, "gamma": 1.75}, {"alpha": 0.5, "beta": 2.0, "gamma": 2.0}, {"gamma": -3.0}],
    "gelu": [{}, {"approximate": "tanh"}],
    "hard_tanh": [{}, {"min_val": -0.5, "max_val": 3.0}],
    "clip": [{"min": -1.0, "max": 2.0}, {"min": 0.5}, {"min": 1.0, "max": -1.0}],
    "threshold": [{"threshold": 0.5, "value": -1.0}],
    "shrink": [{"lambd": 1.5, "by": 0.25}, {}],
}
CASES = [
    pytest.param(kind, parameters, id="-".join([kind, *(f"{k}={v}" for k, v in parameters.items())]))
    for kind in KINDS
    if kind not in ("prelu", "glu")
    for parameters in PARAMETERS.get(kind, [{}])
]
FIRST = [(kind, PARAMETERS.get(kind, [{}])[0]) for kind in KINDS if kind not in ("prelu", "glu")]

# Gradients from y as it was stored: x would give those of another y.
OF_Y = {
    "relu": lambda dy, y: np.where(y <= 0, 0.0, dy),
    "sigmoid": lambda dy, y: dy * (y * (1 - y)),
    "tanh": lambda dy, y: dy * ((1 - y) * (1 + y)),
    "exp": lambda dy, y: dy * y,
    "sqrt": lambda dy, y: dy / (2 * y),
    "exp2": lambda dy, y: dy * y * np.log(2),
    "expm1": lambda dy, y: dy * (y + 1),
    "reciprocal": lambda dy, y: -dy * y * y,
    "rsqrt": lambda dy, y: -0.5 * dy * y * y * y,
    "tan": lambda dy, y: dy * (1 + y * y),
}
ELEMENTARY = (
    "exp2", "expm1", "log1p", "erf", "reciprocal", "rsqrt", "sign", "floor", "ceil", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "log2", "log10", "erfc", "neg",
)  # fmt: skip
# Infinite x: torch's formulas multiply 0 with infinity and give NaN, the kernels give the limit.
HAS_LIMIT = ("silu", "mish")


@pytest.fixture(autouse=True)
def quiet():
    """Overflows, NaN and signalling NaN are what is tested."""
    with np.errstate(all="ignore"):
        yield


def errors_of(kind, parameters):
    return ACTIVATION_ERRORS["gelu_tanh" if parameters.get("approximate") == "tanh" else kind]


def conditioned(kind, parameters, dtype, eps, x, want):
    """More where the argument of an exponential has rounded terms: eps times its size.

    A float64 power's is its logarithm (float32 powers are computed in float64). gelu's tanh form has some -2x (0.8 +
    0.036 x**2) far below 0, computed and in the definition. The definition of gelu has x**2 / 2, and so have the
    kernels without fused multiply-add.
    """
    size = np.minimum(np.abs(x), 40.0)
    if kind == "power" and dtype == "f64":
        eps = eps + np.nan_to_num(np.abs(np.log(np.abs(want))), posinf=0.0, neginf=0.0)
    if kind == "gelu" and "approximate" in parameters:
        eps = eps + 4.8 * size * (0.8 + 0.036 * size * size)
    elif kind == "gelu" and (dtype == "f64" or not has_fma()):
        eps = eps + size * size
    return eps


def has_fma():
    """Whether products are rounded once with a sum: on a GPU always."""
    from numbaprims import settings
    from numbaprims.cpu import target

    return (settings.current().device or "cpu") != "cpu" or target.current().has_fma


def check_forward(storage, x, dtype, kind, parameters):
    errors = errors_of(kind, parameters)
    want = reference.activation(x, kind, **parameters)
    # math.erfc, the definition, is off by 2.7 units itself (against 40 digits); docs/notes/elementary_errors.py judges
    eps = errors.forward + (3.0 if (kind, dtype) == ("erfc", "f64") else 0.0)
    assert_near(storage, want, dtype, conditioned(kind, parameters, dtype, eps, x, want))


def check_backward(storage, dy, x, y, dtype, kind, parameters):
    errors = errors_of(kind, parameters)
    want = OF_Y[kind](dy, y) if kind in OF_Y else reference.activation_backward(dy, x, kind, **parameters)
    eps = max(errors.backward, errors.reference) if dtype == "f64" else errors.backward
    if kind in HAS_LIMIT or "approximate" in parameters:
        limit = np.isinf(x) & np.isnan(want)
        want = np.where(limit, to_float64(storage, dtype), want)
    if kind in ("sinh", "cosh"):  # the slope is infinite before a product with a dy that is less than 1
        want = np.where(np.isinf(y), to_float64(storage, dtype), want)
    scale = np.abs(dy) if errors.backward_scale == "dy" else 0.0
    eps = conditioned(kind, parameters, dtype, eps, x, want) if kind == "power" else eps
    assert_near(storage, want, dtype, eps, scale)


def run_both(x_storage, dy_storage, dtype, kind, parameters):
    """(y, dx) as storage, outputs filled with NaN before."""
    x, dy = (in_library(s, dtype) for s in (x_storage, dy_storage))
    y_storage, dx_storage = nan_filled(x_storage.shape, dtype), nan_filled(x_storage.shape, dtype)
    y, dx = in_library(y_storage, dtype), in_library(dx_storage, dtype)
    assert numbaprims.activation(x, kind, out=y, **parameters) is y
    assert numbaprims.activation_backward(dy, x, y, kind, out=dx, **parameters) is dx
    return y_storage, dx_storage


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_kind(solver, dtype, rng, request):
    """Every solver that takes contiguous arrays computes every kind; a length that no vector divides.

    Of the types that float32 computes each kind takes one in turn: a solver reads and writes them alike for every kind,
    the default one has all of them below, and kernels of all took most of a minute.
    """
    ran = 0
    narrow = [each for each in DTYPES if each != "f64"]
    kinds = FIRST
    if dtype in narrow and not request.config.option.slow:
        kinds = FIRST[narrow.index(dtype) :: len(narrow)]
    for kind, parameters in kinds:
        x_storage = from_float64(3 * rng.standard_normal((5, 7, 11)), dtype)
        dy_storage = from_float64(rng.standard_normal(x_storage.shape), dtype)
        x, dy = to_float64(x_storage, dtype), to_float64(dy_storage, dtype)
        if numbaprims.explain("activation", in_library(x_storage, dtype), kind, **parameters)[solver].refusal:
            continue
        with numbaprims.config(algorithm={"activation": solver}):
            y, dx = run_both(x_storage, dy_storage, dtype, kind, parameters)
        check_forward(y, x, dtype, kind, parameters)
        check_backward(dx, dy, x, to_float64(y, dtype), dtype, kind, parameters)
        ran += 1
    assert ran == (0 if solver == "channel_sums" else len(kinds))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype in ("f16", "bf16")])
@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_all_half_precision_numbers(kind, parameters, dtype, rng):
    x_storage = np.arange(1 << 16).astype(np.uint16)
    dy_storage = from_float64(rng.standard_normal(x_storage.shape), dtype)
    x = to_float64(x_storage, dtype)
    y, dx = run_both(x_storage, dy_storage, dtype, kind, parameters)
    check_forward(y, x, dtype, kind, parameters)
    keep = moderate(x, kind)
    dy = to_float64(dy_storage, dtype)
    check_backward(dx[keep], dy[keep], x[keep], to_float64(y, dtype)[keep], dtype, kind, parameters)


def moderate(x, kind):
    """Where the definition's own products don't overflow in float64, nor powers in float32."""
    size = np.abs(x)
    fine = ~np.isfinite(x) | (size < (2.0**300 if kind == "gelu" else 2.0**1000))
    if kind in ("power", "celu"):
        fine &= (size > 2.0**-20) & (size < 2.0**20) if kind == "power" else ~(x < -100)
    return fine


def wide_range(dtype):
    """Both signs of all magnitudes, the neighbourhood of 0, what is special."""
    exponents = np.linspace(-149, 127, 3001) if dtype == "f32" else np.linspace(-1074, 1023, 3001)
    special = [0.0, np.inf, np.nan, 2.0**-149, 2.0**-126, 2.0**-1022, 5e-324, 88.7, 103.9, 104.1, 709.7, 745.2]
    positive = np.concatenate([np.exp2(exponents), np.linspace(0, 120, 6001), np.linspace(0, 4, 4001), special])
    return from_float64(np.concatenate([positive, -positive]), dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_whole_range(kind, parameters, dtype, rng):
    x_storage = wide_range(dtype)
    dy_storage = from_float64(rng.standard_normal(x_storage.shape), dtype)
    keep = moderate(to_float64(x_storage, dtype), kind)
    x_storage, dy_storage = x_storage[keep], dy_storage[keep]
    x = to_float64(x_storage, dtype)
    y, dx = run_both(x_storage, dy_storage, dtype, kind, parameters)
    check_forward(y, x, dtype, kind, parameters)
    if kind not in ("sqrt", "log", "log1p", "reciprocal", "rsqrt", "log2", "log10"):
        check_backward(dx, to_float64(dy_storage, dtype), x, to_float64(y, dtype), dtype, kind, parameters)


@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_gradient_is_the_slope(kind, parameters, rng):
    """Central differences in float64, away from kinks."""
    low, high = DOMAINS.get(kind, (-4.0, 4.0))
    x = rng.uniform(0.3 if low == 0.1 else low, min(high, 2.5) if low == 0.1 else high, 64)
    kinks = [0.0, 3.0, -3.0, 6.0, *(v for v in parameters.values() if isinstance(v, float))]
    if kind == "softplus":
        kinks.append(resolve(kind, parameters)[1]["threshold"] / resolve(kind, parameters)[1]["beta"])
    x = x[np.min(np.abs(x[:, None] - np.array(kinks)), axis=1) > 0.01]
    if kind in ("shrink", "soft_shrink"):
        x = x[np.abs(np.abs(x) - resolve(kind, parameters)[1]["lambd"]) > 0.01]
    if kind in ("round", "floor", "ceil"):
        x = x[np.abs(2 * x - np.rint(2 * x)) > 0.02]
    h = 1e-5
    slope = (numbaprims.activation(x + h, kind, **parameters) - numbaprims.activation(x - h, kind, **parameters)) / (
        2 * h
    )
    dy = rng.standard_normal(x.shape)
    dx = numbaprims.activation_backward(dy, x, numbaprims.activation(x, kind, **parameters), kind, **parameters)
    np.testing.assert_allclose(dx, dy * slope, rtol=1e-6, atol=1e-8)
    assert (
        kind in ("round", "sign", "floor", "ceil") or parameters.get("max") == -1.0 or dx.any()
    )  # where the bounds cross, it is flat


# ---------------------------------------------------------------- prelu and glu


def draw(shape, dtype, rng):
    """(caller's array, its values)"""
    storage = from_float64(rng.standard_normal(shape), dtype)
    return in_library(storage, dtype), to_float64(storage, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", [None, "naive"])
@pytest.mark.parametrize("shape", [(3, 5, 4, 7), (9, 5), (2, 5, 300), (4, 1, 3), (70, 130), (0, 3), (600, 2, 3)])
def test_prelu(shape, solver, dtype, rng):
    for size in {1, shape[1]}:
        (x, x_values), (dy, dy_values) = draw(shape, dtype, rng), draw(shape, dtype, rng)
        weight, weights = draw(size, dtype, rng)
        with numbaprims.config(algorithm={"activation": solver} if solver else {}):
            y = numbaprims.prelu(x, weight)
            dx, dweight = numbaprims.prelu_backward(dy, x, weight)
        want_dx, want_dweight = reference.activation_backward(dy_values, x_values, "prelu", weight=weights)
        assert_near(arrays.enter(y, "y")[0], reference.activation(x_values, "prelu", weight=weights), dtype, 1)
        assert_near(arrays.enter(dx, "dx")[0], want_dx, dtype, 1)
        assert dweight.shape == weight.shape
        # the rounding of each sum is relative to the sum of magnitudes
        assert_near(arrays.enter(dweight, "dw")[0], want_dweight, dtype, 4, np.abs(dy_values * x_values).sum())


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "sliced"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prelu_weight_of_any_layout(layout, dtype, rng):
    """The gradient of the weight reads every layout, and a channel that is longer than a chunk."""
    shape = (5, 37, 60, 70) if dtype == "f32" else (3, 5, 8, 9)
    (x, x_values), (dy, dy_values) = draw(shape, dtype, rng), draw(shape, dtype, rng)

    def relaid(a):
        if layout == "channels_last":
            return np.ascontiguousarray(np.moveaxis(a, 1, -1)).swapaxes(1, -1).swapaxes(2, -1)
        return np.asfortranarray(a) if layout == "transposed" else np.repeat(a, 2, axis=-1)[..., ::2]

    x, dy = relaid(x), relaid(dy)
    np.testing.assert_array_equal(np.asarray(x, np.float64), x_values)
    _, dweight = numbaprims.prelu_backward(dy, x, draw(shape[1], dtype, rng)[0])
    want = reference.activation_backward(dy_values, x_values, "prelu", weight=np.zeros(shape[1]))[1]
    assert_near(arrays.enter(dweight, "dw")[0], want, dtype, 4, np.abs(dy_values * x_values).sum((0, 2, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", [None, "rows", "naive"])
def test_glu(solver, dtype, rng, device):
    errors = ACTIVATION_ERRORS["glu"]
    ran = 0
    for shape, axis in (((6, 10, 4), 1), ((8, 3), 0), ((3, 7, 2), -1), ((2000,), 0), ((3, 1400), 1), ((2, 0), 0)):
        x, x_values = draw(shape, dtype, rng)
        if device != "cpu" and solver and numbaprims.explain("glu", x, axis)[solver].refusal:
            continue  # rows of a GPU are contiguous; a CPU gathers what is not
        ran += 1
        half = tuple(n // 2 if i == axis % len(shape) else n for i, n in enumerate(shape))
        dy, dy_values = draw(half, dtype, rng)
        y, dx = in_library(nan_filled(half, dtype), dtype), in_library(nan_filled(shape, dtype), dtype)
        with numbaprims.config(algorithm={"activation": solver} if solver else {}):
            assert numbaprims.glu(x, axis, out=y) is y
            assert numbaprims.glu_backward(dy, x, axis, out=dx) is dx
        assert_near(arrays.enter(y, "y")[0], reference.activation(x_values, "glu", axis=axis), dtype, errors.forward)
        want = reference.activation_backward(dy_values, x_values, "glu", axis=axis)
        scale = np.abs(np.concatenate([dy_values, dy_values], axis))
        eps = errors.reference if dtype == "f64" else errors.backward
        assert_near(arrays.enter(dx, "dx")[0], want, dtype, eps, scale)
        # in place: each half is read before it is written
        assert numbaprims.glu_backward(dy, x, axis, out=x) is x
        np.testing.assert_array_equal(arrays.enter(x, "x")[0], arrays.enter(dx, "dx")[0])
    assert ran >= 4


# ---------------------------------------------------------------- against torch


def torch_functions():
    import torch
    from torch.nn import functional as F

    return {
        "relu": F.relu, "leaky_relu": F.leaky_relu, "clipped_relu": F.relu6, "elu": F.elu, "selu": F.selu,
        "celu": F.celu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softplus": F.softplus, "softsign": F.softsign,
        "tanh_shrink": F.tanhshrink,
        "abs": torch.abs, "gelu": F.gelu, "silu": F.silu, "mish": F.mish, "hard_sigmoid": F.hardsigmoid,
        "hard_swish": F.hardswish, "hard_tanh": F.hardtanh, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt,
        "square": torch.square, "round": torch.round, "clip": lambda x: torch.clamp(x, -1.0, 2.0),
        **{kind: getattr(torch, kind) for kind in ELEMENTARY if kind != "sign"},
        "threshold": lambda x: F.threshold(x, 0.5, -1.0), "power": lambda x: torch.pow(0.5 * x + 1.0, 2.0),
    }  # fmt: skip


def test_torch_agrees_on_what_is_special():
    """Both sides of each kink, NaN and infinities, values and gradients, as torch's vector code has them.

    Its scalar code, which takes what no vector fills, gives other gradients of NaN.
    """
    torch = pytest.importorskip("torch")
    given = {"clip": {"min": -1.0, "max": 2.0}, "threshold": {"threshold": 0.5, "value": -1.0},
             "power": {"alpha": 1.0, "beta": 0.5, "gamma": 2.0}}  # fmt: skip
    special = [0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 3.0, -3.0, 6.0, 1.5, 2.5, 21.0, -21.0, 1e4, -1e4]
    x = torch.tensor([*special, float("nan"), float("inf"), float("-inf")], dtype=torch.float64)
    for kind, function in torch_functions().items():
        y_want, dx_want = (z[: len(x)] for z in torch_gradient(function, x.repeat(16)))
        skip = torch.isinf(x) if kind in (*HAS_LIMIT, "softsign") else torch.zeros_like(x, dtype=torch.bool)
        if kind == "abs":
            skip |= torch.isnan(x)  # torch's sign of NaN is 0, NumPy's NaN
        y = numbaprims.activation(x, kind, **given.get(kind, {}))
        torch.testing.assert_close(y, y_want, rtol=1e-13, atol=1e-15, equal_nan=True, msg=lambda m, k=kind: f"{k}: {m}")
        dx = numbaprims.activation_backward(torch.full_like(x, 2.0), x, y, kind, **given.get(kind, {}))
        want = torch.where(skip, dx, dx_want)
        torch.testing.assert_close(dx, want, rtol=1e-6, atol=1e-9, equal_nan=True, msg=lambda m, k=kind: f"{k}': {m}")
        assert not skip[:-3].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_of_x_is_nan_in_smooth_gradients(dtype):
    """And in those of elu, selu, celu and hard_swish, every lane and tail of a vector."""
    constant = {
        "identity",
        "relu",
        "leaky_relu",
        "clipped_relu",
        "hard_sigmoid",
        "hard_tanh",
        "round",
        "clip",
        "threshold",
        "sign",
        "floor",
        "ceil",
        "neg",
        "shrink",
        "soft_shrink",
    }
    for kind, parameters in FIRST:
        x, dy = from_float64(np.full(77, np.nan), dtype), from_float64(np.ones(77), dtype)
        y, dx = run_both(x, dy, dtype, kind, parameters)
        assert np.isnan(to_float64(y, dtype)).all(), kind
        assert np.isnan(to_float64(dx, dtype)).all() == (kind not in constant), kind
        y, dx = run_both(dy, x, dtype, kind, parameters)
        assert np.isnan(to_float64(dx, dtype)).all() or kind in ("hard_tanh", "clip", "shrink"), kind


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_at_infinity(dtype):
    """Where torch multiplies 0 with infinity: slopes of silu, mish and gelu's tanh form are 0 and 1."""
    x = from_float64(np.resize([-np.inf, np.inf], 70), dtype)
    rtol = 3e-16 if dtype == "f64" else 3e-7
    for kind, parameters in (("silu", {}), ("mish", {}), ("gelu", {"approximate": "tanh"})):
        dx = run_both(x, from_float64(np.full(70, 2.0), dtype), dtype, kind, parameters)[1]
        np.testing.assert_allclose(to_float64(dx, dtype), np.resize([0.0, 2.0], 70), rtol=rtol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_negative_zero_stays(dtype):
    x = from_float64(np.full(77, -0.0), dtype)
    odd = "identity leaky_relu elu selu celu tanh softsign gelu silu mish hard_swish hard_tanh sqrt round clip"
    for kind in odd.split():
        y = to_float64(run_both(x, x, dtype, kind, {})[0], dtype)
        assert (y == 0).all() and np.signbit(y).all(), kind


def torch_gradient(function, x):
    """(y, dx) with dy = 2."""
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    y.backward(y.new_full(y.shape, 2.0))
    return y.detach(), leaf.grad


# ---------------------------------------------------------------- what other stems call


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_epilogue_kernel(dtype, rng):
    """By pointer, in place, n elements in one tile: the contract that fused primitives rely on."""
    from numbaprims.cpu import target
    from numbaprims.cpu.activation import epilogue_kernel
    from numbaprims.cpu.simd import lanes
    from numbaprims.ops.epilogue import make_activation

    W = lanes(dtype, target.current().vector_bytes)
    fused = FIRST if dtype == "f32" else [("relu", {}), ("identity", {})]
    if dtype == "f64":
        fused += [("gelu", {"approximate": "tanh"}), ("elu", {"alpha": 2.0})]
    for kind, parameters in fused:
        act = make_activation(kind, parameters)
        kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(epilogue_kernel(act.kind, dtype, W).address)
        for n in (1, W - 1, W, 5 * W + 3):
            if dtype == "i32":
                x = rng.integers(-100, 100, n, dtype=np.int32)
            else:
                x = from_float64(rng.standard_normal(n), dtype)
            y = np.append(x, x[:1])  # one element more, which must stay
            words = np.zeros(80, np.int64)
            words[0] = words[1] = y.ctypes.data
            words[8:11] = np.array(act.values()).view(np.int64)
            words[16] = words[17] = n
            kernel(words.ctypes.data, 0, 0, 1)
            assert y[n] == x[0]
            if dtype == "i32":
                np.testing.assert_array_equal(y[:n], np.maximum(x, 0) if kind == "relu" else x)
            else:
                check_forward(y[:n], x.astype(np.float64), dtype, kind, parameters)


def test_every_kind_has_kernels_and_tolerances():
    from numbaprims.cpu.activation.formulas import FORWARD
    from numbaprims.cpu.activation.gradients import BACKWARD
    from numbaprims.ops._activation_problem import SPECIAL

    assert set(FORWARD) == set(BACKWARD) == set(KINDS) - {"glu"} | set(SPECIAL)
    assert set(ACTIVATION_ERRORS) == set(KINDS) | {"gelu_tanh"}
    assert set(ops.NAMES) == {*KINDS, "swish", "relu6", "hard_shrink"}
