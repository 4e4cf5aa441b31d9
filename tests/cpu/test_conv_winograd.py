"""Winograd's building blocks: intrinsics, transforms, pieces, blocks of tiles; and the errors that its pages state."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest

import numbaprims
from numbaprims.cook_toom import filtering, program
from numbaprims.cpu import target as targets
from numbaprims.cpu.conv.winograd import (
    Winograd2,
    Winograd4,
    Winograd6,
    WinogradFused,
    WinogradPieces,
    WinogradWeight,
    cost,
    fused_solver,
    pieces,
)
from numbaprims.cpu.conv.winograd.solvers import with_ones
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    Arguments,
    lanes,
    load_rows,
    store_narrow_rows,
    store_rows,
    straight_line,
    tile_load,
    tile_multiply_blocks,
    tile_multiply_more,
    tile_store,
)
from numbaprims.dispatch import registry
from numbaprims.ops.conv import PROBLEMS
from numbaprims.reference import conv as reference

pytestmark = pytest.mark.cpu

TARGET = targets.current()
SQUARE = ("winograd_2x2", "winograd_4x4", "winograd_6x6", "winograd_fused")
# of an element, in eps sum |x w|: what the solvers' pages state
STATED = {"winograd_2x2": 4.2, "winograd_4x4": 48.0, "winograd_6x6": 77.0, "winograd_fused": 48.0}
SAME = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
ARGS = Arguments(arrays=("out", "a", "b"), ints=("n", "m"))


def run(kernel, out, a, b=None, ints=(0, 0)):
    ints = dict(zip(ARGS.ints, ints, strict=True))
    make_launcher(Program.of(ARGS, ints, [(kernel, 1, 1)]))(out, a, b)


def problem_of(x, w, direction="forward", **window):
    function = {"forward": "conv", "weight": "conv_backward_weight"}[direction]
    return dataclasses.replace(PROBLEMS[function](x, w, **window), prepared=True)


# ---------------------------------------------------------------------------------------------- intrinsics
@pytest.mark.parametrize("m", (2, 4, 6))
@pytest.mark.parametrize("elem", ("f32", "f64"))
def test_straight_line(elem, m):
    W = lanes(elem, TARGET.vector_bytes)
    rng = np.random.default_rng(m)
    for matrix in filtering(m, 3):
        code, rows, columns = program(matrix), len(matrix), len(matrix[0])

        @range_kernel("test_straight_line", ARGS.types(out=elem, a=elem), spec=(elem, code, columns, W))
        def kernel(args, worker, lo, hi):
            store_rows(args.out, W, straight_line(load_rows(args.a, W, columns, W), code))  # noqa: B023

        dtype = np.float32 if elem == "f32" else np.float64
        x = rng.integers(-8, 9, (columns, W)).astype(dtype)
        out = np.full((rows, W), np.nan, dtype)
        run(kernel, out, x)
        exact = np.array([[float(value) for value in row] for row in matrix])
        np.testing.assert_allclose(out, exact @ x, rtol=0, atol=60 * np.finfo(dtype).eps * np.abs(exact @ x).max())
        if all(value.denominator <= 4 for row in matrix for value in row):
            assert np.array_equal(out, exact @ x)


@pytest.mark.parametrize("elem, mr, nv", [("f32", 14, 2), ("f32", 5, 1), ("f64", 8, 2)])
def test_tile_multiply_blocks(elem, mr, nv):
    W = lanes(elem, TARGET.vector_bytes)
    NR = nv * W
    rows = mr + 3

    @range_kernel("test_multiply_blocks", ARGS.types(out=elem, a=elem, b=elem), spec=(elem, mr, nv, W))
    def kernel(args, worker, lo, hi):
        tile_store(args.out, NR, tile_multiply_blocks(args.a, args.m * W, args.b, args.n, mr, nv, W, 0), mr, nv, W)

    dtype = np.float32 if elem == "f32" else np.float64
    rng = np.random.default_rng(mr)
    for blocks in (0, 1, 2, 5):
        a = rng.integers(-4, 5, (blocks + 1, rows, W)).astype(dtype)
        b = rng.integers(-4, 5, (blocks * W + 1, NR)).astype(dtype)
        out = np.full((mr, NR), np.nan, dtype)
        run(kernel, out, a, b, (blocks, rows))
        want = np.einsum("pic,pcj->ij", a[:blocks, :mr], b[: blocks * W].reshape(blocks, W, NR))
        assert np.array_equal(out, want)


@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_tile_multiply_more_goes_on(elem):
    """Any cut into blocks gives the bits of one sum."""
    W = lanes(elem, TARGET.vector_bytes)

    @range_kernel("test_multiply_more", ARGS.types(out=elem, a=elem, b=elem), spec=(elem, W))
    def kernel(args, worker, lo, hi):
        tile = tile_load(args.out, 2 * W, 3, 2, W)
        tile_store(args.out, 2 * W, tile_multiply_more(tile, args.a, 3 * W, args.b, args.n, 3, 2, 64), 3, 2, W)

    rng = np.random.default_rng(0)
    dtype = np.float32 if elem == "f32" else np.float64
    a, b = rng.standard_normal((4, 3, W)).astype(dtype), rng.standard_normal((4 * W, 2 * W)).astype(dtype)
    found = []
    for cuts in ((0, 4), (0, 0, 1, 4), (0, 3, 4)):
        out = np.zeros((3, 2 * W), dtype)
        for first, last in itertools.pairwise(cuts):
            run(kernel, out, a[first:].copy(), b[first * W :].copy(), (last - first, 0))
        found.append(out)
    np.testing.assert_allclose(found[0], np.einsum("pic,pcj->ij", a, b.reshape(4, W, -1)), rtol=1e-4)
    assert all(np.array_equal(found[0], out) for out in found[1:])


@pytest.mark.parametrize("elem", ["f32", "f16", "bf16"])
def test_store_narrow_rows(elem):
    W = lanes("f32", TARGET.vector_bytes)

    @range_kernel("test_store_rows", ARGS.types(out=elem, a="f32"), spec=(elem, W))
    def kernel(args, worker, lo, hi):
        store_narrow_rows(args.out, 2 * W, args.n, args.m, load_rows(args.a, W, 4, W))

    x = np.arange(4 * W, dtype=np.float32).reshape(4, W)
    as_stored = {"f32": x, "f16": x.astype(np.float16).view(np.uint16), "bf16": (x.view(np.uint32) >> 16)}[elem]
    for rows, columns in itertools.product((0, 1, 3, 4), (0, 1, W - 1, W)):
        out = np.full((4, 2 * W), 7, np.float32 if elem == "f32" else np.uint16)
        want = out.copy()
        want[:rows, :columns] = as_stored[:rows, :columns]
        run(kernel, out, x, None, (rows, columns))
        assert np.array_equal(out, want)


# ---------------------------------------------------------------------------------------------- plans of the work
def test_every_tap_is_in_one_piece():
    for taps, stride, outputs in itertools.product(range(1, 15), (1, 2, 3, 4), (1, 2, 5, 14, 100)):
        axis = pieces.best_axis(taps, stride, outputs)
        met = [first + stride * j for first in axis.firsts for j in range(axis.r)]
        assert sorted(tap for tap in met if tap < taps) == list(range(taps))
        assert axis.n <= pieces.MOST_POINTS and axis.m <= max(outputs, 1) and axis.stride == stride
        products = len(axis.firsts) * axis.n * -(-outputs // axis.m)
        assert products <= taps * outputs
    assert len(pieces.best_axis(7, 1, 28).firsts) == 2


def test_blocks_cover_all_tiles():
    for tiles, most in itertools.product((1, 3, 4, 16, 49, 64, 196, 3136), (1, 10, 14, 33, 300)):
        cut = cost.cut(tiles, most, cost.HEIGHTS, panels=3, copy=0.4)
        assert cut.tiles % cut.height == 0 and cut.height in cost.HEIGHTS
        assert cut.tiles * (cut.blocks - 1) < tiles <= cut.tiles * cut.blocks
        assert tiles <= cut.rows <= tiles + cut.height
    assert cost.cut(196, 24, cost.HEIGHTS).height == 14
    # filters that come from far are read once
    assert cost.cut(16, 18, cost.HEIGHTS, panels=2, copy=0.1, stream=20.0) == (16, 1, 16, 8)
    # an odd block or panel would be one worker's
    assert cost.cut(100, 32, cost.HEIGHTS, panels=2, copy=0.4, stream=7.0) == (50, 2, 100, 10)
    assert cost.cut(16, 18, cost.HEIGHTS).blocks == 2


def test_a_column_of_ones_takes_the_bias():
    assert all(row[-1] == Fraction(1) for row in with_ones(filtering(4, 3).a_t))


# ---------------------------------------------------------------------------------------------- what it computes
@pytest.mark.parametrize("solver", [Winograd2(), Winograd4(), Winograd6()], ids=SQUARE[:3])
def test_every_config_and_thread_count_gives_the_same_bits(solver):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 20, 41, 37)).astype(np.float32)
    w = rng.standard_normal((40, 20, 3, 3)).astype(np.float32)
    problem = problem_of(x, w, padding=1)
    found = []
    configs = list(solver.configs(problem, TARGET))
    assert len(configs) > 1 and all(solver.is_valid(problem, TARGET, config) for config in configs)
    for config, threads in itertools.product(configs, (1, 2, 3)):
        with numbaprims.config(threads=threads):
            packed = solver.prepare(problem, TARGET, config, w)
            out = np.full((2, 40, 41, 37), np.nan, np.float32)
            solver.bind(problem, TARGET, config)(out, x, w, None, None, packed, None, 1.0)
        assert solver.workspace(problem, TARGET, config) > 0
        found.append(out)
    assert np.isfinite(found[0]).all()
    assert all(np.array_equal(found[0], out) for out in found[1:])


@pytest.mark.parametrize("m", fused_solver.OUTPUTS)
@pytest.mark.parametrize("plan", [True, False], ids=["plan", "call"])
def test_fused_blocks(plan, m):
    """Every height of a register tile, whole and partial parts of both kinds of channels, groups: the sums of a chunk
    are added to those before, and no thread count changes a bit."""
    rng = np.random.default_rng(m)
    solver, high = WinogradFused(), fused_solver.heights(TARGET)
    for channels, groups in ((3, 1), (16, 1), (33, 1), (90, 2)):
        x = rng.standard_normal((2, channels, 21, 13)).astype(np.float32)
        w = rng.standard_normal((70 if groups == 1 else 150, channels // groups, 3, 3)).astype(np.float32)
        problem = dataclasses.replace(problem_of(x, w, padding=1, groups=groups), prepared=plan)
        exact = reference.conv(x.astype(np.float64), w.astype(np.float64), (21, 13), **SAME, groups=groups)
        for height in high:
            config = {"m": m, "tiles": height if m == 4 else 2 * height}
            assert solver.is_valid(problem, TARGET, config)
            found = []
            for threads in (1, 3):
                with numbaprims.config(threads=threads):
                    packed = solver.prepare(problem, TARGET, config, w) if plan else None
                    out = np.full(exact.shape, np.nan, np.float32)
                    solver.bind(problem, TARGET, config)(out, x, w, None, None, packed, None, 1.0)
                found.append(out)
            assert np.abs(found[0] - exact).max() <= 1e-5 * np.abs(exact).max()
            assert np.array_equal(*found)
    assert not solver.is_valid(problem, TARGET, {"m": m, "tiles": 3})
    assert not solver.is_valid(problem, TARGET, {"m": 3, "tiles": 8})


@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_fused_stays_within_128_kB_a_worker(elem):
    """Whatever the channels: transforms, sums, and what the deepest of the kernels takes that it calls."""
    dtype = {"f32": np.float32, "f64": np.float64}[elem]
    x, w = np.zeros((1, 256, 28, 28), dtype), np.zeros((256, 256, 3, 3), dtype)
    for plan, m in itertools.product((True, False), fused_solver.OUTPUTS):
        problem = dataclasses.replace(problem_of(x, w, padding=1), prepared=plan)
        for height in fused_solver.heights(TARGET):
            config = {"m": m, "tiles": height if m == 4 else 2 * height}
            assert 24 << 10 < WinogradFused().workspace(problem, TARGET, config) <= 128 << 10


def test_little_workspace():
    """A limit of 128 kB leaves 3 x 3 layers a fast solver, with a plan and without."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((1, 32, 30, 30)).astype(np.float32)
    w = rng.standard_normal((64, 32, 3, 3)).astype(np.float32)
    dy = rng.standard_normal((1, 64, 30, 30)).astype(np.float32)
    with numbaprims.config(solver_workspace=128 << 10):
        for name, *given in (("conv", x, w), ("conv_backward_data", dy, w, x.shape)):
            table = numbaprims.explain(name, *given, padding=1)
            assert table.chosen.solver == "winograd_fused"
            assert "scratch memory" in table["winograd_4x4"].refusal
    with numbaprims.config(solver_workspace=128 << 10):
        plan = numbaprims.conv.plan(x.shape, w, padding=1)
    exact = reference.conv(x.astype(np.float64), w.astype(np.float64), (30, 30), **SAME)
    assert np.abs(plan(x) - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("solver", SQUARE)
def test_errors_are_as_stated(solver):
    rng = np.random.default_rng(3)
    worst = 0.0
    for channels in (16, 100, 256):
        x = rng.standard_normal((1, channels, 20, 20)).astype(np.float32)
        w = rng.standard_normal((32, channels, 3, 3)).astype(np.float32)
        got = numbaprims.conv(x, w, padding=1, algorithm=solver)
        wide = [part.astype(np.float64) for part in (x, w)]
        exact = reference.conv(*wide, (20, 20), **SAME)
        size = reference.conv(*(np.abs(part) for part in wide), (20, 20), **SAME)
        worst = max(worst, float((np.abs(got - exact) / size).max() * 2**24))
    assert 0.2 < worst <= 1.5 * STATED[solver]  # other numbers than those of the page


def test_half_precision_is_as_good_as_the_definition():
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((1, 64, 18, 18), (32, 64, 3, 3)))
    exact = reference.conv(x.astype(np.float64), w.astype(np.float64), (18, 18), **SAME)
    for solver in SQUARE:
        error = np.abs(numbaprims.conv(x, w, padding=1, algorithm=solver) - exact)
        assert (error <= 2.0**-11 * np.abs(exact) + 2e-5 * np.abs(exact).max()).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pieces(layout):
    """Windows and strides of every kind, in float64, where the bound is tight."""
    rng = np.random.default_rng(5)
    for (r, s), stride, groups in (
        ((1, 7), (1, 1), 1), ((7, 1), (1, 1), 2), ((5, 5), (1, 1), 1), ((3, 3), (2, 2), 1), ((7, 7), (2, 2), 1),
        ((11, 11), (4, 4), 1), ((12, 12), (1, 1), 1), ((2, 4), (1, 3), 2),
    ):  # fmt: skip
        x, w = rng.standard_normal((2, 10, 23, 19)), rng.standard_normal((6, 10 // groups, r, s))
        padding = (r // 2, s // 2)
        window = {"stride": stride, "padding": padding, "groups": groups}
        size = tuple((n + 2 * p - k) // t + 1 for n, p, k, t in zip((23, 19), padding, (r, s), stride, strict=True))
        more = window | {"dilation": (1, 1)}
        exact = reference.conv(x, w, size, **more)
        bound = 4000 * 2.0**-53 * reference.conv(np.abs(x), np.abs(w), size, **more)
        there = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
        back = (0, 3, 1, 2) if layout == "NHWC" else (0, 1, 2, 3)
        given = np.ascontiguousarray(x.transpose(there))
        got = numbaprims.conv(given, w, layout=layout, algorithm="winograd_pieces", **window)
        assert (np.abs(got.transpose(back) - exact) <= bound).all(), (r, s, stride)
        dy = rng.standard_normal(exact.shape)
        exact = reference.conv_backward_weight(dy, x, (r, s), **more)
        bound = 4000 * 2.0**-53 * reference.conv_backward_weight(np.abs(dy), np.abs(x), (r, s), **more)
        given = [np.ascontiguousarray(part.transpose(there)) for part in (dy, x)]
        got = numbaprims.conv_backward_weight(*given, w.shape, layout=layout, algorithm="winograd_weight", **window)
        assert (np.abs(got - exact) <= bound).all(), (r, s, stride)


def test_what_is_refused():
    x, w = np.zeros((1, 4, 9, 9), np.float32), np.zeros((4, 4, 3, 3), np.float32)
    with numbaprims.config(accuracy="high"):
        for solver in (Winograd2(), Winograd4(), Winograd6(), WinogradFused(), WinogradPieces()):
            assert "accuracy" in solver.why_not(problem_of(x, w), TARGET)
    for solver in (Winograd2(), Winograd4(), Winograd6(), WinogradFused()):
        assert solver.why_not(problem_of(x, w), TARGET) is None
        assert "stride 1" in solver.why_not(problem_of(x, w, stride=2), TARGET)
        assert "dilation 1" in solver.why_not(problem_of(x, w, dilation=2), TARGET)
        assert "3 x 3" in solver.why_not(problem_of(x, np.zeros((4, 4, 5, 5), np.float32)), TARGET)
        assert "of its own" in WinogradPieces().why_not(problem_of(x, w), TARGET)
    assert "depth" in WinogradPieces().why_not(
        problem_of(np.zeros((1, 4, 5, 9, 9), np.float32), np.zeros((4, 4, 3, 3, 3), np.float32)), TARGET
    )
    assert "direction forward" in WinogradWeight().why_not(problem_of(x, w), TARGET)
    names = {solver.name for solver in registry.solvers("conv", "cpu")}
    assert {*SQUARE, "winograd_pieces", "winograd_weight"} <= names
