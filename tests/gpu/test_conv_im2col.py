"""Column matrices on a GPU: chunks of images, packed weights of a plan, ends, bytes, and what a product cannot take."""

import numpy as np
import pytest
from conv_cases import CASES, FUNCTIONS, Case, from_layout, to_layout
from gpu.test_conv import check, device
from helpers import assert_close, assert_exact, exact_integers

import numbaprims
from numbaprims.device_arrays import DeviceLibrary
from numbaprims.gpu.conv import SOLVERS
from numbaprims.gpu.conv.direct import Direct
from numbaprims.gpu.conv.direct_weight import DirectWeight
from numbaprims.gpu.conv.im2col import Im2col, Im2colWeight
from numbaprims.gpu.conv.im2col_products import chunks_of
from numbaprims.gpu.gemm.solvers import Naive
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.target import A100, H200
from numbaprims.ops.conv import PROBLEMS
from numbaprims.reference import conv as reference

NAMES = {"forward": "im2col_gemm", "data": "im2col_gemm", "weight": "im2col_gemm_weight"}
#: Channels enough for rows of pixels, and groups.
WIDE = Case((3, 32, 5, 6), (12, 16, 3, 2), padding=((1, 0), (1, 1)), stride=(2, 1), groups=2)


@pytest.fixture
def simple(monkeypatch):
    """Products by gemm's simplest solver, which takes all that the others do and is compiled in a tenth of the time."""
    monkeypatch.setattr("numbaprims.gpu.conv.im2col.ranked", lambda inner, target: [Naive()])


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
def test_every_order(gpu, simple, direction):
    """Rows of channels and taps, rows of pixels; groups, strides, dilation; three dimensions and one."""
    name = NAMES[direction]
    for case, layout in ((CASES[13], "NCHW"), (CASES[13], "NHWC"), (WIDE, "NHWC"), (CASES[22], "NCHW")):
        check(case, direction, "f32", name, layout)
    check(CASES[25], direction, "f16", name, "NCHW")


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_chunks_of_images(gpu, simple, monkeypatch, direction, layout):
    """Images take turns where the matrix of all would be too large; the last chunk is shorter."""
    case = Case((5, 16, 6, 5), (6, 16, 3, 3), padding=1)
    one = 16 * 9 * 32 * 4
    monkeypatch.setattr("numbaprims.gpu.conv.im2col_products.MOST_MATRIX", 2 * one)
    check(case, direction, "f32", NAMES[direction], layout)
    assert sum("conv_columns" in launch.entry or "conv_fold" in launch.entry for launch in gpu.launches) >= 3
    assert any("conv_reduce" in launch.entry for launch in gpu.launches) == (direction == "weight")


@pytest.mark.parametrize("direction", ["forward", "data"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_ends(gpu, simple, direction, layout):
    """alpha, beta c into c itself, a bias for each group, an activation."""
    rng = np.random.default_rng(1)
    case = WIDE
    first, second = (rng.standard_normal(s).astype(np.float32) for s in case.operand_shapes(direction))
    shape = case.result_shape(direction)
    c, bias = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[1]))
    old = to_device(to_layout(c, layout))
    ending = {"alpha": -0.5, "beta": 2.0, "activation": "relu"}
    window = {**case.window, "layout": layout, "algorithm": "im2col_gemm"}
    a, b = to_device(to_layout(first, layout)), to_device(second)
    expected = case.expected(direction, first.astype(np.float64), second)
    if direction == "forward":
        numbaprims.conv(a, b, to_device(bias), c=old, out=old, **ending, **window)
        expected = reference.finish(expected, c=c, bias=bias, **ending)
    else:
        numbaprims.conv_backward_data(a, b, to_layout(first, layout).shape[:1] + to_layout(c, layout).shape[1:],
                                      alpha=-0.5, beta=2.0, c=old, out=old, **window)  # fmt: skip
        expected = reference.finish(expected, c=c, alpha=-0.5, beta=2.0)
    assert_close(from_layout(old.to_host(), layout), expected, k=100, max_abs=60.0)


def test_transposed_convolution(gpu, simple):
    """Direction data with the whole end: the kernel that adds up the taps has it."""
    rng = np.random.default_rng(2)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 6, 4, 5), (6, 5, 3, 3), (5,)))
    got = numbaprims.conv_transpose(
        to_device(x), to_device(w), to_device(bias), stride=2, padding=1, activation="relu", algorithm="im2col_gemm"
    )
    case = Case((2, 5, 7, 9), w.shape, stride=2, padding=1)
    expected = reference.finish(case.expected("data", x.astype(np.float64), w), bias=bias, activation="relu")
    assert_close(got.to_host(), expected, k=60, max_abs=40.0)


def test_bytes(gpu, simple):
    """int8 and uint8 are gemm's: the unsigned matrix comes first in the product."""
    rng = np.random.default_rng(3)
    for kind, layout in (("i8", "NHWC"), ("u8", "NCHW")):
        case = Case((2, 16, 5, 6), (7, 16, 3, 3), padding=1)
        x, w = exact_integers(case.x, kind, 144, rng), exact_integers(case.w, "i8", 144, rng)
        got = numbaprims.conv(
            to_device(to_layout(x, layout)), to_device(w), padding=1, layout=layout, algorithm="im2col_gemm"
        )
        expected = case.expected("forward", x.astype(np.int64), w.astype(np.int64))
        np.testing.assert_array_equal(from_layout(got.to_host(), layout), expected)


def test_a_plan_packs_its_weights_once(gpu):
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 5, 6, 16), (4, 16, 3, 3)))
    a, b = to_device(x), to_device(w)
    plan = numbaprims.conv.plan(x.shape, b, padding=1, layout="NHWC", algorithm="im2col_gemm")
    first = plan(a).to_host()
    assert any("conv_pack" in launch.entry for launch in gpu.launches)
    gpu.launches.clear()
    np.testing.assert_array_equal(plan(a).to_host(), first)
    assert not any("conv_pack" in launch.entry for launch in gpu.launches)
    assert any("gemm_" in launch.entry and "naive" not in launch.entry for launch in gpu.launches)
    plain = numbaprims.conv(a, b, padding=1, layout="NHWC", algorithm="im2col_gemm")
    np.testing.assert_array_equal(plain.to_host(), first)


def problem_of(direction, case, layout="NCHW", dtype=np.float32, **more):
    a, b = (np.zeros(s, dtype) for s in case.operand_shapes(direction))
    places = () if direction == "forward" else (case.result_shape(direction),)
    return PROBLEMS[FUNCTIONS[direction]](a, b, *places, layout=layout, **case.window, **more)


def test_what_it_refuses():
    far = problem_of("forward", Case((1, 64, 1024, 1024), (8, 64, 3, 3), padding=1))
    assert "column matrix of one image has" in Im2col().why_not(far, H200)
    many = Case((1, 130, 4, 4), (130, 1, 3, 3), groups=130)
    biased = problem_of("forward", many, bias=np.zeros(130, np.float32))
    assert (
        "130 products" in Im2col().why_not(biased, H200) and Im2col().why_not(problem_of("forward", many), H200) is None
    )
    assert "direction weight" in Im2col().why_not(problem_of("weight", CASES[3]), H200)
    assert "direction forward" in Im2colWeight().why_not(problem_of("forward", CASES[3]), H200)


def test_workspace_and_estimate():
    """The matrix has no more than 256 MiB; an estimate is at least the time that its bytes take, twice."""
    case = Case((64, 64, 56, 56), (64, 64, 3, 3), padding=1)
    for direction, solver in (("forward", Im2col()), ("data", Im2col()), ("weight", Im2colWeight())):
        problem = problem_of(direction, case)
        assert chunks_of(problem) == [32, 32]
        matrix = 64 * 64 * 9 * 56 * 56 * 4
        for target in (A100, H200):
            config = next(iter(solver.configs(problem, target)))
            assert matrix / 2 <= solver.workspace(problem, target, config) < 600 << 20
            assert solver.estimate(problem, target) > 2 * matrix / target.bandwidth
    assert {"im2col_gemm", "im2col_gemm_weight"} <= {solver.name for solver in SOLVERS}


@pytest.mark.parametrize("solver", [Im2col(), Im2colWeight(), Direct(), DirectWeight()], ids=lambda s: s.name)
def test_workspace_is_what_a_call_asks_for(gpu, monkeypatch, simple, solver):
    asked = []
    scratch = DeviceLibrary.scratch
    monkeypatch.setattr(DeviceLibrary, "scratch", lambda self, nbytes: (asked.append(nbytes), scratch(self, nbytes))[1])
    case = Case((2, 3, 9, 9), (5, 3, 3, 3))
    for direction in ("forward", "data", "weight"):
        problem = problem_of(direction, case)
        if solver.why_not(problem, H200) is None:
            asked.clear()
            check(case, direction, "f32", solver.name, "NCHW")
            assert sum(asked) == solver.workspace(problem, H200, next(iter(solver.configs(problem, H200))))


def test_rows_that_do_not_follow_one_another(gpu, simple):
    """A result and dy with gaps between their rows: rows are products of a batch."""
    rng = np.random.default_rng(5)
    case = Case((2, 4, 5, 6), (3, 4, 3, 3), padding=1)
    x, w, dy = (exact_integers(s, "f32", 60, rng) for s in (case.x, case.w, case.y()))
    out = device(np.full((2, 3, 9, 6), np.nan), "f32")
    numbaprims.conv(device(x, "f32"), device(w, "f32"), out=out[:, :, ::2], padding=1, algorithm="im2col_gemm")
    assert_exact(out.to_host()[:, :, ::2], case.expected("forward", x, w))
    assert np.isnan(out.to_host()[:, :, 1::2]).all()
    wide = np.full((2, 3, 9, 6), np.nan)
    wide[:, :, ::2] = dy
    gaps = device(wide, "f32")[:, :, ::2]
    got = numbaprims.conv_backward_data(gaps, device(w, "f32"), case.x, padding=1, algorithm="im2col_gemm")
    assert_exact(got.to_host(), case.expected("data", dy, w))
    got = numbaprims.conv_backward_weight(gaps, device(x, "f32"), case.w, padding=1, algorithm="im2col_gemm_weight")
    assert_exact(got.to_host(), case.expected("weight", dy, x))
