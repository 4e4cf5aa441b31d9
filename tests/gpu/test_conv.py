"""conv on a GPU: arrays of the device through the public functions, and what tests/test_conv.py does not reach."""

import dataclasses

import numpy as np
import pytest
from conv_cases import (
    CASES,
    FUNCTIONS,
    Case,
    amplification,
    arguments,
    from_layout,
    is_exact,
    operand_layouts,
    to_layout,
)
from helpers import assert_close, assert_exact, exact_integers, from_float64, in_library, to_float64
from ptx_emulator.driver import EmulatedDriver

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.gpu import driver
from numbaprims.gpu.conv import SOLVERS
from numbaprims.gpu.conv.implicit import ImplicitGemm
from numbaprims.gpu.memory import DeviceArray, to_device
from numbaprims.gpu.target import A100, H200
from numbaprims.ops._conv_pose import Options
from numbaprims.ops.conv import PROBLEMS
from numbaprims.ops.conv_quantized import _quantized
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
            expected = case.expected("forward", x, w)
            if is_exact(name):
                assert_exact(out.to_host()[..., ::2], expected)
            else:
                assert_close(out.to_host()[..., ::2], expected, k=72 * amplification(name))
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


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_planes_of_padding_round_one_plane(gpu, dtype, direction):
    """A volume of depth 1 with padding in depth: every solver writes the planes that see nothing but padding."""
    taken = 0
    for case in (
        Case((1, 8, 1, 6, 5), (4, 8, 1, 2, 3), padding=((1, 2), (0, 1), (2, 1))),
        Case((2, 3, 1, 4, 9), (3, 1, 1, 3, 3), padding=((2, 0), (1, 1), (1, 1)), groups=3),
    ):
        for solver in NAMES:
            try:
                got, wanted = run(case, direction, dtype, solver)
            except ValueError as refusal:
                assert "was asked for, but" in str(refusal)
                continue
            # the transforms round; a plane that sees what is not there is wrong by as much as numbers are large
            assert np.abs(to_float64(got, dtype) - wanted).max() <= 2e-3 * np.abs(wanted).max(), solver
            taken += 1
    assert taken > 3


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
    options = Options((case.stride, case.padding, 1, 1, "NCHW"), activation="relu", zeros=zeros, requantized=kind)
    words = given[0], given[1], None, given[2], None, given[3]
    result = _quantized.run(words, options, (1.0, 0.0, 0.0, 0.0, 0.0, float(x_zero)))
    w_zero = extra[1].astype(np.int64).reshape(-1, 1, 1, 1)
    sums = case.expected("forward", x.astype(np.int64) - x_zero, w.astype(np.int64) - w_zero)
    sums = reference.finish(sums, bias=bias, activation="relu")
    wanted = reference.requantize(sums, extra[0], extra[2], np.int8 if kind == "i8" else np.uint8)
    np.testing.assert_array_equal(result.to_host(), wanted)
    assert len(np.unique(wanted)) > 20


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_quantized_arrays_of_the_host(gpu, layout):
    """Scales and zero points, which are an operand behind the activation's second result, are copied too."""
    rng = np.random.default_rng(5)
    case = Case((2, 3, 6, 7), (5, 3, 3, 2), padding=1)
    x, w = (rng.integers(-90, 90, size, np.int8) for size in (case.x, case.w))
    zeros, scales = rng.integers(-5, 6, 5, np.int8), rng.uniform(0.01, 0.02, 5).astype(np.float32)
    x, w = to_layout(x, layout), np.ascontiguousarray(w)
    calls = (
        lambda: numbaprims.conv_integer(x, w, x_zero_point=3, weight_zero_point=zeros, padding=1, layout=layout),
        lambda: numbaprims.qlinear_conv(
            x, 0.02, 3, w, scales, zeros, np.float32(0.05), np.int8(4), padding=1, layout=layout
        ),
    )
    for call in calls:
        with numbaprims.config(device="cuda"):
            got = call()
        with numbaprims.config(device="cpu"):
            wanted = call()
        assert isinstance(got, np.ndarray) and len(np.unique(wanted)) > 20
        np.testing.assert_array_equal(got, wanted)


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


# ---------------------------------------------------------------- each solver


def check(case, direction, dtype, solver, layout):
    got, expected = run(case, direction, dtype, solver, layout)
    assert_exact(got, expected, vacuous=not expected.any())


LONG = {
    # more than one chunk of k, the last one shorter
    "forward": Case((1, 61, 4, 5), (5, 61, 3, 3), padding=1),
    "data": Case((1, 4, 4, 5), (61, 4, 3, 3), padding=1),
    "weight": Case((3, 3, 15, 14), (5, 3, 2, 3), padding=1, groups=1),
}


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
def test_implicit_gemm(gpu, direction):
    """Strides, dilations, groups; three dimensions; tiles of pixels as rows and as columns; k in chunks."""
    for case, layout in ((CASES[3], "NHWC"), (CASES[13], "NCHW"), (CASES[14], "NCHW"), (CASES[25], "NHWC")):
        check(case, direction, "f32", "implicit_gemm", layout)
    check(LONG[direction], direction, "f32", "implicit_gemm", "NCHW")
    assert "conv_reduce" in gpu.launches[-1].entry


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
def test_implicit_mma(gpu, direction):
    """Pieces of 16 bytes, single elements, packed weights; k in chunks."""
    for case, layout in ((CASES[3], "NHWC"), (CASES[13], "NCHW"), (CASES[14], "NHWC")):
        check(case, direction, "f16", "implicit_mma", layout)
    check(LONG[direction], direction, "f16", "implicit_mma", "NHWC")
    assert "conv_reduce" in gpu.launches[-1].entry


def test_pieces(gpu):
    """Weights that lie as they are multiplied are not packed; a source that begins off 16 bytes comes by elements."""
    rng = np.random.default_rng(6)
    case = Case((2, 16, 6, 5), (24, 16, 3, 3), padding=1)
    x, w = (exact_integers(s, "f16", 144, rng).astype(np.float16) for s in (case.x, case.w))
    expected = case.expected("forward", x.astype(np.float64), w.astype(np.float64))
    last = to_device(np.ascontiguousarray(w.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
    wide = np.zeros((2, 6, 5, 24), np.float16)
    for begin in (0, 8, 1):
        wide[..., begin : begin + 16] = x.transpose(0, 2, 3, 1)
        source = to_device(wide)[..., begin : begin + 16]
        gpu.launches.clear()
        got = numbaprims.conv(source, last, algorithm="implicit_mma", layout="NHWC", padding=1)
        assert_exact(from_layout(got.to_host(), "NHWC"), expected)
        assert ("_elements_" if begin == 1 else "_pieces_") in gpu.launches[-1].entry and len(gpu.launches) == 1


def test_rows_of_channels(gpu):
    """The weight gradient where channels lie last: both operands as they lie, pixels along k."""
    check(Case((2, 16, 6, 7), (24, 16, 3, 3), padding=1), "weight", "f16", "implicit_mma", "NHWC")
    assert "_rows_rows_" in gpu.launches[-1].entry
    check(Case((3, 16, 9, 8), (8, 8, 3, 2), stride=(2, 1), groups=2), "weight", "f16", "implicit_mma", "NHWC")
    assert "_elements_rows_" in gpu.launches[-1].entry


def test_tf32_is_asked_for(gpu):
    case = CASES[4]
    with numbaprims.config(allow_tf32=True):
        for layout in ("NCHW", "NHWC"):
            check(case, "forward", "f32", "implicit_mma", layout)
    with pytest.raises(ValueError, match="allow_tf32"):
        run(case, "forward", "f32", "implicit_mma")


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
def test_gemm_1x1(gpu, direction):
    for layout in ("NCHW", "NHWC"):
        if (direction, layout) != ("weight", "NCHW"):
            check(CASES[1], direction, "f32", "gemm_1x1", layout)
    check(CASES[15], direction, "f32", "gemm_1x1", "NHWC")  # two groups
    if direction == "forward":  # a stride, also of rows only
        for case in (CASES[2], Case((2, 8, 5, 6), (12, 4, 1, 1), stride=(2, 1), groups=2)):
            for layout in ("NCHW", "NHWC"):
                check(case, direction, "f32", "gemm_1x1", layout)
    if direction == "weight":  # the elements of a line stay evenly spaced
        check(Case((1, 8, 21), (12, 8, 1), stride=3), direction, "f32", "gemm_1x1", "NHWC")
    if direction == "data":
        with pytest.raises(ValueError, match="zeros between its pixels"):
            check(CASES[2], direction, "f32", "gemm_1x1", "NHWC")
    with pytest.raises(ValueError, match="evenly spaced" if direction == "weight" else "more than one element"):
        check(CASES[1] if direction == "weight" else CASES[3], direction, "f32", "gemm_1x1", "NCHW")


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
def test_depthwise(gpu, direction):
    """Multipliers, strides, dilations; neighbours of a row and neighbours of the channels."""
    for case, layout in ((CASES[16], "NCHW"), (CASES[17], "NHWC"), (CASES[19], "NCHW")):
        check(case, direction, "f32", "depthwise", layout)
    check(Case((2, 3, 46, 50), (6, 1, 3, 3), stride=2, groups=3), direction, "f16", "depthwise", "NCHW")


@pytest.mark.parametrize("solver", ["implicit_gemm", "depthwise"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_epilogue(gpu, solver, layout):
    """alpha, beta c into c itself, bias and an activation, by vectors where rows allow it and one by one."""
    rng = np.random.default_rng(7)
    groups = 8 if solver == "depthwise" else 1
    for width in (8, 7):
        case = Case((2, 8, 5, width), (8, 8 // groups, 3, 3), padding=1, groups=groups)
        x, w = rng.standard_normal(case.x), rng.standard_normal(case.w)
        c, bias = rng.standard_normal(case.y()), rng.standard_normal(8)
        x, w, c, bias = (z.astype(np.float32) for z in (x, w, c, bias))
        old = to_device(to_layout(c, layout))
        numbaprims.conv(
            to_device(to_layout(x, layout)), to_device(w), to_device(bias), alpha=-0.5, beta=2.0, c=old, out=old,
            activation=("leaky_relu", {"negative_slope": 0.25}), layout=layout, algorithm=solver, **case.window,
        )  # fmt: skip
        expected = reference.finish(
            case.expected("forward", x.astype(np.float64), w), alpha=-0.5, beta=2.0, c=c, bias=bias,
            activation=("leaky_relu", {"negative_slope": 0.25}),
        )  # fmt: skip
        assert_close(from_layout(old.to_host(), layout), expected, k=80, max_abs=30.0)


def test_threads_that_take_turns(monkeypatch):
    """Grids smaller than the work: each thread (block) goes on with what no other takes."""
    monkeypatch.setattr("numbaprims.gpu.conv.depthwise.MOST_BLOCKS", 2)
    monkeypatch.setattr("numbaprims.gpu.conv.mma_solver.PACK_BLOCKS", 2)
    with driver.use(EmulatedDriver(target=dataclasses.replace(H200, multiprocessors=1))):
        for direction in ("forward", "data", "weight"):
            check(Case((1, 5, 21, 22), (7, 5, 1, 1) if direction != "weight" else (70, 5, 3, 3)), direction, "f32",
                  "naive", "NCHW")  # fmt: skip
        for direction, layout in (("forward", "NCHW"), ("weight", "NCHW"), ("weight", "NHWC")):
            check(Case((2, 70, 5, 6), (70, 1, 3, 3), padding=1, groups=70), direction, "f32", "depthwise", layout)
        check(Case((1, 24, 3, 4), (33, 24, 3, 3), padding=1), "forward", "f16", "implicit_mma", "NHWC")


def test_large_tile(gpu):
    """A tile that the cost model would not choose for so small a problem."""
    rng = np.random.default_rng(8)
    case = Case((3, 5, 7, 10), (130, 5, 3, 3), padding=1)
    x, w = (exact_integers(s, "f32", 45, rng) for s in (case.x, case.w))
    out = device(np.full(case.y(), np.nan), "f32")
    given = (out, device(x, "f32"), device(w, "f32"))
    problem = PROBLEMS["conv"](given[1], given[2], out=out, padding=1)
    launch = ImplicitGemm().bind(problem, registry.target("emulated"), {"tile": "128x128"})
    launch(*(arrays.enter(z, "z")[0] for z in given), f0=1.0)
    assert_exact(out.to_host(), case.expected("forward", x, w))


def test_the_same_bits_in_any_order():
    """The chunks of a weight gradient follow from the problem, and are added in one order."""
    rng = np.random.default_rng(9)
    case = LONG["weight"]
    dy, x = (rng.standard_normal(s).astype(np.float32) for s in case.operand_shapes("weight"))
    found = []
    for options in ({"target": A100}, {"order": "random", "seed": 1}):
        with driver.use(EmulatedDriver(**options)):
            got = numbaprims.conv_backward_weight(
                to_device(dy), to_device(x), case.w, algorithm="implicit_gemm", **case.window
            )
            found.append(got.to_host())
    np.testing.assert_array_equal(*found)
    assert_close(found[0], case.expected("weight", dy.astype(np.float64), x), k=900, max_abs=120.0)


def test_choice():
    """What the formulas choose for layers of networks, on an H200 and an A100."""

    def best(direction, *shapes, dtype=np.float16, layout="NHWC", target=H200, **window):
        a, b = (np.lib.stride_tricks.as_strided(np.zeros(1, dtype), s, steps(s, dtype)) for s in shapes[:2])
        problem = PROBLEMS[FUNCTIONS[direction]](a, b, *shapes[2:], layout=layout, **window)
        able = [solver for solver in SOLVERS if solver.why_not(problem, target) is None]
        return min(able, key=lambda solver: solver.estimate(problem, target)).name

    def steps(shape, dtype):
        size = np.dtype(dtype).itemsize
        return tuple(size * int(np.prod(shape[i + 1 :])) for i in range(len(shape)))

    x, y = (32, 56, 56, 64), (32, 56, 56, 256)
    for target in (A100, H200):
        assert best("forward", x, (64, 64, 3, 3), padding=1, target=target) == "implicit_mma"
        assert best("data", x, (64, 64, 3, 3), x, padding=1, target=target) == "implicit_mma"
        assert best("weight", x, x, (64, 64, 3, 3), padding=1, target=target) == "implicit_mma"
        assert best("forward", x, (64, 64, 3, 3), padding=1, dtype=np.float32, target=target).startswith("winograd")
        assert best("forward", x, (256, 64, 1, 1), target=target) == "gemm_1x1"
        assert best("data", y, (256, 64, 1, 1), x, target=target) == "gemm_1x1"
        assert best("forward", y, (256, 1, 3, 3), padding=1, groups=256, target=target) == "depthwise"
    bias = PROBLEMS["conv_backward_bias"](np.zeros((2, 3, 4, 5), np.float32))
    assert [solver.name for solver in SOLVERS if solver.why_not(bias, H200) is None] == ["sums", "naive"]
    far = PROBLEMS["conv_backward_data"](
        np.zeros((1, 2, 2, 2), np.float32), np.zeros((2, 3, 9, 9), np.float32), (1, 3, 18, 18), stride=9
    )
    assert "81 products" in ImplicitGemm().why_not(far, H200)
