"""quantize and dequantize inside @njit: the bits and the errors of the public calls."""

import numba
import numpy as np
import pytest
from helpers import in_turn
from test_jitted import compiled, same

import numbaprims

pytestmark = pytest.mark.cpu


@numba.njit
def signed(x, scale, zero):
    return numbaprims.quantize(x, scale, zero, dtype="int8")


@numba.njit
def unsigned(x, scale, out):
    return numbaprims.quantize(x, scale, dtype="uint8", out=out)


@numba.njit
def back(x, scale, zero):
    return numbaprims.dequantize(x, scale, zero)


@numba.njit
def back_wide(x, scale):
    return numbaprims.dequantize(x, scale, out_dtype="float64")


@pytest.mark.parametrize("shape, dtype", in_turn([((),), ((5,),), ((70, 33),)], ["int32", "float64", "float32"]))
def test_bits(rng, shape, dtype):
    x = np.asarray(rng.standard_normal(shape) * 5).astype(dtype)
    for scale, zero in ((0.1, 0), (np.float32(0.3), -7), (1, 126)):
        want = numbaprims.quantize(x, scale, zero, dtype="int8")
        have = signed(x, scale, zero)
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)
        np.testing.assert_array_equal(signed(x.T, scale, zero), want.T)
        np.testing.assert_array_equal(back(want, scale, zero), numbaprims.dequantize(want, scale, zero))
        np.testing.assert_array_equal(back_wide(want, scale), numbaprims.dequantize(want, scale, out_dtype="float64"))
        out = np.zeros(shape, np.uint8)
        assert unsigned(x, scale, out) is not None
        np.testing.assert_array_equal(out, numbaprims.quantize(x, scale))


@pytest.mark.parametrize(
    ("scale", "zero", "error"),
    [
        (-1.0, 0, ValueError),
        (np.nan, 0, ValueError),
        (0.5, 300, ValueError),
        (0.5, 128, ValueError),
        (0.5, 0.5, TypeError),
    ],
)
def test_errors(scale, zero, error):
    x = np.ones(4, np.float32)
    signed(x, 0.5, 1)
    with pytest.raises(error) as inside:
        signed(x, scale, zero)
    with pytest.raises(error) as outside:
        numbaprims.quantize(x, float(scale), float(zero), dtype="int8")
    assert str(inside.value) == str(outside.value)


def test_what_is_no_literal_is_refused():
    with pytest.raises(TypeError, match="dtype must be 'int8' or 'uint8'"):
        numba.njit(lambda x: numbaprims.quantize(x, 0.5, 3))(np.ones(4, np.float32))


def test_numbers_of_32_bits_are_numbers():
    x = np.float32([-2, 3])
    have = numba.njit(lambda x, slope: numbaprims.leaky_relu(x, slope))(x, np.float32(0.25))
    np.testing.assert_array_equal(have, [-0.5, 3])


WORDS = ("x", "x, axis=k", "x, axis=k, symmetric=True", "x, symmetric=True")


@pytest.mark.parametrize("words, dtype", in_turn(WORDS, ["float32", "float64"]))
def test_dynamic(rng, words, dtype):
    inside, outside = compiled("x, k", f"nb.dynamic_quantize({words})")
    x = rng.standard_normal((70, 33)).astype(dtype)
    for given in (x, x.T, x[::2, ::-1]):
        for k in (0, -1):
            same(inside(given, k), outside(given, k))
    if "axis" in words:
        for function in (inside, outside):
            with pytest.raises(ValueError, match="axis is 2 and x a"):
                function(x, 2)
