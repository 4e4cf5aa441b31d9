"""From an image to the spectra of its tiles, as the operands of products.

A tile begins at (row * m_h - pad_h, column * m_w - pad_w) and has part_h x part_w elements; the rest of its N x N, and
what lies outside of the image, is 0.  A filter is an image of one tile.  Bound: the source is read once for each tile
that an element is in, N * N / (m_h * m_w) times, out of the caches all but the first time, and 2 (4, 3) words are
written for each pair.

=============  ============================================================  =======================================
`form`, role   written for a pair (re, im)                                   real pairs
=============  ============================================================  =======================================
four, plain    re | im                                                       the same
four, wide     re, -im | im, re                                              re, 0 | 0, im
three, plain   re + im | re | im                                             0 | im | -re
three, wide    re | -im - re | re - im                                       0 | im | re
=============  ============================================================  =======================================

The spectrum of the wide one is conjugated, for products with it are correlations: (Xr + i Xi)(Wr - i Wi) is a product
of real matrices [Xr Xi] [[Wr, -Wi], [Wi, Wr]], twice as deep and twice as wide; or three products, of (Xr + Xi) Wr,
Xr (-Wi - Wr) and Xi (Wr - Wi), whose first plus second is the imaginary part, and first less third the real one.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims import fourier
from numbaprims.gpu.conv.arguments import pointer
from numbaprims.gpu.conv.fft.tile import DECODE, corner, make_lanes, residents, room_of, threads_of, tiles_of
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.memory import REGISTER, advance, load_vector, store_vector, widen
from numbaprims.gpu.device.packs import load_apart
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.transforms import store_spread, transform
from numbaprims.gpu.jit import (
    GpuKernel,
    block_index,
    block_index_y,
    cuda,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)

I32, I64, U32 = types.int32, types.int64, types.uint32
BATCH = 8
"""Loads of a thread that are under way together."""
#: Names of the integers behind dest and source: int32, then int64 in elements.  `inner` is how many neighbours there
#: are, tiles or channels; `first` the first tile's number; `to_*` are steps of dest, `deep` and `wide` between the
#: parts of an operand (three: `deep` from product to product).  An item's channel is tap z of `channels` channels, and
#: its image plane o of `planes`: it is read from plane o * step_d + z * gap_d - pad_d of the source's `size_d`.
SIZES = (
    "items, inner, first, tiles_h, tiles_w, m_h, m_w, pad_h, pad_w, part_h, part_w, size_h, size_w, "
    "channels, planes, size_d, step_d, gap_d, pad_d"
).split(", ")
STEPS = "s_group, s_n, s_c, s_d, s_h, s_w, to_pair, to_group, to_channel, to_tile, deep, wide".split(", ")


@functools.cache
def make_put(form: str, role: str, acc: str, n: int) -> Any:
    """(complex, real): device functions put(dest, at, deep, wide, re, im) that write one pair."""
    S = REGISTER[acc]
    SCALE = 1.0 / (n * n)

    @device_function
    def four_plain(dest, at, deep, wide, re, im):  # type: ignore[no-untyped-def]
        dest[at] = re
        dest[at + deep] = im

    @device_function
    def four_wide(dest, at, deep, wide, re, im):  # type: ignore[no-untyped-def]
        re, im = re * S(SCALE), im * S(SCALE)
        dest[at] = re
        dest[at + wide] = -im
        dest[at + deep] = im
        dest[at + deep + wide] = re

    @device_function
    def four_wide_real(dest, at, deep, wide, re, im):  # type: ignore[no-untyped-def]
        dest[at] = re * S(SCALE)
        dest[at + wide] = S(0)
        dest[at + deep] = S(0)
        dest[at + deep + wide] = im * S(SCALE)

    @device_function
    def three_plain(dest, at, deep, wide, re, im):  # type: ignore[no-untyped-def]
        dest[at] = re + im
        dest[at + deep] = re
        dest[at + 2 * deep] = im

    @device_function
    def three_plain_real(dest, at, deep, wide, re, im):  # type: ignore[no-untyped-def]
        dest[at] = S(0)
        dest[at + deep] = im
        dest[at + 2 * deep] = -re

    @device_function
    def three_wide(dest, at, deep, wide, re, im):  # type: ignore[no-untyped-def]
        re, im = re * S(SCALE), im * S(SCALE)
        dest[at] = re
        dest[at + deep] = -im - re
        dest[at + 2 * deep] = re - im

    @device_function
    def three_wide_real(dest, at, deep, wide, re, im):  # type: ignore[no-untyped-def]
        dest[at] = S(0)
        dest[at + deep] = im * S(SCALE)
        dest[at + 2 * deep] = re * S(SCALE)

    return {
        ("four", "plain"): (four_plain, four_plain), ("four", "wide"): (four_wide, four_wide_real),
        ("three", "plain"): (three_plain, three_plain_real), ("three", "wide"): (three_wide, three_wide_real),
    }[form, role]  # fmt: skip


@functools.cache
def make_spectra(dtype: str, acc: str, n: int, form: str, role: str, order: str, lanes: str) -> GpuKernel:
    """Spectra of G items (a channel's tile) a block; `order` says whether tiles or channels are neighbours in dest, and
    `lanes` whether threads that load are neighbours in a row's "pixels" or in the "items"."""
    S = REGISTER[acc]
    N, HALF, BOTH, LD, ROOM = n, n // 2, 2 * n, n + 1, room_of(n)
    G, THREADS = tiles_of(acc, n), threads_of(acc, n)
    WORDS, BATCHES, TABLE = G * ROOM, G * n * n // THREADS // BATCH, 4 * G
    PER_TILE, ROWS = n * n // THREADS, THREADS // n
    PARTS, TILES = max(1, PER_TILE // BATCH), max(1, BATCH // PER_TILE)
    REAL, COMPLEX = fourier.real_forward(n), fourier.complex_forward(n)
    decode, place = DECODE[order], make_lanes(G)
    put, put_real = make_put(form, role, acc, n)

    @device_function
    def first_by_pixels(t):  # type: ignore[no-untyped-def]
        return I32(0), I32(quotient(U32(t), U32(N))), I32(t % U32(N))

    @device_function
    def next_by_pixels(batch, u):  # type: ignore[no-untyped-def]
        return I32(batch // PARTS * TILES + u // PER_TILE), I32((batch % PARTS * BATCH + u) % PER_TILE * ROWS), I32(0)

    @device_function
    def first_by_items(t):  # type: ignore[no-untyped-def]
        return I32(t % U32(G)), I32(0), I32(quotient(U32(t), U32(G)))

    @device_function
    def next_by_items(batch, u):  # type: ignore[no-untyped-def]
        return I32(0), I32(batch * (BATCH // 2) + u // 2), I32(u % 2 * HALF)

    # (tile, row, column) of a thread's first element, and from there to that of a later step
    first_element, to_element = (
        (first_by_pixels, next_by_pixels) if lanes == "pixels" else (first_by_items, next_by_items)
    )
    signature = types.void(
        pointer(acc), pointer(dtype), *(types.int32,) * len(SIZES), *(types.int64,) * len(STEPS)
    )  # fmt: skip

    @gpu_kernel(
        "conv_fft_spectra", signature, spec=(dtype, acc, n, form, role, order, lanes), threads=THREADS,
        blocks_per_sm=residents(acc, n),
    )  # fmt: skip
    def conv_fft_spectra(  # type: ignore[no-untyped-def]
        dest, source, items, inner, first, tiles_h, tiles_w, m_h, m_w, pad_h, pad_w, part_h, part_w, size_h, size_w,
        channels, planes, size_d, step_d, gap_d, pad_d, s_group, s_n, s_c, s_d, s_h, s_w,
        to_pair, to_group, to_channel, to_tile, deep, wide,
    ):  # fmt: skip
        words = shared_array(WORDS, S)
        at_source, at_dest = shared_array(G, I64), shared_array(G, I64)
        # of each tile: the first row that is there and how many are, the same of columns
        there = shared_array(TABLE, I32)
        values = cuda.local.array(BATCH, S)
        t = I32(thread_index())
        first_item = I32(block_index() * U32(G))
        group = I64(block_index_y())
        dest = advance(dest, group * to_group)
        if t < G:
            item = I32(first_item + t)
            if item < items:
                channel, tile = decode(item, inner)
                image, row, column = corner(I32(tile + first), tiles_h, tiles_w, m_h, m_w)
                row, column = I32(row - pad_h), I32(column - pad_w)
                tap, n = quotient(U32(channel), U32(channels)), quotient(U32(image), U32(planes))
                plane = I32(I32(U32(image) - n * U32(planes)) * step_d + I32(tap) * gap_d - pad_d)
                at = group * s_group + I64(n) * s_n + I64(U32(channel) - tap * U32(channels)) * s_c + I64(plane) * s_d
                at_source[t] = at + I64(row) * s_h + I64(column) * s_w
                at_dest[t] = I64(channel) * to_channel + I64(tile) * to_tile
                top, left = I32(max(-row, I32(0))), I32(max(-column, I32(0)))
                height = I32(max(I32(min(size_h - row, part_h) - top), I32(0)))
                height = height if U32(plane) < U32(size_d) else I32(0)
                width = I32(max(I32(min(size_w - column, part_w) - left), I32(0)))
                store_vector(there, I64(4 * t), (top, height, left, width))
            else:
                at_source[t], at_dest[t] = I64(0), I64(0)
                store_vector(there, I64(4 * t), (I32(0), I32(0), I32(0), I32(0)))
        barrier()
        g0, i0, j0 = first_element(U32(t))
        own, mine = I64(i0) * s_h + I64(j0) * s_w, I64(g0 * ROOM + i0 * LD + j0)
        batch = I32(0)
        while batch < BATCHES:
            # the loads of a batch are under way together
            for u in range(BATCH):
                g, i, j = to_element(batch, u)
                top, height, left, width = load_vector(there, I64(4 * (g0 + g)), 4)
                inside = (U32(i0 + i - top) < U32(height)) & (U32(j0 + j - left) < U32(width))
                # without a branch: what is not there is read as the first element, and dropped
                at = at_source[I64(g0 + g)] + (own + I64(i) * s_h + I64(j) * s_w)
                value = S(widen(source[at if inside else I64(0)], dtype))
                values[u] = value if inside else S(0)
            for u in range(BATCH):
                g, i, j = to_element(batch, u)
                words[mine + I64(g * ROOM + i * LD + j)] = values[u]
            batch = I32(batch + 1)
        barrier()
        own, lane = I32(I32(t // HALF) * ROOM), I32(t % HALF)
        for second in range(2):
            at = I64(own + (lane + second * HALF) * LD)
            row_values = load_apart(words, at, I64(1), N, acc)
            store_spread(words, at, I64(1), transform(row_values, N, REAL, "out 0"), 1)
        # the threads of a tile are in one warp
        cuda.syncwarp()
        at = I64(own + lane)
        re, im = load_apart(words, at, I64(LD), N, acc), load_apart(words, at + HALF, I64(LD), N, acc)
        z = transform(re + im, BOTH, COMPLEX, "out 0")
        store_spread(words, at, I64(LD), z[:N], 1)
        store_spread(words, at + HALF, I64(LD), z[N:], 1)
        barrier()
        g, k = place(U32(t))
        if I32(first_item + g) < items:
            at, down = at_dest[g] + I64(k) * to_pair, HALF * to_pair
            # the columns of slots 0 and N / 2, which lie as one complex column z: a = (z[k] + conj(z[-k])) / 2
            here = I64(g * ROOM + k * LD)
            mirror = I64(g * ROOM + (HALF if k == 0 else N - k) * LD)
            z_re, z_im, y_re, y_im = words[here], words[here + HALF], words[mirror], words[mirror + HALF]
            if k == 0:
                put_real(dest, at, deep, wide, z_re, y_re)
                put_real(dest, at + down, deep, wide, z_im, y_im)
            else:
                half = S(0.5)
                put(dest, at, deep, wide, (z_re + y_re) * half, (z_im - y_im) * half)
                put(dest, at + down, deep, wide, (z_im + y_im) * half, (y_re - z_re) * half)
            for column in range(1, HALF):
                for part in range(2):
                    place_of = here + (part * HALF * LD + column)
                    at_pair = at + (2 * column + part) * down
                    put(dest, at_pair, deep, wide, words[place_of], words[place_of + HALF])

    return conv_fft_spectra


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_spectra, ("f32", "f32", 16, "four", "plain", "tiles", "pixels"), ("FFMA", "LDG.E", "LDS", "STG.E")),
    (make_spectra, ("bf16", "f32", 32, "three", "plain", "channels", "items"), ("FFMA", "LDG.E.U16", "STG.E")),
    (make_spectra, ("f32", "f32", 32, "four", "wide", "tiles", "pixels"), ("FFMA", "LDG.E", "LDS", "STG.E")),
    (make_spectra, ("f64", "f64", 32, "three", "wide", "channels", "pixels"), ("DFMA", "LDG.E.64", "STG.E.64")),
]
