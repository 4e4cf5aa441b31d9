"""How tiles of an implicit product come into shared memory for tensor cores, in the layouts of gpu/gemm/tiles.py: "k",
rows of 64 bytes of k, or "x", a row of v (or u) for each k.

A row is made of pieces of 16 bytes, whose places are swizzled.  A piece comes

- "pieces": by one cp.async, where its k are neighbours in memory: channels, of a source with its channels last.  The
  table of k then has one entry for each piece.
- "rows": by one cp.async, where its v (its u) are neighbours in memory: channels again, where pixels are summed.  This
  is layout "x".
- "elements": element by element, from anywhere, each by its own entry of the table.  Halves pass through registers,
  loaded before a tile is multiplied and stored after it; float32 comes by cp.async of 4 bytes.
- "matrix" (of what is not gathered): by one cp.async from rows that are k-contiguous.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.copy import copy_async_partial
from numbaprims.gpu.device.memory import load_vector, store_vector
from numbaprims.gpu.gemm.tiles import PIECE, TILE_BYTES, make_operand
from numbaprims.gpu.jit import device_function, types

I32, I64, U32, U16 = types.int32, types.int64, types.uint32, types.uint16


class Fetch(NamedTuple):
    """The functions that bring in one operand's tile."""

    locate: Any
    """locate(thread) -> this thread's first row, its first element in the row, its place in the tile in bytes."""
    gathered: Any
    """gathered(regs, target, tables, v_at, k_at, source, size_d, size_h, size_w, row, inner)"""
    plain: Any
    """plain(regs, target, tables, at, source, outer_left, k_left, step, row, inner); `at` is where the offsets of the
    tile's k begin."""
    put: Any
    """put(regs, words, at): store what is in registers; `at` counts words of shared memory."""
    registers: int
    """Elements that a thread holds between fetch and put."""


def entries_of(dtype: str, form: str) -> int:
    """Entries of the table of k for a tile."""
    size = DTYPES[dtype].itemsize
    return TILE_BYTES // PIECE if form == "pieces" else TILE_BYTES // size


def layout_of(form: str) -> str:
    """In which layout a tile lies."""
    return "x" if form == "rows" else "k"


@functools.cache
def make_fetch(dtype: str, form: str, extent: int, threads: int, flat: bool) -> Fetch:
    """For tiles of `extent` rows; `flat` says that the source has one plane, d is not looked at."""
    size = DTYPES[dtype].itemsize
    N = PIECE // size
    operand = make_operand(dtype, layout_of(form), extent, 16, threads, True)
    locate_operand, ROUND = operand.locate, operand.round_rows
    COUNT = extent * TILE_BYTES // PIECE // threads
    NEXT = threads * PIECE
    halves = size == 2 and form == "elements"

    @device_function
    def locate(thread):  # type: ignore[no-untyped-def]
        row, inner, _, place = locate_operand(U32(thread), I32(0), I64(0))
        return row, inner, place

    @device_function
    def inside_planes(v, k, size_d, size_h, size_w):  # type: ignore[no-untyped-def]
        return (
            U32(I32(v[1] + k[1])) < U32(size_d)
            and U32(I32(v[2] + k[2])) < U32(size_h)
            and U32(I32(v[3] + k[3])) < U32(size_w)
        )

    @device_function
    def inside_plane(v, k, size_d, size_h, size_w):  # type: ignore[no-untyped-def]
        return U32(I32(v[2] + k[2])) < U32(size_h) and U32(I32(v[3] + k[3])) < U32(size_w)

    inside = inside_plane if flat else inside_planes

    @device_function
    def gathered_pieces(regs, target, tables, v_at, k_at, source, size_d, size_h, size_w, row, inner):  # type: ignore[no-untyped-def]
        k = load_vector(tables, I64(k_at) + 4 * (inner // N), 4)
        for h in range(COUNT):
            v = load_vector(tables, I64(v_at + 4 * row) + 4 * h * ROUND, 4)
            nbytes = I32(16) if inside(v, k, size_d, size_h, size_w) else I32(0)
            copy_async_partial(U32(target + h * NEXT), source, I64(I32(v[0] + k[0])), 16, nbytes)

    @device_function
    def gathered_words(regs, target, tables, v_at, k_at, source, size_d, size_h, size_w, row, inner):  # type: ignore[no-untyped-def]
        for e in range(N):
            k = load_vector(tables, I64(k_at + 4 * inner) + 4 * e, 4)
            for h in range(COUNT):
                v = load_vector(tables, I64(v_at + 4 * row) + 4 * h * ROUND, 4)
                nbytes = I32(4) if inside(v, k, size_d, size_h, size_w) else I32(0)
                copy_async_partial(U32(target + (h * NEXT + 4 * e)), source, I64(I32(v[0] + k[0])), 4, nbytes)

    @device_function
    def gathered_halves(regs, target, tables, v_at, k_at, source, size_d, size_h, size_w, row, inner):  # type: ignore[no-untyped-def]
        for h in range(COUNT):
            v = load_vector(tables, I64(v_at + 4 * row) + 4 * h * ROUND, 4)
            for e in range(N):
                k = load_vector(tables, I64(k_at + 4 * inner) + 4 * e, 4)
                regs[h * N + e] = U16(0)
                if inside(v, k, size_d, size_h, size_w):
                    regs[h * N + e] = source[I64(I32(v[0] + k[0]))]

    @device_function
    def plain_matrix(regs, target, tables, at, source, outer_left, k_left, step, row, inner):  # type: ignore[no-untyped-def]
        for h in range(COUNT):
            exists = I32(row + h * ROUND) < outer_left and inner < k_left
            nbytes = I32(16) if exists else I32(0)
            copy_async_partial(U32(target + h * NEXT), source, I64(row + h * ROUND) * step + I64(inner), 16, nbytes)

    @device_function
    def plain_words(regs, target, tables, at, source, outer_left, k_left, step, row, inner):  # type: ignore[no-untyped-def]
        for e in range(N):
            offset = I64(tables[I64(at + inner) + e])
            for h in range(COUNT):
                exists = I32(row + h * ROUND) < outer_left and I32(inner + e) < k_left
                nbytes = I32(4) if exists else I32(0)
                index = offset + I64(row + h * ROUND) * step
                copy_async_partial(U32(target + (h * NEXT + 4 * e)), source, index, 4, nbytes)

    @device_function
    def plain_halves(regs, target, tables, at, source, outer_left, k_left, step, row, inner):  # type: ignore[no-untyped-def]
        for h in range(COUNT):
            begin = I64(row + h * ROUND) * step
            for e in range(N):
                regs[h * N + e] = U16(0)
                if I32(row + h * ROUND) < outer_left and I32(inner + e) < k_left:
                    regs[h * N + e] = source[begin + I64(tables[I64(at + inner) + e])]

    @device_function
    def gathered_rows(regs, target, tables, v_at, k_at, source, size_d, size_h, size_w, row, inner):  # type: ignore[no-untyped-def]
        v = load_vector(tables, I64(v_at + 4 * inner), 4)
        for h in range(COUNT):
            k = load_vector(tables, I64(k_at + 4 * row) + 4 * h * ROUND, 4)
            nbytes = I32(16) if inside(v, k, size_d, size_h, size_w) else I32(0)
            copy_async_partial(U32(target + h * NEXT), source, I64(I32(v[0] + k[0])), 16, nbytes)

    @device_function
    def plain_rows(regs, target, tables, at, source, outer_left, k_left, step, row, inner):  # type: ignore[no-untyped-def]
        for h in range(COUNT):
            nbytes = I32(16) if inner < outer_left and I32(row + h * ROUND) < k_left else I32(0)
            index = I64(tables[I64(at + row) + h * ROUND]) + I64(inner)
            copy_async_partial(U32(target + h * NEXT), source, index, 16, nbytes)

    @device_function
    def put_nothing(regs, words, at):  # type: ignore[no-untyped-def]
        pass

    @device_function
    def pair(low, high):  # type: ignore[no-untyped-def]
        return I32(U32(low) | U32(high) << U32(16))

    @device_function
    def put_halves(regs, words, at):  # type: ignore[no-untyped-def]
        for h in range(COUNT):
            e = h * 8
            piece = (
                pair(regs[e], regs[e + 1]), pair(regs[e + 2], regs[e + 3]), pair(regs[e + 4], regs[e + 5]),
                pair(regs[e + 6], regs[e + 7]),
            )  # fmt: skip
            store_vector(words, I64(at) + h * (NEXT // 4), piece)

    by_elements = (gathered_halves, plain_halves) if halves else (gathered_words, plain_words)
    gathered = {"pieces": gathered_pieces, "rows": gathered_rows, "elements": by_elements[0]}.get(form)
    plain = {"matrix": plain_matrix, "rows": plain_rows, "elements": by_elements[1]}.get(form)
    return Fetch(locate, gathered, plain, put_halves if halves else put_nothing, COUNT * N if halves else 1)
