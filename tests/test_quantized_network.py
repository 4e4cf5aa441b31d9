"""Functions of quantised integers: sums, averages, activations, products; a residual network of them, step by step."""

import itertools

import numpy as np
import pytest

import numbaprims

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
TYPES = list(itertools.product(LIMITS, LIMITS))


def integers(rng, dtype, shape):
    return np.asarray(rng.integers(*LIMITS[dtype], shape, endpoint=True)).astype(dtype)


def stored(x, scale, zero):
    """What float64 values are as quantised integers of the zero point's dtype."""
    return np.clip(np.rint(x / scale) + float(zero), *LIMITS[zero.dtype.name])


@pytest.mark.parametrize(("one", "other"), TYPES)
def test_qlinear_add(rng, one, other):
    a, zero = integers(rng, one, (3, 17, 70)), np.dtype(other).type(20)
    for b, relu in itertools.product(
        [integers(rng, other, s) for s in ((3, 17, 70), (17, 1), (70,), ())], (None, "relu")
    ):
        want = 0.05 * (a - 7.0) + 0.03 * (b - 11.0)
        want = stored(np.maximum(want, 0) if relu else want, 0.07, zero)
        have = numbaprims.qlinear_add(a, 0.05, 7, b, 0.03, 11, 0.07, zero, activation=relu)
        assert have.dtype == other and np.abs(have - want).max() <= 1 and (have == want).mean() > 0.99
        with numbaprims.config(device="reference"):
            again = numbaprims.qlinear_add(a, 0.05, 7, b, 0.03, 11, 0.07, zero, activation=relu)
        assert np.abs(again - have.astype(int)).max() <= 1
    for view in (a[:, ::-1], a.transpose(2, 0, 1), a[..., ::3]):
        have = numbaprims.qlinear_add(view, 0.05, 7, view, 0.03, 7, 0.07, zero)
        assert np.abs(have - stored((view - 7.0) * 0.08, 0.07, zero)).max() <= 1
    mine = a.copy()
    assert numbaprims.qlinear_add(mine, 0.5, 0, mine, 0.5, 0, 1.0, np.dtype(one).type(0), out=mine) is mine
    np.testing.assert_array_equal(mine, np.clip(a.astype(int), *LIMITS[one]))


@pytest.mark.parametrize(("one", "other"), TYPES)
def test_averages_and_maxima(rng, one, other):
    x, zero = integers(rng, one, (2, 7, 9, 33)), np.dtype(other).type(20)
    for layout, axes in (("NCHW", (2, 3)), ("NHWC", (1, 2))):
        want = stored((x - 7.0).mean(axes, keepdims=True) * 0.05, 0.02, zero)
        have = numbaprims.qlinear_global_avg_pool(x, 0.05, 7, 0.02, zero, layout=layout)
        assert have.shape == want.shape and have.dtype == other and np.abs(have - want).max() <= 1
    have = numbaprims.qlinear_avg_pool(x, 0.05, 7, 0.02, zero, 3, stride=3)
    want = x[..., :9, :33].reshape(2, 7, 3, 3, 11, 3).astype(float).mean((3, 5))
    assert np.abs(have - stored((want - 7) * 0.05, 0.02, zero)).max() <= 1
    np.testing.assert_array_equal(numbaprims.max_pool(x, 3), x[..., :9, :33].reshape(2, 7, 3, 3, 11, 3).max((3, 5)))
    assert numbaprims.max_pool(x, 3).dtype == one


@pytest.mark.parametrize(("one", "other"), TYPES)
def test_activations_by_a_table(rng, one, other):
    zero = np.dtype(other).type(20)
    x = np.concatenate([integers(rng, one, 1000), np.arange(*LIMITS[one], dtype=one)])
    for kind, words in (
        ("relu", {}),
        ("leaky_relu", {"negative_slope": 0.1}),
        ("sigmoid", {}),
        ("tanh", {}),
        ("clip", {"min": -1, "max": 2}),
    ):  # noqa: E501
        want = numbaprims.quantize(numbaprims.activation(numbaprims.dequantize(x, 0.05, 7), kind, **words), 0.01, zero)
        for at in (slice(None), slice(None, None, -2), slice(3, 70)):
            np.testing.assert_array_equal(
                numbaprims.qlinear_activation(x[at], kind, 0.05, 7, 0.01, zero, **words), want[at]
            )
        with numbaprims.config(device="reference"):
            again = numbaprims.qlinear_activation(x, kind, 0.05, 7, 0.01, zero, **words)
        assert np.abs(again.astype(int) - want).max() <= 1
    if one == other:
        mine = x.copy()
        assert numbaprims.qlinear_activation(mine, "relu", 0.5, 20, 0.5, zero, out=mine) is mine
        np.testing.assert_array_equal(mine, np.maximum(x, 20))


@pytest.mark.parametrize(("one", "other"), TYPES)
def test_products(rng, one, other):
    a, b = integers(rng, one, (3, 17, 70)), integers(rng, other, (70, 33))
    bias = rng.integers(-1000, 1000, 33).astype(np.int32)
    a_zeros = 0, 5, rng.integers(0, 100, 17).astype(one)
    b_zeros = None, int(b[0, 0]), rng.integers(0, 100, 33).astype(other)
    for a_zero, b_zero in itertools.product(a_zeros, b_zeros):
        y = a.astype(int) - (a_zero[:, None].astype(int) if np.ndim(a_zero) else a_zero)
        z = b.astype(int) - (0 if b_zero is None else np.asarray(b_zero, int))
        np.testing.assert_array_equal(numbaprims.gemm_integer(a, b, a_zero, b_zero), y @ z)
        sums = (y @ z + bias).astype(np.float32)
        for scale in (np.float32(0.01), rng.uniform(0.01, 0.02, 33).astype(np.float32)):
            have = numbaprims.qlinear_gemm(a, 0.02, a_zero, b, scale, b_zero, 0.7, np.uint8(100), bias)
            factor = np.float32(0.02) * scale / np.float32(0.7)
            np.testing.assert_array_equal(have, np.clip(np.rint(sums * factor) + 100, 0, 255))
    with numbaprims.config(device="reference"):
        np.testing.assert_array_equal(
            numbaprims.gemm_integer(a, b, 5, b_zeros[1]), (a.astype(int) - 5) @ (b.astype(int) - b[0, 0])
        )
    turned = np.asfortranarray(b)
    np.testing.assert_array_equal(
        numbaprims.gemm_integer(a[:, ::2], turned, 5), (a[:, ::2].astype(int) - 5) @ b.astype(int)
    )
    np.testing.assert_array_equal(numbaprims.gemm_integer(a[:, :, :0], b[:0], 5), np.zeros((3, 17, 33)))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 40])
def test_plans(rng, rows):
    a, b = integers(rng, "uint8", (rows, 130)), integers(rng, "int8", (130, 77))
    bias, scale = rng.integers(-1000, 1000, 77).astype(np.int32), rng.uniform(0.01, 0.02, 77).astype(np.float32)
    plan = numbaprims.gemm_integer.plan(b, 9, bias=bias)
    np.testing.assert_array_equal(plan(a), numbaprims.gemm_integer(a, b, 9, bias=bias))
    for each in (scale, 0.01):
        plan = numbaprims.qlinear_gemm.plan(0.02, 9, b, each, 0.7, np.int8(3), bias)
        np.testing.assert_array_equal(plan(a), numbaprims.qlinear_gemm(a, 0.02, 9, b, each, 0, 0.7, np.int8(3), bias))
    import pickle

    np.testing.assert_array_equal(pickle.loads(pickle.dumps(plan))(a), plan(a))


@pytest.mark.parametrize("solver", ["blocked", "private", "dots", "naive"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_products_by_every_solver(rng, solver, dtype):
    """Rows and columns that cut tiles off, rows of b that lie by lines and those that do not, b by rows and columns."""
    wide = 640 if solver == "dots" and dtype == "int8" else 67
    for m, k, n in ((1, 64, 64), (3, 70, 67), (13, 9, wide), (2, 259, wide)):
        a, b = integers(rng, dtype, (m, k)), integers(rng, "int8", (k, n))
        bias, scales = rng.integers(-999, 999, n).astype(np.int32), rng.uniform(0.01, 0.02, n).astype(np.float32)
        room = np.zeros((2 * m, 3 * n), np.int8)
        for zero, own, scale in ((0, None, 0.01), (5, bias, scales)):
            sums = (a.astype(int) - zero) @ b.astype(int)
            more = (sums + (0 if own is None else own)).astype(np.float32)
            factor = np.float32(0.02) * np.asarray(scale, np.float32) / np.float32(0.7)
            want = np.clip(np.rint(more * factor) + 3, -128, 127)
            with numbaprims.config(algorithm={"gemm": solver}):
                for each in (b, np.asfortranarray(b)):
                    np.testing.assert_array_equal(numbaprims.gemm_integer(a, each, zero), sums)
                    given = a, 0.02, zero, each, scale, None, 0.7, np.int8(3), own
                    np.testing.assert_array_equal(numbaprims.qlinear_gemm(*given), want)
                    have = numbaprims.qlinear_gemm(*given, out=room[::2, ::3])
                    np.testing.assert_array_equal(have, want)
                zeros = np.arange(m).astype(dtype)
                have = numbaprims.qlinear_gemm(a, 0.02, zeros, b, scale, 1, 0.7, np.int8(3), own)
            more = (a.astype(int) - zeros.astype(int)[:, None]) @ (b.astype(int) - 1) + (0 if own is None else own)
            np.testing.assert_array_equal(have, np.clip(np.rint(more.astype(np.float32) * factor) + 3, -128, 127))
    assert not room[1::2].any() and not room[:, 1::3].any()


def test_a_plan_takes_both_kinds_of_bytes(rng):
    a, b = integers(rng, "uint8", (5, 130)), integers(rng, "int8", (130, 77))
    plan, out = numbaprims.gemm_integer.plan(b, 3), np.empty((5, 77), np.int32)
    for each in (a, a.view(np.int8), a, a.view(np.int8), a[:2], a):
        want = (each.astype(int) - 3) @ b.astype(int)
        np.testing.assert_array_equal(plan(each), want)
        assert plan(each, out=out[: len(each)]).base is out
        np.testing.assert_array_equal(out[: len(each)], want)
    plan.update(-(b // 2))
    np.testing.assert_array_equal(plan(a, out=out), (a.astype(int) - 3) @ -(b.astype(int) // 2))
    memory = np.zeros(5 * 130 * 4, np.uint8)
    with pytest.raises(ValueError, match="memory"):
        plan(memory[:650].reshape(5, 130), out=memory[4 : 4 + 5 * 77 * 4].view(np.int32).reshape(5, 77))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x, b: numbaprims.gemm_integer(x.astype(float), b), TypeError, "must be int8 or uint8"),
        (lambda x, b: numbaprims.gemm_integer(x, b[:5]), ValueError, "columns of op"),
        (lambda x, b: numbaprims.gemm_integer(x, b, 300), ValueError, "a_zero_point is 300"),
        (lambda x, b: numbaprims.gemm_integer(x, b, 0, np.zeros(5, np.int8)), ValueError, r"\(7,\) of them"),
        (lambda x, b: numbaprims.gemm_integer(x, b, 0, np.ones(7, np.int32)), TypeError, "must be int8"),
        (lambda x, b: numbaprims.qlinear_gemm(x, 1.0, 0, b, b[0], 0, 1.0, np.int8(0)), ValueError, "b_scale"),
        (lambda x, b: numbaprims.qlinear_gemm(x, 1.0, 0, b, 0.0, 0, 1.0, np.int8(0)), ValueError, "b_scale is 0.0"),
        (lambda x, b: numbaprims.qlinear_gemm(x, 1.0, 0, b, 1.0, 0, 1.0, 0), TypeError, "y_zero_point is 0"),
        (lambda x, b: numbaprims.gemm_integer(x, b, np.inf), TypeError, "a_zero_point is inf; a zero point is an int"),
        (lambda x, b: numbaprims.qlinear_gemm(x, 1e50, 0, b, 1, 0, 1, np.int8(0)), ValueError, "a_scale is 1e.50"),
        (lambda x, b: numbaprims.qlinear_gemm(x, 1e30, 0, b, 1e30, 0, 1, np.int8(0)), ValueError, "y_scale is inf in"),
        (lambda x, b: numbaprims.qlinear_gemm(x, 1e-30, 0, b, 1e-30, 0, 1, np.int8(0)), ValueError, "y_scale is 0.0"),
        (lambda x, b: numbaprims.qlinear_gemm(x, 1e30, 0, b, np.full(7, 1e30), 0, 1, np.int8(0)), ValueError, "inf"),
        (lambda x, b: numbaprims.qlinear_gemm(x, 1, 0, b, np.full(7, 1e50), 0, 1, np.int8(0)), ValueError, "b_scale"),
        (lambda x, b: numbaprims.qlinear_add(x, 1e30, 0, x, 1, 0, 1e-30, np.int8(0)), ValueError, "a_scale / y_scale"),
        (lambda x, b: numbaprims.qlinear_add(x, 1, 0, x, 1e-30, 0, 1e30, np.int8(0)), ValueError, "b_scale / y_scale"),
        (lambda x, b: numbaprims.qlinear_add(x, 1, np.nan, x, 1, 0, 1, np.int8(0)), TypeError, "a_zero_point is nan"),
        (
            lambda x, b: numbaprims.qlinear_global_avg_pool(x[None, None], 1e30, 0, 1e-30, np.int8(0)),
            ValueError,
            "x_scale / .y_scale pixels. is inf",
        ),
        (lambda x, b: numbaprims.qlinear_activation(x, ["relu"], 1, 0, 1, np.int8(0)), ValueError, "kind is .'relu'.;"),
        (lambda x, b: numbaprims.gemm_integer.plan(b.view(np.uint8)), ValueError, "one matrix"),
        (lambda x, b: numbaprims.qlinear_add(x, 1, 0, b, 1, 0, 1, np.int8(0)), ValueError, "do not broadcast"),
        (lambda x, b: numbaprims.qlinear_add(x, 1, 0, x, 1, 0, 1, np.int8(0), activation="elu"), ValueError, "'elu'"),
        (lambda x, b: numbaprims.qlinear_add(x, 1, 0, x, 1, 900, 1, np.int8(0)), ValueError, "b_zero_point is 900"),
        (lambda x, b: numbaprims.qlinear_add(x, 1, 0, x * 1.0, 1, 0, 1, np.int8(0)), TypeError, "b is a float64"),
        (lambda x, b: numbaprims.qlinear_global_avg_pool(x, 1, 0, 1, np.int8(0)), ValueError, "one to three"),
        (lambda x, b: numbaprims.qlinear_activation(x, "glu", 1, 0, 1, np.int8(0)), ValueError, "one element"),
        (lambda x, b: numbaprims.qlinear_activation(x, "relu", 1, 0, 1, np.int16(0)), TypeError, "y_zero_point"),
    ],
)  # fmt: skip
def test_refusals(rng, call, error, words):
    with pytest.raises(error, match=words):
        call(integers(rng, "uint8", (4, 9)), integers(rng, "int8", (9, 7)))


class Values:
    """Quantised integers, and what they stand for."""

    def __init__(self, integers, scale, zero):
        self.integers, self.scale, self.zero = integers, scale, zero
        self.float = (integers.astype(np.float64) - float(zero)) * float(scale)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_residual_network_whole(rng, dtype):
    """conv, relu, max pool, two convolutions and their sum, global average, product: each step against the float64 one
    of the very integers that it was given."""

    def zero(value):
        return np.dtype(dtype).type(value)

    def step(have, want, scale, at):
        """Integers that are those of float64 values, but for halves that float32 rounds to another side."""
        assert have.dtype == dtype
        off = np.abs(have.astype(int) - stored(want, scale, at))
        assert off.max() <= 1 and (off > 0).mean() < 0.01
        return Values(have, scale, at)

    def conv(x, scale, at, k, r, **words):
        w = integers(rng, "int8", (k, x.integers.shape[1], r, r))
        scales = rng.uniform(0.5, 1.5, k).astype(np.float32) / 128
        bias = rng.integers(-200, 200, k).astype(np.int32)
        have = numbaprims.qlinear_conv(
            x.integers, x.scale, x.zero, w, scales, 0, scale, at, bias, padding=r // 2, **words
        )
        with numbaprims.config(device="reference"):
            wide = w * scales.astype(np.float64)[:, None, None, None]
            want = numbaprims.conv(
                x.float, wide, bias=bias * float(x.scale) * scales.astype(np.float64), padding=r // 2, **words
            )
        return step(have, want, scale, at)

    low = LIMITS[dtype][0]
    image = rng.standard_normal((2, 3, 20, 20)).astype(np.float32)
    x = Values(numbaprims.quantize(image, 0.03, zero(low + 128)), 0.03, zero(low + 128))
    np.testing.assert_array_equal(x.integers, stored(image, np.float32(0.03), x.zero))
    x = conv(x, 0.1, zero(low + 100), 16, 5, stride=2)
    relu = numbaprims.qlinear_activation(x.integers, "relu", x.scale, x.zero, 0.06, zero(low))
    x = step(relu, np.maximum(x.float, 0), 0.06, zero(low))
    pooled = numbaprims.max_pool(x.integers, 3, stride=2, padding=1)
    x = Values(pooled, x.scale, x.zero)
    inner = conv(conv(x, 0.3, zero(low + 60), 16, 3), 0.9, zero(low + 128), 16, 1)
    total = numbaprims.qlinear_add(
        x.integers, x.scale, x.zero, inner.integers, inner.scale, inner.zero, 0.5, zero(low), activation="relu"
    )
    x = step(total, np.maximum(x.float + inner.float, 0), 0.5, zero(low))
    mean = numbaprims.qlinear_global_avg_pool(x.integers, x.scale, x.zero, 0.1, zero(low))
    x = step(mean, x.float.mean((2, 3), keepdims=True), 0.1, zero(low))
    rows, w = x.integers.reshape(2, 16), integers(rng, "int8", (16, 10))
    bias = rng.integers(-50, 50, 10).astype(np.int32)
    given = rows, x.scale, x.zero, w, 0.01, 0, 0.2, zero(low + 120), bias
    want = x.float.reshape(2, 16) @ (w * 0.01) + bias * x.scale * 0.01
    y = step(numbaprims.qlinear_gemm(*given), want, 0.2, zero(low + 120))
    np.testing.assert_allclose(numbaprims.dequantize(y.integers, y.scale, y.zero), y.float, 1e-6)


def test_tensors_give_tensors(rng):
    torch = pytest.importorskip("torch")
    x, a, b = (
        rng.standard_normal((6, 8)).astype(np.float32),
        integers(rng, "uint8", (6, 8)),
        integers(rng, "int8", (8, 5)),
    )
    scale, zero = rng.uniform(0.5, 1, 8).astype(np.float32), np.uint8(3)
    for function, args, words in (
        ("quantize", (x, scale, np.zeros(8, np.int8)), {"axis": 1}), ("quantize", (x, 0.25), {"dtype": "int4"}),
        ("quantize", (x, scale[0].reshape(()), np.int8(1).reshape(())), {}),
        ("dequantize", (a, 0.25, 3), {}), ("dequantize", (a, 0.25), {"dtype": "int4", "out_dtype": "float16"}),
        ("dynamic_quantize", (x,), {"axis": 0}), ("gemm_integer", (a, b, 3, 4), {}),
        ("qlinear_gemm", (a, 0.5, 3, b, scale[:5], 1, 9.0, zero), {}), ("qlinear_add", (a, 1, 0, a, 1, 0, 1, zero), {}),
        ("qlinear_global_avg_pool", (a[None], 1, 0, 1, zero), {}),
        ("qlinear_activation", (a, "tanh", 0.1, 0, 0.1, zero), {}),
        ("qlinear_avg_pool", (a[None], 1, 0, 1, zero, 2), {}),
    ):  # fmt: skip
        want = getattr(numbaprims, function)(*args, **words)
        given = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args]
        have = getattr(numbaprims, function)(*given, **words)
        for y, z in zip(*(v if isinstance(v, tuple) else (v,) for v in (have, want)), strict=True):
            assert type(y) is torch.Tensor
            np.testing.assert_array_equal(y.numpy(), z)
    have = numbaprims.qlinear_add(
        torch.from_numpy(a), 1, 0, torch.from_numpy(a), 1, 0, 1, torch.tensor(3, dtype=torch.int8)
    )
    assert have.dtype == torch.int8
