"""Quantised convolutions: against their definitions, for every solver that takes them, and against onnxruntime."""

import numpy as np
import pytest
from helpers import has_module, refused, solver_names

import numbaprims

DTYPES = {"i8": np.int8, "u8": np.uint8}
# x, weight, and the window; one row each for what is special
CASES = [
    ((2, 7, 9, 11), (10, 7, 3, 3), {"padding": 1}),
    ((1, 64, 8, 8), (70, 64, 1, 1), {}),
    ((2, 16, 15, 14), (20, 8, 3, 2), {"groups": 2, "stride": 2, "padding": (2, 1)}),
    ((1, 6, 10, 10), (12, 1, 3, 3), {"groups": 6, "dilation": 2, "padding": 2}),
    ((2, 5, 30), (6, 5, 4), {"stride": 3, "padding": 2}),
    ((1, 4, 5, 6, 7), (3, 4, 2, 3, 2), {"padding": 1}),
]

SOLVERS = [
    name for name in solver_names("conv")
    if not refused("conv", name, np.zeros((1, 1, 3, 3), np.int8), np.zeros((1, 1, 2, 2), np.int8))
]  # fmt: skip


def takes(solver, function, *args, **kwargs):
    """The result, or None where the solver refuses."""
    try:
        return getattr(numbaprims, function)(*args, algorithm=solver, **kwargs)
    except ValueError as error:
        if "was asked for, but" in str(error):
            return None
        raise


def windowed(x, w, x_zero, stride=1, padding=0, dilation=1, groups=1):
    """(N, K, ...) int64 sums, term by term: x (with its zero point around it) and w already less their zero points."""
    rank = x.ndim - 2
    steps, before, gaps = (np.broadcast_to(value, rank) for value in (stride, padding, dilation))
    x = np.pad(x.astype(np.int64), [(0, 0), (0, 0), *((int(p), int(p)) for p in before)], constant_values=x_zero)
    x = x - x_zero
    size = [(x.shape[2 + i] - gaps[i] * (w.shape[2 + i] - 1) - 1) // steps[i] + 1 for i in range(rank)]
    out = np.zeros((x.shape[0], w.shape[0], *size), np.int64)
    group_k, group_c = w.shape[0] // groups, w.shape[1]
    for k in range(w.shape[0]):
        first = k // group_k * group_c
        for place in np.ndindex(*size):
            window = tuple(
                slice(place[i] * steps[i], place[i] * steps[i] + gaps[i] * (w.shape[2 + i] - 1) + 1, gaps[i])
                for i in range(rank)
            )
            seen = x[(slice(None), slice(first, first + group_c), *window)]
            out[(slice(None), k, *place)] = (seen * w[k]).reshape(x.shape[0], -1).sum(1)
    return out


def operands(case, kind, rng):
    x_shape, w_shape, window = CASES[case]
    limits = np.iinfo(DTYPES[kind])
    x = rng.integers(limits.min, limits.max + 1, x_shape).astype(DTYPES[kind])
    w = rng.integers(-128, 128, w_shape).astype(np.int8)
    return x, w, window


def last(x):
    """The same array with its channels behind, and the layout's name."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)), {3: "NWC", 4: "NHWC", 5: "NDHWC"}[x.ndim]


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("solver", SOLVERS)
def test_conv_integer(solver, case, kind):
    """No zero points, those at the ends of the range, those of the weight, one for all filters or one each."""
    rng = np.random.default_rng(case)
    x, w, window = operands(case, kind, rng)
    low, high = int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)
    each = rng.integers(-128, 128, len(w)).astype(np.int8)
    for x_zero, w_zero in ((0, 0), (low, 0), (high, 0), (x.dtype.type(3), 0), (0, -128), (5, each), (0, each)):
        zero = np.broadcast_to(w_zero, len(w)).astype(np.int64).reshape(-1, *(1,) * (x.ndim - 1))
        expected = windowed(x, w - zero, int(x_zero), **window)
        points = {"x_zero_point": x_zero, "weight_zero_point": w_zero}
        got = takes(solver, "conv_integer", x, w, **points, **window)
        if got is None:
            continue
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, expected)
        behind, layout = last(x)
        out = np.full((len(x), *expected.shape[2:], len(w)), 77, np.int32)
        assert takes(solver, "conv_integer", behind, w, **points, **window, layout=layout, out=out) is out
        np.testing.assert_array_equal(np.moveaxis(out, -1, 1), expected)


@pytest.mark.parametrize("y_kind", DTYPES)
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("solver", SOLVERS)
def test_qlinear_conv(solver, case, kind, y_kind):
    """The formula in float32, with scales that leave some results in range and saturate others."""
    rng = np.random.default_rng(case)
    x, w, window = operands(case, kind, rng)
    bias = rng.integers(-1000, 1000, len(w)).astype(np.int32)
    scales = rng.uniform(0.5, 2, len(w)).astype(np.float32)
    y_zero = DTYPES[y_kind](11)
    shape = (-1, *(1,) * (x.ndim - 2))
    for x_zero, w_zero, w_scale, b in ((0, 0, 0.01, None), (9, 0, scales, bias), (1, -7, scales, None)):
        exact = windowed(x, w.astype(np.int64) - w_zero, x_zero, **window)
        sums = (exact if b is None else exact + bias.reshape(shape)).astype(np.int32)
        y_scale = np.float32(np.abs(sums).max() * np.max(w_scale) * 0.02 / 90)
        factor = np.float32(0.02) * np.broadcast_to(np.float32(w_scale), len(w)) / y_scale
        rounded = np.rint(sums.astype(np.float32) * factor.reshape(shape)) + np.float32(y_zero)
        limits = np.iinfo(DTYPES[y_kind])
        expected = np.clip(rounded, limits.min, limits.max).astype(DTYPES[y_kind])
        got = takes(solver, "qlinear_conv", x, 0.02, x_zero, w, w_scale, w_zero, y_scale, y_zero, b, **window)
        if got is None:
            continue
        assert got.dtype == DTYPES[y_kind]
        np.testing.assert_array_equal(got, expected)
        behind, layout = last(x)
        got = takes(
            solver, "qlinear_conv", behind, 0.02, x_zero, w, w_scale, w_zero, y_scale, y_zero, b, **window,
            layout=layout,
        )  # fmt: skip
        np.testing.assert_array_equal(np.moveaxis(got, -1, 1), expected)


def test_halves_are_rounded_to_even():
    """Sums of 1 ... 9 times exactly 1/2."""
    x = np.arange(1, 10, dtype=np.uint8).reshape(1, 1, 1, 9)
    w = np.ones((1, 1, 1, 1), np.int8)
    got = numbaprims.qlinear_conv(x, 1.0, 0, w, 0.5, 0, 1.0, np.uint8(0))
    np.testing.assert_array_equal(got.ravel(), [0, 1, 2, 2, 2, 3, 4, 4, 4])


def test_torch_arrays():
    """torch in, torch out; the zero point of the result as a tensor."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(0)
    x, w, window = operands(0, "u8", rng)
    expected = numbaprims.qlinear_conv(x, 0.1, 5, w, 0.2, 0, 9.0, np.int8(3), **window)
    zero = torch.tensor(3, dtype=torch.int8)
    got = numbaprims.qlinear_conv(torch.from_numpy(x), 0.1, 5, torch.from_numpy(w), 0.2, 0, 9.0, zero, **window)
    assert isinstance(got, torch.Tensor) and got.dtype == torch.int8
    np.testing.assert_array_equal(got.numpy(), expected)


def test_reference_agrees():
    rng = np.random.default_rng(0)
    x, w, window = operands(2, "i8", rng)
    call = (x, 0.1, 5, w, rng.uniform(0.1, 1, len(w)), rng.integers(-9, 9, len(w)), 300.0, np.uint8(128))
    with numbaprims.config(device="reference"):
        expected = numbaprims.qlinear_conv(*call, **window)
    np.testing.assert_array_equal(numbaprims.qlinear_conv(*call, **window), expected)


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"x": np.zeros((1, 2, 4, 4), np.float32)}, TypeError, "float32"),
        ({"weight": np.zeros((3, 2, 2, 2), np.uint8)}, TypeError, "uint8"),
        ({"x_zero_point": 300}, ValueError, "0 ... 255"),
        ({"x_zero_point": 0.5}, TypeError, "integer"),
        ({"weight_zero_point": -129}, ValueError, "-128 ... 127"),
        ({"weight_zero_point": np.zeros(2, np.int8)}, ValueError, "one value a filter"),
        ({"weight_scale": np.ones(2)}, ValueError, "one value a filter"),
        ({"x_scale": np.ones(3)}, ValueError, "a scalar"),
        ({"x_scale": 0.0}, ValueError, "positive"),
        ({"y_scale": float("inf")}, ValueError, "finite"),
        ({"x_scale": 1e30, "weight_scale": 1e30}, ValueError, "x_scale weight_scale / y_scale is inf in float32"),
        ({"weight_scale": [1e-30, 1, 1], "y_scale": 1e30}, ValueError, "y_scale is .* in float32; it must be above 0"),
        ({"y_zero_point": 3}, TypeError, "int8 or uint8 scalar"),
        ({"y_zero_point": np.float32(3)}, TypeError, "int8 or uint8 scalar"),
        ({"bias": np.zeros(3, np.float32)}, TypeError, "int32"),
    ],
)
def test_refusals(change, error, words):
    """What does not fit is named."""
    call = {
        "x": np.zeros((1, 2, 4, 4), np.uint8), "x_scale": 0.1, "x_zero_point": 1,
        "weight": np.zeros((3, 2, 2, 2), np.int8), "weight_scale": 0.1, "weight_zero_point": 0, "y_scale": 0.1,
        "y_zero_point": np.uint8(0),
    }  # fmt: skip
    with pytest.raises(error, match=words):
        numbaprims.qlinear_conv(**{**call, **change})


@pytest.mark.skipif(not has_module("onnxruntime"), reason="onnxruntime is not installed")
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("case", [0, 1, 2, 3])
def test_onnxruntime(case, kind):
    """The same bits as QLinearConv and ConvInteger of onnxruntime.

    Weights of seven bits: on a CPU without VNNI it adds two products of bytes in 16 bits, which saturate beyond these
    (255 * 64 * 2 is 32640).
    """
    import onnxruntime

    from numbaprims.bench.onnx_model import Tensor, model

    rng = np.random.default_rng(case)
    x, w, window = operands(case, kind, rng)
    w = np.clip(w, -64, 64)
    bias = rng.integers(-1000, 1000, len(w)).astype(np.int32)
    pads = [int(p) for p in np.broadcast_to(window.get("padding", 0), 2)] * 2
    attributes = {
        "strides": [int(n) for n in np.broadcast_to(window.get("stride", 1), 2)], "pads": pads,
        "dilations": [int(n) for n in np.broadcast_to(window.get("dilation", 1), 2)],
        "group": window.get("groups", 1), "kernel_shape": list(w.shape[2:]),
    }  # fmt: skip
    zero = DTYPES[kind](7)
    scales = rng.uniform(0.01, 0.02, len(w)).astype(np.float32)
    got = numbaprims.qlinear_conv(x, 0.05, zero, w, scales, 0, 0.7, DTYPES[kind](20), bias, **window)

    def run(operator, dtype, constants):
        made = model(
            operator, [Tensor("x", x.shape, str(x.dtype))], Tensor("y", got.shape, dtype), constants, attributes
        )
        session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
        return session.run(None, {"x": x})[0]

    theirs = run(
        "QLinearConv", str(x.dtype),
        {
            "x_scale": np.float32(0.05), "x_zero": zero, "w": w, "w_scale": scales, "w_zero": np.zeros(len(w), np.int8),
            "y_scale": np.float32(0.7), "y_zero": DTYPES[kind](20), "b": bias,
        },
    )  # fmt: skip
    np.testing.assert_array_equal(got, theirs)
    if kind == "u8":  # onnxruntime has ConvInteger for uint8 only
        theirs = run("ConvInteger", "int32", {"w": w, "x_zero": zero})
        np.testing.assert_array_equal(numbaprims.conv_integer(x, w, x_zero_point=zero, **window), theirs)


def test_no_filters():
    x, w, none = np.zeros((1, 2, 3), np.uint8), np.zeros((0, 2, 1), np.int8), np.zeros(0, np.int8)
    assert numbaprims.conv_integer(x, w, weight_zero_point=none).shape == (1, 0, 3)
    y = numbaprims.qlinear_conv(x, 0.5, 0, w, none.astype(np.float32), none, 0.5, np.uint8(0))
    assert y.shape == (1, 0, 3)
