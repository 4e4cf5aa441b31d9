"""Dot products of bytes and bf16: exact at the extremes, on whatever the target has; assembly: test_named_cpus.py."""

import ctypes

import numpy as np
import pytest
from assembly import emitted, instructions
from llvmlite import ir

from numbaprims.cpu import target
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    dot,
    dot_bf16,
    dot_feature,
    dot_s8s8,
    dot_u8s8,
    load,
    store,
    tile_multiply_dot,
    tile_store,
)

ARGS = Arguments(arrays=("out", "acc", "a", "b"), ints=("n",))
W = target.current().vector_bytes // 4
MR, NV = (14, 2) if W == 16 else (4, 2)


def run(kernel, *arrays, ints=()):
    """Call a range kernel on arrays, as the drivers do."""
    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [array.ctypes.data for array in arrays]
    words[16 : 16 + len(ints)] = ints
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)
    function(words.ctypes.data, 0, 0, 1)


def make_dot(kind, feature):
    number = ("u8s8", "s8s8", "bf16").index(kind)
    acc, a, b = (("i32", "u8", "i8"), ("i32", "i8", "i8"), ("f32", "bf16", "bf16"))[number]
    L = 2 * W if kind == "bf16" else 4 * W

    @range_kernel("test_dot", ARGS.types(out=acc, acc=acc, a=a, b=b), spec=(kind, feature, W))
    def test_dot(args, worker, lo, hi):
        for t in range(args.n):
            acc = load(args.acc, t * W, W)
            a, b = load(args.a, t * L, L), load(args.b, t * L, L)
            if number == 0:
                store(args.out, t * W, dot_u8s8(acc, a, b, feature))
            elif number == 1:
                store(args.out, t * W, dot_s8s8(acc, a, b, feature))
            else:
                store(args.out, t * W, dot_bf16(acc, a, b, feature))

    return test_dot


def make_tile(kind):
    acc = "f32" if kind == "bf16" else "i32"

    @range_kernel("test_tile_dot", ARGS.types(out=acc, a="i32", b="u8"), spec=(kind, W))
    def test_tile_dot(args, worker, lo, hi):
        tile = tile_multiply_dot(args.a, args.b, args.n, MR, NV, W, kind)
        tile_store(args.out, NV * W, tile, MR, NV, W)

    return test_tile_dot


def features(kind):
    return sorted({"portable", dot_feature(kind, W)})


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("kind", ["u8s8", "s8s8"])
def test_bytes(kind, rng):
    low, high, dtype = (0, 255, np.uint8) if kind == "u8s8" else (-128, 127, np.int8)
    # every pair of extremes fills whole groups, where 16-bit sums would saturate; then everything
    extremes = np.array([(x, y) for x in (low, high, 0, 1) for y in (-128, 127, 0, -1)])
    a = np.concatenate([np.repeat(extremes[:, 0], 4 * W), rng.integers(low, high, 400 * W, endpoint=True)])
    b = np.concatenate([np.repeat(extremes[:, 1], 4 * W), rng.integers(-128, 127, 400 * W, endpoint=True)])
    a, b = a.astype(dtype), b.astype(np.int8)
    acc = rng.integers(-(2**30), 2**30, len(a) // 4).astype(np.int32)
    expected = acc + (a.astype(np.int64) * b).reshape(-1, 4).sum(1)
    for feature in features(kind):
        out = np.zeros_like(acc)
        run(make_dot(kind, feature), out, acc, a, b, ints=(len(acc) // W,))
        assert (out == expected).all(), feature


def test_bf16(rng):
    n = 200
    whole = [
        (rng.integers(-256, 257, 2 * W * n).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for _ in "ab"
    ]
    acc = rng.integers(-1000, 1000, W * n).astype(np.float32)
    for feature in features("bf16"):  # integers of 8 bits: all sums are exact
        out = np.zeros_like(acc)
        run(make_dot("bf16", feature), out, acc, *whole, ints=(n,))
        products = bf16_values(whole[0]) * bf16_values(whole[1])
        assert (out == acc + products.reshape(-1, 2).sum(1)).all(), feature
        special = [v.copy() for v in whole]
        special[0][:4] = 0x7F80, 0x3F80, 0x7FC0, 0  # infinity, 1, NaN, 0
        run(make_dot("bf16", feature), out, acc, *special, ints=(n,))
        assert np.isinf(out[0]) and np.isnan(out[1]) and np.isfinite(out[2:]).all()


@pytest.mark.parametrize("k", [0, 1, 3, 4, 9])
def test_tile(k, rng):
    room = max(k, 1)
    a = rng.integers(0, 255, (room, MR, 4), np.uint8, endpoint=True)
    b = rng.integers(-128, 127, (room, NV * W, 4), np.int8, endpoint=True)
    out = np.ones((MR, NV * W), np.int32)
    run(make_tile("u8s8"), out, out, a, b, ints=(k,))
    assert (out == np.einsum("gid,gjd->ij", a[:k].astype(np.int64), b[:k].astype(np.int64))).all()
    halves = [rng.integers(-64, 64, (room, count, 2)).astype(np.float32) for count in (MR, NV * W)]
    bits = [(v.view(np.uint32) >> 16).astype(np.uint16) for v in halves]
    sums = np.ones((MR, NV * W), np.float32)
    run(make_tile("bf16"), sums, sums, *bits, ints=(k,))
    assert (sums == np.einsum("gid,gjd->ij", halves[0][:k], halves[1][:k])).all()


@pytest.mark.skipif(target.current().arch != "x86_64", reason="LLVM's x86 may not be there")
@pytest.mark.parametrize("cpu", ["arrowlake", "lunarlake", "sierraforest"])
def test_signed_bytes_need_no_correction_where_the_cpu_takes_them(cpu):
    """AVX-VNNI-INT8: one instruction; an Alder Lake takes three."""
    vectors = [ir.VectorType(ir.IntType(32), 8), *[ir.VectorType(ir.IntType(8), 32)] * 2]

    def emit(builder, *values):
        return dot.dot_s8s8_value(builder, *values, dot_feature("s8s8", 8))

    for name, wanted, count in ((cpu, "vpdpbssd", 1), ("alderlake", "vpdpbusd", 2)):
        code = instructions(emitted(name, emit, vectors), name)
        assert sum(wanted in line for line in code) == count, code
        assert not any("vpmaddwd" in line for line in code)


def test_refuses_an_instruction_that_is_not_there():
    from numba.core.errors import TypingError

    with pytest.raises(TypingError, match="portable"):
        make_dot("u8s8", "none").address  # noqa: B018
