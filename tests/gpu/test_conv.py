"""conv on a GPU: arrays of the device through the public functions, and what tests/test_conv.py does not reach."""

import numpy as np
import pytest
from conv_cases import CASES, FUNCTIONS, Case, arguments, from_layout, operand_layouts, to_layout
from helpers import assert_close, assert_exact, exact_integers, from_float64, in_library, to_float64

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import call as dispatch_call
from numbaprims.gpu.conv import SOLVERS
from numbaprims.gpu.memory import DeviceArray, to_device
from numbaprims.ops import conv as ops_conv
from numbaprims.ops._conv_pose import Ending, Window, enter_two, geometry, pose
from numbaprims.reference import conv as reference

NAMES = tuple(solver.name for solver in SOLVERS)


def device(values, dtype):
    """An array of the emulated GPU."""
    return to_device(values if dtype in ("i8", "u8", "i32") else in_library(from_float64(values, dtype), dtype))


def run(case, direction, dtype, solver, layout="NCHW", seed=0, **more):
    """Integers whose sums are exact must come out bit for bit; gives the emulated result's storage and the definition's
    values, both channels first."""
    rng = np.random.default_rng(seed)
    first, second = (exact_integers(s, dtype, case.sums(direction), rng) for s in case.operand_shapes(direction))
    layouts = operand_layouts(direction, layout)
    a, b = (device(to_layout(x, of), dtype) for x, of in zip((first, second), layouts, strict=True))
    places, window = arguments(case, direction, layout)
    got = getattr(numbaprims, FUNCTIONS[direction])(a, b, *places, algorithm=solver, **window, **more)
    assert isinstance(got, DeviceArray)
    return from_layout(got.to_host(), "NCHW" if direction == "weight" else layout), case.expected(
        direction, first, second
    )


def test_strided_operands_and_results(gpu):
    """Views of larger arrays, with negative steps, and results written into views."""
    rng = np.random.default_rng(1)
    case = CASES[3]
    x, w = (exact_integers(s, "f32", 72, rng).astype(np.float32) for s in (case.x, case.w))
    wide = np.full((2, 8, 9, 16), np.nan, np.float32)
    wide[:, :, 1:8, 1:15:2] = x
    a, b = to_device(wide)[:, :, 1:8, 1:15:2], to_device(np.ascontiguousarray(w[::-1, ::-1]))[::-1, ::-1]
    out = to_device(np.full((2, 33, 7, 14), np.nan, np.float32))
    for name in NAMES:
        if numbaprims.explain("conv", a, b, out=out[..., ::2], **case.window)[name].refusal is None:
            numbaprims.conv(a, b, out=out[..., ::2], algorithm=name, **case.window)
            assert_exact(out.to_host()[..., ::2], case.expected("forward", x, w))
            assert np.isnan(out.to_host()[..., 1::2]).all()


def test_channels_last_results_and_broadcast_c(gpu):
    """A result lies as its operand does; c of one value a channel is read with steps of 0."""
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((2, 6, 5, 8)).astype(np.float32), rng.standard_normal((4, 6, 3, 3)).astype(np.float32)
    c = rng.standard_normal((4, 1, 1)).astype(np.float32)
    last = to_device(np.ascontiguousarray(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
    got = numbaprims.conv(last, to_device(w), c=to_device(c), beta=-2.0)
    assert got.strides == (4 * 72, 4, 4 * 24, 4 * 4)
    expected = Case(x.shape, w.shape).expected("forward", x.astype(np.float64), w) - 2.0 * c
    assert_close(got.to_host(), expected, k=56, max_abs=30.0)


def test_plans(gpu):
    """Weights of the device are kept by the plan; nothing is prepared."""
    rng = np.random.default_rng(3)
    case = CASES[4]
    x, w = (to_device(rng.standard_normal(s).astype(np.float32)) for s in (case.x, case.w))
    layer = numbaprims.conv.plan(x.shape, w, activation="relu", **case.window)
    plain = numbaprims.conv(x, w, activation="relu", **case.window)
    np.testing.assert_array_equal(layer(x).to_host(), plain.to_host())
    np.testing.assert_array_equal(layer(x).to_host(), plain.to_host())


@pytest.mark.parametrize("kind, zeros", [("i8", "none"), ("u8", "both")])
def test_quantized(gpu, kind, zeros):
    """int32 sums with zero points, scaled, rounded and saturated to 8 bits."""
    rng = np.random.default_rng(4)
    case = Case((2, 3, 6, 7), (5, 3, 3, 2), padding=1, stride=(1, 2))
    x, w = exact_integers(case.x, kind, 18, rng), exact_integers(case.w, "i8", 18, rng)
    bias = rng.integers(-900, 900, 5).astype(np.int32)
    extra = np.stack([rng.uniform(1e-4, 2e-3, 5), rng.integers(-5, 6, 5) * (zeros != "none"), rng.integers(-9, 9, 5)])
    x_zero = 7 if zeros != "none" else 0
    given = [to_device(z) for z in (x, w, bias, extra.astype(np.float32))]
    room = arrays.enter(given[3], "extra")[0]
    shape = geometry(case.x, case.w, Window(case.stride, case.padding))
    operands, ending = enter_two(given[0], "x", given[1], "weight"), Ending(given[2], "relu")
    posed = pose("forward", shape, operands, ending, zeros=zeros, requantized=kind, extra=room)
    bound = dispatch_call.bind(posed.problem, posed.shape, kind, library=posed.library)
    result, storage = ops_conv.new_result(posed.library, posed.shape, kind, posed.last)
    ops_conv.launch(bound, posed, storage, 1.0, 0.0, float(x_zero))
    w_zero = extra[1].astype(np.int64).reshape(-1, 1, 1, 1)
    sums = case.expected("forward", x.astype(np.int64) - x_zero, w.astype(np.int64) - w_zero)
    sums = reference.finish(sums, bias=bias, activation="relu")
    wanted = reference.requantize(sums, extra[0], extra[2], np.int8 if kind == "i8" else np.uint8)
    np.testing.assert_array_equal(result.to_host(), wanted)
    assert len(np.unique(wanted)) > 20


def test_bias_gradient(gpu):
    rng = np.random.default_rng(5)
    for shape, layout in (((3, 5, 7, 9), "NCHW"), ((2, 3, 4, 37), "NHWC"), ((40, 33), None)):
        if layout is None:
            dy = exact_integers((*shape, 1), "f32", 40, rng)
            got = numbaprims.conv_backward_bias(device(dy, "f32"))
        else:
            dy = exact_integers(shape, "f32", 300, rng)
            got = numbaprims.conv_backward_bias(device(dy, "f32"), layout=layout)
            dy = from_layout(dy, layout)
        assert_exact(got.to_host(), reference.conv_backward_bias(dy))


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
def test_float64_and_halves(gpu, direction):
    pytest.importorskip("ml_dtypes")
    for dtype in ("f64", "f16", "bf16"):
        got, expected = run(CASES[13], direction, dtype, "auto")
        assert_exact(to_float64(got, None) if dtype == "f64" else got, expected, dtype if dtype == "f64" else None)
