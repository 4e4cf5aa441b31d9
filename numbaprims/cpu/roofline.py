"""Kernels that measure the CPU instead of using it: multiply-add peak, reading, copying, updating."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims.cpu import target, threads
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    cast_pointer,
    dot_bf16,
    dot_feature,
    dot_u8s8,
    fma,
    lanes,
    load,
    load_scalar,
    load_word,
    reduce_add,
    splat,
    store,
    store_scalar,
    store_stream,
    store_word,
    stream_fence,
)
from numbaprims.cpu.simd.call_sites import publish_word, published_word
from numbaprims.dtypes import DTYPES

ARGS = Arguments(arrays=("out", "x", "y"), floats=("beta",), ints=("count", "piece"))
READ_ARGS = Arguments(arrays=("out", "x"), ints=("count", "piece", "apart", "passes"))

# Two 512-bit units with a latency of 4 cycles keep 8 operations in flight; 12 chains cover them.
# Each begins with numbers of its own: LLVM may find that equal ones stay equal, and then one chain is left.
CHAINS = 12
CHAINS_AT = 2  # behind the two factors
STEPS = 4096
FMA_TILES = 16
PIECE_BYTES = 64 << 10
PAGE_BYTES = 4096
# An empty parallel region costs 1.3 us, in which one core reads about 100 KiB from its second-level cache.
PARALLEL_BYTES = 256 << 10
# Few enough that a large stream stays a stream, many enough that a held-up thread does not delay the end.
CHUNKS = 32
# What a tile reads of a cache: 20 us at 100 GB/s, beside which the 0.1 us of a tile and its sum are nothing.
CACHED_BYTES = 2 << 20
ROUNDS = 2000
# Of a chain of dependent additions: 16 cycles a turn.
TURNS, TURN_CYCLES = 1 << 16, 16
EMPTY_PHASES = 64
# Looks at the other core's word before it is given up: some 10 ms, a core that another process has is back by then.
PATIENCE = 1 << 22

Call = Callable[[], Any]


@helper
def load_four(x, i, W):  # type: ignore[no-untyped-def]
    """Four vectors that lie side by side."""
    return load(x, i, W), load(x, i + W, W), load(x, i + 2 * W, W), load(x, i + 3 * W, W)


def make_fma_chains(dtype: str, W: int, steps: int) -> RangeKernel:
    """CHAINS independent accumulators c = c * x + y; tile = `steps` rounds of them."""

    @range_kernel("roofline_fma", ARGS.types(out=dtype, x=dtype), spec=(dtype, W, steps))
    def fma_chains(args, worker, lo, hi):
        for tile in range(lo, hi):
            x = splat(load_scalar(args.x, 0), W)
            y = splat(load_scalar(args.x, 1), W)
            c0, c1, c2, c3 = load_four(args.x, CHAINS_AT, W)
            c4, c5, c6, c7 = load_four(args.x, CHAINS_AT + 4 * W, W)
            c8, c9, c10, c11 = load_four(args.x, CHAINS_AT + 8 * W, W)
            for _ in range(steps):
                c0 = fma(c0, x, y)
                c1 = fma(c1, x, y)
                c2 = fma(c2, x, y)
                c3 = fma(c3, x, y)
                c4 = fma(c4, x, y)
                c5 = fma(c5, x, y)
                c6 = fma(c6, y, x)
                c7 = fma(c7, y, x)
                c8 = fma(c8, y, x)
                c9 = fma(c9, y, x)
                c10 = fma(c10, y, x)
                c11 = fma(c11, y, x)
            total = ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11))
            store_scalar(args.out, tile, reduce_add(total))

    return fma_chains


# Dot-product instructions: element types of sums and operands, and products that go into one sum.
DOTS = {"bf16": ("f32", "bf16", "bf16", 2), "u8s8": ("i32", "u8", "i8", 4)}


def make_dot_chains(kind: str, W: int, feature: str, steps: int) -> RangeKernel:
    """The same with dot-product instructions; W sums a register."""
    sums, left, right, group = DOTS[kind]
    wide = group * W
    types = ARGS.types(out=sums, x=left, y=right)

    @range_kernel("roofline_dot", types, spec=(kind, W, feature, steps))
    def dot_chains(args, worker, lo, hi):
        for tile in range(lo, hi):
            x = load(args.x, 0, wide)
            y = load(args.y, 0, wide)
            starts = cast_pointer(args.x, sums)
            c0, c1, c2, c3 = load_four(starts, 0, W)
            c4, c5, c6, c7 = load_four(starts, 4 * W, W)
            c8, c9, c10, c11 = load_four(starts, 8 * W, W)
            for _ in range(steps):
                if kind == "bf16":
                    c0 = dot_bf16(c0, x, y, feature)
                    c1 = dot_bf16(c1, x, y, feature)
                    c2 = dot_bf16(c2, x, y, feature)
                    c3 = dot_bf16(c3, x, y, feature)
                    c4 = dot_bf16(c4, x, y, feature)
                    c5 = dot_bf16(c5, x, y, feature)
                    c6 = dot_bf16(c6, x, y, feature)
                    c7 = dot_bf16(c7, x, y, feature)
                    c8 = dot_bf16(c8, x, y, feature)
                    c9 = dot_bf16(c9, x, y, feature)
                    c10 = dot_bf16(c10, x, y, feature)
                    c11 = dot_bf16(c11, x, y, feature)
                else:
                    c0 = dot_u8s8(c0, x, y, feature)
                    c1 = dot_u8s8(c1, x, y, feature)
                    c2 = dot_u8s8(c2, x, y, feature)
                    c3 = dot_u8s8(c3, x, y, feature)
                    c4 = dot_u8s8(c4, x, y, feature)
                    c5 = dot_u8s8(c5, x, y, feature)
                    c6 = dot_u8s8(c6, x, y, feature)
                    c7 = dot_u8s8(c7, x, y, feature)
                    c8 = dot_u8s8(c8, x, y, feature)
                    c9 = dot_u8s8(c9, x, y, feature)
                    c10 = dot_u8s8(c10, x, y, feature)
                    c11 = dot_u8s8(c11, x, y, feature)
            total = ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11))
            store_scalar(args.out, tile, reduce_add(total))

    return dot_chains


def make_read(dtype: str, W: int, pages: bool) -> RangeKernel:
    """out[tile] = sum of a piece of x, `passes` times; eight accumulators hide the latency of the additions.

    With `pages`, sixteen vectors of a page alternate with as many of the next: from the caches that is the faster way
    (110 GB/s against 95 from a third-level cache), from memory the slower.
    """
    page = PAGE_BYTES // DTYPES[dtype].itemsize

    @range_kernel("roofline_read", READ_ARGS.types(out=dtype, x=dtype), spec=(dtype, W, pages))
    def read(args, worker, lo, hi):
        for tile in range(lo, hi):
            begin = tile * args.apart
            end = min(begin + args.piece, args.count)
            s0 = splat(load_scalar(args.x, begin), W) - splat(load_scalar(args.x, begin), W)
            s1, s2, s3, s4, s5, s6, s7 = s0, s0, s0, s0, s0, s0, s0
            for _ in range(args.passes):
                i = begin
                if pages:
                    while i + 2 * page <= end:
                        for j in range(i, i + page, 16 * W):
                            for k in range(4):
                                at = j + (k // 2) * page + (k % 2) * 8 * W
                                s0 = s0 + load(args.x, at, W)
                                s1 = s1 + load(args.x, at + W, W)
                                s2 = s2 + load(args.x, at + 2 * W, W)
                                s3 = s3 + load(args.x, at + 3 * W, W)
                                s4 = s4 + load(args.x, at + 4 * W, W)
                                s5 = s5 + load(args.x, at + 5 * W, W)
                                s6 = s6 + load(args.x, at + 6 * W, W)
                                s7 = s7 + load(args.x, at + 7 * W, W)
                        i += 2 * page
                while i + 8 * W <= end:
                    s0 = s0 + load(args.x, i, W)
                    s1 = s1 + load(args.x, i + W, W)
                    s2 = s2 + load(args.x, i + 2 * W, W)
                    s3 = s3 + load(args.x, i + 3 * W, W)
                    s4 = s4 + load(args.x, i + 4 * W, W)
                    s5 = s5 + load(args.x, i + 5 * W, W)
                    s6 = s6 + load(args.x, i + 6 * W, W)
                    s7 = s7 + load(args.x, i + 7 * W, W)
                    i += 8 * W
            total = reduce_add(((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))
            while i < end:
                total += load_scalar(args.x, i)
                i += 1
            store_scalar(args.out, tile, total)

    return read


def make_map(dtype: str, W: int, add: bool, streaming: bool) -> RangeKernel:
    """out = x + beta, or without `add` out = x; a piece of x a tile. Streaming stores need an aligned out."""

    @range_kernel("roofline_map", ARGS.types(out=dtype, x=dtype), spec=(dtype, W, add, streaming))
    def stream(args, worker, lo, hi):
        beta = splat(np.float32(args.beta), W)
        for tile in range(lo, hi):
            i = tile * args.piece
            end = min(i + args.piece, args.count)
            while i + 4 * W <= end:
                v0, v1 = load(args.x, i, W), load(args.x, i + W, W)
                v2, v3 = load(args.x, i + 2 * W, W), load(args.x, i + 3 * W, W)
                if add:
                    v0, v1, v2, v3 = v0 + beta, v1 + beta, v2 + beta, v3 + beta
                if streaming:
                    store_stream(args.out, i, v0)
                    store_stream(args.out, i + W, v1)
                    store_stream(args.out, i + 2 * W, v2)
                    store_stream(args.out, i + 3 * W, v3)
                else:
                    store(args.out, i, v0)
                    store(args.out, i + W, v1)
                    store(args.out, i + 2 * W, v2)
                    store(args.out, i + 3 * W, v3)
                i += 4 * W
            while i < end:
                value = load_scalar(args.x, i)
                if add:
                    value = value + np.float32(args.beta)
                store_scalar(args.out, i, value)
                i += 1
        if streaming:
            stream_fence()

    return stream


@functools.cache
def _fma_chains(dtype: str) -> RangeKernel:
    return make_fma_chains(dtype, lanes(dtype, target.current().vector_bytes), STEPS)


@functools.cache
def make_clock_chain() -> RangeKernel:
    """Operations of one cycle each, of which every one waits for the one before."""

    @range_kernel("roofline_clock", ARGS.types(out="u8"), spec=())
    def clock_chain(args, worker, lo, hi):
        for tile in range(lo, hi):
            x, y = args.piece, args.count
            for _ in range(args.count):
                x = (x ^ y) + y
                x = (x ^ y) + y
                x = (x ^ y) + y
                x = (x ^ y) + y
                x = (x ^ y) + y
                x = (x ^ y) + y
                x = (x ^ y) + y
                x = (x ^ y) + y
            store_word(address_of(args.out), tile, x)

    return clock_chain


@functools.cache
def make_nothing() -> RangeKernel:
    """Tiles without work: what is left is the launch."""

    @range_kernel("roofline_nothing", ARGS.types(out="u8"), spec=())
    def nothing(args, worker, lo, hi):
        for tile in range(lo, hi):
            store_word(address_of(args.out), 8 * tile, 1)

    return nothing


@functools.cache
def make_round_trips() -> RangeKernel:
    """Two tiles that answer each other `count` times, through a word of `out`; what is behind it says who gave up."""

    @range_kernel("roofline_round_trips", ARGS.types(out="u8"), spec=())
    def round_trips(args, worker, lo, hi):
        word = address_of(args.out)
        for tile in range(lo, hi):
            for i in range(args.count):
                looks = 0
                while published_word(word) != 2 * i + tile and looks < PATIENCE:
                    looks += 1
                if looks == PATIENCE or load_word(word, 16) != 0:
                    store_word(word, 16, 1)
                    break
                publish_word(word, 2 * i + tile + 1)

    return round_trips


def round_trip() -> float | None:
    """Seconds from one core to another and back, of the two that the threads of a call run on now; None without two.

    Between cores that share a cache of the third level it is some 90 ns on a Zen 5, between others 350 to 600.
    """
    if threads.count() < 2:
        return None
    words = np.zeros(64, np.int64)
    start = -words.ctypes.data % 128 // 8
    block = words[start : start + 32]
    launch = make_launcher(Program.of(ARGS, {"count": ROUNDS, "piece": 1}, [(make_round_trips(), 2, 1)]))
    found = []
    for _ in range(3):  # the first wakes the threads up
        block[:] = 0
        begin = time.perf_counter()
        launch(block)
        found.append((time.perf_counter() - begin) / ROUNDS)
        if block[16]:
            return None
    return min(found[1:])


@functools.cache
def _read(pages: bool) -> RangeKernel:
    return make_read("f32", lanes("f32", target.current().vector_bytes), pages)


@functools.cache
def _map(add: bool, streaming: bool) -> RangeKernel:
    return make_map("f32", lanes("f32", target.current().vector_bytes), add, streaming)


def fma_peak(dtype: str) -> tuple[Call, float]:
    """(a call, its floating-point operations): nothing but multiply-adds in registers."""
    kernel = _fma_chains(dtype)
    width = lanes(dtype, target.current().vector_bytes)
    kind = np.float32 if dtype == "f32" else np.float64
    x = np.full(CHAINS_AT + CHAINS * width, 0.5, kind)  # the chains converge: no overflow, no denormals
    x[1] = 0.25
    out = np.zeros(FMA_TILES, kind)
    launch = make_launcher(Program.of(ARGS, {"count": 1, "piece": 1}, [(kernel, FMA_TILES, 1)]))
    return lambda: launch(out, x), 2.0 * width * CHAINS * STEPS * FMA_TILES


def clock() -> tuple[Call, float]:
    """(a call, its cycles)."""
    out = np.zeros(64, np.uint8)
    ints = {"count": TURNS, "piece": 1}
    launch = make_launcher(Program.of(ARGS, ints, [(make_clock_chain(), 1, 1)], parallel=False))
    return lambda: launch(out), float(TURNS * TURN_CYCLES)


def nothing(workers: int, phases: int = 1) -> Call:
    """A call of so many phases without work, in which every worker has a tile."""
    out = np.zeros(64 * max(workers, 1), np.uint8)
    each = [(make_nothing(), workers, 1)]
    launch = make_launcher(Program.of(ARGS, {"count": 1, "piece": 1}, each, steps=phases, parallel=workers > 1))
    return lambda: launch(out)


@functools.cache
def _dot_chains(kind: str) -> RangeKernel:
    width = target.current().vector_bytes // 4
    return make_dot_chains(kind, width, dot_feature(kind, width), STEPS)


def has_dot(kind: str) -> bool:
    """Whether this CPU has an instruction for the products of "bf16" or "u8s8"."""
    return dot_feature(kind, target.current().vector_bytes // 4) != "portable"


def best_is_dot(kind: str) -> bool:
    """Whether that instruction does more than multiply-adds of float32."""
    return has_dot(kind) and (kind != "bf16" or target.current().rates.dots > 1)


def dot_peak(kind: str) -> tuple[Call, float]:
    """(a call, its operations): nothing but dot-product instructions, two operations a product."""
    kernel = _dot_chains(kind)
    width, group = target.current().vector_bytes // 4, DOTS[kind][3]
    x = np.zeros(CHAINS * target.current().vector_bytes, np.uint8)  # zeros: no overflow of the sums
    out = np.zeros(FMA_TILES, np.int32)
    launch = make_launcher(Program.of(ARGS, {"count": 1, "piece": 1}, [(kernel, FMA_TILES, 1)]))
    return lambda: launch(out, x, x), 2.0 * width * group * CHAINS * STEPS * FMA_TILES


def _stream(kernel: RangeKernel, out: np.ndarray, x: np.ndarray, **more: int) -> Call:
    piece = PIECE_BYTES // x.itemsize
    tiles = -(-x.size // piece)
    chunk = -(-tiles // CHUNKS)
    ints = {"count": x.size, "piece": piece, **more}
    phases = [(kernel, tiles, chunk)]
    launch = make_launcher(Program.of(READ_ARGS if more else ARGS, ints, phases, parallel=x.nbytes >= PARALLEL_BYTES))
    return lambda: launch(out, x)


def reader(x: np.ndarray, *, pages: bool = False) -> tuple[Call, np.ndarray]:
    """(a call that reads the float32 array x, the sums of its pieces); in order, or two pages at a time."""
    sums = np.zeros(-(-x.nbytes // PIECE_BYTES), x.dtype)
    return _stream(_read(pages), sums, x, apart=PIECE_BYTES // x.itemsize, passes=1), sums


def cache_reader(x: np.ndarray, *, pages: bool = False) -> tuple[Call, np.ndarray, float]:
    """(a call in which every thread reads the whole float32 array x again and again, its sums, the bytes it reads)."""
    passes = max(1, CACHED_BYTES // x.nbytes)
    tiles = 4 * threads.count()
    sums = np.zeros(tiles, x.dtype)
    ints = {"count": x.size, "piece": x.size, "passes": passes}
    launch = make_launcher(Program.of(READ_ARGS, ints, [(_read(pages), tiles, 1)]))
    return lambda: launch(sums, x), sums, float(tiles * passes * x.nbytes)


def copier(x: np.ndarray, y: np.ndarray, *, streaming: bool) -> Call:
    """A call that copies the float32 array x into y; with streaming stores y must begin at a cache line."""
    if streaming and y.ctypes.data % 64:
        raise ValueError(f"y begins {y.ctypes.data % 64} bytes into a cache line; streaming stores need 0")
    return _stream(_map(False, streaming), y, x)


def updater(x: np.ndarray) -> Call:
    """A call that adds 0 to the float32 array x in place."""
    return _stream(_map(True, False), x, x)
