"""Gradients of the weight and of the bias: how they are cut, and that cuts do not show in the result."""

import numpy as np
import pytest

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.conv.weight_gradient.solver import Cut, WeightGemm, box
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import Arguments, lanes, tile_store
from numbaprims.cpu.simd.tiles.product_table import tile_multiply_table
from numbaprims.reference import conv as reference

ARGS = Arguments(arrays=("out", "a", "b", "table"), ints=("k",))


def run(kernel, *arrays, ints=()):
    import ctypes

    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [array.ctypes.data for array in arrays]
    words[16 : 16 + len(ints)] = ints
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)(words.ctypes.data, 0, 0, 1)


@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_tile_multiply_table(elem):
    """Rows of b where the table says, in any order, for numbers of rows that the unrolling divides and others."""
    W = lanes(elem, target.current().vector_bytes)
    MR, NV = 3, 2

    @range_kernel("test_tile_table", ARGS.types(out=elem, a=elem, b=elem, table="i64"), spec=(elem, MR, NV, W))
    def kernel(args, worker, lo, hi):
        tile = tile_multiply_table(args.a, args.b, args.table, args.k, MR, NV, W)
        tile_store(args.out, NV * W, tile, MR, NV, W)

    rng = np.random.default_rng(0)
    dtype = np.dtype({"f32": np.float32, "f64": np.float64}[elem])
    for k in (0, 1, 3, 4, 7, 16):
        a = rng.integers(-4, 5, (max(k, 1), MR)).astype(dtype)
        b = rng.integers(-4, 5, (40, 2 * NV * W)).astype(dtype)
        rows = rng.integers(0, 40, max(k, 1))
        out = np.full((MR, NV * W), np.nan, dtype)
        run(kernel, out, a, b, np.ascontiguousarray(rows * b.shape[1], np.int64), ints=(k,))
        expected = a[:k].T @ b[rows[:k], : NV * W] if k else np.zeros_like(out)
        np.testing.assert_array_equal(out, expected)


def posed(x, w, **window):
    from numbaprims.ops.conv import PROBLEMS

    shape = reference_shape(x, w, **window)
    dy = np.zeros(shape, np.float32)
    return PROBLEMS["conv_backward_weight"](dy, np.zeros(x, np.float32), w, **window)


def reference_shape(x, w, stride=1, padding=0, groups=1):
    size = [(n + 2 * padding - r) // stride + 1 for n, r in zip(x[2:], w[2:], strict=True)]
    return (x[0], w[0], *size)


# one box and many, one slice and many, blocks of channels and of filters, patches, groups, three dimensions
CUTS = [
    ((1, 64, 14, 14), (64, 64, 3, 3), {"padding": 1}),
    ((7, 24, 7, 7), (20, 24, 3, 3), {"padding": 1}),
    ((4, 40, 28, 28), (17, 40, 1, 1), {}),
    ((2, 40, 9, 9), (20, 40, 2, 2), {}),
    ((3, 3, 41, 37), (20, 3, 5, 5), {"padding": 2, "stride": 2}),
    ((2, 600, 6, 6), (30, 600, 1, 1), {"stride": 2}),
    ((2, 48, 20, 20), (24, 12, 3, 3), {"padding": 1, "groups": 4}),
    ((2, 20, 6, 9, 11), (15, 20, 3, 2, 3), {"padding": 1}),
    ((1, 20, 500), (300, 20, 3), {}),
]


@pytest.mark.parametrize("x_shape, w_shape, window", CUTS)
def test_any_cut_gives_the_sum(x_shape, w_shape, window):
    """Boxes from a line to all pixels: small integers come out exactly."""
    rng = np.random.default_rng(1)
    problem = posed(x_shape, w_shape, **window)
    solver, machine = WeightGemm(), target.current()
    x = rng.integers(-3, 4, x_shape).astype(np.float32)
    dy = rng.integers(-3, 4, reference_shape(x_shape, w_shape, **window)).astype(np.float32)
    rank = len(x_shape) - 2
    expected = reference.conv_backward_weight(
        dy.astype(np.float64), x.astype(np.float64), w_shape[2:], groups=window.get("groups", 1),
        **{name: (window.get(name, default),) * rank for name, default in
           (("stride", 1), ("padding", 0), ("dilation", 1))},
    )  # fmt: skip
    heights = {int(next(iter(solver.configs(problem, machine)))["mr"]), 6}
    for pixels in (1, 30, 400, 100000):
        for mr in heights:
            memory = np.full(expected.size + 64, np.nan, np.float32)
            out = memory[: expected.size].reshape(w_shape)
            solver.bind(problem, machine, {"mr": mr, "pixels": pixels})(out, dy, x, f0=1.0)
            np.testing.assert_array_equal(out, expected, err_msg=f"{pixels} pixels, mr {mr}")
            assert np.isnan(memory[expected.size :]).all()


def test_slices_follow_from_the_problem():
    """Cuts cover all boxes; a large image with few channels has slices, a small one with many none."""
    machine = target.current()
    for x_shape, w_shape, window in CUTS:
        problem = posed(x_shape, w_shape, **window)
        cut = Cut(problem, machine, next(iter(WeightGemm().configs(problem, machine))))
        assert (cut.slices - 1) * cut.slice_chunks < cut.chunks <= cut.slices * cut.slice_chunks
        images, planes, lines = box(problem, 400)
        assert images == 1 or (planes, lines) == problem.y_size[:2]
        assert planes == 1 or lines == problem.y_size[1]
    few = posed((1, 16, 112, 112), (16, 16, 3, 3), padding=1)
    many = posed((1, 512, 7, 7), (512, 512, 3, 3), padding=1)
    config = {"mr": 6, "pixels": 400}
    assert Cut(few, machine, config).slices > 1
    assert Cut(many, machine, config).slices == 1


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 70, 300), (40, 33, 7, 7), (2, 17, 3, 9, 11), (1, 1, 40000), (1, 300, 1, 1)])
def test_bias_sums(shape, last):
    """Runs longer and shorter than a piece, tails, several slices: within a few roundings of the exact sums."""
    rng = np.random.default_rng(2)
    dy = rng.standard_normal(shape).astype(np.float32)
    axes = (0, *range(2, len(shape)))
    expected, size = dy.sum(axes, dtype=np.float64), np.abs(dy).sum(axes, dtype=np.float64)
    layout = {3: "NCW", 4: "NCHW", 5: "NCDHW"}[len(shape)]
    if last:
        dy = np.ascontiguousarray(np.moveaxis(dy, 1, -1))
        layout = layout.replace("C", "") + "C"
    with numbaprims.config(algorithm={"conv": "sums"}):
        out = numbaprims.conv_backward_bias(dy, layout=layout)
    assert (np.abs(out - expected) <= 16 * np.finfo(np.float32).eps * size).all()


@pytest.mark.parametrize("last", [False, True])
def test_bias_of_views(last):
    """Lines with gaps, reversed images, every second column: exactly."""
    rng = np.random.default_rng(3)
    whole = rng.integers(-9, 10, (4, 12, 30, 50) if not last else (4, 30, 50, 12)).astype(np.float32)
    for view in (whole[::-1], whole[:, :, 3:, ::2], whole[1:, ::2, :, :7], whole[:, 2:9]):
        with numbaprims.config(algorithm={"conv": "sums"}):
            out = numbaprims.conv_backward_bias(view, layout="NHWC" if last else "NCHW")
        np.testing.assert_array_equal(out, view.sum((0, 1, 2) if last else (0, 2, 3)))
