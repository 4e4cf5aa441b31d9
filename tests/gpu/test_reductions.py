"""reduce and functions of elements on a GPU, in the emulator: every operation against its definition."""

import numpy as np
import pytest
from helpers import NUMPY_FLOATS, assert_close, caller_array, from_float64, to_float64
from tensor_cases import near_ties

import numbaprims
from numbaprims.dtypes import LONG_NAMES
from numbaprims.formulas.maps import BINARY, BITWISE
from numbaprims.formulas.tensor import REDUCTIONS


def both(function, *args, **words):
    """The result on the emulated GPU, and the definition."""
    with numbaprims.config(device="emulated"):
        have = getattr(numbaprims, function)(*args, **words)
    with numbaprims.config(device="reference"):

        def wide(x):
            return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x

        words = {name: wide(x) for name, x in words.items()}
        return have, getattr(numbaprims, function)(*map(wide, args), **words)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(gpu, rng, op):
    for shape, axis, nan in (((3, 67), 1, "propagate"), ((13, 6), 0, "omit")):
        x = 1 + rng.standard_normal(shape, np.float32) / 8
        x[0, 0] = np.nan if nan == "omit" else 1
        have, want = both("reduce", x, op, axis, nan=nan)
        if have.dtype == np.float32:
            assert_close(have, want, k=64)
        else:
            np.testing.assert_array_equal(have, want)
    assert any("reduce" in launched.entry for launched in gpu.launches)


@pytest.mark.parametrize("dtype", ["float16", "bool", "int8", "uint8", "int32", "int64"])
def test_reductions_of_other_types(gpu, rng, dtype):
    x = rng.integers(0, 3, (4, 9)).astype(dtype)
    for op in ("any", "all", "argmax")[: 2 if dtype == "int64" else 3]:
        have, want = both("reduce", x, op, 1)
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("op", BINARY)
def test_binary(gpu, rng, op):
    a = rng.uniform(0.5, 2.0, (5, 36)).astype(np.float32)
    for b in (a[::-1].copy(), a[0].copy(), a[:, :1].copy()):
        have, want = both("binary", a, b, op)
        if have.dtype == np.float32:
            assert_close(have, want, k=32)
        else:
            np.testing.assert_array_equal(have, want)


def test_layouts(gpu, rng):
    a, b = rng.uniform(0.5, 2.0, (2, 6, 10)).astype(np.float32)
    for x, y in ((a[:, ::2], b[:, ::2]), (a.T.copy().T, b), (a, np.asarray(b[0, 0]))):
        have, want = both("binary", x, y, "sub", alpha1=2.0, c=y, beta=3.0)
        assert_close(have, want, k=16)


@pytest.mark.parametrize("dtype", ["float16", "bool", "int8", "uint8", "int32", "int64", "float64"])
def test_other_elements(gpu, rng, dtype):
    x = (rng.standard_normal((4, 9)) * 100).astype(dtype)
    condition = rng.random((4, 9)) < 0.5
    have, want = both("where", condition, x, x[0])
    np.testing.assert_array_equal(have, np.where(condition, x, x[0]))
    for to in ("float32", "int8", "bool"):
        have, want = both("cast", x, to)
        np.testing.assert_array_equal(have, want)
    have, want = both("transform", x, (1, 0))
    np.testing.assert_array_equal(have, x.T)
    with numbaprims.config(device="emulated"):
        assert (numbaprims.fill(x, 1) == 1).all()
    if dtype.startswith("float"):
        have, want = both("scale", x, 0.5)
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("dtype", NUMPY_FLOATS[2:])
def test_cast_rounds_once(gpu, dtype):
    x = np.resize(near_ties(dtype), (999, 263))[::9].ravel()
    for each in (x, x[abs(x) < 2**30].astype(np.int32) + 1):
        with numbaprims.config(device="emulated"):
            have = numbaprims.cast(each, LONG_NAMES[dtype], out=caller_array(np.zeros(each.shape), dtype))
        np.testing.assert_array_equal(to_float64(have), to_float64(from_float64(each, dtype), dtype))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
def test_bits(gpu, rng, dtype):
    a, b = (np.frombuffer(rng.bytes(8 * 67), np.int64) for _ in range(2))
    a, b = ((x & 1 if dtype == "bool" else x).astype(dtype) for x in (a, b))
    for op in BITWISE[:3] if dtype == "bool" else BITWISE:
        y = b % 70 if op.endswith("shift") else b
        np.testing.assert_array_equal(both("binary", a, y, op)[0], getattr(np, op)(a, y))


def test_nan_infinity_and_the_first_largest(gpu, rng):
    x = np.resize(np.float32([1, np.nan, np.inf, -np.inf]), 67)
    np.testing.assert_array_equal(*both("isnan", x))
    np.testing.assert_array_equal(*both("isinf", x, detect_positive=False))
    np.testing.assert_array_equal(*both("hardmax", rng.integers(0, 4, (3, 67)).astype(np.float32)))
