"""Operand tiles of the tensor-core product: global memory -> shared memory -> fragments in registers.

A tile is `extent` rows of A (columns of B) times 64 bytes of k: 32 float16 or bfloat16, 16 float32, 64 int8.  It keeps
the order it has in memory, so that no copy transposes:

- layout "k", k contiguous: `extent` rows of 64 bytes; ldmatrix reads fragments of any type.
- layout "x", the other dimension contiguous: rows of `extent` elements, one for each k; ldmatrix turns 16-bit
  elements as it reads, float32 is read word by word.  int8 would need its bytes transposed and is not taken.

Both are made of 16-byte pieces whose places are swizzled: eight rows' pieces of one column lie in different banks.

A piece comes by one cp.async of 16 bytes where addresses and strides allow it, else by two of 8 or four of 4; with
operands that are aligned to 2 or 1 bytes only, by ordinary loads and stores.  Whatever lies past the matrix arrives as
zeros and is never read.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.copy import copy_async, copy_async_partial
from numbaprims.gpu.device.memory import load_shared, store_shared
from numbaprims.gpu.device.mma import ldmatrix, round_tf32
from numbaprims.gpu.device.tile import quotient, remainder
from numbaprims.gpu.device.warp import lane_index
from numbaprims.gpu.jit import STORAGE, device_function, types

TILE_BYTES = 64
"""Bytes of k in a tile: two mma, 32 bytes each."""
PIECE = 16
I32, I64, U32 = types.int32, types.int64, types.uint32


def tile_k(dtype: str) -> int:
    """Elements of k in a tile."""
    return TILE_BYTES // DTYPES[dtype].itemsize


class Operand(NamedTuple):
    """The functions on one operand's tiles."""

    locate: Any
    """locate(thread, first, outer_step): this thread's first piece: its row, its first element in the row, the offset
    of its source for k0 = 0 in elements, its place in the tile in bytes.  `outer_step` is the stride of the dimension
    that is not contiguous."""
    copy: Any
    """copy(target, source, offset, delta, row, inner, extent_left, k_left): start to copy this thread's pieces of one
    tile, the first from source[offset] to address `target`; `delta` is `rounds` rows' stride.  What is left of the
    matrix from the tile's start on is `extent_left` by `k_left`."""
    fragments: Any
    """fragments(tile, row, step): four words of each 16 rows' fragment, of mma `step` of the tile."""
    round_rows: int
    """Rows of the tile that the threads copy at a time, a piece each."""


def copies(size: int, aligned: int) -> int:
    """Bytes of each copy for addresses that are multiples of `aligned`: 16, 8, 4, or 0 for single elements."""
    return next((width for width in (16, 8, 4) if aligned % width == 0 and width >= size), 0)


def row_bytes(dtype: str, layout: str, extent: int) -> int:
    return TILE_BYTES if layout == "k" else extent * DTYPES[dtype].itemsize


@functools.cache
def _make_place(dtype: str, layout: str, extent: int) -> Any:
    """place(row, piece): byte offset of a piece in the tile."""
    pitch = row_bytes(dtype, layout, extent)
    if layout == "k":

        @device_function
        def place_k(row, piece):  # type: ignore[no-untyped-def]
            # two rows share the 128 bytes of all banks
            return U32(row * U32(pitch)) + ((piece ^ ((row >> U32(1)) & U32(3))) << U32(4))

        return place_k
    if dtype == "f32":

        @device_function
        def place_words(row, piece):  # type: ignore[no-untyped-def]
            # a warp reads 8 neighbours in each of 4 rows, two pieces a row
            return U32(row * U32(pitch)) + ((piece ^ ((row & U32(3)) << U32(1))) << U32(4))

        return place_words

    @device_function
    def place_rows(row, piece):  # type: ignore[no-untyped-def]
        return U32(row * U32(pitch)) + ((piece ^ (row & U32(7))) << U32(4))

    return place_rows


@functools.cache
def make_put(dtype: str, width: int) -> Any:
    """put(target, source, index, valid): copy one piece, of which the first `valid` bytes exist."""
    size = DTYPES[dtype].itemsize
    if width:
        parts, step = PIECE // width, width // size

        @device_function
        def put_parts(target, source, index, valid):  # type: ignore[no-untyped-def]
            for part in range(parts):
                left = min(max(valid - I32(part * width), I32(0)), I32(width))
                copy_async_partial(U32(target + U32(part * width)), source, I64(index + part * step), width, left)

        return put_parts
    elements, storage = PIECE // size, STORAGE[dtype]

    @device_function
    def put_elements(target, source, index, valid):  # type: ignore[no-untyped-def]
        for element in range(elements):
            value = storage(0)
            if I32(element * size) < valid:
                value = source[I64(index + element)]
            store_shared(U32(target + U32(element * size)), value)

    return put_elements


@functools.cache
def make_put_whole(dtype: str, width: int) -> Any:
    """put(target, source, index): copy one piece that exists from end to end."""
    size = DTYPES[dtype].itemsize
    if width:
        parts, step = PIECE // width, width // size

        @device_function
        def put_parts(target, source, index):  # type: ignore[no-untyped-def]
            for part in range(parts):
                copy_async(U32(target + U32(part * width)), source, I64(index + part * step), width)

        return put_parts
    elements = PIECE // size

    @device_function
    def put_elements(target, source, index):  # type: ignore[no-untyped-def]
        for element in range(elements):
            store_shared(U32(target + U32(element * size)), source[I64(index + element)])

    return put_elements


@functools.cache
def make_operand(dtype: str, layout: str, extent: int, width: int, threads: int, first_half: bool) -> Operand:
    """Tiles of `extent` rows, copied by `threads` threads, `width` bytes at a time.

    `first_half` says in which order a fragment's four 8 x 8 matrices stand: A wants the second 8 rows before the second
    half of k, B (two fragments of 8 columns) the other way round.
    """
    size, pitch = DTYPES[dtype].itemsize, row_bytes(dtype, layout, extent)
    in_piece, in_row, deep = PIECE // size, pitch // PIECE, tile_k(dtype)
    pieces = extent * TILE_BYTES // PIECE // threads
    # a multiple of the swizzle's period, so that all of a thread's pieces are transposed alike
    round_rows = threads // in_row
    along_k = layout == "k"
    place, put, put_whole = _make_place(dtype, layout, extent), make_put(dtype, width), make_put_whole(dtype, width)

    @device_function
    def locate(thread, first, outer_step):  # type: ignore[no-untyped-def]
        row, piece = quotient(thread, U32(in_row)), remainder(thread, U32(in_row))
        inner = I32(piece * U32(in_piece))
        if along_k:
            offset = I64(first + I32(row)) * outer_step + I64(inner)
        else:
            offset = I64(row) * outer_step + I64(first + inner)
        return I32(row), inner, offset, U32(place(row, piece))

    @device_function
    def copy(target, source, offset, delta, row, inner, extent_left, k_left):  # type: ignore[no-untyped-def]
        if extent_left >= I32(extent) and k_left >= I32(deep):
            for h in range(pieces):
                put_whole(U32(target + U32(h * round_rows * pitch)), source, offset + I64(h) * delta)
        else:
            rows_left, inner_left = (extent_left, k_left) if along_k else (k_left, extent_left)
            valid = I32(min(max(I32(inner_left - inner), I32(0)), I32(in_piece)) * I32(size))
            for h in range(pieces):
                exists = I32(row + I32(h * round_rows)) < rows_left
                index = offset + I64(h) * delta
                put(U32(target + U32(h * round_rows * pitch)), source, index, valid if exists else I32(0))

    return Operand(locate, copy, _make_fragments(dtype, layout, extent, first_half), round_rows)


@functools.cache
def _make_fragments(dtype: str, layout: str, extent: int, first_half: bool) -> Any:
    size = DTYPES[dtype].itemsize
    place = _make_place(dtype, layout, extent)
    # of the lane that reads row r of matrix i: which bit of i stands for 8 rows, which for half of k
    rows_bit, k_bit = (3, 4) if first_half else (4, 3)
    if layout == "k":

        @device_function
        def read(tile, row, step):  # type: ignore[no-untyped-def]
            lane = lane_index()
            at = U32(row) + (((lane >> U32(rows_bit)) & U32(1)) << U32(3)) + (lane & U32(7))
            piece = U32(2 * step) + ((lane >> U32(k_bit)) & U32(1))
            return ldmatrix(U32(tile + place(U32(at), U32(piece))), 0)

        if dtype != "f32":
            return read

        @device_function
        def read_tf32(tile, row, step):  # type: ignore[no-untyped-def]
            words = read(tile, row, step)
            return round_tf32(words[0]), round_tf32(words[1]), round_tf32(words[2]), round_tf32(words[3])

        return read_tf32
    if size == 2:

        @device_function
        def read_transposed(tile, row, step):  # type: ignore[no-untyped-def]
            lane = lane_index()
            k = U32(16 * step) + (((lane >> U32(k_bit)) & U32(1)) << U32(3)) + (lane & U32(7))
            piece = (U32(row) >> U32(3)) + ((lane >> U32(rows_bit)) & U32(1))
            return ldmatrix(U32(tile + place(U32(k), U32(piece))), 1)

        return read_transposed

    @device_function
    def word(tile, row, k):  # type: ignore[no-untyped-def]
        at = place(U32(k), U32(row >> U32(2))) + ((row & U32(3)) << U32(2))
        return round_tf32(load_shared(U32(tile + at)))

    @device_function
    def read_words(tile, row, step):  # type: ignore[no-untyped-def]
        lane = lane_index()
        at, k = U32(U32(row) + (lane >> U32(2))), U32(U32(8 * step) + (lane & U32(3)))
        low, high = word(tile, at, k), word(tile, U32(at + U32(8)), U32(k + U32(4)))
        if first_half:
            return low, word(tile, U32(at + U32(8)), k), word(tile, at, U32(k + U32(4))), high
        return low, word(tile, at, U32(k + U32(4))), word(tile, U32(at + U32(8)), k), high

    return read_words
