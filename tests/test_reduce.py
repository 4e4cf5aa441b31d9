"""reduce: NumPy's values in every type and layout, NaN left out, empty rows, the error of long sums, refusals."""

import warnings

import numpy as np
import pytest
from helpers import assert_close

import numbaprims
from numbaprims.formulas.tensor import REDUCTIONS

SHAPE = (6, 21, 5)


def defined(x, *args, **words):
    with numbaprims.config(device="reference"):
        return numbaprims.reduce(x, *args, **words)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("nan", ["propagate", "omit"])
def test_values_of_numpy(rng, op, nan):
    x = rng.standard_normal(SHAPE)
    x[0, 3, 2] = x[1, :, 1] = x[2] = np.nan
    x[3, 4, 3], x[4, 2, 2] = np.inf, -np.inf
    own = {"amax": lambda x, axis: np.abs(x).max(axis), "norm1": lambda x, axis: np.abs(x).sum(axis),
           "norm2": lambda x, axis: np.sqrt((x * x).sum(axis)),
           "sum_square": lambda x, axis: (x * x).sum(axis), "log_sum": lambda x, axis: np.log(x.sum(axis)),
           "logsumexp": lambda x, axis: np.logaddexp.reduce(x, axis)}.get(op) or getattr(np, op)  # fmt: skip
    for axis in (0, 1, -1):
        for given in (x, x.swapaxes(0, 2).copy().swapaxes(0, 2), x[:, ::2]):
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if nan == "propagate":
                    want = own(given, axis=axis)
                elif op in (
                    "amax",
                    "logsumexp",
                    "norm1",
                    "norm2",
                    "sum_square",
                    "log_sum",
                    "any",
                    "all",
                    "argmin",
                    "argmax",
                ):
                    fill = {"logsumexp": -np.inf, "argmax": -np.inf, "argmin": np.inf, "all": 1.0}.get(op, 0.0)
                    want = own(np.where(np.isnan(given), fill, given), axis=axis)
                    if op == "amax":
                        want = np.where(np.isnan(given).all(axis), np.nan, want)
                else:
                    want = getattr(np, f"nan{op}")(given, axis=axis)
            have = numbaprims.reduce(given, op, axis, nan=nan)
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have, want, 1e-12, 1e-12)
            np.testing.assert_allclose(defined(given, op, axis, nan=nan), want, 1e-12, 1e-12)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool", "float16", "float64"])
@pytest.mark.parametrize("op", ["any", "all", "argmin", "argmax"])
def test_integers_and_truth(rng, op, dtype):
    x = rng.integers(0, 3, SHAPE).astype(dtype)
    if op.startswith("arg") and dtype == "int64":
        with pytest.raises(TypeError, match="x is a int64 array.*argm"):
            numbaprims.reduce(x, op, 0)
        return
    for given in (x, x[::-1, ::2], x.transpose(2, 0, 1)):
        for axis in (None, 0, 1, 2):
            np.testing.assert_array_equal(numbaprims.reduce(given, op, axis), getattr(np, op)(given, axis))


@pytest.mark.parametrize(
    "values", [[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], [-np.inf], [np.nan], [0.0, -0.0]], ids=str
)
def test_the_first_of_equals(rng, values):
    """Of NaN too, and in rows of nothing but -inf."""
    for shape in ((3, 5), (9, 300), (1, 40_000)):
        x = rng.choice(np.float32(values), shape)
        for op, axis in (("argmax", 1), ("argmin", 1), ("argmax", 0), ("argmin", None)):
            np.testing.assert_array_equal(numbaprims.reduce(x, op, axis), getattr(np, op)(x, axis))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_in_each_place(rng, dtype, axis):
    """Blocks, what is left of them, rows in registers: the largest, the first of two, NaN, the first of two NaN."""
    for n in (1, 2, 3, 5, 8, 12, 16, 17, 40, 47, 48, 63, 65, 100, 130, 300):
        for found in (1.0, np.inf, np.nan):
            x = np.where(rng.random((n, n)) < 0.2, -np.inf, -rng.random((n, n))).astype(dtype)
            x[np.arange(n), np.arange(n)] = found
            later = rng.integers(0, n, n)
            x[np.arange(n), later] = np.where(later > np.arange(n), found, x[np.arange(n), later])
            given = np.ascontiguousarray(x if axis else x.T)
            np.testing.assert_array_equal(numbaprims.reduce(given, "argmax", axis), np.arange(n))
            np.testing.assert_array_equal(numbaprims.reduce(-given, "argmin", axis), np.arange(n))
            want = x.argmax(1) if found == found else np.where(np.isnan(x), -np.inf, x).argmax(1)
            np.testing.assert_array_equal(numbaprims.reduce(given, "argmax", axis, nan="omit"), want)


def test_no_elements():
    x = np.ones((3, 0, 4), np.float32)
    assert (numbaprims.reduce(x, "sum", 1) == 0).all() and (numbaprims.reduce(x, "prod", 1) == 1).all()
    assert np.isnan(numbaprims.reduce(x, "mean", 1)).all() and numbaprims.reduce(x, "all")
    assert numbaprims.reduce(x, "max", 2).shape == (3, 0)
    for op in ("min", "max", "amax", "argmin", "argmax"):
        with pytest.raises(ValueError, match=rf"x is .*\(3, 0, 4\) and axis is 1; {op} of no elements"):
            numbaprims.reduce(x, op, 1)


@pytest.mark.parametrize("n", [100_000, 3_000_000, pytest.param(100_000_000, marks=pytest.mark.slow)])
def test_error_of_long_sums(n):
    """Chunks one after another, each with at least sixteen sums side by side."""
    rng = np.random.default_rng(n)
    x = rng.random(n, np.float32)
    exact = np.sum(x, dtype=np.float64)
    error = abs(float(numbaprims.reduce(x, "sum")) - exact)
    assert error <= (n / 16384 + 16384 / 16 + 32) * 2.0**-24 * exact
    assert error <= 30 * 2.0**-24 * exact, "of numbers drawn alike the roundings cancel"
    assert abs(float(numbaprims.reduce(x, "mean")) - exact / n) <= 31 * 2.0**-24


@pytest.mark.parametrize("solver", ["rows", "split", "across", "split_across", "naive"])
def test_places_past_what_float32_counts(solver):
    n, across = (1 << 24) + 100, "across" in solver
    for values, want in (({n - 4: 1, n - 3: 2, n - 1: 2}, n - 3), ({1 << 24: 1, (1 << 24) + 1: 2}, (1 << 24) + 1)):
        x = np.zeros((n, 2 if across else 1), np.int8)
        for at, value in values.items():
            x[at] = value
        with numbaprims.config(algorithm={"reduce": solver}):
            assert (numbaprims.reduce(x, "argmax", axis=0) == want).all()
    x = np.zeros((n, 1), np.float32)
    x[[n - 3, n - 1]] = np.nan
    assert numbaprims.reduce(x, "argmax", axis=0) == n - 3


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("solver", ["rows", "split"])
def test_places_in_rows_that_32_bits_do_not_count(solver):
    """2 GiB of zeros, which read take no memory."""
    x = np.zeros((1 << 31) + 77, np.uint8)
    for place in (x.size - 2, 70):
        x[place] = 1
        with numbaprims.config(algorithm={"reduce": solver}):
            assert numbaprims.reduce(x, "argmax") == place


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("shape", "whole", "axis"),
    [((1, 300), (40, 300), None), ((50, 1, 300), (50, 4, 300), (1, 2)), ((40, 1, 64), (40, 8, 64), 0)],
)
@pytest.mark.parametrize("op", ["sum", "var", "max"])
def test_rows_that_stand_for_many_are_read_by_vectors(rng, op, shape, whole, axis):
    x = np.broadcast_to(rng.random(shape, np.float32), whole)
    assert numbaprims.explain("reduce", x, op, axis).chosen.solver != "naive"
    assert_close(numbaprims.reduce(x, op, axis), numbaprims.reduce(x.astype(np.float64), op, axis), k=64)


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        ({"op": "median"}, ValueError, "op is 'median'; it must be one of sum, mean"),
        ({"op": "sum", "axis": 3}, ValueError, "axis is 3 and x is .*allowed is -3 to 2"),
        ({"op": "sum", "axis": (0, -3)}, ValueError, "axis comes twice"),
        ({"op": "sum", "axis": 1.0}, TypeError, "axis is 1.0"),
        ({"op": "argmax", "axis": (0, 1)}, ValueError, "argmax takes one axis"),
        ({"op": "sum", "nan": "drop"}, ValueError, "nan is 'drop'"),
        ({"op": "sum", "keepdims": 1}, TypeError, "keepdims is 1"),
    ],
)
def test_refusals(words, error, match):
    with pytest.raises(error, match=match):
        numbaprims.reduce(np.ones(SHAPE), **words)


def test_integers_have_no_sums():
    with pytest.raises(TypeError, match="x is a int32 array.*sum takes float64, float32"):
        numbaprims.reduce(np.ones(3, np.int32), "sum")
    out = np.empty((), np.float32)
    with pytest.raises(ValueError, match="out"):
        numbaprims.reduce(np.ones((3, 4), np.float32), "sum", 0, out=out)


def test_accuracy_of_variance(rng):
    x = (rng.standard_normal((3, 20_000)) + 1e4).astype(np.float32)
    assert_close(numbaprims.reduce(x, "var", 1), np.var(x.astype(np.float64), 1), k=64)
