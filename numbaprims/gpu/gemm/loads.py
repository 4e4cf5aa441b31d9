"""How the tiles of A and B come into shared memory: words along k in rows of m (or n), whatever the strides.

`outer` is m for A and n for B.  A tile lies there as BK rows of `extent` words, a few empty ones behind each, so that
the threads, which multiply for one k at a time, load vectors along outer.  The ways, by the operand's strides:

========  ==============================================  =======================================================
"v"       outer has unit stride, rows 16-byte aligned     cp.async of 16 bytes
"q"       float32, k has unit stride, rows 16-byte        16 bytes through registers, stored as four words in four
          aligned                                         rows: 5 % of a large product faster than "k"
"k"       k has unit stride                               cp.async of a word: 8 lanes read 32 neighbouring bytes,
                                                          a whole sector, and transpose on the way
"o"       outer has unit stride                           cp.async of a word: a warp reads 128 neighbouring bytes
"s"       any                                             the same with lanes along outer, wherever they read
"t"       int8, outer has unit stride, 4-byte aligned     4 x 4 bytes through registers, transposed there
"g"       int8, any                                       4 single bytes a word, through registers
========  ==============================================  =======================================================

Half precisions are widened to float32 on the way, through registers ("k", "o" and "s").  What passes through registers
is loaded before a block of k is multiplied and stored after it, so that its latency is hidden too.

Beyond the ends of a matrix nothing is read and zeros are stored.  Inside, where nearly all tiles are, no element asks.

A way is four device functions.  What does not change from block to block is computed once and kept in four registers:

    place(t) -> the thread's first (outer, element of k), and its word in the tile
    start(outer, first, outer_step, k_step) -> where its first element lies, relative to the tile's
    fetch(regs, full, target, q, outer_left, k_left, outer_step, k_step, t) -> the pointer of the next block of k
        starts to copy to the shared address `target`, or loads into the local array `regs`, from the pointer q on;
        outer_left and k_left count what is left from the tile's first element on, `full` says that all of it is
    put(regs, sm, at, t) -> stores `regs` from the word `at` on
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.copy import copy_async, copy_async_partial
from numbaprims.gpu.device.memory import advance, load_vector, opaque, store_vector, widen
from numbaprims.gpu.device.tile import quotient, remainder
from numbaprims.gpu.jit import device_function, types

I32, I64, U32 = types.int32, types.int64, types.uint32


class Load(NamedTuple):
    """One way to bring a tile in."""

    place: Any
    start: Any
    fetch: Any
    put: Any
    registers: int
    """Elements that a thread holds between fetch and put, at least 1 for the local array to exist."""
    element: Any
    """Their type."""


class Words(NamedTuple):
    """How an element of k becomes a word of shared memory."""

    size: int
    """Bytes of a word."""
    elements: int
    """Neighbours in k that one word holds."""
    type: Any


def words_of(dtype: str) -> Words:
    """float64 is its own word, int8 four to a uint32, everything else float32."""
    if dtype == "f64":
        return Words(8, 1, types.float64)
    if dtype in ("i8", "u8"):
        return Words(4, 4, types.uint32)
    return Words(4, 1, types.float32)


@device_function
def nothing(regs, sm, at, t):  # type: ignore[no-untyped-def]
    pass


@device_function
def outer_is_unit(outer_step, k_step):  # type: ignore[no-untyped-def]
    return I64(1), k_step


@device_function
def k_is_unit(outer_step, k_step):  # type: ignore[no-untyped-def]
    return outer_step, I64(1)


@device_function
def any_strides(outer_step, k_step):  # type: ignore[no-untyped-def]
    return outer_step, k_step


#: The strides that a way computes with; a constant one is an immediate of the loads.
UNITS = {
    "v": outer_is_unit, "t": outer_is_unit, "q": k_is_unit, "k": k_is_unit, "o": outer_is_unit, "s": any_strides,
    "g": any_strides,
}  # fmt: skip


def _start(way: str) -> Any:
    units = UNITS[way]

    @device_function
    def start(outer, first, outer_step, k_step):  # type: ignore[no-untyped-def]
        outer_unit, k_unit = units(outer_step, k_step)
        return I64(outer) * outer_unit + I64(first) * k_unit

    return start


class Lanes(NamedTuple):
    """Which words of a tile a thread brings in: outer_passes x k_passes of them."""

    outer_lanes: int
    k_lanes: int
    outer_passes: int
    k_passes: int


def _lanes(way: str, extent: int, bk: int, threads: int) -> Lanes:
    outer_lanes = threads // 8 if way == "k" else min(extent, threads)
    k_lanes = threads // outer_lanes
    assert extent % outer_lanes == 0 and bk % k_lanes == 0, (way, extent, bk, threads)
    return Lanes(outer_lanes, k_lanes, extent // outer_lanes, bk // k_lanes)


def _place(way: str, lanes: Lanes, elements: int, ld: int) -> Any:
    """Threads of one warp are neighbours in k for "k", else in outer."""
    OL, KL = lanes.outer_lanes, lanes.k_lanes

    @device_function
    def place_k(t):  # type: ignore[no-untyped-def]
        outer, word = I32(t // KL), I32(t % KL)
        return outer, I32(word * elements), I32(word * ld + outer)

    @device_function
    def place_o(t):  # type: ignore[no-untyped-def]
        outer, word = I32(t % OL), I32(t // OL)
        return outer, I32(word * elements), I32(word * ld + outer)

    return place_k if way == "k" else place_o


class BlockLoads(NamedTuple):
    """A tile as blocks of `width` neighbours in outer: how a thread's blocks follow one another."""

    per_row: int
    passes: int
    rows: int
    """Rows of blocks between one block of a thread and its next."""
    idle: int
    """Threads from this one on have no block."""


def _blocks(extent: int, width: int, bk: int, threads: int) -> BlockLoads:
    per_row = extent // width
    rows = max(1, min(threads // per_row, bk))
    assert bk % rows == 0 and threads >= per_row, (extent, width, bk, threads)
    return BlockLoads(per_row, bk // rows, rows, rows * per_row)


def _vectors(dtype: str, extent: int, bk: int, threads: int, pad: int) -> Load:
    W = words_of(dtype).size
    VEC, LD = 16 // W, extent + pad
    PER_ROW, PASSES, ROWS, IDLE = _blocks(extent, VEC, bk, threads)

    @device_function
    def place(t):  # type: ignore[no-untyped-def]
        row, column = I32(t // PER_ROW), I32((t % PER_ROW) * VEC)
        return column, row, I32(row * LD + column)

    @device_function
    def fetch(regs, full, target, q, outer_left, k_left, outer_step, k_step, t):  # type: ignore[no-untyped-def]
        if IDLE == threads or t < IDLE:
            # a step from pass to pass and from block to block: one pair of registers
            step, source = I64(ROWS) * k_step, q
            if full:
                for i in range(PASSES):
                    copy_async(U32(target + i * ROWS * LD * W), source, I64(0), 16)
                    source = advance(source, step)
            else:
                column, row, _ = place(opaque(t))
                valid = I32(min(max(I32(outer_left - column), I32(0)), I32(VEC)))
                for i in range(PASSES):
                    nbytes = I32(valid * W) if I32(row + i * ROWS) < k_left else I32(0)
                    copy_async_partial(U32(target + i * ROWS * LD * W), source, I64(0), 16, nbytes)
                    source = advance(source, step)
        return advance(q, I64(bk) * k_step)

    return Load(place, _start("v"), fetch, nothing, 1, types.float32)


def _words(dtype: str, way: str, extent: int, bk: int, threads: int, pad: int) -> Load:
    words = words_of(dtype)
    W, E, LD = words.size, words.elements, extent + pad
    BYTES = W // E
    lanes = _lanes(way, extent, bk, threads)
    OL, KL, OP, KP = lanes
    units, place = UNITS[way], _place(way, lanes, E, LD)

    @device_function
    def fetch(regs, full, target, q, outer_left, k_left, outer_step, k_step, t):  # type: ignore[no-untyped-def]
        outer_unit, k_unit = units(outer_step, k_step)
        after = advance(q, I64(bk * E) * k_unit)
        if full:
            for i in range(OP):
                for h in range(KP):
                    copy_async(U32(target + (h * KL * LD + i * OL) * W), q, I64(h * KL * E) * k_unit, W)
                q = advance(q, I64(OL) * outer_unit)
        else:
            outer, first, _ = place(opaque(t))
            for i in range(OP):
                for h in range(KP):
                    valid = I32(min(max(I32(k_left - first - h * KL * E), I32(0)), I32(E)))
                    nbytes = I32(valid * BYTES) if I32(outer + i * OL) < outer_left else I32(0)
                    copy_async_partial(U32(target + (h * KL * LD + i * OL) * W), q, I64(h * KL * E) * k_unit, W, nbytes)
                q = advance(q, I64(OL) * outer_unit)
        return after

    return Load(place, _start(way), fetch, nothing, 1, types.float32)


def _halves(dtype: str, way: str, extent: int, bk: int, threads: int, pad: int) -> Load:
    lanes = _lanes(way, extent, bk, threads)
    OL, KL, OP, KP = lanes
    LD, U16, units = extent + pad, types.uint16, UNITS[way]
    place = _place(way, lanes, 1, LD)

    @device_function
    def fetch(regs, full, target, q, outer_left, k_left, outer_step, k_step, t):  # type: ignore[no-untyped-def]
        outer_unit, k_unit = units(outer_step, k_step)
        after = advance(q, I64(bk) * k_unit)
        outer, first, _ = place(opaque(t))
        for i in range(OP):
            for h in range(KP):
                regs[i * KP + h] = U16(0)
                if full or (I32(outer + i * OL) < outer_left and I32(first + h * KL) < k_left):
                    regs[i * KP + h] = q[I64(h * KL) * k_unit]
            q = advance(q, I64(OL) * outer_unit)
        return after

    @device_function
    def put(regs, sm, at, t):  # type: ignore[no-untyped-def]
        for i in range(OP):
            for h in range(KP):
                value = widen(regs[i * KP + h], dtype)
                store_vector(sm, I64(at) + (h * KL * LD + i * OL), (value,))

    return Load(place, _start(way), fetch, put, OP * KP, types.uint16)


def _turned(dtype: str, extent: int, bk: int, threads: int, pad: int) -> Load:
    """Lanes stand 2 along k by 16 along outer: what they store at a time lies in 32 banks, as rows are an odd number of
    vectors long."""
    LD = extent + pad
    ROWS = min(extent, threads // 2)
    QUADS = threads // ROWS
    OP, KP = extent // ROWS, bk // (4 * QUADS)
    assert OP * ROWS == extent and KP * 4 * QUADS == bk, (extent, bk, threads)
    F32 = types.float32

    @device_function
    def place(t):  # type: ignore[no-untyped-def]
        # unsigned: shifts
        u = U32(t)
        outer = I32(remainder(quotient(u, U32(2)), U32(ROWS)))
        first = I32((quotient(u, U32(2 * ROWS)) * U32(2) + remainder(u, U32(2))) * U32(4))
        return outer, first, I32(first * LD + outer)

    @device_function
    def fetch(regs, full, target, q, outer_left, k_left, outer_step, k_step, t):  # type: ignore[no-untyped-def]
        after = advance(q, I64(bk))
        outer, first, _ = place(opaque(t))
        for i in range(OP):
            for h in range(KP):
                e = 4 * (i * KP + h)
                if full or (I32(outer + i * ROWS) < outer_left and I32(first + h * 4 * QUADS) <= k_left - 4):
                    regs[e], regs[e + 1], regs[e + 2], regs[e + 3] = load_vector(q, I64(h * 4 * QUADS), 4)
                else:
                    for d in range(4):
                        regs[e + d] = F32(0)
                        if I32(outer + i * ROWS) < outer_left and I32(first + h * 4 * QUADS + d) < k_left:
                            regs[e + d] = q[I64(h * 4 * QUADS + d)]
            q = advance(q, I64(ROWS) * outer_step)
        return after

    @device_function
    def put(regs, sm, at, t):  # type: ignore[no-untyped-def]
        for i in range(OP):
            for h in range(KP):
                for d in range(4):
                    at_row = I64(at) + ((h * 4 * QUADS + d) * LD + i * ROWS)
                    store_vector(sm, at_row, (regs[4 * (i * KP + h) + d],))

    return Load(place, _start("q"), fetch, put, 4 * OP * KP, F32)


def _bytes(dtype: str, extent: int, bk: int, threads: int, pad: int) -> Load:
    lanes = _lanes("g", extent, bk, threads)
    OL, KL, OP, KP = lanes
    LD, U8 = extent + pad, types.uint8
    place = _place("g", lanes, 4, LD)

    @device_function
    def fetch(regs, full, target, q, outer_left, k_left, outer_step, k_step, t):  # type: ignore[no-untyped-def]
        after = advance(q, I64(bk * 4) * k_step)
        outer, first, _ = place(opaque(t))
        for i in range(OP):
            for h in range(KP):
                whole = U32(0)
                for e in range(4):
                    if full or (I32(outer + i * OL) < outer_left and I32(first + h * KL * 4 + e) < k_left):
                        whole |= U32(U8(q[I64(h * KL * 4 + e) * k_step])) << U32(8 * e)
                regs[i * KP + h] = whole
            q = advance(q, I64(OL) * outer_step)
        return after

    @device_function
    def put(regs, sm, at, t):  # type: ignore[no-untyped-def]
        for i in range(OP):
            for h in range(KP):
                store_vector(sm, I64(at) + (h * KL * LD + i * OL), (regs[i * KP + h],))

    return Load(place, _start("g"), fetch, put, OP * KP, types.uint32)


def _transposed(dtype: str, extent: int, bk: int, threads: int, pad: int) -> Load:
    LD, U8 = extent + pad, types.uint8
    PER_ROW, PASSES, ROWS, IDLE = _blocks(extent, 4, bk, threads)

    @device_function
    def place(t):  # type: ignore[no-untyped-def]
        row, column = I32(t // PER_ROW), I32((t % PER_ROW) * 4)
        return column, I32(row * 4), I32(row * LD + column)

    @device_function
    def fetch(regs, full, target, q, outer_left, k_left, outer_step, k_step, t):  # type: ignore[no-untyped-def]
        column, first, _ = place(opaque(t))
        for i in range(PASSES):
            for e in range(4):
                whole = U32(0)
                if (IDLE == threads or t < IDLE) and (full or I32(first + i * ROWS * 4 + e) < k_left):
                    index = I64(i * ROWS * 4 + e) * k_step
                    if full or I32(outer_left - column) >= 4:
                        b0, b1, b2, b3 = load_vector(q, index, 4)
                        whole = U32(
                            U32(U8(b0)) | U32(U8(b1)) << U32(8) | U32(U8(b2)) << U32(16) | U32(U8(b3)) << U32(24)
                        )
                    else:
                        for d in range(3):
                            if I32(column + d) < outer_left:
                                whole |= U32(U8(q[index + I64(d)])) << U32(8 * d)
                regs[i * 4 + e] = whole
        return advance(q, I64(bk * 4) * k_step)

    @device_function
    def put(regs, sm, at, t):  # type: ignore[no-untyped-def]
        if IDLE == threads or t < IDLE:
            for i in range(PASSES):
                r0, r1, r2, r3 = regs[i * 4], regs[i * 4 + 1], regs[i * 4 + 2], regs[i * 4 + 3]
                transposed = (
                    byte_column(r0, r1, r2, r3, 0), byte_column(r0, r1, r2, r3, 8),
                    byte_column(r0, r1, r2, r3, 16), byte_column(r0, r1, r2, r3, 24),
                )  # fmt: skip
                store_vector(sm, I64(at) + i * ROWS * LD, transposed)

    return Load(place, _start("t"), fetch, put, PASSES * 4, types.uint32)


@device_function
def byte_column(r0, r1, r2, r3, shift):  # type: ignore[no-untyped-def]
    """The word of the bytes at `shift` of four words."""
    return U32(
        ((r0 >> U32(shift)) & U32(255))
        | ((r1 >> U32(shift)) & U32(255)) << U32(8)
        | ((r2 >> U32(shift)) & U32(255)) << U32(16)
        | ((r3 >> U32(shift)) & U32(255)) << U32(24)
    )


@functools.cache
def make_load(dtype: str, way: str, extent: int, bk: int, threads: int, pad: int) -> Load:
    """The device functions of one way; `pad` words stand behind each row of the tile."""
    if way == "q" and extent * bk < 4 * threads:  # fewer pieces than threads
        way = "k"
    if way == "v":
        return _vectors(dtype, extent, bk, threads, pad)
    if way == "q":
        return _turned(dtype, extent, bk, threads, pad)
    if way == "t":
        return _transposed(dtype, extent, bk, threads, pad)
    if way == "g":
        return _bytes(dtype, extent, bk, threads, pad)
    if dtype in ("f16", "bf16"):
        return _halves(dtype, way, extent, bk, threads, pad)
    return _words(dtype, way, extent, bk, threads, pad)


def way_of(dtype: str, pointer: int, outer_step: int, k_step: int, outer: int, k: int, batch: tuple[int, ...]) -> str:
    """The way for an operand of these strides (in elements); `batch` are the strides between products.

    Strides count for dimensions of one element too: the addresses of elements past an end are formed, though not read,
    and must be aligned like others.
    """
    size = DTYPES[dtype].itemsize
    rows_of_k = outer_step == 1 or outer == 1
    rows_of_outer = k_step == 1 or k == 1

    def aligned(nbytes: int, step: int) -> bool:
        return all(value % nbytes == 0 for value in (pointer, step * size, *(s * size for s in batch)))

    if dtype in ("i8", "u8"):
        if rows_of_outer and aligned(4, outer_step):
            return "k"
        return "t" if outer_step == 1 and aligned(4, k_step) else "g"
    if dtype in ("f32", "f64") and outer_step == 1 and aligned(16, k_step):
        return "v"
    if rows_of_outer:
        return "q" if dtype == "f32" and aligned(16, outer_step) else "k"
    return "o" if rows_of_k else "s"
