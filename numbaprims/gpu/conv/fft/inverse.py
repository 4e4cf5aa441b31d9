"""From the spectra of a result's tiles to the result: the way back, and the end that all products share.

Of the N x N values of a tile the first part_h x part_w are results, which no window wrapped around.  Bound: 2 (3) words
of a pair are read, and the results are written.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims import fourier
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import common_types, pointer
from numbaprims.gpu.conv.fft.tile import DECODE, corner, make_lanes, residents, room_of, threads_of, tiles_of
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.memory import REGISTER, advance, opaque
from numbaprims.gpu.device.packs import load_apart
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.transforms import store_spread, transform
from numbaprims.gpu.gemm.epilogue import make_finish
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
"""Pairs whose loads are under way together."""
#: Names of the integers behind the common parameters and the products: int32, then int64 in elements.  `inner`, `first`
#: and `deep` are those of spectra.py; an image is a plane of `planes`; `size_*` are the result's, `o_*` and `c_*` steps
#: of the result and of c.
SIZES = "items, inner, first, tiles_h, tiles_w, part_h, part_w, size_h, size_w, planes".split(", ")
STEPS = (
    "from_pair, from_group, from_channel, from_tile, deep, "
    "o_group, o_n, o_c, o_d, o_h, o_w, c_group, c_n, c_c, c_d, c_h, c_w, bias_group"
).split(", ")


@functools.cache
def make_get(form: str) -> Any:
    """A device function get(products, at, deep): the real and the imaginary part of a pair."""

    @device_function
    def four(products, at, deep):  # type: ignore[no-untyped-def]
        return products[at], products[at + deep]

    @device_function
    def three(products, at, deep):  # type: ignore[no-untyped-def]
        first = products[at]
        return first - products[at + 2 * deep], first + products[at + deep]

    return {"four": four, "three": three}[form]


@functools.cache
def make_inverse(
    first: str, out_dtype: str, n: int, form: str, order: str, lanes: str, activation: str
) -> GpuKernel:  # fmt: skip
    """G items a block, as in spectra.py; `lanes` says whether threads that store are neighbours in a row's "pixels" or
    in the "items"."""
    acc = DTYPES[first].accumulate
    S = REGISTER[acc]
    N, HALF, BOTH, LD, ROOM = n, n // 2, 2 * n, n + 1, room_of(n)
    G, THREADS = tiles_of(acc, n), threads_of(acc, n)
    WORDS, BATCHES = G * ROOM, n // BATCH
    REAL, COMPLEX = fourier.real_backward(n), fourier.complex_backward(n)
    decode, place, get = DECODE[order], make_lanes(G), make_get(form)
    finish = make_finish(first, out_dtype, acc, activation, 1)

    @device_function
    def by_pixels(t, half):  # type: ignore[no-untyped-def]
        # rows of neighbouring tiles lie behind one another
        return I32(quotient(U32(t), U32(N)) + half * (G // 2)), I32(t % U32(N))

    @device_function
    def by_items(t, half):  # type: ignore[no-untyped-def]
        return I32(t % U32(G)), I32(quotient(U32(t), U32(G)) + half * HALF)

    # (tile, column) of a thread, in two halves
    element = by_pixels if lanes == "pixels" else by_items
    signature = types.void(
        *common_types(first, first, out_dtype), pointer(acc), *(types.int32,) * len(SIZES),
        *(types.int64,) * len(STEPS),
    )  # fmt: skip

    @gpu_kernel(
        "conv_fft_inverse", signature, spec=(first, out_dtype, n, form, order, lanes, activation), threads=THREADS,
        blocks_per_sm=residents(acc, n),
    )  # fmt: skip
    def conv_fft_inverse(  # type: ignore[no-untyped-def]
        out, unused_x, unused_w, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        products, items, inner, first_tile, tiles_h, tiles_w, part_h, part_w, size_h, size_w, planes,
        from_pair, from_group, from_channel, from_tile, deep,
        o_group, o_n, o_c, o_d, o_h, o_w, c_group, c_n, c_c, c_d, c_h, c_w, bias_group,
    ):  # fmt: skip
        words = shared_array(WORDS, S)
        at_out, at_c, channels = shared_array(G, I64), shared_array(G, I64), shared_array(G, I32)
        rows, columns = shared_array(G, I32), shared_array(G, I32)
        x, re, im = cuda.local.array(1, S), cuda.local.array(BATCH, S), cuda.local.array(BATCH, S)
        t = I32(thread_index())
        first_item = I32(block_index() * U32(G))
        group = I64(block_index_y())
        products = advance(products, group * from_group)
        bias = advance(bias, group * bias_group)
        if t < G:
            item = I32(first_item + t)
            # how many rows and columns of the tile are results
            rows[t], columns[t] = I32(0), I32(0)
            if item < items:
                channel, tile = decode(item, inner)
                image, row, column = corner(I32(tile + first_tile), tiles_h, tiles_w, part_h, part_w)
                n = quotient(U32(image), U32(planes))
                plane = I64(U32(image) - n * U32(planes))
                at = group * o_group + I64(n) * o_n + I64(channel) * o_c + plane * o_d
                of_c = group * c_group + I64(n) * c_n + I64(channel) * c_c + plane * c_d
                at_out[t], at_c[t] = at + I64(row) * o_h + I64(column) * o_w, of_c + I64(row) * c_h + I64(column) * c_w
                channels[t] = channel
                rows[t], columns[t] = I32(min(size_h - row, part_h)), I32(min(size_w - column, part_w))
        g, k = place(U32(t))
        item = I32(first_item + g)
        if item < items:
            channel, tile = decode(item, inner)
            down = HALF * from_pair
            at = I64(channel) * from_channel + I64(tile) * from_tile + I64(k) * from_pair
            here = I64(g * ROOM + k * LD)
            for batch in range(BATCHES):
                # the loads of a batch are under way together
                for u in range(BATCH):
                    re[u], im[u] = get(products, at + (batch * BATCH + u) * down, deep)
                for u in range(BATCH):
                    column, part = (batch * BATCH + u) // 2, u % 2
                    if column > 0:
                        place_of = here + (part * HALF * LD + column)
                        words[place_of], words[place_of + HALF] = re[u], im[u]
                if batch == 0:
                    # the columns of slots 0 and N / 2, a and b, as one complex column a + i b
                    mirror = I64(g * ROOM + (HALF if k == 0 else N - k) * LD)
                    if k == 0:
                        words[here], words[here + HALF] = re[0], re[1]
                        words[mirror], words[mirror + HALF] = im[0], im[1]
                    else:
                        words[here], words[here + HALF] = re[0] - im[1], im[0] + re[1]
                        words[mirror], words[mirror + HALF] = re[0] + im[1], re[1] - im[0]
        else:
            here = I64(g * ROOM + k * LD)
            for column in range(N):
                words[here + column], words[here + (HALF * LD + column)] = S(0), S(0)
        barrier()
        own, lane = I32(I32(t // HALF) * ROOM), I32(t % HALF)
        at = I64(own + lane)
        z_re, z_im = load_apart(words, at, I64(LD), N, acc), load_apart(words, at + HALF, I64(LD), N, acc)
        z = transform(z_re + z_im, BOTH, COMPLEX, "out 0")
        store_spread(words, at, I64(LD), z[:N], 1)
        store_spread(words, at + HALF, I64(LD), z[N:], 1)
        # the threads of a tile are in one warp
        cuda.syncwarp()
        for second in range(2):
            row = I32(lane + second * HALF)
            if row < part_h:
                at = I64(own + row * LD)
                row_values = load_apart(words, at, I64(1), N, acc)
                store_spread(words, at, I64(1), transform(row_values, N, REAL, "out 0"), 1)
        barrier()
        half = I32(0)
        while half < 2:
            g, j = element(U32(t), half)
            if j < columns[g]:
                at, of_c = at_out[g] + I64(j) * o_w, at_c[g] + I64(j) * c_w
                place_of, channel = I64(g * ROOM + j), channels[g]
                # a row at a time: unrolled, the end would stand there four times
                i = I32(0)
                while i < rows[g]:
                    x[0] = words[place_of + I64(i) * LD]
                    finish(
                        x, channel, I32(0), advance(out, at), advance(c, of_c), bias, I32(1),
                        I64(0), I64(0), I64(0), I64(0), bias_step, has_c, I32(2) if has_bias != 0 else I32(0), code,
                        I32(0), alpha, beta, p0, p1, p2,
                    )  # fmt: skip
                    at, of_c, i = at + o_h, of_c + c_h, opaque(I32(i + 1))
            half = I32(half + 1)

    return conv_fft_inverse


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_inverse, ("f32", "f32", 16, "four", "tiles", "pixels", "switch"), ("FFMA", "LDG.E", "LDS", "STG.E")),
    (make_inverse, ("f32", "f32", 32, "three", "channels", "items", "gelu"), ("FFMA", "LDG.E", "LDS", "STG.E")),
    (make_inverse, ("f16", "f16", 32, "four", "tiles", "pixels", "switch"), ("FFMA", "LDG.E", "STG.E.U16")),
    (make_inverse, ("f64", "f64", 16, "three", "channels", "items", "switch"), ("DFMA", "LDG.E.64", "STG.E.64")),
]
