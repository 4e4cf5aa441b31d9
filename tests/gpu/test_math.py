"""gpu/device/math.py: errors in units in the last place, special numbers, no float64 in float32, in the emulator.

Reciprocals and reciprocal roots of the hardware are approximations: everything runs with exact ones and with ones that
are wrong by all that NVIDIA's manual allows.
"""

import functools

import numpy as np
import pytest
from ptx_emulator import NO_CHECKS, launch

from numbaprims.gpu.device import math as functions
from numbaprims.gpu.jit import STORAGE, block_index, gpu_kernel, thread_index, types

TYPES = {"f32": np.float32, "f64": np.float64}
# name -> largest error (f32, f64) in units in the last place of normal results
ERRORS = {
    "exp": (1.0, 1.0),
    "expm1": (1.4, 1.3),
    "log": (1.0, 1.0),
    "log1p": (1.0, 1.0),
    "tanh": (1.7, 2.0),
    "sigmoid": (1.8, 1.8),
    "softplus": (1.6, 1.6),
    "erf": (1.5, 2.5),  # of which the reference in float64 has one
    "sqrt": (0.6, 0.6),
}


@functools.cache
def make_unary(name, dtype):
    function = getattr(functions, name)
    pointer = types.CPointer(STORAGE[dtype])
    signature = types.void(pointer, pointer, types.uint32)
    # the kernel closes over the name; the function itself is a global of this copy
    source = "def kernel(out, x, n):\n    i = types.uint32(block_index() * 256 + thread_index())\n"
    source += "    if i < n:\n        out[i] = function(x[i])\n"
    space = {"types": types, "block_index": block_index, "thread_index": thread_index, "function": function}
    exec(source, space)
    return gpu_kernel(f"test_{name}", signature, (name, dtype), threads=256, registers=40)(space["kernel"])


@functools.cache
def make_binary(name, dtype):
    function = getattr(functions, name)
    pointer = types.CPointer(STORAGE[dtype])
    signature = types.void(pointer, pointer, pointer, types.uint32)
    source = "def kernel(out, x, y, n):\n    i = types.uint32(block_index() * 256 + thread_index())\n"
    source += "    if i < n:\n        out[i] = function(x[i], y[i])\n"
    space = {"types": types, "block_index": block_index, "thread_index": thread_index, "function": function}
    exec(source, space)
    return gpu_kernel(f"test_{name}", signature, (name, dtype), threads=256, registers=40)(space["kernel"])


def compute(kernel, *inputs, worst=False):
    out = np.full(len(inputs[0]), np.nan, inputs[0].dtype)
    given = [x.copy() for x in inputs]
    blocks = -(-len(out) // 256)
    launch(kernel, blocks, 256, out, *given, len(out), checks=NO_CHECKS, worst_approximations=worst)
    return out


def numbers(dtype):
    """Both signs of all magnitudes, the neighbourhood of 0, borders of the formulas, what is special."""
    limits = (-149, 127.9) if dtype == "f32" else (-1074, 1023.9)
    special = [
        0.0,
        np.inf,
        np.nan,
        87.29,
        87.31,
        88.7,
        103.9,
        104.1,
        708.4,
        709.7,
        745.2,
        0.85,
        3.95,
        9.1,
        0.40546,
        1.0,
    ]
    parts = [np.exp2(np.linspace(*limits, 3001)), np.linspace(0, 120, 5001), np.linspace(0, 4, 8001), special]
    positive = np.concatenate(parts)
    return np.concatenate([positive, -positive]).astype(TYPES[dtype])


@functools.cache
def _erf():
    import math

    return np.vectorize(math.erf, otypes=[np.float64])


REFERENCE = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "erf": lambda x: _erf()(x.astype(np.float64)).astype(np.longdouble),
    "sqrt": np.sqrt,
}


def check(found, want, dtype, most, flushed=0.0):
    """`want` in a wider type; `flushed`: results below may be 0."""
    kind = TYPES[dtype]
    rounded = want.astype(kind)
    special = ~np.isfinite(rounded) | ~np.isfinite(found)
    np.testing.assert_array_equal(found[special], rounded[special])
    unit = np.spacing(np.abs(np.where(special, 1, rounded))).astype(want.dtype)
    error = np.where(special, 0, np.abs(found.astype(want.dtype) - np.where(special, 0, want)))
    error = np.where((found == 0) & (np.abs(want) < flushed), 0, error) / unit
    worst = np.argmax(error)
    assert error[worst] <= most, f"{float(error[worst]):.2f} ULP: {found[worst]!r}, expected {float(want[worst])!r}"


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ERRORS)
def test_error(name, dtype):
    """All exponents; subnormal results of exp, expm1, log1p, tanh, sqrt too. float64 is judged in 80 bits."""
    x = numbers(dtype)
    wide = x.astype(np.longdouble)
    want = REFERENCE[name](wide)
    kernel = make_unary(name, dtype)
    flushed = np.exp(-87.29 if dtype == "f32" else -708.29) if name == "softplus" else 0.0
    for worst in (False, True):
        check(compute(kernel, x, worst=worst), want, dtype, ERRORS[name][dtype == "f64"], flushed)
    if name in ("expm1", "log1p", "tanh", "erf", "sqrt"):
        zeros = np.array([0.0, -0.0], TYPES[dtype])
        assert np.signbit(compute(kernel, zeros)).tolist() == [False, True]


@pytest.mark.parametrize("dtype", TYPES)
def test_divide(dtype, rng):
    kind = TYPES[dtype]
    special = np.array([0, -0.0, 1, -5, np.inf, -np.inf, np.nan, np.finfo(kind).max, np.finfo(kind).tiny, 1e-40], kind)
    tops = np.exp2([126, 127, -126, 1.5]).astype(kind)
    a, b = (z.ravel() for z in np.meshgrid(*[np.concatenate([special, tops])] * 2))
    spread = np.exp2(rng.uniform(-60, 60, (2, 20000))) * rng.choice([-1, 1], (2, 20000))
    a, b = np.concatenate([a, spread[0].astype(kind)]), np.concatenate([b, spread[1].astype(kind)])
    want = a.astype(np.longdouble) / b.astype(np.longdouble)
    for worst in (False, True):
        check(compute(make_binary("divide", dtype), a, b, worst=worst), want, dtype, 1.0)


def test_power_in_float32(rng):
    """2 ULP, 4 where the exponent of the result is near the ends; no float64 takes part."""
    special = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 3, -3, 0.5, -0.5, 1e30, 1e-40, -7.5])
    a, b = (z.ravel() for z in np.meshgrid(special, special))
    x = np.exp2(rng.uniform(-20, 20, 30000)).astype(np.float32)
    small = rng.uniform(-3, 3, 15000).astype(np.float32)
    large = (100 * rng.uniform(-1, 1, 15000) / np.maximum(np.abs(np.log2(x[15000:])), 0.5)).astype(np.float32)
    kernel = make_binary("power", "f32")
    for u, v, most in ((a, b, 2.0), (x[:15000], small, 2.0), (x[15000:], large, 4.0)):
        want = np.power(u.astype(np.float64), v.astype(np.float64))
        for worst in (False, True):
            check(compute(kernel, u, v, worst=worst), want, "f32", most)


@pytest.mark.parametrize("name", [*ERRORS, "divide", "power"])
def test_float32_has_no_float64(name):
    kernel = make_binary(name, "f32") if name in ("divide", "power") else make_unary(name, "f32")
    assert ".f64" not in kernel.ptx("sm_90a")
    assert "call" not in kernel.ptx("sm_90a")
    if name in ("tanh", "power"):
        used = kernel.resources("sm_90a")
        wrong = [code for code in used.opcodes if code.startswith(("D", "F2F", "CALL", "LDL", "STL"))]
        assert not wrong and used.spills == used.stack == 0
