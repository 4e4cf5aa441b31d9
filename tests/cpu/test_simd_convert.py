"""Storage types: all 65,536 f16 and bf16, dense float32 to them, saturation; the same bits at every width."""

import ctypes
import os
import re

import numpy as np
import pytest
from assembly import X86_CPUS, kernel_assembly, named

from numbaprims.cpu import target
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    compute_element,
    load,
    load_wide,
    load_wide_first,
    load_wide_rows,
    load_wide_scalar,
    load_wide_strided,
    narrow,
    store,
    store_narrow,
    store_narrow_first,
    store_narrow_scalar,
    store_rows,
    widen,
)

ARGS = Arguments(arrays=("out", "a", "wide"), ints=("n",))
NUMPY = {"f16": "u2", "bf16": "u2", "i8": "i1", "u8": "u1", "i16": "i2", "u16": "u2", "f32": "f4", "i32": "i4"}
STORAGE = ("f16", "bf16", "i8", "u8", "i16", "u16")


def run(kernel, *arrays, ints=()):
    """Call a range kernel on arrays, as the drivers do."""
    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [array.ctypes.data for array in arrays]
    words[16 : 16 + len(ints)] = ints
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)
    function(words.ctypes.data, 0, 0, 1)


# The definitions, in integers, so that NaN has its bits.


def widened(bits, elem):
    if elem == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if elem == "f16":
        with np.errstate(invalid="ignore"):  # signalling NaN, of which NumPy warns on AArch64
            exact = bits.view(np.float16).astype(np.float32).view(np.uint32)
        b = bits.astype(np.uint32)
        nan = (b & 0x8000) << 16 | 0x7FC00000 | (b & 0x3FF) << 13
        return np.where((b & 0x7FFF) > 0x7C00, nan, exact).view(np.float32)
    return bits.astype(np.int32)


def narrowed(x, elem):
    if elem not in ("f16", "bf16"):
        info = np.iinfo(NUMPY[elem])
        return np.clip(x, info.min, info.max).astype(NUMPY[elem])
    b = x.view(np.uint32)
    if elem == "f16":
        with np.errstate(over="ignore", invalid="ignore"):
            near = x.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(x), b >> 16 & 0x8000 | 0x7E00 | b >> 13 & 0x3FF, near).astype(np.uint16)
    low = b & 0xFFFF0000
    with np.errstate(invalid="ignore"):  # NaN and infinity go the same way, for no use
        below, above = (v.view(np.float32).astype(np.float64) for v in (low, low + 0x10000))
        # for the largest numbers infinity stands for the next power of two
        above = np.where(np.isinf(above), np.copysign(2.0**128, above), above)
        to_low, to_high = np.abs(x - below), np.abs(above - x)
    up = (to_high < to_low) | ((to_high == to_low) & (b & 0x10000 > 0) & (b & 0xFFFF > 0))
    near = (b >> 16) + up
    return np.where(np.isnan(x), b >> 16 | 0x40, near).astype(np.uint16)


def floats(rng):
    """float32 of every exponent; every f16 and bf16, the numbers halfway between them, and their neighbours."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        halves = bits.view(np.float16).astype(np.float32).view(np.uint32)
    parts = [np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | rng.integers(0, 1 << 16, 4, np.uint32)]
    for grid, half in ((halves, 0x1000), (bits.astype(np.uint32) << 16, 0x8000)):
        parts += [grid[:, None] + np.array([0, 1, half - 1, half, half + 1], np.uint32)]
    # halves of the unit of subnormal f16
    small = ((np.arange(2049) / 2 * 2.0**-24).astype(np.float32).view(np.uint32))[1:, None] + np.array(
        [-1, 0, 1], np.int64
    ).astype(np.uint32)
    return np.concatenate([part.ravel() for part in (*parts, small)]).astype(np.uint32).view(np.float32)


def make_widen(elem, W):
    wide = compute_element(elem)

    @range_kernel("test_widen", ARGS.types(out=wide, a=elem), spec=(elem, W))
    def test_widen(args, worker, lo, hi):
        n = args.n
        for i in range(0, n, W):
            store(args.out, i, load_wide(args.a, i, W))
            store(args.out, n + i, widen(load(args.a, i, W)))
        for i in range(n):
            args.out[2 * n + i] = load_wide_scalar(args.a, i)
        store(args.out, 3 * n, load_wide_first(args.a, 5, 2, W))
        store(args.out, 3 * n + W, load_wide_strided(args.a, 7, 3, W))
        rows = load_wide_rows(args.a, 2 * W, 2, W - 1, W)
        store_rows(args.out + (3 * n + 2 * W), W, rows)

    return test_widen


def make_narrow(elem, W):
    wide = compute_element(elem)

    @range_kernel("test_narrow", ARGS.types(out=elem, a=wide), spec=(elem, W))
    def test_narrow(args, worker, lo, hi):
        n = args.n
        for i in range(0, n, W):
            store(args.out, i, narrow(load(args.a, i, W), elem))
            store_narrow(args.out, n + i, load(args.a, i, W))
        for i in range(n):
            store_narrow_scalar(args.out, 2 * n + i, args.a[i])
        store_narrow_first(args.out, 3 * n, 3, load(args.a, 5, W))

    return test_narrow


@pytest.mark.parametrize("elem", STORAGE)
def test_widen(elem):
    W = target.current().vector_bytes // 4
    bits = np.arange(1 << 16).astype(np.uint16).view(NUMPY[elem]) if elem[-1] != "8" else None
    if bits is None:
        bits = np.arange(1 << 8).astype(np.uint8).view(NUMPY[elem])
    n = len(bits)
    expected = widened(bits, elem)
    out = np.zeros(3 * n + (2 + W) * W, expected.dtype)
    run(make_widen(elem, W), out, bits, ints=(n,))
    for way in range(3):
        assert (out[way * n : way * n + n].view(np.uint32) == expected.view(np.uint32)).all(), way
    rest = out[3 * n :].reshape(2 + W, W)
    assert (rest[0] == np.where(np.arange(W) < 2, expected[5 : W + 5], 0)).all()
    assert (rest[1] == expected[7 : 7 + 3 * W : 3]).all()
    for row in range(W):
        start = min(row, 1) * 2 * W
        assert (rest[2 + row] == np.where(np.arange(W) < W - 1, expected[start : start + W], 0)).all()


@pytest.mark.parametrize("registers", [1, 4])
@pytest.mark.parametrize("elem", STORAGE)
def test_narrow(elem, registers, rng):
    W = registers * target.current().vector_bytes // 4
    if elem in ("f16", "bf16"):
        x = floats(rng)
    else:
        x = np.concatenate([np.arange(-70000, 70000), [-(2**31), 2**31 - 1]]).astype(np.int32)
    x = np.resize(x, -(-len(x) // W) * W)
    n, expected = len(x), narrowed(x, elem)
    out = np.full(3 * n + W, 77, NUMPY[elem])
    run(make_narrow(elem, W), out, x, ints=(n,))
    for way in range(3):
        wrong = np.flatnonzero(out[way * n : way * n + n] != expected)
        assert not len(wrong), (way, len(wrong), x[wrong[0]], out[way * n + wrong[0]], expected[wrong[0]])
    assert (out[3 * n :] == np.where(np.arange(W) < 3, expected[5 : W + 5], 77)).all()


# these name the CPUs that they are compiled for, so that tests at other widths need them no more
by_name = pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="the same at every width")


@by_name
@pytest.mark.parametrize("make", [make_widen, make_narrow])
def test_no_library_routine_without_f16c(make):
    assert not named("x86-64-v2").has_f16c
    assembly = kernel_assembly("x86-64-v2", make, "f16", 4)
    assert "__extendhfsf2" not in assembly and "__truncsfhf2" not in assembly
    assert "xmm" in assembly


@by_name
@pytest.mark.parametrize("cpu", [cpu for cpu in X86_CPUS if named(cpu).has_f16c])
def test_f16_by_its_instructions(cpu):
    lanes = named(cpu).vector_bytes // 4
    loads, stores = (kernel_assembly(cpu, make, "f16", lanes) for make in (make_widen, make_narrow))
    assert "vcvtph2ps" in loads and "vcvtps2ph" in stores
    if "avx512fp16" not in named(cpu).features:  # whose instruction cannot store
        assert re.search(r"vcvtps2ph\t\$4, %[yz]mm\d+, %[xy]mm\d+\n\t#APP", stores), "stored by another"
    apart = re.search(r"#NO_APP\n\tvcvtph2ps\t%ymm\d+, %zmm\d+", loads)
    assert bool(apart) == (cpu == "znver5"), "loaded by another"
