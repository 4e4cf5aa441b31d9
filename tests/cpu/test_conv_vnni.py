"""Building blocks of convolutions by dot instructions."""

import ctypes

import numpy as np
import pytest

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.conv.vnni.kernels import make_pack_weights, make_stage, make_transpose
from numbaprims.cpu.gemm.solvers import SIGN_BITS
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import Arguments, lanes, tile_store, tile_zeros
from numbaprims.cpu.simd.dot import dot_feature
from numbaprims.cpu.simd.tiles.dot_rows import tile_dot_rows

ARGS = Arguments(arrays=("out", "a", "b", "places"), ints=("places_at", "rows", "groups"))
W = lanes("i32", target.current().vector_bytes)


def run(kernel, *arrays, ints=()):
    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [array.ctypes.data for array in arrays]
    words[16 : 16 + len(ints)] = ints
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)(words.ctypes.data, 0, 0, 1)


@pytest.mark.parametrize("kind", ["u8s8", "bf16"])
def test_tile_dot_rows(kind):
    """Rows that begin anywhere, fewer than the tile has, groups that the unrolling divides and others."""
    MR, NV = 3, 2
    acc = "f32" if kind == "bf16" else "i32"

    @range_kernel("test_tile_dot_rows", ARGS.types(out=acc, a="i32", b="i32"), spec=(kind, MR, NV, W))
    def kernel(args, worker, lo, hi):
        tile = tile_zeros(acc, MR, NV, W)
        tile = tile_dot_rows(tile, args.a, args.places_at, args.rows, args.b, args.groups, MR, NV, W, kind)
        tile_store(args.out, NV * W, tile, MR, NV, W)

    rng = np.random.default_rng(0)
    for groups, rows in ((0, 3), (1, 3), (4, 2), (7, 3), (12, 1)):
        if kind == "u8s8":
            a, b = rng.integers(0, 256, (50, 4)).astype(np.uint8), rng.integers(-128, 128, (12, NV * W, 4), np.int8)
            x, w = a.astype(np.int64), b.astype(np.int64)
        else:
            x, w = rng.integers(-9, 10, (50, 2)).astype(np.float32), rng.integers(-9, 10, (12, NV * W, 2))
            a, b = ((v.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for v in (x, w))
        places = rng.integers(0, 50 - 12, MR).astype(np.int64)
        out = np.full((MR, NV * W), 5, np.int32 if acc == "i32" else np.float32)
        run(kernel, out, a, b, places, ints=(places.ctypes.data, rows, groups))
        for r in range(MR):
            start = places[min(r, rows - 1)]
            expected = np.einsum("gt,gjt->j", x[start : start + groups], w[:groups])
            np.testing.assert_array_equal(out[r], expected)


@pytest.mark.parametrize("channels", [1, 3, 4, 18, 64, 67, 70])
@pytest.mark.parametrize("order", ["channels_last", "planes", "strided"])
def test_stage(order, channels):
    """Every layout gives the same groups; channels that are not there are zeros (128 where signs are transposed)."""
    rng = np.random.default_rng(channels)
    columns, words = 21, -(-channels // 4)
    x = rng.integers(-128, 128, (columns, channels)).astype(np.int8)
    if order == "planes":
        source = np.asfortranarray(x)
    elif order == "strided":
        source = np.zeros((columns, channels, 2), np.int8)[..., 0]
        source[...] = x
    else:
        source = x
    out = np.full((columns + 1, words), 7, np.int32)
    ints = (columns, channels, words, source.strides[1], source.strides[0])
    run(make_stage("i8", 4, SIGN_BITS, W), out, source, ints=ints)
    got = out[:columns].copy().view(np.uint8).reshape(columns, -1)
    np.testing.assert_array_equal(got[:, :channels], (x.astype(np.int64) + 128).astype(np.uint8))
    assert (out[columns] == 7).all()


@pytest.mark.parametrize("plain", [0, 1])
def test_pack_weights(plain):
    """Groups of channels of each tap side by side for all filters, then the filters' sums."""
    rng = np.random.default_rng(1)
    NR, filters, channels, taps = 2 * W, 2 * W - 3, 6, 9
    w = rng.integers(-128, 128, (filters, channels, taps)).astype(np.int8)
    panel = np.full((taps * 2 + 1, NR), 7, np.int32)
    places = np.arange(taps, dtype=np.int64)
    ints = (filters, channels, 2, taps, places.ctypes.data, plain, channels * taps, taps)
    run(make_pack_weights("i8", NR, 4, dot_feature("u8s8", W), W), panel, w, ints=ints)
    got = panel[:-1].copy().view(np.int8).reshape(taps, 2, NR, 4)
    expected = np.zeros((taps, 8, filters), np.int8)
    expected[:, :channels] = w.transpose(2, 1, 0)
    np.testing.assert_array_equal(got.transpose(0, 1, 3, 2).reshape(taps, 8, NR)[..., :filters], expected)
    np.testing.assert_array_equal(panel[-1, :filters], w.astype(np.int64).sum((1, 2)))


def test_turn():
    """Squares that are whole in memory, of which a part is wanted."""
    rows, columns = W + 3, 2 * W - 1
    source = np.arange(2 * W * 2 * W, dtype=np.int32).reshape(2 * W, 2 * W)
    transposed = np.zeros((2 * W, 2 * W), np.int32)
    run(make_transpose("i32", W), transposed, source, ints=(rows, columns, 2 * W, 2 * W))
    np.testing.assert_array_equal(transposed[:columns, :rows], source[:rows, :columns].T)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_plan_equals_the_call(kind, layout):
    """Weights packed once or in the call, for filters that leave a panel part empty: the same sums."""
    rng = np.random.default_rng(5)
    for channels, filters, groups in ((6, 70, 1), (40, 36, 2)):
        x = rng.integers(0, 100, (2, 9, 10, channels)).astype(kind)
        x = x if layout == "NHWC" else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        w = rng.integers(-128, 128, (filters, channels // groups, 3, 3)).astype(np.int8)
        bias = rng.integers(-99, 99, filters).astype(np.int32)
        how = {"padding": 1, "groups": groups, "layout": layout, "algorithm": "implicit_gemm_dot"}
        plain = numbaprims.conv(x, w, bias, activation="relu", **how)
        plan = numbaprims.conv.plan(x.shape, w, bias=bias, activation="relu", **how)
        np.testing.assert_array_equal(plan(x), plain)
        assert plain.any()
