"""Relative errors of every kind from -50 to 50 and around 0, in units in the last place: no tail is left out.

Where a result is subnormal, the unit is the smallest number. Where two terms of a gradient cancel, it is that of the
terms. Stated beside the kinds: what else is not held.
"""

import math

import mpmath
import numpy as np
import pytest
from test_activation import CASES, OF_Y, has_fma, quiet as quiet, run_both

from numbaprims.reference import activation as reference

#: kind -> most units of y and of dx, whatever the instructions are; `allowed` has what else is not held
MOST = {
    "identity": (0, 0.5),
    "relu": (0, 0.5),
    "leaky_relu": (0.5, 0.5),
    "clipped_relu": (0, 0.5),
    "elu": (3.5, 5),
    "selu": (3.5, 5),
    "celu": (3.5, 5.5),
    "sigmoid": (4.5, 2.5),
    "tanh": (3.5, 2),
    "softplus": (5, 6.5),
    "softsign": (1.5, 4.5),
    "abs": (0, 0.5),
    "power": (2.5, 4),
    "gelu": (5.5, 6),
    "gelu_tanh": (4, 6),
    "silu": (4, 6),
    "mish": (4.5, 7),
    "hard_sigmoid": (1.5, 1.5),
    "hard_swish": (2.5, 2),
    "hard_tanh": (0, 0.5),
    "exp": (1.2, 0.5),
    "log": (1.3, 0.5),
    "sqrt": (0.5, 1),
    "square": (0.5, 0.5),
    "round": (0, 0),
    "clip": (0, 0.5),
    "threshold": (0, 0.5),
    "exp2": (1.1, 1.5),
    "expm1": (1.5, 1.5),
    "log1p": (1.1, 1.5),
    "erf": (1.6, 3.5),
    "reciprocal": (0.5, 1.5),
    "rsqrt": (1.5, 3),
    "sign": (0, 0),
    "floor": (0, 0),
    "ceil": (0, 0),
    "sin": (1.1, 2),
    "cos": (1.1, 2),
    "tan": (1.3, 1.5),
    "asin": (1.3, 3),
    "acos": (1.3, 3),
    "atan": (1.3, 2),
    "sinh": (1.6, 2),
    "cosh": (1.5, 2.2),
    "asinh": (1.5, 2.5),
    "acosh": (1.6, 3),
    "atanh": (1.5, 2.5),
    "log2": (1.5, 2),
    "log10": (1.6, 2),
    "erfc": (1.5, 4),
    "neg": (0, 0),
    "log_sigmoid": (5, 6.5),
    "shrink": (0.5, 0.5),
    "tanh_shrink": (5, 8),
    "soft_shrink": (0.5, 0.5),
}
#: Gradients that are 0 between these, of terms of the size of dy.
ROOTS = {
    "gelu": (-2.2, -0.3),
    "gelu_tanh": (-2.2, -0.3),
    "silu": (-2.6, -0.6),
    "mish": (-2.6, -0.6),
    "hard_swish": (-3, 0),
}


def points():
    dense = np.concatenate([np.linspace(-50, 50, 100_001), np.linspace(-14, 0, 50_001)])
    small = np.exp2(np.linspace(-149, 5, 20_001))
    return np.concatenate([dense, small, -small]).astype(np.float32)


def units(found, exact, terms=0.0):
    """|found - exact| in units of the last place of `exact`, or of terms that are larger."""
    size = np.clip(np.maximum(np.abs(exact), terms), 2.0**-126, 2.0**127)
    error = np.abs(found - exact) / (np.exp2(np.floor(np.log2(size))) * 2.0**-23)
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def allowed(name, x, exact, most):
    """The units that an error may have."""
    size = np.abs(x)
    if name == "gelu":
        # Phi and the density are subnormal before their products with x are
        most = most + np.where(np.abs(exact) < 2.0**-122, 12, 0)
        # x**2 / 2 is an exponent, and rounded before
        return most if has_fma() else most + size * size / 2
    if name == "erfc" and most < 2:
        return most if has_fma() else 2.0
    if name in ("erf", "erfc"):  # in its slope
        return most if has_fma() else most + size * size
    if name == "gelu_tanh":
        # the exponent v = 1.6 x + 0.07 x**3 has three rounded terms; results are 0 where e**-v is infinite
        most = most + 3 * (1.6 * size + 0.0714 * size**3)
        return np.where(np.abs(exact) < 2.0**-122, np.inf, most)
    if name == "softplus":  # whose slope is 0 there too
        return np.where(np.abs(exact) < 2.0**-126, np.inf, most)
    return most


@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_units_in_the_last_place(kind, parameters, rng):
    name = "gelu_tanh" if "approximate" in parameters else kind
    x = points()
    dy = (rng.choice([-1, 1], x.shape) * rng.uniform(0.5, 2, x.shape)).astype(np.float32)
    y, dx = run_both(x, dy, "f32", kind, parameters)
    wide = x.astype(np.float64), dy.astype(np.float64)
    exact = reference.activation(wide[0], kind, **parameters)
    if kind in OF_Y:
        slope = OF_Y[kind](wide[1], y.astype(np.float64))
    else:
        slope = reference.activation_backward(wide[1], wide[0], kind, **parameters)
    low, high = ROOTS.get(name, (0, 0))
    cancels = (x > low) & (x < high) if has_fma() or kind != "tanh" else np.isfinite(x)  # 1 - y * y
    terms = np.where(cancels, np.abs(dy), 0.0)
    for found, want, most, least in ((y, exact, MOST[name][0], 0.0), (dx, slope, MOST[name][1], terms)):
        want = np.where(np.abs(want) > math.nextafter(2.0**128, 0), np.copysign(np.inf, want), want)
        error = units(found.astype(np.float64), want, least)
        over = error - allowed(name, wide[0], want, most)
        at = int(np.argmax(over))
        assert over[at] <= 0, f"{error[at]:.2f} units at {x[at]!r}: {found[at]!r}, not {want[at]!r}"


def test_gelu_in_float64(rng):
    """To the last normal result, against 40 digits: the definition in float64 has x**2 / 2 units itself."""
    x = np.concatenate([rng.uniform(-37.4, 5, 300), rng.uniform(-2, 2, 100), [-37.4, -8.3]])
    y, dx = run_both(x, np.ones_like(x), "f64", "gelu", {})
    with mpmath.workdps(40):
        numbers = [mpmath.mpf(float(z)) for z in x]
        below = [mpmath.erfc(-z / mpmath.sqrt(2)) / 2 for z in numbers]
        density = [mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi) for z in numbers]
        values = [z * p for z, p in zip(numbers, below, strict=True)]
        slopes = [p + z * d for z, p, d in zip(numbers, below, density, strict=True)]
        for found, exact in ((y, values), (dx, slopes)):
            error = np.array([float(abs(mpmath.mpf(float(f)) - e)) for f, e in zip(found, exact, strict=True)])
            size = np.abs(np.array([float(e) for e in exact]))
            size = np.where((x > -2.2) & (x < -0.3), np.maximum(size, 1.0 if found is dx else 0.0), size)
            worst = error / np.spacing(size) - (0 if has_fma() else x * x / 2)
            assert worst.max() <= 6, (worst.max(), x[worst.argmax()])


def test_angles_of_any_size(rng):
    """sin, cos and tan next to multiples of pi / 2, where almost all digits cancel, against 400 digits."""
    n = np.concatenate(
        [rng.integers(1, 1 << 12, 60), rng.integers(1 << 12, 1 << 29, 60), rng.integers(1 << 30, 1 << 52, 60)]
    )
    # the float64 that is nearest to such a multiple: 2**-61 of its own unit
    x = np.concatenate([n * (math.pi / 2), [6381956970095103 * 2.0**797, -(2.0**1023), 1e22, -1.7e308]])
    for dtype, name in ((np.float64, "f64"), (np.float32, "f32")):
        y = x[np.abs(x) < 3e38].astype(dtype) if dtype is np.float32 else x
        with mpmath.workdps(400):
            for kind in ("sin", "cos", "tan"):
                found = run_both(y, np.ones_like(y), name, kind, {})[0]
                exact = [getattr(mpmath, kind)(mpmath.mpf(float(z))) for z in y]
                error = [float(abs(mpmath.mpf(float(f)) - e)) for f, e in zip(found, exact, strict=True)]
                worst = np.array(error) / np.spacing(np.abs(np.array([float(e) for e in exact])).astype(dtype))
                assert worst.max() <= (1.1 if has_fma() else 2), (kind, worst.max(), y[worst.argmax()])


def test_erfc_in_float64(rng):
    """To the last normal result, and below it, against 40 digits."""
    x = np.concatenate([rng.uniform(-6, 27.2, 600), rng.uniform(0, 2, 500), np.exp2(rng.uniform(-60, 0, 100))])
    found = run_both(x, np.ones_like(x), "f64", "erfc", {})[0]
    with mpmath.workdps(40):
        exact = [mpmath.erfc(mpmath.mpf(float(z))) for z in x]
        error = np.array([float(abs(mpmath.mpf(float(f)) - e)) for f, e in zip(found, exact, strict=True)])
    worst = error / np.spacing(np.array([float(e) for e in exact]))
    assert worst.max() <= (1.5 if has_fma() else 2), (worst.max(), x[worst.argmax()])
