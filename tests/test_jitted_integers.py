"""Quantised integers in and out, and their products, inside a user's own @njit: the bits and errors of the public
calls."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import in_turn
from numba.core.errors import TypingError
from test_jitted import compiled, refuse_alike, same

from numbaprims.cpu.call_sites import Site

pytestmark = pytest.mark.cpu


@pytest.fixture
def direct(monkeypatch):
    """Calls that went through Python and left no record."""
    found, real = [], Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: found.append(1) or real(*given))
    return found


def drawn(rng, *shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


#: A label -> an expression of x (3, 5, 8), w (8, 6), image (2, 3, 9, 8), a scale s and an integer k of 1 or 2.
CALLS = {
    "add": "nb.qlinear_add(x, s, k, x[:, ::-1], 0.25, None, 0.5, np.int8(-k))",
    "add, broadcast": "nb.qlinear_add(x[0], s, 3, w[:, :5].T, 1, k - 4, 0.5, np.uint8(90), activation='relu')",
    "add, out": "nb.qlinear_add(x, s, k, x, s, k, s, x.dtype.type(k), out=x)",
    "sigmoid": "nb.qlinear_activation(x, 'sigmoid', s, k, 1 / 256, np.uint8(0))",
    "leaky": "nb.qlinear_activation(x.T, 'leaky_relu', s, None, s, np.int8(k), negative_slope=k / 8)",
    "gelu": "nb.qlinear_activation(x[:, ::2], 'gelu', s, k, s, np.int8(k), approximate='tanh')",
    "global": "nb.qlinear_global_avg_pool(image, s, k, 0.25, np.uint8(k))",
    "global, last": "nb.qlinear_global_avg_pool(image, s, None, 0.25, np.int8(k), layout='NHWC')",
    "average": "nb.qlinear_avg_pool(image, s, k, 0.5, np.uint8(128), k + 1, stride=k, padding=1)",
    "average, last": "nb.qlinear_avg_pool(image, s, k, 0.5, np.int8(k), (k, 2), layout='NHWC', ceil_mode=True)",
    "product": "nb.gemm_integer(x, w)",
    "product, zeros": "nb.gemm_integer(x, w, k, 3 * k)",
    "product, weight's zero": "nb.gemm_integer(x[0], w.T.copy().T, b_zero_point=k, bias=np.arange(6, dtype=np.int32))",
    "product, unsigned weight": "nb.gemm_integer(x, w.view(np.uint8), k, 128, out=np.empty((3, 5, 6), np.int32))",
    "requantised": "nb.qlinear_gemm(x, s, k, w, 0.02, 0, 3.0, np.uint8(100))",
    "requantised, zeros": "nb.qlinear_gemm(x, s, k, w.view(np.uint8), 0.02, 99, 3, np.int8(k), bias=columns)",
    "requantised, columns": "nb.qlinear_gemm(x, s, k, w, s * (columns + 0.01), k - 1, 3.0, np.uint8(100))",
    "requantised, one column": "nb.qlinear_gemm(x, s, k, w, np.full(1, 0.02), None, 3.0, np.int8(k), bias=columns)",
    "requantised, the least scale": "nb.qlinear_gemm(x, s, k, w, np.full(1, 1e-38), None, 3.0, np.int8(k))",
    "convolution": "nb.conv_integer(image, filters)",
    "convolution, zeros": "nb.conv_integer(image, filters, x_zero_point=k, weight_zero_point=k - 2, padding=k)",
    "convolution, each filter's": "nb.conv_integer(image, filters[:, :1], weight_zero_point=columns - k, groups=3)",
    "requantised images": "nb.qlinear_conv(image, s, k, filters, 0.02, 0, 3, np.uint8(9), columns, padding='same')",
    "requantised, each filter's": "nb.qlinear_conv(image, s, k, filters, s * (columns + 1), 0, 3.0, np.int8(k))",
    "requantised, all zeros": "nb.qlinear_conv(image, s, 0, filters[..., :1], s * columns[::-1] + s, columns - k, 3.0, "
    "np.int8(k), layout='NHWC', dilation=(k, 1), stride=k)",
}  # fmt: skip


@pytest.mark.parametrize("label, dtype", in_turn(CALLS, [np.int8, np.uint8]))
def test_calls(rng, direct, label, dtype):
    inside, outside = compiled("x, w, image, filters, columns, s, k", CALLS[label])
    columns = np.arange(6, dtype=np.int32)
    for s, k in ((0.5, 1), (0.03, 2), (0.5, 1)):
        shape = (2, 9, 8, 3) if "NHWC" in CALLS[label] else (2, 3, 9, 8)
        x, image = drawn(rng, 3, 5, 8, dtype=dtype), drawn(rng, *shape, dtype=dtype)
        w, filters = drawn(rng, 8, 6, dtype=np.int8), drawn(rng, 6, 3, 3, 3, dtype=np.int8)
        given = w, image, filters, columns, s, k
        same(inside(x.copy(), *given), outside(x.copy(), *given))
    assert not direct, "every launch was recorded"


def test_tables_live_as_long_as_records(rng, direct):
    """Tables of 1,024 calls are kept, of which the first one's would be gone."""
    inside, outside = compiled("x, s", "nb.qlinear_activation(x, 'relu', s, 3, 0.5, np.uint8(7))")
    x = drawn(rng, 100)
    want = outside(x, 0.5)
    same(inside(x, 0.5), want)
    from numbaprims.ops import _quantize_given

    _quantize_given.kept.cache_clear()
    filled = [np.full(256, 9, np.uint8) for _ in range(100)]
    same(inside(x, 0.5), want)
    assert filled and not direct


@pytest.mark.parametrize(
    "expression",
    [
        "nb.gemm_integer(x, w, columns[:5].astype(x.dtype), 3)",
        "nb.gemm_integer(x, w, k, columns.astype(np.int8))",
        "nb.qlinear_gemm(x, s, k, w, columns + 0.5, columns.astype(np.int8), s, np.int8(k))",
    ],
)
def test_zero_points_of_rows_and_columns_go_through_python(rng, direct, expression):
    inside, outside = compiled("x, w, columns, s, k", expression)
    x, w, columns = drawn(rng, 5, 8), drawn(rng, 8, 6, dtype=np.int8), np.arange(6)
    for s, k in ((0.5, 1), (0.03, 2), (0.5, 1)):
        same(inside(x, w, columns, s, k), outside(x, w, columns, s, k))
    assert len(direct) == 3


def test_scales_at_run_time_leave_one_record(rng, monkeypatch):
    """Of a convolution, and of the columns of a product."""
    calls = (
        "nb.qlinear_conv(x, s, 3, x.view(np.int8), s * scales, 0, s, np.uint8(k))",
        "nb.qlinear_gemm(x[0, 0], s, 3, x[:, 0, 0].copy().view(np.int8), s * scales, 0, s, np.uint8(7))",
    )
    x, scales = drawn(rng, 6, 3, 5, 6), np.linspace(0.01, 0.02, 6)
    for call in calls:
        inside, outside = compiled("x, scales, s, k", call)
        inside(x, scales, 0.5, 2)
        with monkeypatch.context() as patched:
            patched.setattr(Site, "miss", None)
            for s in (0.1, 0.3):
                same(inside(x, scales, s, 2), outside(x, scales, s, 2))


@pytest.mark.parametrize(
    "expression",
    [
        "nb.qlinear_add(x, -1.0, 0, x, 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_add(x, 1.0, 300, x, 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_add(x, 1.0, 0.5, x, 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_add(x, 1.0, 0, x[:2], 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_add(x, 1.0, 0, x, 1.0, 0, 1.0, np.uint8(3), activation='tanh')",
        "nb.qlinear_add(x, 1.0, 0, columns, 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_activation(x, 'nonsense', 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_activation(x, 'glu', 1.0, 0, 1.0, np.uint8(3), axis=1)",
        "nb.qlinear_activation(x, 'threshold', 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_activation(x, 'relu', 1.0, 0, np.nan, np.uint8(3))",
        "nb.qlinear_global_avg_pool(x, 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_avg_pool(image, 1.0, 0, 1.0, np.uint8(3), 20)",
        "nb.qlinear_avg_pool(image, 1.0, -1, 1.0, np.uint8(3), 2)",
        "nb.qlinear_gemm(x, 1.0, 0, w, np.full(1, 1e-50), None, 3.0, np.int8(3))",
        "nb.qlinear_gemm(x, 1e30, 0, w, columns + 1e30, 0, 1.0, np.uint8(3))",
        "nb.qlinear_conv(image, 1e-30, 0, filters, columns * 0.0 + 1e-30, 0, 1.0, np.uint8(3))",
        "nb.gemm_integer(x, w[:5])",
        "nb.gemm_integer(x[0], w)",
        "nb.gemm_integer(x, columns.reshape((3, 2)))",
        "nb.gemm_integer(x, w, 256)",
        "nb.gemm_integer(x, w, bias=w[0])",
        "nb.gemm_integer(x, w, columns.astype(np.uint8))",
        "nb.qlinear_gemm(x, 0.0, 0, w, 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_gemm(x, 0.0, 0, w, columns + 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_gemm(x, 1.0, 0, w, columns * 0.5, 0, 1.0, np.uint8(3))",
        "nb.qlinear_gemm(x, 1.0, 0, w, columns[:5] + 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_gemm(x, 1.0, 300, w, columns + 1.0, 0, 1.0, np.uint8(3))",
        "nb.conv_integer(x, filters)",
        "nb.conv_integer(image, filters, x_zero_point=-1)",
        "nb.conv_integer(image, filters, x_zero_point=2.0)",
        "nb.conv_integer(image, filters, weight_zero_point=columns.astype(np.int64) + 123)",
        "nb.conv_integer(image, filters, weight_zero_point=columns[1:])",
        "nb.conv_integer(image, filters, weight_zero_point=columns + 1.0)",
        "nb.conv_integer(image, image)",
        "nb.conv_integer(columns, filters)",
        "nb.qlinear_conv(image, 1.0, 0, filters, 1.0, 0, -1.0, np.uint8(3))",
        "nb.qlinear_conv(image, 1.0, 0, filters, columns * 0.5, 0, 1.0, np.uint8(3))",
        "nb.qlinear_conv(image, 1.0, 0, filters, columns[:5] + 1.0, 0, 1.0, np.uint8(3))",
        "nb.qlinear_conv(image, 1.0, 0, filters, 1.0, 0, 1.0, np.uint8(3), bias=columns[1:])",
        "nb.qlinear_conv(image, 1.0, 0, filters, 1.0, 0, 1.0, np.uint8(3), stride=0)",
    ],
)
def test_errors_are_those_of_the_public_call(rng, expression):
    names = "x, w, image, filters, columns"
    x, w = drawn(rng, 5, 8), drawn(rng, 8, 6, dtype=np.int8)
    given = x, w, drawn(rng, 2, 3, 9, 8), drawn(rng, 6, 3, 3, 3, dtype=np.int8), np.arange(6, dtype=np.int32)
    inside, outside = compiled(names, expression)
    refuse_alike(inside, outside, *given)


@pytest.mark.parametrize(
    "expression, words",
    [
        ("nb.qlinear_add(x, 1.0, 0, x, 1.0, 0, 1.0, 3)", "y_zero_point is .*; it must be an int8 or uint8, whose type"),
        ("nb.qlinear_add(x, 1.0, x[0], x, 1.0, 0, 1.0, np.uint8(3))", "a_zero_point is .* real number"),
        ("nb.conv_integer(x, x, True)", "x_zero_point is .* a zero point is an integer"),
        ("nb.qlinear_activation(x, str(x.size), 1.0, 0, 1.0, np.uint8(3))", "kind is .*; it must be a literal string"),
        ("nb.qlinear_conv(x, 1.0, 0, x, x, 0, 1.0, np.uint8(3))", "weight_scale is .* an array of one dimension"),
        ("nb.gemm_integer(x, x, '1')", "a_zero_point is .* real number"),
    ],
)
def test_refusals_name_the_argument(rng, expression, words):
    with pytest.raises(TypingError, match=words):
        compiled("x", expression)[0](drawn(rng, 4, 4))


@pytest.mark.parametrize(
    "expression",
    [
        "nb.gemm_integer(x, w.view(np.uint8), 3, 7)",
        "nb.qlinear_gemm(x, 0.5, 3, w, scales, -2, 9.0, np.int8(1))",
        "nb.qlinear_gemm(x[::-1, ::2], 0.5, 3, w[::2].T.copy().T, 0.01, -2, 9.0, np.uint8(1), columns)",
        "nb.qlinear_add(x, 0.5, 3, x.T.copy().T, 0.25, 2, 0.5, np.uint8(1))",
        "nb.qlinear_activation(x, 'silu', 0.05, 100, 0.05, np.uint8(1))",
        "nb.qlinear_conv(x.reshape((2, 16, 25, 25)), 0.5, 3, w[:144, :64].copy().reshape((64, 16, 3, 3)), scales[:64], "
        "-2, 9.0, np.int8(1), columns[:64], padding=1)",
    ],
)
def test_beyond_the_stack_and_in_threads(rng, direct, expression):
    inside, outside = compiled("x, w, scales, columns", expression, nogil=True)
    w, scales = drawn(rng, 200, 150, dtype=np.int8), np.linspace(0.01, 0.02, 150)
    columns, inputs = np.arange(150, dtype=np.int32), [drawn(rng, 100, 200) for _ in range(4)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda x: inside(x, w, scales, columns), inputs))
    for got, x in zip(found, inputs, strict=True):
        same(got, outside(x, w, scales, columns))
    assert not direct
