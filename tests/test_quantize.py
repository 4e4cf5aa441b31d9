"""quantize, dequantize, dynamic_quantize: ONNX's values in every type, layout and form of scales; 4 bits; refusals."""

import itertools
import re

import numpy as np
import pytest
from helpers import printed_with_threads

import numbaprims
from numbaprims.dispatch import examples, registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.ops import quantize
from numbaprims.ops._quantize_given import number_of
from numbaprims.tuning import records

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}
ZEROS = {"int8": "int8", "uint8": "uint8", "int4": "int8", "uint4": "uint8"}


def onnx(x, scale, zero, dtype):
    """QuantizeLinear in float32."""
    kind = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        q = x.astype(kind) / np.asarray(scale, kind)
        return np.clip(np.where(np.isnan(q), 0, np.rint(q)) + np.asarray(zero, np.float64), *LIMITS[dtype])


def unpacked(y, n, dtype):
    found = np.stack([y & 15, y >> 4], -1).reshape(*y.shape[:-1], 2 * y.shape[-1])[..., :n].astype(int)
    return np.where(found > 7, found - 16, found) if dtype == "int4" else found


def spread(values, axis, block, size):
    """Parameters of blocks as those of elements."""
    return np.repeat(values, block, axis).take(range(size), axis)


def layouts(x):
    yield x
    yield np.asfortranarray(x)
    yield x[::-1, ..., ::-1]
    wide = np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)
    wide[..., ::3] = x
    yield wide[..., ::3]


@pytest.fixture
def x(rng):
    made = (rng.standard_normal((5, 6, 33)) * 20).astype(np.float32)
    made[0, 0, :6] = [np.nan, np.inf, -np.inf, 0.75, -0.75, 6e4]
    return made


@pytest.mark.parametrize("dtype", LIMITS)
def test_one_scale(x, dtype):
    for given in (*layouts(x), x.astype(np.float16), x.astype(np.float64), x[:0], x[..., :1], x[..., :32]):
        want, n = onnx(given, 0.5, 3, dtype), given.shape[-1]
        have = numbaprims.quantize(given, 0.5, 3, dtype=dtype)
        packed = dtype.endswith("4")
        np.testing.assert_array_equal(unpacked(have, n, dtype) if packed else have, want)
        assert have.dtype == ("uint8" if packed else dtype)
        more = {"dtype": dtype, "length": n} if packed else {}
        back = numbaprims.dequantize(have, 0.5, 3, **more)
        np.testing.assert_array_equal(back, (want - 3) * 0.5)
        with numbaprims.config(device="reference"):
            np.testing.assert_array_equal(numbaprims.quantize(given, 0.5, 3, dtype=dtype), have)
            np.testing.assert_array_equal(numbaprims.dequantize(have, 0.5, 3, **more), back)
    if packed:
        assert (numbaprims.quantize(x, 0.5, dtype=dtype)[..., -1] < 16).all(), "the last upper half is empty"


@pytest.mark.parametrize("dtype", LIMITS)
def test_scales_of_an_axis_and_of_blocks(rng, x, dtype):
    packed, zero_type = dtype.endswith("4"), ZEROS[dtype]
    for axis, block in ((0, None), (1, None), (-1, None), (2, 8), (2, 10), (1, 4), (0, 5), (-1, 40)):
        at = axis % 3
        shape = (x.shape[axis],) if block is None else tuple(
            -(-size // block) if d == at else size for d, size in enumerate(x.shape)
        )  # fmt: skip
        scale = rng.uniform(0.5, 4, shape).astype(np.float32)
        zero = rng.integers(0, 4, shape).astype(zero_type)
        if block is None:
            wide = [v.reshape([-1 if d == at else 1 for d in range(3)]) for v in (scale, zero)]
        else:
            wide = [spread(v, at, block, x.shape[at]) for v in (scale, zero)]
        words = {"axis": axis, "block_size": block, "dtype": dtype}
        for zeros, z in ((zero, wide[1].astype(np.float32)), (2, 2), (None, 0)):
            want = onnx(x, wide[0], z, dtype)
            have = numbaprims.quantize(x, scale, zeros, **words)
            np.testing.assert_array_equal(unpacked(have, 33, dtype) if packed else have, want)
            more = {"dtype": dtype, "length": 33} if packed else {}
            back = numbaprims.dequantize(have, scale, zeros, axis=axis, block_size=block, **more)
            np.testing.assert_allclose(back, (want - z) * wide[0], 1e-6)


@pytest.mark.parametrize("dtype, zero", [("int8", 0), ("int8", -128), ("int8", 127), ("uint8", 0), ("uint8", 100)])
def test_quotients_are_rounded_once(rng, dtype, zero):
    bits = rng.integers(-(2**31), 2**31, 4000).astype(np.int32).view(np.float32)  # any number, NaN too
    exponents = [*range(-149, 128, 9), -130, -129, -128, -127, -126, 125, 126, 127]
    for exponent, fraction in itertools.product(exponents, (0.0, rng.uniform(), 1 - 2.0**-24)):
        with np.errstate(over="ignore"):
            scale = np.float32((1 + fraction) * 2.0**exponent)
            halves = ((np.arange(-400, 400) + 0.5) * np.float64(scale)).astype(np.float32)
        near = [(halves.view(np.int32) + d).view(np.float32) for d in range(-3, 4)]
        x = np.concatenate([*near, bits, np.float32([0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45])])
        if np.isfinite(scale):
            np.testing.assert_array_equal(numbaprims.quantize(x, scale, zero, dtype=dtype), onnx(x, scale, zero, dtype))


def test_integers_of_32_bits(rng):
    x = rng.integers(-5000, 5000, (7, 40)).astype(np.int32)
    np.testing.assert_array_equal(numbaprims.quantize(x, 20.0, dtype="int8"), onnx(x, 20.0, 0, "int8"))
    np.testing.assert_array_equal(numbaprims.dequantize(x, 0.25, 4), (x - 4) * np.float32(0.25))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("symmetric", [False, True])
def test_scales_from_the_elements(rng, kind, symmetric):
    x = (rng.standard_normal((4, 9, 50)) * 3 + 1).astype(kind)
    wide = np.float64 if kind is np.float64 else np.float32
    for given, axis in itertools.product(
        (x, np.abs(x), -np.abs(x), np.zeros_like(x), x[:, ::-1, ::2]), (None, -1, 1, 0)
    ):
        y, scale, zero = numbaprims.dynamic_quantize(given, axis=axis, symmetric=symmetric)
        a, keep = given.astype(wide), {"axis": axis, "keepdims": axis is not None}
        if symmetric:
            width, below, steps, name = np.abs(a).max(**keep), np.zeros(scale.shape, wide), wide(127), "int8"
        else:
            below, steps, name = np.maximum(-a.min(**keep), 0), wide(255), "uint8"
            width = np.maximum(a.max(**keep), 0) + below
        want = np.where(width == 0, wide(1), width / steps).astype(wide)
        assert scale.dtype == wide and zero.dtype == y.dtype == name
        np.testing.assert_array_equal(scale, want)
        np.testing.assert_array_equal(zero, np.rint(below / want))
        np.testing.assert_array_equal(y, onnx(given, want, np.rint(below / want), name))
        if kind is np.float32:
            back = numbaprims.dequantize(y, scale, zero)
            assert (np.abs(back - given) <= 0.5001 * np.broadcast_to(scale, given.shape)).all()


def calls(rng):
    x, by = rng.standard_normal((33, 64)).astype(np.float32), rng.uniform(0.1, 1, (33, 1)).astype(np.float32)
    b = rng.integers(0, 255, (33, 64)).astype(np.uint8)
    zero = rng.integers(-9, 9, (33, 1)).astype(np.int8)
    for view in (x, x.T, x[:, ::2], x[:20, :30]):
        yield "quantize", (view, 0.1, np.int8(3)), {}
    yield "quantize", (x, by, zero), {}
    yield "quantize", (x, by[:, 0].copy()), {"axis": 0, "dtype": "int8"}
    yield "quantize", (x.astype(np.float16), 0.1), {"dtype": "int4"}
    yield "dequantize", (b, 0.1, 3), {}
    yield "dequantize", (b[:, 1:40], by), {"out_dtype": "float16"}
    yield "dequantize", (b, 0.1), {"dtype": "int4"}
    for axis in (None, 0, 1):
        yield "dynamic_quantize", (x,), {"axis": axis}
        yield "dynamic_quantize", (x,), {"axis": axis, "symmetric": True}
    yield "qlinear_add", (b, 0.5, 3, b[::-1], 0.25, 7, 0.5, np.int8(0)), {"activation": "relu"}
    yield "qlinear_add", (b, 0.5, 3, b[0], 0.25, 7, 0.5, np.uint8(0)), {}
    yield "qlinear_global_avg_pool", (b[None], 0.5, 3, 0.25, np.uint8(7)), {"layout": "NCW"}
    yield "qlinear_global_avg_pool", (b[None], 0.5, 3, 0.25, np.uint8(7)), {"layout": "NWC"}
    yield "qlinear_activation", (b[:, ::2], "tanh", 0.05, 100, 0.01, np.int8(0)), {}


def test_every_solver_gives_the_definition(rng):
    """And a problem is posed again from what is stored."""
    for function, args, words in calls(rng):
        problem = problem_of(function, *args, **words)
        again = examples.restore("quantize", records.fields_of(problem))
        assert again.key() == problem.key(), (function, words)
        with numbaprims.config(device="reference"):
            want = getattr(numbaprims, function)(*args, **words)
        took = 0
        for solver in registry.solvers("quantize", "cpu"):
            if solver.why_not(problem, registry.target("cpu")) is None:
                took += 1
                for config in solver.configs(problem, registry.target("cpu")):
                    trial = examples._choose.Trial("quantize", records.dump(records.fields_of(problem)), solver, config)
                    with numbaprims.settings.trial(trial):
                        have = getattr(numbaprims, function)(*args, **words)
                    for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (have, want)), strict=True):
                        np.testing.assert_array_equal(a, b, f"{function} {words} {solver.name}")
        assert took
        chosen = numbaprims.explain(function, *args, **words).chosen.solver
        assert chosen != "naive" or not all(x.flags.c_contiguous for x in args if isinstance(x, np.ndarray))


def test_out(rng, x):
    out = np.empty((5, 6, 33), np.int8)
    assert numbaprims.quantize(x, 0.5, np.int8(3), out=out[..., ::-1]).base is not None
    np.testing.assert_array_equal(out[..., ::-1], onnx(x, 0.5, 3, "int8"))
    packed = np.full((5, 6, 20), 77, np.uint8)
    numbaprims.quantize(x, 0.5, dtype="int4", out=packed[..., :17])
    assert (packed[..., 17:] == 77).all()
    np.testing.assert_array_equal(unpacked(packed[..., :17], 33, "int4"), onnx(x, 0.5, 0, "int4"))
    for wrong, error in ((out[:2], ValueError), (out.view(np.uint8), TypeError), (out.astype(np.float32), TypeError)):
        before = wrong.copy()
        for words in ({}, {"block_size": 3, "axis": 1, "scale": np.ones((5, 2, 33), np.float32)}):
            with pytest.raises(error, match="out"):
                numbaprims.quantize(x, words.pop("scale", 0.5), **words, dtype="int8", out=wrong)
            np.testing.assert_array_equal(wrong, before)
    memory = np.zeros(4 * x.size + 8, np.int8)
    view = memory[: 4 * x.size].view(np.float32).reshape(x.shape)
    with pytest.raises(ValueError, match="memory"):
        numbaprims.quantize(view, 0.5, np.int8(0), out=memory[8 : 8 + x.size].reshape(x.shape))


def test_scales_that_change_in_place_are_read_anew():
    scale = np.ones((), np.float32)
    assert numbaprims.quantize(np.float32([2]), scale) == 2
    scale[...] = 2
    assert numbaprims.quantize(np.float32([2]), scale) == 1 and number_of(scale) == 2


def test_the_same_bits_for_any_number_of_threads():
    script = """
import hashlib, numpy as np, numbaprims
x = np.random.default_rng(0).standard_normal((300, 3000)).astype(np.float32)
found = [numbaprims.quantize(x, 0.1, dtype="int4"), *numbaprims.dynamic_quantize(x),
         *numbaprims.dynamic_quantize(x, axis=0),
         *numbaprims.dynamic_quantize(x, symmetric=True)]
y = found[1]
found += [numbaprims.qlinear_activation(y, "tanh", 0.1, 3, 0.1, np.int8(0)),
          numbaprims.qlinear_global_avg_pool(y[None], 0.1, 3, 0.1, np.int8(0), layout="NCW"),
          numbaprims.qlinear_add(y, 0.1, 3, y[:1], 0.2, 0, 0.1, np.int8(0)),
          numbaprims.gemm_integer(y[:, :200], y[:200], 3, 5)]
print(hashlib.sha256(b"".join(np.ascontiguousarray(v).tobytes() for v in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: numbaprims.quantize(x, -1.0), ValueError, "scale is -1.0; a scale is positive"),
        (lambda x: numbaprims.quantize(x, np.nan), ValueError, "a scale is positive"),
        (lambda x: numbaprims.quantize(x, 1e-50), ValueError, "scale is 1e-50; .* finite in float32"),
        (lambda x: numbaprims.dequantize(x.astype(np.int8), 1e39), ValueError, "scale is 1e.39; .* in float32"),
        (lambda x: numbaprims.quantize(x, "1"), TypeError, "scale is '1'"),
        (lambda x: numbaprims.quantize(x, 10**400), ValueError, "scale is a number that float64 does not hold"),
        (lambda x: numbaprims.quantize(x, [0.1], np.uint8(1)), TypeError, "scale is a list"),
        (lambda x: numbaprims.quantize([1.0], x, axis=0), TypeError, "x is a list"),
        (lambda x: numbaprims.quantize(x, 1.0, np.inf), TypeError, "zero_point is inf; a zero point is an integer"),
        (lambda x: numbaprims.dequantize(x.astype(np.int8), 1.0, np.nan), TypeError, "zero_point is nan"),
        (lambda x: numbaprims.quantize(x, 1.0, dtype=[1]), TypeError, r"dtype is \[1\]; it must be one of int8"),
        (lambda x: numbaprims.dequantize(x.astype(np.uint8), 1.0, dtype="int8"), TypeError, "dtype is int8; it must"),
        (lambda x: numbaprims.quantize(x, 1.0, axis=7), ValueError, "axis is 7 and x a float32 array"),
        (lambda x: numbaprims.quantize(x, 1.0, block_size=4), ValueError, "axis None; .* an axis given"),
        (lambda x: numbaprims.dequantize(x.astype(np.int8), 1.0, axis=7), ValueError, "axis is 7 and x a int8 array"),
        (lambda x: numbaprims.dequantize(x.astype(np.int8), 1.0, block_size=4), ValueError, "an axis given"),
        (lambda x: numbaprims.quantize(x, 1.0, 300), ValueError, "zero_point is 300; it must lie in 0 ... 255"),
        (lambda x: numbaprims.quantize(x, 1.0, 0.5), TypeError, "a zero point is an integer"),
        (lambda x: numbaprims.quantize(x, 1.0, 9, dtype="int4"), ValueError, "-8 ... 7"),
        (lambda x: numbaprims.quantize(x, 1.0, dtype="int16"), TypeError, "dtype is 'int16'"),
        (lambda x: numbaprims.quantize(x.astype(np.int64), 1.0), TypeError, "takes float64, float32"),
        (lambda x: numbaprims.quantize(x, x[0, 0]), ValueError, "one value"),
        (lambda x: numbaprims.quantize(x, x[0, 0, :3], axis=1), ValueError, "one each along axis 1"),
        (lambda x: numbaprims.quantize(x, x[0, 0].astype(np.float64), axis=2), TypeError, "scale is a float64"),
        (lambda x: numbaprims.quantize(x, x[0, 0], np.zeros(33, np.int8), axis=2, dtype="uint8"), TypeError, "uint8"),
        (lambda x: numbaprims.quantize(x, x[0], axis=5), ValueError, "axis is 5"),
        (lambda x: numbaprims.quantize(x, x[..., :2], axis=2, block_size=10), ValueError, r"need \(5, 6, 4\)"),
        (lambda x: numbaprims.quantize(x, x, axis=2, block_size=0), ValueError, "block_size is 0"),
        (lambda x: numbaprims.quantize(x, x[..., :11], axis=2, block_size=3, dtype="int4"), ValueError, "be even"),
        (lambda x: numbaprims.quantize(np.zeros(()), 1.0, dtype="int4"), ValueError, "a dimension at least"),
        (lambda x: numbaprims.dequantize(x, 1.0), TypeError, "takes int8, uint8, int32"),
        (lambda x: numbaprims.dequantize(x.astype(np.int8), 1.0, dtype="int4"), TypeError, "packed in uint8"),
        (lambda x: numbaprims.dequantize(x.astype(np.uint8), 1.0, dtype="int4", length=9), ValueError, "length is 9"),
        (lambda x: numbaprims.dequantize(x.astype(np.uint8), 1.0, length=9), ValueError, "a length is that"),
        (lambda x: numbaprims.dequantize(x.astype(np.uint8), 1.0, out_dtype="int8"), TypeError, "out_dtype"),
        (lambda x: numbaprims.dynamic_quantize(x, axis=3), ValueError, "axis is 3"),
        (lambda x: numbaprims.dynamic_quantize(x, symmetric=1), TypeError, "symmetric is 1"),
    ],
)  # fmt: skip
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call(np.ones((5, 6, 33), np.float32))


@pytest.mark.parametrize("dtype", ["uint8", "uint4"])
@pytest.mark.parametrize("shape", [(2, 5, 8, 8), (3,), (2, 1, 8, 8)])
def test_zero_points_of_blocks_have_the_shape_of_scales(dtype, shape):
    """Said of what the caller gave, before a part is written."""
    x, scale, zero = np.ones((2, 3, 8, 8), np.float32), np.ones((2, 2, 8, 8), np.float32), np.ones(shape, np.uint8)
    y = numbaprims.quantize(x, 1.0, dtype=dtype)
    back = {"dtype": dtype, "axis": 1, "block_size": 2}
    for function, given, out in ((numbaprims.quantize, x, y), (numbaprims.dequantize, y, x)):
        before = out.copy()
        with pytest.raises(ValueError, match=rf"zero_point a uint8 array {re.escape(str(shape))}; .*\(2, 2, 8, 8\)"):
            function(given, scale, zero, **back, out=out)
        np.testing.assert_array_equal(out, before)


def test_problems():
    assert set(quantize.PROBLEMS) == {"quantize", "dequantize", "dynamic_quantize"}
    x = np.zeros((64, 512), np.float32)
    assert quantize.PROBLEMS["quantize"](x, 0.5).bytes_moved() == 5 * x.size
    assert "bench quantize --kind dynamic" in quantize.PROBLEMS["dynamic_quantize"](x).bench_command()
