"""topk beside what the contract suite holds: the order of equals and NaN, integers, bits, `@njit`."""

import dataclasses

import numpy as np
import pytest
from helpers import forced, in_turn, printed_with_threads
from test_jitted import check, compiled

import numbaprims
from numbaprims.cpu import target


def expected(x, k, axis, largest):
    """By Python's own stable sort."""
    rows = np.moveaxis(x, axis, -1)
    found = np.empty((*rows.shape[:-1], k), np.int64)
    for place in np.ndindex(rows.shape[:-1]):
        row = rows[place].tolist()

        def size(i, row=row):
            number = (row[i] != row[i], 0 if row[i] != row[i] else row[i])
            return tuple(-each for each in number) if largest else number

        found[place] = sorted(range(len(row)), key=size)[:k]
    return np.moveaxis(found, -1, axis)


@pytest.mark.parametrize("solver", ["insert", "radix"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_equals_stay_in_their_order_and_nan_is_the_largest(rng, solver, largest, dtype):
    for shape, k, axis in (((2, 70), 9, 1), ((2, 70), 70, 1), ((33, 3), 5, 0), ((600,), 64, 0), ((1, 5), 0, 1)):
        x = np.round(3 * rng.standard_normal(shape)).astype(dtype)
        x.flat[:3] = np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else 0.0, 0, 7
        if x.dtype.kind == "f":
            x.flat[[1, 4, 3, 2]] = -0.0, np.nan, -np.inf, -np.nan
        with forced("topk", solver):
            values, indices = numbaprims.topk(x, k, axis, largest=largest)
        np.testing.assert_array_equal(indices, expected(x, k, axis, largest))
        np.testing.assert_array_equal(values, np.take_along_axis(x, indices, axis))
        assert values.dtype == dtype and indices.dtype == np.int64


@pytest.mark.cpu
@pytest.mark.parametrize("dtype, width", in_turn([np.float32, np.float16, np.int32], [32, 16, 64]))
def test_rows_side_by_side(rng, as_cpu, dtype, width):
    """Of which the last ones are looked at twice where they do not fill a vector; beside each other, or apart."""
    machine = target.current()
    if width > machine.vector_bytes:
        pytest.skip(f"this CPU has vectors of {machine.vector_bytes} bytes")
    as_cpu(dataclasses.replace(machine, vector_bytes=width))
    for shape, k, axis in (((37, 70), 9, 1), ((8, 8), 8, 1), ((33, 40), 5, 0), ((3, 20, 11), 5, 1), ((21, 5), 1, 1)):
        wide = np.round(9 * rng.standard_normal((*shape, 2))).astype(dtype)
        if wide.dtype.kind == "f":
            wide.flat[[1, 4, 3, 2]] = -0.0, np.nan, -np.inf, -np.nan
        for x in (wide[..., 0].copy(), wide[..., 1]):
            for largest in (True, False):
                with forced("topk", "across"):
                    values, indices = numbaprims.topk(x, k, axis, largest=largest)
                np.testing.assert_array_equal(indices, expected(x, k, axis, largest))
                np.testing.assert_array_equal(values, np.take_along_axis(x, indices, axis))


@pytest.mark.cpu
def test_many_short_rows_are_taken_side_by_side():
    """4,096 rows of 128, the 8 largest, took 2.2 ms by lists one by one, 0.2 so (Zen 5)."""
    for rows, n, k, name in ((4096, 128, 8, "across"), (64, 1000, 500, "radix"), (64, 50000, 10, "insert")):
        assert numbaprims.explain("topk", np.empty((rows, n), np.float32), k).chosen.solver == name


def test_rows_in_the_worst_order():
    x = np.arange(20000.0)
    np.testing.assert_array_equal(numbaprims.topk(x, 30)[1], np.arange(19999, 19969, -1))
    np.testing.assert_array_equal(numbaprims.topk(x[::-1], 300, largest=False)[1], np.arange(19999, 19699, -1))


def test_refusals():
    x = np.ones((2, 3), np.float32)
    for words, error, message in (
        ({"k": 4}, ValueError, "k is 4 and x is"), ({"k": -1}, ValueError, "it must be 0 to 3"),
        ({"k": 1.0}, TypeError, "k is 1.0"), ({"k": 1, "axis": 2}, ValueError, "axis is 2"),
        ({"k": True}, TypeError, "k is True"), ({"k": 1, "axis": None}, TypeError, "axis is None"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            numbaprims.topk(x, **words)


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, numbaprims
x = np.random.default_rng(0).integers(-50, 50, (90, 3000)).astype(np.float32)
found = [*numbaprims.topk(x, 7), *numbaprims.topk(x, 700), *numbaprims.topk(x, 20, 0, largest=False)]
print(hashlib.sha256(b"".join(np.ascontiguousarray(y).tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


@pytest.mark.cpu
def test_in_njit(rng):
    x = rng.standard_normal((4, 21, 6)).astype(np.float32)
    for text in ("nb.topk(x, k)", "nb.topk(x, k, axis=a, largest=False)"):
        for k, axis in ((3, 1), (5, -2)):
            check("x, k, a", text, x, k, axis)
    with pytest.raises(ValueError, match="k is 9"):
        compiled("x, k", "nb.topk(x, k)")[0](x, 9)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_rows_that_rise(rng, dtype):
    """Of which a sample is looked at first: with equals, NaN at the end, and rows that only seem to rise."""
    for n, k in ((1000, 1), (5000, 50), (40_000, 7)):
        x = np.sort(rng.integers(0, n // 3, (3, n)), -1).astype(dtype)
        x[1, n // 8 + 1 : n // 4] = n
        if dtype == np.float32:
            x[2, -2:] = np.nan
        for given, largest in ((x, True), (x[:, ::-1], False), (x[:, ::-1].copy(), True), (-x, False)):
            with forced("topk", "insert"):
                values, indices = numbaprims.topk(given, k, largest=largest)
            order = np.where(np.isnan(given), np.inf, given)
            want = np.argsort(-order if largest else order, -1, kind="stable")[:, :k]
            np.testing.assert_array_equal(indices, want)
            np.testing.assert_array_equal(values, np.take_along_axis(given, want, -1))
