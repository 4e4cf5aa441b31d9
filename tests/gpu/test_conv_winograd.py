"""Winograd on a GPU: what tests/test_conv.py does not reach."""

import numpy as np
import pytest
from conv_cases import CASES, FUNCTIONS, Case, amplification, arguments, from_layout, operand_layouts, to_layout
from helpers import assert_close, assert_exact, exact_integers
from ptx_emulator.driver import EmulatedDriver

import numbaprims
from numbaprims import arrays, device_arrays
from numbaprims.dispatch import registry
from numbaprims.gpu import driver
from numbaprims.gpu.conv import transformed
from numbaprims.gpu.conv.winograd import Winograd2, Winograd4, WinogradFused, WinogradPieces, WinogradWeight
from numbaprims.gpu.conv.winograd.axes import Axis, best_axis, firsts
from numbaprims.gpu.memory import DeviceArray, to_device
from numbaprims.gpu.target import H200
from numbaprims.ops.conv import PROBLEMS
from numbaprims.reference import conv as reference


def run(case, direction, solver, layout="NCHW", seed=0, exact=False, dtype=np.float32, **more):
    """The result of a call, channels first, and the definition's of the same operands."""
    rng = np.random.default_rng(seed)
    shapes = case.operand_shapes(direction)
    if exact:
        first, second = (exact_integers(shape, "f32", 16 * case.sums(direction), rng) for shape in shapes)
    else:
        first, second = (rng.standard_normal(shape) for shape in shapes)
    first, second = first.astype(dtype), second.astype(dtype)
    layouts = operand_layouts(direction, layout)
    a, b = (to_device(to_layout(x, of)) for x, of in zip((first, second), layouts, strict=True))
    places, window = arguments(case, direction, layout)
    got = getattr(numbaprims, FUNCTIONS[direction])(a, b, *places, algorithm=solver, **window, **more)
    assert isinstance(got, DeviceArray)
    expected = case.expected(direction, first.astype(np.float64), second.astype(np.float64))
    return from_layout(got.to_host(), "NCHW" if direction == "weight" else layout), expected


def check(case, direction, solver, layout="NCHW", dtype=np.float32, **more):
    got, expected = run(case, direction, solver, layout, dtype=dtype, **more)
    k = amplification(solver) * (case.sums(direction) + 2)
    assert_close(got, expected, k=k, max_abs=4 * np.sqrt(case.sums(direction)) + 4, vacuous=True)
    return got


@pytest.mark.parametrize("solver", ["winograd_2x2", "winograd_fused"])
def test_integers_are_exact_in_the_smallest(gpu, solver):
    """F(2x2, 3x3) has factors 1/2 only: sums of small integers come out bit for bit."""
    for case, direction, layout in (
        (CASES[3], "forward", "NCHW"), (CASES[14], "forward", "NCHW"), (CASES[4], "data", "NHWC")
    ):  # fmt: skip
        got, expected = run(case, direction, solver, layout, exact=True)
        assert_exact(got, expected)


def bound(solver, case, **more):
    """A problem and a launcher of it, past the launchers that calls keep; and its arrays' views."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (case.x, case.w))
    given = to_device(np.full(case.y(), np.nan, np.float32)), to_device(x), to_device(w)
    problem = PROBLEMS["conv"](given[1], given[2], out=given[0], **case.window, **more)
    target = registry.target("emulated")
    config = next(iter(solver.configs(problem, target)))
    launch = solver.bind(problem, target, config)
    return problem, (target, config), given, lambda: launch(*(arrays.enter(z, "z")[0] for z in given), f0=1.0)


def test_slices(gpu, monkeypatch):
    """Tiles in slices, the last of them shorter, give the same bits as all at once."""
    case = Case((3, 6, 9, 11), (10, 6, 3, 3), padding=1)
    found = []
    for most in (transformed.MOST_WORKSPACE, 24 << 10):
        monkeypatch.setattr(transformed, "MOST_WORKSPACE", most)
        monkeypatch.setattr(transformed, "SLICE", 4)
        gpu.launches.clear()
        _, _, given, launch = bound(Winograd2(), case)
        launch()
        found.append((given[0].to_host(), len(gpu.launches)))
    assert found[0][1] == 4 and found[1][1] > 1 + 3 * 3
    np.testing.assert_array_equal(found[0][0], found[1][0])


def test_workspace(gpu, monkeypatch):
    """What a solver says it needs is what it takes, gemm's chunks of k included."""
    taken = []
    fused = WinogradFused()
    real = device_arrays.DeviceLibrary.scratch
    monkeypatch.setattr(
        device_arrays.DeviceLibrary, "scratch", lambda self, nbytes: taken.append(nbytes) or real(self, nbytes)
    )
    for solver, case in (
        (Winograd2(), Case((1, 300, 5, 5), (6, 300, 3, 3))), (Winograd4(), CASES[4]), (WinogradPieces(), CASES[8]),
        (fused, CASES[3]),
    ):  # fmt: skip
        taken.clear()
        problem, settings, _, launch = bound(solver, case)
        launch()
        assert sum(taken) == solver.workspace(problem, *settings)
        assert bool(taken) == (solver is not fused)


def test_depth(gpu):
    """The third dimension: its taps are pieces, with a stride and a dilation of their own."""
    for case, directions in (
        (Case((2, 3, 5, 6, 7), (4, 3, 3, 3, 3), padding=1), ("forward", "data")),
        (Case((1, 4, 9, 6, 5), (6, 2, 3, 3, 3), (2, 1, 1), (3, 1, 0), (2, 1, 1), groups=2), ("forward",)),
    ):
        for direction in directions:
            got, expected = run(
                case, direction, "winograd_2x2", "NCHW" if direction == "forward" else "NHWC", exact=True
            )
            assert_exact(got, expected)
        check(case, "weight", "winograd_weight")


def test_weight(gpu):
    """Few tiles take F(2x2, 3x3), whose sums of integers are exact; pieces, groups and channels last."""
    for case, layout in ((Case((2, 5, 5, 6), (7, 5, 3, 3), padding=1), "NCHW"), (CASES[14], "NHWC")):
        got, expected = run(case, "weight", "winograd_weight", layout, exact=True)
        assert_exact(got, expected)
    check(Case((2, 3, 9, 12), (4, 3, 3, 2), stride=2, padding=1), "weight", "winograd_weight")


def test_slices_of_the_weight_gradient(gpu, monkeypatch):
    """The sums of later slices are added to those of the first, and all end in one kernel."""
    case = Case((3, 4, 9, 13), (6, 4, 3, 3), padding=1)
    monkeypatch.setattr(transformed, "MOST_WORKSPACE", 24 << 10)
    monkeypatch.setattr(transformed, "SLICE", 4)
    old = to_device(np.full(case.w, 3, np.float32))
    got, expected = run(case, "weight", "winograd_weight", c=old, beta=-2.0)
    assert len(gpu.launches) >= 2 * 3 + 1
    assert_close(got, expected - 6.0, k=24 * case.sums("weight"), max_abs=100.0)


@pytest.mark.parametrize(
    "solver, layout, kernels",
    [
        ("winograd_2x2", "NCHW", ["input", "tiled", "output"]),
        ("winograd_2x2", "NHWC", ["input", "tiled", "output"]),
        ("winograd_fused", "NCHW", ["fused"]),
    ],
)
def test_plans(gpu, solver, layout, kernels):
    """A plan's windows are transformed once, and it computes the same bits."""
    rng = np.random.default_rng(3)
    case = CASES[14]
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.w))
    x = to_device(to_layout(x, layout))
    more = {"activation": "relu", "layout": layout, "algorithm": solver, **case.window}
    plain = numbaprims.conv(x, to_device(w), **more).to_host()
    layer = numbaprims.conv.plan(x.shape, to_device(w), **more)
    for _ in range(2):
        gpu.launches.clear()
        np.testing.assert_array_equal(layer(x).to_host(), plain)
    assert [launch.entry.split("_")[2] for launch in gpu.launches] == kernels


@pytest.mark.parametrize(
    "solver, layout",
    [("winograd_4x4", "NCHW"), ("winograd_2x2", "NHWC"), ("winograd_fused", "NCHW"), ("winograd_fused", "NHWC")],
)
def test_epilogue(gpu, solver, layout):
    """alpha, beta c into c itself, bias and an activation, by vectors where rows allow it and one by one."""
    rng = np.random.default_rng(7)
    for width in (8, 7):
        case = Case((2, 5, 5, width), (8, 5, 3, 3), padding=1)
        x, w = rng.standard_normal(case.x), rng.standard_normal(case.w)
        c, bias = rng.standard_normal(case.y()), rng.standard_normal(8)
        x, w, c, bias = (z.astype(np.float32) for z in (x, w, c, bias))
        ending = {"alpha": -0.5, "beta": 2.0, "activation": ("leaky_relu", {"negative_slope": 0.25})}
        old = to_device(to_layout(c, layout))
        numbaprims.conv(
            to_device(to_layout(x, layout)), to_device(w), to_device(bias), c=old, out=old, layout=layout,
            algorithm=solver, **ending, **case.window,
        )  # fmt: skip
        expected = reference.finish(case.expected("forward", x.astype(np.float64), w), c=c, bias=bias, **ending)
        assert_close(from_layout(old.to_host(), layout), expected, k=80 * amplification(solver), max_abs=30.0)


def test_pieces(gpu):
    """Windows cut into pieces, with a stride and without, of one dimension and of two."""
    assert firsts(7, 1, 4) == (0, 4) and firsts(3, 2, 2) == (0, 1)
    assert best_axis(3, 1, 48) == Axis(6, 3) and best_axis(1, 1, 48) == Axis(1, 1)
    assert best_axis(300, 1, 48) is None
    check(Case((1, 3, 12, 11), (4, 3, 4, 4), padding=2), "data", "winograd_pieces")
    check(Case((2, 4, 9, 8), (6, 2, 3, 3), padding=1, stride=2, groups=2), "forward", "winograd_pieces", "NHWC")


def test_tensor_cores_are_asked_for(gpu):
    """tfloat32 where it is allowed, and then for F(2x2, 3x3) alone: larger tiles amplify its errors too much."""
    for allowed in (False, True):
        with numbaprims.config(allow_tf32=allowed):
            for solver, wanted in ((Winograd2(), allowed), (Winograd4(), False)):
                x, w = np.zeros((2, 8, 8, 8), np.float32), np.zeros((8, 8, 3, 3), np.float32)
                configs = solver.configs(PROBLEMS["conv"](x, w), H200)
                assert ({"gemm": "mma"} in configs) == wanted and {"gemm": "tiled"} in configs


def test_refusals():
    """One sentence each."""

    def refusal(solver, x, w, direction="conv", dtype=np.float32, **window):
        operands = np.zeros(x, dtype), np.zeros(w, dtype)
        return solver.why_not(PROBLEMS[direction](*operands, **window), H200)

    assert refusal(Winograd4(), (1, 2, 8, 8), (3, 2, 3, 3)) is None
    assert "3 x 3" in refusal(Winograd4(), (1, 2, 8, 8), (3, 2, 5, 5))
    assert "stride 1" in refusal(Winograd4(), (1, 2, 8, 8), (3, 2, 3, 3), stride=2)
    assert "dilation 1" in refusal(Winograd4(), (1, 2, 8, 8), (3, 2, 3, 3), dilation=2)
    assert "fractions" in refusal(Winograd4(), (1, 2, 8, 8), (3, 2, 3, 3), dtype=np.int8)
    assert refusal(WinogradPieces(), (1, 2, 4, 8, 8), (3, 2, 3, 2, 3)) is None
    assert "depth" in refusal(WinogradFused(), (1, 2, 4, 8, 8), (3, 2, 3, 3, 3))
    assert "solvers of its own" in refusal(WinogradPieces(), (1, 2, 8, 8), (3, 2, 3, 3))
    weight = PROBLEMS["conv_backward_weight"](np.zeros((1, 3, 9, 9)), np.zeros((1, 2, 9, 9)), (3, 2, 1, 1))
    assert "2 to 196 taps" in WinogradWeight().why_not(weight, H200)
    weight = PROBLEMS["conv_backward_weight"](np.zeros((1, 3, 9, 9)), np.zeros((1, 2, 9, 9)), (3, 2, 3, 3), padding=1)
    assert WinogradWeight().why_not(weight, H200) is None
    assert "direction weight" in Winograd2().why_not(weight, H200)
    assert "forward" in refusal(WinogradWeight(), (1, 2, 8, 8), (3, 2, 3, 3))
    assert "float32" in refusal(WinogradFused(), (1, 2, 8, 8), (3, 2, 3, 3), dtype=np.float64)
    with numbaprims.config(accuracy="high"):
        assert "accuracy" in refusal(Winograd2(), (1, 2, 8, 8), (3, 2, 3, 3))


def test_the_same_bits_in_any_order():
    case = Case((1, 20, 5, 6), (9, 20, 3, 3), padding=1)
    found = []
    for options in ({"batch_threads": 64}, {"order": "random", "seed": 1}):
        with driver.use(EmulatedDriver(**options)):
            found.append([run(case, "forward", solver)[0] for solver in ("winograd_2x2", "winograd_fused")])
    np.testing.assert_array_equal(*found)
