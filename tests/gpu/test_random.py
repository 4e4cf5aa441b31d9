"""Dropout and random numbers on a GPU: the same bits as on the CPU, in the emulator."""

import numpy as np
import pytest
from helpers import assert_near, from_float64, in_library

import numbaprims
from numbaprims import philox
from numbaprims.dispatch import registry
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.pointwise import walk

SOLVERS = [solver.name for solver in registry.solvers("random", "cuda")]
DTYPES = ("f32", "f64", "f16", "bf16")
STREAM = {"seed": 2**63 + 12345, "offset": 2**33 + 5}


def host(x):
    return x.to_host()


def bits(x):
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_bits_are_those_of_the_cpu(gpu, solver, dtype, rng):
    """A length that no vector divides; NaN and infinities, kept and dropped."""
    values = rng.standard_normal((3, 7, 23))
    values.flat[:6] = np.nan, np.inf, -np.inf, -0.0, 0.0, np.nan
    x = in_library(from_float64(values, dtype), dtype)
    with np.errstate(all="ignore"):
        expected_of = {p: numbaprims.dropout(x, p, **STREAM) for p in (0.0, 0.3, 1.0)}
    with numbaprims.config(algorithm={"random": solver}):
        for p, expected in expected_of.items():
            y = host(numbaprims.dropout(to_device(x), p, **STREAM))
            dx = host(numbaprims.dropout_backward(to_device(x), p, **STREAM))
            np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), np.isnan(expected.astype(np.float64)))
            number = ~np.isnan(expected.astype(np.float64))
            np.testing.assert_array_equal(bits(y)[number], bits(expected)[number])
            np.testing.assert_array_equal(bits(dx)[number], bits(y)[number])
        out = to_device(x)
        assert numbaprims.random_uniform(out=out, **STREAM) is out
        np.testing.assert_array_equal(host(out).astype(np.float64), philox.uniform(x.shape, **STREAM, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_normal_numbers(gpu, solver, dtype):
    out = to_device(in_library(from_float64(np.full((5, 123), np.nan), dtype), dtype))
    with numbaprims.config(algorithm={"random": solver}):
        numbaprims.random_normal(out=out, mean=0.5, std=2.0, **STREAM)
    expected = 0.5 + 2.0 * philox.normal((5, 123), **STREAM, dtype=dtype)
    found = host(out)
    assert_near(found.view(np.uint16) if dtype == "bf16" else found, expected, dtype, 4.0, 1.0)
    ours = numbaprims.random_normal((5, 123), mean=0.5, std=2.0, dtype={"bf16": "bfloat16"}.get(dtype, dtype), **STREAM)
    apart = np.abs(found.astype(np.float64) - ours.astype(np.float64))
    assert (
        apart <= 2 * np.spacing(np.abs(expected).astype(np.float32 if dtype != "f64" else np.float64))
    ).mean() > 0.99


@pytest.mark.parametrize("layout", ["transposed", "sliced", "deep"])
def test_layouts(gpu, layout, rng):
    base = rng.standard_normal((4, 3, 2, 5, 2, 6)).astype(np.float32)
    take = {
        "transposed": lambda a: a.transpose(5, 0, 2, 1, 4, 3),
        "sliced": lambda a: a[:, 1, :, ::2, 1, 1:4],
        "deep": lambda a: a[:3, :2, :, :4, :1, :5],
    }[layout]
    x, given = take(base), take(to_device(base))
    out = take(to_device(np.zeros_like(base)))
    numbaprims.dropout(given, 0.4, out=out, **STREAM)
    np.testing.assert_array_equal(host(out), numbaprims.dropout(np.ascontiguousarray(x), 0.4, **STREAM))


def test_places_beyond_32_bits(gpu, monkeypatch, rng):
    """Long arrays have indices of 64 bits, whose places are the same."""
    monkeypatch.setattr(walk, "MOST", 64)
    x = rng.standard_normal((7, 41)).astype(np.float32)
    expected = numbaprims.dropout(x, 0.5, **STREAM)
    for solver in SOLVERS:
        with numbaprims.config(algorithm={"random": solver}):
            np.testing.assert_array_equal(host(numbaprims.dropout(to_device(x), 0.5, **STREAM)), expected)
    assert len(gpu.launches) == 2 and all(launched.entry.split("_")[-2] == "True" for launched in gpu.launches)


def test_rows_of_whole_blocks(gpu, rng):
    """Runs of a multiple of a block's elements draw its words once; others a part of one each."""
    base = rng.standard_normal((5, 3, 24)).astype(np.float32)
    for cut, wide in ((np.s_[:, 1, 4:16], "4"), (np.s_[:, 1, 2:12], "2"), (np.s_[:, 1, :9], "1")):
        found = host(numbaprims.dropout(to_device(base)[cut], 0.4, **STREAM))
        np.testing.assert_array_equal(found, numbaprims.dropout(np.ascontiguousarray(base[cut]), 0.4, **STREAM))
        assert gpu.launches[-1].entry.split("_")[-4] == wide
