"""Loads, stores, tails and pointers of every element type; memory that must not be touched lies on a locked page."""

import ctypes
import re
import sys

import numpy as np
import pytest
from assembly import X86_CPUS, emitted, instructions
from llvmlite import ir

from numbaprims.cpu import target
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import (
    ELEMENTS,
    Arguments,
    address_of,
    advance,
    broadcast_load,
    cast_pointer,
    first_lanes,
    gather,
    lanes,
    load,
    load_aligned,
    load_first,
    load_masked,
    load_scalar,
    load_strided,
    load_wide,
    load_wide_first,
    load_wide_last,
    pointer_from_address,
    prefetch,
    prefetch_write,
    stack_array,
    store,
    store_aligned,
    store_first,
    store_masked,
    store_narrow_first,
    store_scalar,
    store_stream,
    stream_fence,
)
from numbaprims.cpu.simd.emit import load_value, store_value

ARGS = Arguments(arrays=("out", "a", "index", "wide_index"), ints=("count",))
ROWS = 18


def numpy_type(elem):
    bits, kind = ELEMENTS[elem]
    return np.dtype({"h": "u"}.get(kind, kind) + str(bits // 8))


def run(kernel, *arrays, ints=()):
    """Call a range kernel on arrays, as the drivers do."""
    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [array.ctypes.data for array in arrays]
    words[16 : 16 + len(ints)] = ints
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)
    function(words.ctypes.data, 0, 0, 1)


def aligned(count, dtype):
    """Zeros at a multiple of 64 bytes."""
    room = np.zeros(count * dtype.itemsize + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + count * dtype.itemsize].view(dtype)


def make_memory(elem, W):
    types = ARGS.types(out=elem, a=elem, index="i32", wide_index="i64")

    @range_kernel("test_memory", types, spec=(elem, W))
    def test_memory(args, worker, lo, hi):
        out = args.out
        a = args.a
        count = args.count
        prefetch(a, 0, 3)
        prefetch_write(out, 0, 3)
        mask = first_lanes(count, W) ^ first_lanes(1, W)
        store(out, 0 * W, load(a, 1, W))
        store_aligned(out, 1 * W, load_aligned(a, 0, W))
        store(out, 2 * W, load_first(a, 2, count, W))
        store(out, 3 * W, load_masked(a, 1, mask))
        store(out, 4 * W, load_strided(a, 1, 3, W))
        store(out, 5 * W, load_strided(a, 3 * W, -2, W))
        store(out, 6 * W, broadcast_load(a, 2, W))
        store(out, 7 * W, gather(a, load(args.index, 0, W)))
        store(out, 8 * W, gather(a, load(args.wide_index, 0, W)))
        store(out, 9 * W, load(a + 3, 0, W))
        store(out + 10 * W, 0, load(advance(2 + a, 2), 0, W))
        store_stream(out, 11 * W, load(a, 5, W))
        store_first(out, 12 * W, count, load(a, 6, W))
        store_masked(out, 13 * W, mask, load(a, 7, W))
        out[14 * W] = a[3]
        store_scalar(out, 14 * W + 1, load_scalar(a, 4))
        store(pointer_from_address(address_of(out) + address_of(a) - address_of(a), elem), 15 * W, load(a, 8, W))
        bytes_ = cast_pointer(a, "u8")
        store(out, 16 * W, load(cast_pointer(bytes_ + (address_of(a + 9) - address_of(a)), elem), 0, W))
        room = stack_array(elem, W)
        store(room, 0, load(a, 10, W))
        store(out, 17 * W, load(room, 0, W))
        stream_fence()

    return test_memory


@pytest.mark.parametrize("elem", ELEMENTS)
def test_memory(elem, rng):
    W, dtype = lanes(elem, target.current().vector_bytes), numpy_type(elem)
    a, out = aligned(4 * W + 16, dtype), aligned(ROWS * W, dtype)
    a[:] = rng.integers(1, 100, len(a))
    index = rng.integers(0, len(a), W).astype(np.int32)
    kernel = make_memory(elem, W)
    lane = np.arange(W)
    for count in sorted({-1, 0, 1, 2, 3, W // 2, W - 1, W, W + 1}):
        out[:] = 111
        run(kernel, out, a, index, index.astype(np.int64), ints=(count,))
        inside, old = lane < count, np.full(W, 111, dtype)
        mask = inside ^ (lane < 1)
        zero = np.zeros(W, dtype)
        expected = [
            a[1 : W + 1], a[:W], np.where(inside, a[2 : W + 2], zero), np.where(mask, a[1 : W + 1], zero),
            a[1 : 3 * W : 3], a[3 * W : W : -2], np.repeat(a[2], W), a[index], a[index], a[3 : W + 3], a[4 : W + 4],
            a[5 : W + 5], np.where(inside, a[6 : W + 6], old), np.where(mask, a[7 : W + 7], old),
            np.where(lane < 2, np.resize(a[3:5], W), old), a[8 : W + 8], a[9 : W + 9], a[10 : W + 10],
        ]  # fmt: skip
        for row, (result, right) in enumerate(zip(out.reshape(ROWS, W), expected, strict=True)):
            assert (result == right).all(), (row, count, result, right)


def make_runs(elem, W):
    @range_kernel("test_runs", ARGS.types(out=elem, a=elem), spec=(elem, W))
    def test_runs(args, worker, lo, hi):
        run = first_lanes(args.count, W) ^ first_lanes(lo, W)
        store_masked(args.out, W, run, load(args.a, 0, W))
        store_masked(args.out, 4 * W, run ^ first_lanes(1, W) ^ first_lanes(2, W), load(args.a, 0, W))

    return test_runs


@pytest.mark.parametrize("elem", ELEMENTS)
def test_every_run_of_lanes_is_stored_and_nothing_else(elem, rng):
    """The first lanes, the last ones, those between, with a gap among them, and none: each may go a way of its own."""
    W, dtype = lanes(elem, target.current().vector_bytes), numpy_type(elem)
    a, out = aligned(W, dtype), aligned(6 * W, dtype)
    a[:] = rng.integers(1, 100, W)
    lane = np.arange(W)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(make_runs(elem, W).address)
    for begin in range(W + 1):
        for end in range(begin, W + 1):
            out[:] = 111
            words = np.zeros(80, np.int64)
            words[:2], words[16] = (out.ctypes.data, a.ctypes.data), end
            function(words.ctypes.data, 0, begin, end)
            inside = (begin <= lane) & (lane < end)
            expected = np.full(6 * W, 111, dtype)
            expected[W : 2 * W][inside] = a[inside]
            inside[1:2] ^= True
            expected[4 * W : 5 * W][inside] = a[inside]
            assert (out == expected).all(), (begin, end, out)


def make_tail(elem, W):
    types = ARGS.types(out=elem, a=elem)

    @range_kernel("test_tail", types, spec=(elem, W))
    def test_tail(args, worker, lo, hi):
        count = args.count
        a = load_first(args.a, 0, count, W)
        store_first(args.out, 0, count, a)
        store_masked(args.out, 0, first_lanes(count, W), load_masked(args.a, 0, first_lanes(count, W)))
        store_narrow_first(args.out, 0, count, load_wide_first(args.a, 0, count, W))

    return test_tail


def make_lane(elem, W):
    @range_kernel("test_lane", ARGS.types(out=elem, a=elem), spec=(elem, W))
    def test_lane(args, worker, lo, hi):
        a = load_wide(args.a, 0, W)
        store_narrow_first(args.out, 0, 1, a + a)

    return test_lane


@pytest.mark.parametrize("elem", ELEMENTS)
def test_one_lane_that_the_compiler_knows(elem):
    """A narrowed vector's one lane is no wider than its element."""
    W, dtype = target.current().vector_bytes // 4, numpy_type(elem)
    a, out = np.ones(W, dtype), np.full(W, 111, dtype)
    run(make_lane(elem, W), out, a, a, a)
    assert (out == [2] + [111] * (W - 1)).all()


def make_head(elem, W):
    @range_kernel("test_head", ARGS.types(out=elem, a=elem), spec=(elem, W))
    def test_head(args, worker, lo, hi):
        store_narrow_first(args.out, 0, W, load_wide_last(args.a, 0, args.count, W))

    return test_head


@pytest.fixture
def locked():
    """Writable bytes between two pages that may not be touched."""
    if not sys.platform.startswith("linux"):
        pytest.skip("mprotect of Linux")
    import mmap

    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.mprotect.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    start = libc.mmap(None, 6 * page, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    views = []
    for at in (1, 4):
        assert not libc.mprotect(start + at * page, page, 3)
        views.append(np.frombuffer((ctypes.c_uint8 * page).from_address(start + at * page), np.uint8))
    yield views
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.munmap(start, 6 * page)


@pytest.mark.parametrize("elem", ["f64", "f32", "bf16", "i8"])
def test_tails_touch_nothing_else(elem, rng, locked):
    W, dtype = lanes(elem, target.current().vector_bytes), numpy_type(elem)
    source, written = (view.view(dtype) for view in locked)
    tail, head = make_tail(elem, W), make_head(elem, W)
    source[:] = rng.integers(1, 100, len(source))
    for count in sorted({0, 1, 2, W // 2, W - 1, W}):
        written[:] = 0
        run(tail, written[len(written) - count :], source[len(source) - count :], ints=(count,))
        assert (written[len(written) - count :] == source[len(source) - count :]).all()
        assert not written[: len(written) - count].any()
        run(head, written, source, ints=(count,))  # its elements begin on the first byte of the page
        assert (written[W - count : W] == source[:count]).all() and not written[: W - count].any()


@pytest.mark.skipif(target.current().arch != "x86_64", reason="LLVM's x86 may not be there")
@pytest.mark.parametrize("cpu", X86_CPUS)
def test_a_vector_of_several_registers_is_written_in_order(cpu):
    """The parts of a line that two stores share leave the core together."""
    vector = ir.VectorType(ir.FloatType(), 32)

    def emit(builder, of, to):
        value = load_value(builder, of, ir.Constant(ir.IntType(64), 0), vector)
        store_value(builder, to, ir.Constant(ir.IntType(64), 0), builder.fadd(value, value))
        return ()

    code = instructions(emitted(cpu, emit, [ir.FloatType().as_pointer()] * 2), cpu)
    places = [int(at or 0) for line in code for at in re.findall(r"mov\w*\s+%[xyz]mm\d+, (\d*)\(%rsi\)", line)]
    size = {"x86-64-v2": 16, "x86-64-v3": 32}.get(cpu, 64)
    assert places == list(range(0, 128, size)), code


@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_stack_arrays_of_24_kB(elem):
    """Two arrays do not overlap and begin on a line of the cache; 200 turns take no more of the stack than one."""
    SIZE = (12 << 10) // np.dtype(numpy_type(elem)).itemsize

    @range_kernel("test_stack_arrays", Arguments(arrays=("out",)).types(out=elem), spec=(elem, SIZE))
    def test_stack_arrays(args, worker, lo, hi):
        right = 0
        for turn in range(200):
            one, two = stack_array(elem, SIZE), stack_array(elem, SIZE)
            for i in range(SIZE):
                one[i] = i + turn
                two[i] = -i
            right = 0
            for i in range(SIZE):
                right += one[i] == i + turn and two[i] == -i
        args.out[0] = right
        args.out[1] = address_of(one) % 64 + address_of(two) % 64

    out = aligned(2, numpy_type(elem))
    run(test_stack_arrays, out)
    assert out[0] == SIZE and out[1] == 0
