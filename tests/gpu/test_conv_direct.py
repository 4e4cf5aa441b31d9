"""Direct convolution on a GPU: windows, tiles, groups, ranks, ends, plans, and what its formula says."""

import itertools

import numpy as np
import pytest
from conv_cases import CASES, Case, from_layout, to_layout
from gpu.test_conv import check
from gpu.test_conv_im2col import problem_of
from helpers import assert_close, assert_exact, exact_integers

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.gpu.conv import SOLVERS
from numbaprims.gpu.conv.direct import Direct, made, rightwards, window_of
from numbaprims.gpu.conv.direct_kernel import TILES, Window, room_of
from numbaprims.gpu.conv.direct_weight import DirectWeight
from numbaprims.gpu.conv.direct_weight_kernel import instructions, slots_of
from numbaprims.gpu.conv.products import products
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.target import A100, H200
from numbaprims.ops.conv import PROBLEMS
from numbaprims.reference import conv as reference

#: More than one tile of channels, rows and columns, more planes than one turn takes.
LARGE = Case((1, 9, 19, 37), (34, 9, 3, 3), padding=1)


def test_first_layers(gpu):
    """Large windows with strides: columns of one remainder side by side, several turns of planes."""
    check(CASES[6], "forward", "f32", "direct", "NCHW")
    check(CASES[7], "forward", "f32", "direct", "NHWC")
    check(LARGE, "forward", "f32", "direct", "NCHW")


def test_data(gpu):
    """Taps that run backwards; with a stride one product for each phase, some of them without a tap."""
    check(LARGE, "data", "f32", "direct", "NHWC")
    check(Case((1, 4, 7, 8), (6, 2, 1, 3), padding=(0, 1), stride=2, groups=2), "data", "f32", "direct", "NCHW")


def test_ranks_groups_and_halves(gpu):
    """Taps of the depth are planes; one dimension is one row; float16 is widened on the way in."""
    check(CASES[25], "forward", "f16", "direct", "NCHW")
    check(CASES[23], "forward", "f32", "direct", "NHWC")
    pytest.importorskip("ml_dtypes")
    check(CASES[14], "forward", "bf16", "direct", "NHWC")


def run(tile, case, x, w):
    """The result by one tile, whatever the formula would choose."""
    out = to_device(np.full(case.y(), np.nan, np.float32))
    given = out, to_device(x), to_device(w)
    problem = PROBLEMS["conv"](*given[1:], out=out, **case.window)
    launch = Direct().bind(problem, registry.target("emulated"), {"tile": tile})
    launch(*(arrays.enter(z, "z")[0] for z in given), f0=1.0)
    return out.to_host()


def test_tiles(gpu):
    """Warps across channels and along rows; rows of 16 pixels, whose lanes are 16 banks apart."""
    rng = np.random.default_rng(1)
    case = Case((1, 3, 9, 21), (10, 3, 3, 2), padding=1, stride=(2, 1))
    x, w = (exact_integers(s, "f32", 18, rng).astype(np.float32) for s in (case.x, case.w))
    expected = case.expected("forward", x, w)
    for name in ("64x4x32", "8x32x16", "4x16x32"):
        assert_exact(run(name, case, x, w), expected)
    for tile in TILES.values():
        room = room_of(tile, Window(3, 2, 2, 1, 1, 1), False)
        assert tile.runs == 8 or 2 * room.pitch % 32 == 16


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_ends(gpu, layout):
    """alpha, beta c into c itself, bias and an activation, by vectors where rows allow it and one by one."""
    rng = np.random.default_rng(2)
    for width, k in ((8, 8), (7, 6)):
        case = Case((2, 4, 5, width), (k, 2, 3, 3), padding=1, groups=2)
        x, w, c, bias = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.w, case.y(), k))
        ending = {"alpha": -0.5, "beta": 2.0, "activation": "relu"}
        old = to_device(to_layout(c, layout))
        numbaprims.conv(
            to_device(to_layout(x, layout)), to_device(w), to_device(bias), c=old, out=old, layout=layout,
            algorithm="direct", **ending, **case.window,
        )  # fmt: skip
        expected = reference.finish(case.expected("forward", x.astype(np.float64), w), c=c, bias=bias, **ending)
        assert_close(from_layout(old.to_host(), layout), expected, k=40, max_abs=30.0)


def test_a_plan_packs_its_weights_once(gpu):
    rng = np.random.default_rng(3)
    x, w = (to_device(rng.standard_normal(s).astype(np.float32)) for s in ((1, 3, 9, 8), (8, 3, 3, 3)))
    plan = numbaprims.conv.plan(x.shape, w, padding=1, algorithm="direct")
    first = plan(x).to_host()
    assert [launch.entry.split("_f32")[0] for launch in gpu.launches[-2:]] == [
        "numbaprims_conv_direct_pack", "numbaprims_conv_direct",
    ]  # fmt: skip
    gpu.launches.clear()
    np.testing.assert_array_equal(plan(x).to_host(), first)
    assert len(gpu.launches) == 1
    np.testing.assert_array_equal(numbaprims.conv(x, w, padding=1, algorithm="direct").to_host(), first)


def test_weight(gpu):
    """Rows of taps in slots, or all taps in a thread; chunks of pixels; more than one tile of channels and planes."""
    check(Case((3, 3, 23, 70), (9, 3, 5, 4), padding=2, stride=(1, 2)), "weight", "f32", "direct_weight", "NCHW")
    assert "conv_reduce" in gpu.launches[-1].entry
    check(Case((2, 20, 9, 7), (20, 10, 3, 3), padding=1, groups=2), "weight", "f32", "direct_weight", "NHWC")
    check(CASES[25], "weight", "f16", "direct_weight", "NCHW")


def test_weight_past_the_last_pixel(gpu):
    """What no pixel of dy meets is not multiplied: there it may be no number.  And the end is the reduction's."""
    rng = np.random.default_rng(4)
    case = Case((1, 4, 6, 9), (4, 4, 3, 3), stride=2)
    dy, x = (exact_integers(s, "f32", 40, rng).astype(np.float32) for s in case.operand_shapes("weight"))
    expected = case.expected("weight", dy, x)
    x[..., 5, :] = np.nan
    c = np.ones(case.w, np.float32)
    got = numbaprims.conv_backward_weight(
        to_device(dy), to_device(x), case.w, alpha=2.0, beta=-1.0, c=to_device(c), algorithm="direct_weight",
        **case.window,
    )  # fmt: skip
    assert_exact(got.to_host(), 2.0 * expected - 1.0)
    # columns 1 and 6: nobody's, though the tap that is the first would meet 6 in a third pixel
    wide = Case((1, 2, 5, 8), (4, 2, 3, 3), stride=(1, 3), dilation=(1, 2))
    dy, x = (exact_integers(s, "f32", 40, rng).astype(np.float32) for s in wide.operand_shapes("weight"))
    expected = wide.expected("weight", dy, x)
    x[..., [1, 6]] = np.nan
    got = numbaprims.conv_backward_weight(
        to_device(dy), to_device(x), wide.w, algorithm="direct_weight", **wide.window
    )  # fmt: skip
    assert_exact(got.to_host(), expected)


def test_slots():
    """Every slot has work where sizes allow it; nothing is larger than three blocks a multiprocessor may have."""
    for group_k, planes, window in (
        (4, 4, (3, 3, 1, 1, 1, 1)),
        (64, 3, (7, 7, 2, 2, 1, 1)),
        (8, 8, (5, 5, 1, 1, 1, 1)),
    ):
        slots = slots_of(group_k, planes, Window(*window))
        assert slots.used * slots.slices >= 14 and slots.bk <= 16
        made_of, issued, _ = instructions(slots, Window(*window), True)
        assert 0 < made_of < issued
    assert slots_of(4, 4, Window(3, 3, 8, 8, 9, 30)) is None


def test_taps_from_left_to_right():
    """A product whose taps run backwards is turned: no gap is negative, and each tap meets its own weight."""
    problem = problem_of("data", Case((1, 2, 4, 9, 9), (3, 2, 2, 3, 4), padding=1))
    (given,), (turned,) = products(problem), made(problem)

    def taps(product):
        """Where each tap finds its pixel, and its weight."""
        v, k, plain = product.v, product.k, product.plain
        return {
            (*(v.base[i] + tap[i] * k.gain[i] for i in range(3)), plain.base + np.dot(tap, plain.other[1:]))
            for tap in itertools.product(*map(range, k.counts[1:]))
        }

    assert given.k.gain == (-1, -1, -1) and turned.k.gain == (1, 1, 1)
    assert taps(given) == taps(turned) and len(taps(given)) == 24
    assert rightwards(turned) == turned and window_of(turned) == Window(3, 4, 1, 1, 1, 1)


def test_what_it_refuses():
    for direction, case, words in (
        ("weight", CASES[6], "direction weight"),
        ("forward", Case((1, 65, 9, 9), (4, 65, 3, 3)), "65 channels"),
        ("forward", Case((1, 3, 40, 40), (4, 3, 1, 17)), "wider than 16"),
        ("forward", Case((1, 3, 40, 200), (4, 3, 3, 3), dilation=(1, 30)), "do not fit"),
    ):
        assert words in Direct().why_not(problem_of(direction, case), H200)
    assert "float32" in Direct().why_not(problem_of("forward", CASES[6], dtype=np.float64), H200)
    assert "float32" in DirectWeight().why_not(problem_of("weight", CASES[6], dtype=np.float64), H200)
    assert "65 channels" in DirectWeight().why_not(problem_of("weight", Case((1, 65, 9, 9), (4, 65, 3, 3))), H200)
    assert "direction data" in DirectWeight().why_not(problem_of("data", CASES[6]), H200)


def test_the_formula():
    """What it is for: few channels a group in float32.  No estimate is below the roof."""
    first = problem_of("forward", Case((32, 3, 224, 224), (64, 3, 7, 7), padding=3, stride=2))
    grouped = problem_of("forward", Case((32, 128, 56, 56), (128, 4, 3, 3), padding=1, groups=32))
    for target in (A100, H200):
        for problem in (first, grouped):
            able = [s for s in SOLVERS if s.why_not(problem, target) is None]
            found = {s.name: s.estimate(problem, target) for s in able}
            assert problem is first or found["direct"] == min(found.values())
            assert found["direct"] < found["implicit_gemm"]
            roof = max(problem.flops() / target.peak("f32"), problem.bytes_moved() / target.bandwidth)
            assert found["direct"] > roof
        weight = problem_of("weight", Case((32, 128, 56, 56), (128, 4, 3, 3), padding=1, groups=32))
        able = [s for s in SOLVERS if s.why_not(weight, target) is None]
        assert min(able, key=lambda s: s.estimate(weight, target)).name == "direct_weight"
        assert DirectWeight().estimate(weight, target) > weight.bytes_moved() / target.bandwidth
        assert next(iter(Direct().configs(grouped, target))) == {"tile": "4x16x32"}
