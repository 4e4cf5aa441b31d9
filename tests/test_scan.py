"""Cumulative sums beside what the contract suite holds: integers, long rows, bits, `@njit`."""

import numpy as np
import pytest
from helpers import printed_with_threads, solver_names
from test_jitted import check, compiled

import numbaprims


def expected(x, axis, exclusive, reverse):
    x = np.flip(x, axis) if reverse else x
    y = np.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        y = np.roll(y, 1, axis)
        y[(*(slice(None),) * (axis % x.ndim), slice(0, 1))] = 0
    return np.flip(y, axis) if reverse else y


@pytest.mark.parametrize(
    "exclusive, reverse, dtype",
    [(False, False, np.int64), (True, False, np.int32), (False, True, np.int32), (True, True, np.int64)],
)
def test_integers_are_exact_and_wrap(rng, exclusive, reverse, dtype):
    words = {"exclusive": exclusive, "reverse": reverse}
    for shape, axis in (((3, 37), 1), ((5, 70, 19), 1), ((2, 20011), -1), ((0, 3), 1), ((3, 0), 1), ((9000,), 0)):
        x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype)
        for given in (x, x[..., ::-1], np.asfortranarray(x)):
            for device in ("cpu", "reference"):
                with numbaprims.config(device=device):
                    found = numbaprims.cumsum(given, axis, **words)
                np.testing.assert_array_equal(found, expected(given, axis, **words))
                assert found.dtype == dtype


def test_halves_are_summed_in_float32():
    x = np.full((2, 3000), 1.0, np.float16)
    np.testing.assert_array_equal(numbaprims.cumsum(x)[0, 2048:], np.float16(np.arange(2049, 3001)))
    np.testing.assert_array_equal(numbaprims.cumsum(x.T, 0)[:, 1], numbaprims.cumsum(x)[1])


def test_in_place(rng):
    for shape in ((5, 100), (1, 50000)):
        for axis in (0, 1):
            x = rng.standard_normal(shape)
            want = numbaprims.cumsum(x, axis, exclusive=True)
            assert numbaprims.cumsum(x, axis, exclusive=True, out=x) is x
            np.testing.assert_array_equal(x, want)


def test_parts_of_long_rows_wait_for_one_another(rng):
    x = rng.integers(-(2**40), 2**40, (3, 300_000))
    assert numbaprims.explain("cumsum", x).chosen.solver == ("chunks" if "chunks" in solver_names("scan") else "rows")
    for _ in range(20):
        np.testing.assert_array_equal(numbaprims.cumsum(x), np.cumsum(x, 1))


def test_refusals():
    x = np.ones((2, 3), np.float32)
    for axis, error in ((2, ValueError), (-3, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="axis is"):
            numbaprims.cumsum(x, axis)
    with pytest.raises(ValueError, match="it must have a dimension at least"):
        numbaprims.cumsum(np.ones((), np.float32)[...])


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, numbaprims
x = np.random.default_rng(0).standard_normal((3, 200_000), np.float32)
found = [numbaprims.cumsum(x), numbaprims.cumsum(x, reverse=True), numbaprims.cumsum(x, 0), numbaprims.cumsum(x.T, 1),
         numbaprims.cumsum(x.reshape(300, 2000), 0, exclusive=True), numbaprims.cumsum(x.reshape(-1, 30))]
print(hashlib.sha256(b"".join(np.ascontiguousarray(y).tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


@pytest.mark.cpu
def test_in_njit(rng):
    x = rng.standard_normal((4, 21, 6)).astype(np.float32)
    for text in ("nb.cumsum(x)", "nb.cumsum(x, k, exclusive=e)", "nb.cumsum(x, axis=k, reverse=True, out=y)"):
        for axis in (1, -1):
            check("x, y, k, e", text, x, np.empty_like(x), axis, True)
    check("x", "nb.cumsum(x)", rng.integers(-5, 5, (2, 40000)))
    with pytest.raises(ValueError, match="axis is 7"):
        compiled("x, k", "nb.cumsum(x, k)")[0](x, 7)
