"""dropout, random_uniform and random_normal: bits against the definition, their statistics, what is refused."""

import os
import platform
import subprocess
import sys

import numba
import numpy as np
import pytest
from helpers import assert_near, caller_array, forced, printed_with_threads

import numbaprims
from numbaprims import philox
from numbaprims.dispatch import registry
from numbaprims.nn import init

STREAM = {"seed": 2**64 - 3, "offset": 2**32 + 9}
SOLVERS = [solver.name for solver in registry.solvers("random", "cpu")]
DTYPES = ("f32", "f64", "f16", "bf16")


def as_float64(x):
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.double().numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_elements_are_kept_where_the_definition_says(solver, dtype):
    for n in (*range(1, 20), 63, 64, 65, 255, 1000):
        x = caller_array(np.ones(n), dtype)
        for begin in (0, 1):  # of whole lines, and behind the first element of one
            with forced("random", solver):
                y = numbaprims.dropout(x[begin:], 0.5, **STREAM)
            mask = philox.dropout_mask(n - begin, 0.5, **STREAM)
            np.testing.assert_array_equal(as_float64(y) != 0, mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_numbers_are_those_of_the_definition(solver, dtype):
    long = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}[dtype]
    for shape in ((1,), (3, 7), (2, 5003)):
        with forced("random", solver):
            u = numbaprims.random_uniform(shape, dtype=long, **STREAM)
            z = numbaprims.random_normal(shape, dtype=long, **STREAM)
            shifted = numbaprims.random_uniform(shape, low=-3.0, high=2.0, dtype=long, **STREAM)
        expected = philox.uniform(shape, **STREAM, dtype=dtype)
        np.testing.assert_array_equal(as_float64(u), expected)
        stored = z.view(np.uint16) if dtype == "bf16" else z
        assert_near(stored, philox.normal(shape, **STREAM, dtype=dtype), dtype, 4.0)
        stored = shifted.view(np.uint16) if dtype == "bf16" else shifted
        assert_near(stored, 5.0 * expected - 3.0, dtype, 1.0, 3.0)


@pytest.mark.parametrize("solver", ["rows", "naive"])
@pytest.mark.parametrize("take", ["rows", "transposed", "reversed", "columns", "deep"])
def test_places_are_counted_in_c_order_whatever_the_strides(solver, take, rng):
    base = rng.standard_normal((4, 6, 10, 301), np.float32)
    x = {
        "rows": base[:, :, :, 3:299],
        "transposed": base.transpose(3, 1, 0, 2),
        "reversed": base[::-1, :, ::-1, ::-1],
        "columns": base[..., 7],
        "deep": base[::2, 1:, ::3, ::5],
    }[take]
    out = np.full(x.shape[::-1], np.nan, np.float32).transpose()
    plain = numbaprims.dropout(np.ascontiguousarray(x), 0.3, **STREAM)
    with forced("random", solver):
        numbaprims.dropout(x, 0.3, out=out, **STREAM)
        drawn = numbaprims.random_normal(out=np.empty_like(out), **STREAM)
    np.testing.assert_array_equal(out, plain)
    np.testing.assert_array_equal(drawn, numbaprims.random_normal(x.shape, **STREAM))


def test_ends_and_what_is_not_finite(rng):
    x = np.float32([1, -2, np.nan, np.inf, 0.0, 5])
    np.testing.assert_array_equal(numbaprims.dropout(x, 0.0, seed=1), x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(numbaprims.dropout(x, 1.0, seed=1), x * np.float32(0))
        # the least word that is kept has 33 bits
        np.testing.assert_array_equal(numbaprims.dropout(x, 1.0 - 2.0**-40, seed=1), x * np.float32(0))


def test_thresholds_are_exact():
    word = int(philox.random_words(1, 9)[0])
    one = np.ones(1, np.float64)
    for p, kept in ((word / 2**32, True), ((word + 0.5) / 2**32, False), ((word - 0.5) / 2**32, True)):
        assert bool(numbaprims.dropout(one, p, seed=9)[0]) == kept


def test_gradient_takes_the_same_elements(rng):
    x = rng.standard_normal((33, 70))
    y, dx = numbaprims.dropout(x, 0.4, **STREAM), numbaprims.dropout_backward(x, 0.4, **STREAM)
    np.testing.assert_array_equal(y, dx)
    assert 0.5 < (y != 0).mean() < 0.7
    assert_near(y[y != 0], (x / 0.6)[y != 0], "f64", 2.0)


def test_every_word_of_seed_and_offset_reaches_the_kernel(rng):
    """Seeds whose bits are those of a signalling NaN, too: known calls carry them as floats."""
    x = np.ones(96, np.float32)
    for seed in (0, 1, 2**32, 0x7FF0000000000001, 0xFFF4000000000000, 2**64 - 1):
        for offset in (0, 2**32 - 1, 0x7FF0000000000001):
            for _ in range(3):
                y = numbaprims.dropout(x, 0.5, seed=seed, offset=offset)
                np.testing.assert_array_equal(y != 0, philox.dropout_mask(96, 0.5, seed, offset))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_statistics(dtype):
    count = 1 << 20
    u = numbaprims.random_uniform(count, seed=11, dtype=dtype).astype(np.float64)
    z = numbaprims.random_normal(count, mean=1.0, std=3.0, seed=12, dtype=dtype).astype(np.float64)
    assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 5 / np.sqrt(12 * count)
    cells = np.histogram(u, 1024, (0, 1))[0]
    # chi-square of 1023 degrees has a standard deviation of 45
    assert abs(((cells - count / 1024) ** 2).sum() / (count / 1024) - 1023) < 5 * 45
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / np.sqrt(count)
    z = (z - 1.0) / 3.0
    assert abs(z.mean()) < 5 / np.sqrt(count) and abs(z.var() - 1) < 5 * np.sqrt(2 / count)
    assert abs((z**3).mean()) < 5 * np.sqrt(15 / count) and abs((z**4).mean() - 3) < 5 * np.sqrt(96 / count)
    assert abs(np.corrcoef(z[::2], z[1::2])[0, 1]) < 5 / np.sqrt(count / 2) and 4.5 < np.abs(z).max() < 6.8


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, numbaprims
x = np.random.default_rng(0).standard_normal((3, 700001), np.float32)
found = [numbaprims.dropout(x, 0.3, seed=5), numbaprims.dropout(x[:, 1:], 0.3, seed=5),
         numbaprims.random_normal(900001, seed=5), numbaprims.random_uniform(900001, seed=5, dtype="float64")]
print(hashlib.sha256(b"".join(np.ascontiguousarray(y).tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


@pytest.mark.cpu
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are its instructions")
@pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="is one of them")
@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v2"])
def test_bits_do_not_depend_on_the_width_of_vectors(cpu):
    """Those of normal numbers depend on whether products are fused with sums."""
    script = """
import hashlib, numpy as np, numbaprims
x = np.random.default_rng(0).standard_normal(5003)
for found in (numbaprims.dropout(x.astype("f"), 0.3, seed=5), numbaprims.dropout(x, 0.3, seed=5),
              numbaprims.random_uniform(5003, seed=5), numbaprims.random_uniform(5003, seed=5, dtype="float64")):
    print(hashlib.sha256(found.tobytes()).hexdigest())
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, **more}, capture_output=True, text=True, check=True
        ).stdout
        for more in ({}, {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ""})
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: numbaprims.dropout(x, 1.5, seed=1), ValueError, "p is 1.5; a probability lies between 0 and 1"),
        (lambda x: numbaprims.dropout(x, float("nan"), seed=1), ValueError, "p is nan"),
        (lambda x: numbaprims.dropout(x, "a", seed=1), TypeError, "p is 'a'; it must be a real number"),
        (lambda x: numbaprims.dropout(x, seed=-1), ValueError, r"seed is -1; it must be 0 to 2\*\*64 - 1"),
        (lambda x: numbaprims.dropout(x, seed=0.5), TypeError, "seed is 0.5; it must be an integer"),
        (lambda x: numbaprims.dropout(x.astype(int), seed=1), TypeError, "dropout takes float64"),
        (lambda x: numbaprims.random_uniform(seed=1), ValueError, "shape is None and so is out"),
        (lambda x: numbaprims.random_uniform((2, -1), seed=1), ValueError, "lengths are not below 0"),
        (lambda x: numbaprims.random_normal(3, seed=1, dtype="int8"), TypeError, "dtype is int8; random_normal takes"),
        (lambda x: numbaprims.random_normal(3, seed=1, std=np.inf), ValueError, "std is inf; it must be finite"),
        (lambda x: numbaprims.random_normal(3, seed=1, mean=7e4, dtype="float16"), ValueError, "finite in float16"),
        (lambda x: numbaprims.random_uniform(3, seed=1, high=4e38), ValueError, "high is 4e.38; it .* in float32"),
        (lambda x: numbaprims.random_uniform(3, seed=1, low=-3e38, high=3e38), ValueError, "high - low is 6e.38"),
        (lambda x: numbaprims.random_normal(3, seed=1, out=x), ValueError, "shape is 3 and out a float32 array"),
        (lambda x: numbaprims.random_normal(seed=1, out=x.astype(int)), TypeError, "out is a int64 .*random_normal"),
        (lambda x: numbaprims.random_uniform(seed=1, out=x > 0), TypeError, "out is a bool array"),
        (lambda x: numbaprims.random_uniform(1.5, seed=1), TypeError, "shape is 1.5; it must be a sequence"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call(np.ones((2, 3), np.float32))


def test_empty_and_scalar_arrays():
    assert numbaprims.dropout(np.ones((0, 3), np.float32), seed=1).shape == (0, 3)
    assert numbaprims.random_normal((3, 0), seed=1).shape == (3, 0)
    assert numbaprims.random_uniform((), seed=1).shape == ()
    assert numbaprims.random_uniform((), seed=1) == numbaprims.random_uniform(1, seed=1)[0]


def test_bounds_at_the_end_of_the_range():
    for dtype, end in (("float16", 65504.0), ("float64", 8e307)):
        assert np.isfinite(numbaprims.random_uniform(1000, seed=1, low=-end, high=end, dtype=dtype)).all()
    assert np.isfinite(numbaprims.random_uniform(1000, seed=1, high=float(np.finfo(np.float32).max))).all()


@pytest.mark.cpu
def test_calls_inside_njit_give_the_bits_of_public_ones(rng):
    @numba.njit
    def both(x, p, seed, offset):
        y = numbaprims.dropout(x, p, seed=seed, offset=offset)
        dx = np.empty_like(y)
        numbaprims.dropout_backward(y, p, seed=seed, offset=offset, out=dx)
        return y, dx

    x = rng.standard_normal((5, 133))
    for given in (x, x.astype(np.float32), x[:, ::2], x.T):
        for seed in (1, np.uint64(2**64 - 1), np.uint64(0x7FF0000000000001)):
            for p in (0.25, 0.5):
                y, dx = both(given, p, seed, 3)
                np.testing.assert_array_equal(y, numbaprims.dropout(given, p, seed=seed, offset=3))
                np.testing.assert_array_equal(dx, numbaprims.dropout(y, p, seed=seed, offset=3))
    with pytest.raises(ValueError, match=r"p is 1.5; a probability"):
        both(x, 1.5, 1, 3)


@pytest.mark.cpu
def test_torch_drops_by_its_own_generator_and_keeps_no_mask():
    torch = pytest.importorskip("torch")
    from torch.autograd import gradcheck, gradgradcheck

    from numbaprims.frontends import torch as nbt

    x = torch.randn(7, 9, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: nbt.dropout(x, 0.3, seed=5), x) and gradgradcheck(
        lambda x: nbt.dropout(x, 0.3, seed=5), x
    )
    model = nbt.nn.replace(torch.nn.Sequential(torch.nn.Dropout(0.4)))
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        y = model(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, 1 / 0.6).to(x))
        found.append(y)
        x.grad = None
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()
    assert model.eval()(x) is x and not nbt.dropout(x, 0.3, seed=5).grad_fn.saved_tensors


WEIGHTS = (64, 32, 3, 5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xavier_uniform", {"gain": 1.5}),
        ("xavier_normal", {}),
        ("kaiming_uniform", {"a": 5**0.5}),
        ("kaiming_uniform", {"mode": "fan_out", "nonlinearity": "relu"}),
        ("kaiming_normal", {"nonlinearity": "tanh"}),
        ("kaiming_normal", {"mode": "fan_out", "a": 0.2}),
    ],
)
def test_initial_weights_have_torchs_distributions(name, words):
    torch = pytest.importorskip("torch")
    ours = getattr(init, name)(WEIGHTS, **words, seed=4).astype(np.float64)
    theirs = getattr(torch.nn.init, f"{name}_")(torch.empty(WEIGHTS), **words).double().numpy()
    assert abs(ours.std() / theirs.std() - 1) < 0.03 and abs(ours.mean()) < 5 * ours.std() / np.sqrt(ours.size)
    if name.endswith("uniform"):
        assert abs(np.abs(ours).max() / np.abs(theirs).max() - 1) < 0.001
    for nonlinearity in ("linear", "conv2d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"):
        assert init.calculate_gain(nonlinearity) == pytest.approx(torch.nn.init.calculate_gain(nonlinearity))


def test_initial_weights_are_refused_where_torch_has_none():
    with pytest.raises(ValueError, match=r"shape is \(3,\); fans are those of weights of two dimensions"):
        init.xavier_uniform((3,), seed=1)
    with pytest.raises(ValueError, match="mode is 'fan'; it must be fan_in or fan_out"):
        init.kaiming_normal((3, 4), mode="fan", seed=1)
    with pytest.raises(ValueError, match="nonlinearity is 'gelu'"):
        init.calculate_gain("gelu")
