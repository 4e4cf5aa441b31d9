"""Attention's two products by wgmma, of the tiles of tiles.py: four warps multiply 64 rows together.

Neither q nor k nor v passes through registers: descriptors say where their tiles lie, and v's is turned by wgmma.  The
exponentials are the left operand of the second product, in registers, as with mma.sync.  The loop of a warp, 64 keys
and 64 elements a row, is 8 wgmma for 64 mma and 32 ldmatrix.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.attention.tiles import ROW
from numbaprims.gpu.device.memory import elements_of, pack_halves, repeat, set_elements
from numbaprims.gpu.device.mma import wgmma, wgmma_begin, wgmma_commit, wgmma_descriptor, wgmma_wait
from numbaprims.gpu.jit import cuda, device_function, types

F32, I32, U32 = types.float32, types.int32, types.uint32
GROUP = 8 * ROW
"""Bytes of the eight rows in which the swizzle repeats."""
TURNED = 16 * ROW
"""Bytes of 16 rows, which one wgmma takes of a turned tile."""


@functools.cache
def make_start(dtype: str, tiles: int, steps: int, left_rows: int, right_rows: int) -> Any:
    """start(left, right): what `wgmma_wait` makes left right^T of, over 16 `steps` columns of both."""
    left_box, right_box, SUMS = left_rows * ROW, right_rows * ROW, 4 * tiles

    @device_function
    def start(left, right):  # type: ignore[no-untyped-def]
        sums, _ = wgmma_begin(repeat(F32(0.0), SUMS), (left,))
        for step in range(steps):
            a = wgmma_descriptor(U32(left + U32((step >> 2) * left_box + (step & 3) * 32)), GROUP, GROUP)
            b = wgmma_descriptor(U32(right + U32((step >> 2) * right_box + (step & 3) * 32)), GROUP, GROUP)
            sums = wgmma(sums, a, b, I32(step), dtype, dtype, 0, 0)
        wgmma_commit()
        return sums

    return start


@functools.cache
def make_scores(start: Any) -> Any:
    """scores(total, words, left, right): total = left right^T; `words` idle."""

    @device_function
    def scores(total, words, left, right):  # type: ignore[no-untyped-def]
        set_elements(total, 0, wgmma_wait(start(left, right), 0))

    return scores


@functools.cache
def make_gather(dtype: str, tiles: int, steps: int, rows: int) -> Any:
    """gather(total, weights, right): total += weights right, over 16 `steps` rows of the right tile, `tiles` times 8 of
    its columns; `weights` are scores, rounded as they are used."""
    box, SUMS, WORDS = rows * ROW, 4 * tiles, 4 * steps

    @device_function
    def gather(total, weights, right):  # type: ignore[no-untyped-def]
        words = cuda.local.array(WORDS, U32)
        for w in range(WORDS):
            words[w] = pack_halves(weights[2 * w], weights[2 * w + 1], dtype)
        sums, lefts = wgmma_begin(elements_of(total, 0, SUMS), elements_of(words, 0, WORDS))
        for step in range(steps):
            a = (lefts[4 * step], lefts[4 * step + 1], lefts[4 * step + 2], lefts[4 * step + 3])
            b = wgmma_descriptor(U32(right + U32(step * TURNED)), box, GROUP)
            sums = wgmma(sums, a, b, 1, dtype, dtype, 0, 1)
        wgmma_commit()
        set_elements(total, 0, wgmma_wait(sums, 0))

    return gather
