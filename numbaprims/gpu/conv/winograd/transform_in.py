"""Into the domain: tiles of the input (V = B^T d B), of a result's gradient (A y A^T) and windows (U = G g G^T), one of
each a thread.

Of a tile of F(4x4, 3x3) and a channel 36 numbers are loaded, 16 of them new (the rest comes from the first-level
cache), and 36 stored.  Lanes are neighbours in V: neighbouring tiles, or channels where those lie last.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cook_toom import Matrix, filtering, program, transposed
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import pointer
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.transforms import load_patch, store_spread, transform
from numbaprims.gpu.jit import GpuKernel, block_index, device_function, gpu_kernel, thread_index, types

THREADS = 128
I32, I64, U32 = types.int32, types.int64, types.uint32


def registers(acc: str, positions: int) -> int:
    """The budget of a kernel that keeps a tile of `positions` numbers."""
    return 255 if acc == "f64" and positions > 16 else 168 if positions > 36 or acc == "f64" else 128


FAR = -(1 << 29)
"""The row of what does not exist: outside of every plane."""


@device_function
def first_tap(word, number):  # type: ignore[no-untyped-def]
    """Number `number` of the first taps that a word holds (axes.py)."""
    return I32((word >> I64(4 * number)) & I64(15))


@device_function
def pieces_of(piece, pieces_h, pieces_w):  # type: ignore[no-untyped-def]
    """The tap of the depth, and which of the pieces along the height and the width."""
    rest = quotient(U32(piece), U32(pieces_w))
    z = quotient(rest, U32(pieces_h))
    return I32(z), I32(rest - z * U32(pieces_h)), I32(U32(piece) - rest * U32(pieces_w))


@device_function
def tile_first(number, tiles, channels):  # type: ignore[no-untyped-def]
    """(group, channel, tile) of a thread where tiles are neighbours."""
    rest = quotient(number, U32(tiles))
    group = quotient(rest, U32(channels))
    return I32(group), I32(rest - group * U32(channels)), I32(number - rest * U32(tiles))


@device_function
def channel_first(number, tiles, channels):  # type: ignore[no-untyped-def]
    """The same where channels are."""
    rest = quotient(number, U32(channels))
    group = quotient(rest, U32(tiles))
    return I32(group), I32(number - rest * U32(channels)), I32(rest - group * U32(tiles))


@device_function
def tile_corner(tile, tiles_h, tiles_w):  # type: ignore[no-untyped-def]
    """(image, row, column) of a tile."""
    rest = quotient(U32(tile), U32(tiles_w))
    image = quotient(rest, U32(tiles_h))
    return I32(image), I32(rest - image * U32(tiles_h)), I32(U32(tile) - rest * U32(tiles_w))


SPLIT = {"tiles": tile_first, "channels": channel_first}


def _matrix(role: str, m: int, r: int) -> Matrix:
    """Of an "input" (n x n) or of a "gradient" (n x m)."""
    return filtering(m, r).b_t if role == "input" else transposed(filtering(m, r).a_t)


@functools.cache
def make_input(dtype: str, m_h: int, r_h: int, m_w: int, r_w: int, order: str, role: str) -> GpuKernel:
    """V of one slice of tiles; each piece of the window has channels of its own: x from its first tap on.

    The tiles of an "input" overlap, n x n for m x m outputs; those of a "gradient" are the outputs themselves.
    """
    acc = DTYPES[dtype].accumulate
    of_h, of_w = _matrix(role, m_h, r_h), _matrix(role, m_w, r_w)
    H, W = len(of_h[0]), len(of_w[0])
    DOWN, ALONG = program(of_h), program(of_w)
    split = SPLIT[order]
    signature = types.void(
        pointer(acc), pointer(dtype), types.uint32, *(types.int32,) * 21, *(types.int64,) * 11
    )  # fmt: skip

    @gpu_kernel(
        f"winograd_{role}", signature, spec=(dtype, m_h, r_h, m_w, r_w, order), threads=THREADS,
        registers=registers(acc, len(of_h) * len(of_w)),
    )  # fmt: skip
    def winograd_input(  # type: ignore[no-untyped-def]
        v, x, work, first, tiles, channels, x_channels, tiles_h, tiles_w, hop_h, hop_w, gap_h, gap_w, pad_h, pad_w,
        x_h, x_w, out_d, x_d, hop_d, gap_d, pad_d, pieces_h, pieces_w, firsts_h, firsts_w, x_sd, x_sn, x_sc, x_sh, x_sw,
        v_p, v_g, v_c, v_t,
    ):  # fmt: skip
        number = U32(block_index() * U32(THREADS) + thread_index())
        if number < work:
            group, channel, tile = split(number, tiles, channels)
            piece = quotient(U32(channel), U32(x_channels))
            own = I32(U32(channel) - piece * U32(x_channels))
            z, piece_h, piece_w = pieces_of(piece, pieces_h, pieces_w)
            image, row, column = tile_corner(I32(first + tile), tiles_h, tiles_w)
            volume = quotient(U32(image), U32(out_d))
            plane = I32((image - I32(volume) * out_d) * hop_d + z * gap_d - pad_d)
            exists = U32(plane) < U32(x_d)
            top = I32(row * hop_h + first_tap(firsts_h, piece_h) - pad_h)
            corner = (top if exists else I32(FAR), I32(column * hop_w + first_tap(firsts_w, piece_w) - pad_w))
            at = I64(volume) * x_sn + I64(I32(group * x_channels + own)) * x_sc
            at += I64(plane if exists else I32(0)) * x_sd
            patch = load_patch(x, at, corner, (gap_h, gap_w), (x_h, x_w), (x_sh, x_sw), H, W, dtype)
            place = I64(group) * v_g + I64(channel) * v_c + I64(tile) * v_t
            store_spread(v, place, v_p, transform(patch, H, DOWN, ALONG), 1)

    return winograd_input


@functools.cache
def make_filter(dtype: str, m_h: int, r_h: int, m_w: int, r_w: int) -> GpuKernel:
    """U: windows by [position][group][piece, channel][out]; taps past the window's end are 0."""
    acc = DTYPES[dtype].accumulate
    DOWN, ALONG = program(filtering(m_h, r_h).g), program(filtering(m_w, r_w).g)
    signature = types.void(
        pointer(acc), pointer(dtype), types.uint32, *(types.int32,) * 9, *(types.int64,) * 12
    )  # fmt: skip

    @gpu_kernel(
        "winograd_filter", signature, spec=(dtype, m_h, r_h, m_w, r_w), threads=THREADS,
        registers=registers(acc, (m_h + r_h - 1) * (m_w + r_w - 1)),
    )  # fmt: skip
    def winograd_filter(  # type: ignore[no-untyped-def]
        u, w, work, outs, channels, w_channels, gap_h, gap_w, taps_h, taps_w, pieces_h, pieces_w, firsts_h, firsts_w,
        w_start, w_group, w_sz, w_sk, w_sc, w_sr, w_ss, u_p, u_g, u_c,
    ):  # fmt: skip
        number = U32(block_index() * U32(THREADS) + thread_index())
        if number < work:
            group, out, channel = channel_first(number, channels, outs)
            piece = quotient(U32(channel), U32(w_channels))
            own = I32(U32(channel) - piece * U32(w_channels))
            z, piece_h, piece_w = pieces_of(piece, pieces_h, pieces_w)
            corner = (first_tap(firsts_h, piece_h), first_tap(firsts_w, piece_w))
            at = w_start + I64(group) * w_group + I64(out) * w_sk + I64(own) * w_sc + I64(z) * w_sz
            patch = load_patch(w, at, corner, (gap_h, gap_w), (taps_h, taps_w), (w_sr, w_ss), r_h, r_w, dtype)
            place = I64(group) * u_g + I64(channel) * u_c + I64(out)
            store_spread(u, place, u_p, transform(patch, r_h, DOWN, ALONG), 1)

    return winograd_filter


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_input, ("f32", 4, 3, 4, 3, "tiles", "input"), ("LDG.E.CONSTANT", "FFMA", "STG.E")),
    (make_input, ("f16", 6, 3, 6, 3, "channels", "input"), ("LDG.E.U16.CONSTANT", "FFMA", "STG.E")),
    (make_input, ("f32", 4, 3, 4, 3, "tiles", "gradient"), ("LDG.E.CONSTANT", "FFMA", "STG.E")),
    (make_filter, ("f32", 6, 3, 6, 3), ("LDG.E.CONSTANT", "FFMA", "STG.E")),
    (make_filter, ("f64", 4, 3, 4, 3), ("LDG.E.64.CONSTANT", "DFMA", "STG.E.64")),
]
