"""Quantisation on a GPU, in the emulator: the bits of the definition."""

import numpy as np
import pytest

import numbaprims
from numbaprims.gpu import memory


def both(function, *args, **words):
    """The result on the emulated GPU, and the definition."""
    with numbaprims.config(device="emulated"):
        have = getattr(numbaprims, function)(*args, **words)
    with numbaprims.config(device="reference"):
        want = getattr(numbaprims, function)(*args, **words)
    for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (have, want)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4"])
def test_there_and_back(gpu, rng, dtype):
    x = (rng.standard_normal((5, 21)) * 9).astype(np.float32)
    x[0, :5] = [np.nan, np.inf, -np.inf, 0.75, 1.25]
    scale = rng.uniform(0.5, 2, (5, 4)).astype(np.float32)
    more = {"dtype": dtype, "length": 21} if dtype.endswith("4") else {}
    for words in (
        {"scale": 0.5},
        {"scale": scale[:, 0].copy(), "axis": 0},
        {"scale": scale, "axis": 1, "block_size": 6},
    ):
        both("quantize", x, zero_point=2, dtype=dtype, **words)
        y = numbaprims.quantize(x, zero_point=2, dtype=dtype, **words)
        both("dequantize", y, zero_point=2, **words, **more)
    assert any("reduce" in launched.entry for launched in gpu.launches)


def test_scales_from_the_elements(gpu, rng):
    x = rng.standard_normal((6, 40)).astype(np.float32)
    for axis in (None, 0, 1):
        both("dynamic_quantize", x, axis=axis)
        both("dynamic_quantize", x, axis=axis, symmetric=True)
    both("quantize", x.astype(np.float16), 0.25, np.int8(1))


def test_layers(gpu, rng):
    a, b = rng.integers(0, 256, (2, 3, 5, 8), np.uint8)
    both("qlinear_add", a, 0.5, 3, b, 0.25, 7, 0.5, np.int8(0), activation="relu")
    both("qlinear_add", a, 0.5, 3, b[0, 0], 0.25, 7, 0.5, np.uint8(9))
    both("qlinear_global_avg_pool", a, 0.5, 3, 0.3, np.uint8(9), layout="NCW")
    both("qlinear_activation", a, "relu", 0.5, 3, 0.25, np.int8(9))
    m, n = a.reshape(-1, 8), rng.integers(-128, 128, (8, 6)).astype(np.int8)
    both("gemm_integer", m, n, 3)
    both("qlinear_gemm", m, 0.5, 3, n, rng.uniform(0.1, 1, 6).astype(np.float32), 1, 30.0, np.int8(5))


@pytest.mark.parametrize("b_dtype", [np.int8, np.uint8])
def test_products_of_the_device(gpu, rng, b_dtype):
    """Zero points and scales of rows and columns are the host's; the operands are the device's."""
    a, b = rng.integers(0, 256, (5, 8), np.uint8), rng.integers(0, 120, (8, 6)).astype(b_dtype)
    bias, scales = rng.integers(-999, 999, 6, np.int32), rng.uniform(0.1, 1, 6).astype(np.float32)
    rows, columns = rng.integers(0, 256, 5, np.uint8), rng.integers(0, 100, 6).astype(b_dtype)
    there = [memory.to_device(each) for each in (a, b, bias)]
    for a_zero, b_zero in ((None, None), (3, 5), (rows, columns), (3, columns), (rows, 5)):
        want = numbaprims.gemm_integer(a, b, a_zero, b_zero, bias=bias)
        have = numbaprims.gemm_integer(*there[:2], a_zero, b_zero, bias=there[2])
        np.testing.assert_array_equal(memory.to_host(have), want)
        for scale in (0.25, scales):
            rest = scale, b_zero, 30.0, np.int8(5)
            want = numbaprims.qlinear_gemm(a, 0.5, a_zero, b, *rest, bias)
            have = numbaprims.qlinear_gemm(there[0], 0.5, a_zero, there[1], *rest, there[2])
            np.testing.assert_array_equal(memory.to_host(have), want)
