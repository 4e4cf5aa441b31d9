"""The gradient of prelu's weight: dweight[c] = sum of x dy over the elements of channel c with x <= 0.

The elements of a channel are cut into chunks that depend on the problem only; one phase sums chunks into the
workspace, the next adds the sums of a channel up in their order.  So the bits don't depend on the number of
threads.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbaprims.cpu.activation.arguments import ARGS
from numbaprims.cpu.activation.plan import LOOPS, loop_at, make_plan, store_addresses, store_bases
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    extract,
    load_wide,
    load_wide_first,
    load_wide_scalar,
    load_word,
    pointer_from_address,
    reduce_add,
    scalar,
    select,
    splat,
    stack_words,
    store_first,
    store_narrow_scalar,
    store_scalar,
    zeros,
)

# Elements of a chunk: some 5 us.
CHUNK = 16384
# Elements of a channel that make a chunk where channels lie side by side.
DEPTH = 512


def plan_channels(problem: Any, layout: str) -> tuple[np.ndarray, int]:
    """(plan, elements of a channel): the channels outermost, or innermost where they lie side by side."""
    shape, strides, offsets = problem.loops
    if layout == "channels":
        shape = (*shape[1:], shape[0])
        strides = tuple((*steps[1:], steps[0]) for steps in strides)
    return make_plan(problem.operands, shape, strides, offsets), problem.n // problem.loops.shape[0]


@helper
def _term(dy, x):  # type: ignore[no-untyped-def]
    """What one element adds."""
    return select(x > 0.0, 0.0, x * dy)


@functools.cache
def make_rows_sums(dtype: str, compute: str, size: int, W: int, vectors: bool) -> RangeKernel:
    """workspace[chunk, channel] = sum of a chunk of a channel; `vectors`: its innermost loop is contiguous.

    A tile is one chunk of one channel.
    """

    @range_kernel(
        "activation_prelu_rows",
        ARGS.types(dy=dtype, x=dtype, workspace=compute),
        spec=(dtype, compute, size, W, vectors),
    )
    def rows_sums(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = args.plan
        loops = load_word(plan, LOOPS)
        inner = loop_at(plan, loops - 1)
        channels, length = load_word(loop_at(plan, 0), 0), load_word(inner, 0)
        step_dy, step_x = load_word(inner, 2), load_word(inner, 3)
        chunks = (args.n + args.tile - 1) // args.tile
        bases, addresses = stack_words(8), stack_words(8)
        store_bases(args, plan, bases, size)
        for tile in range(lo, hi):
            channel, chunk = tile // chunks, tile % chunks
            i = chunk * args.tile
            end = min(i + args.tile, args.n)
            total = zeros(compute, W)
            while i < end:
                row, begin = i // length, i % length
                m = min(length - begin, end - i)
                store_addresses(plan, bases, addresses, size, channel * (args.n // length) + row, loops - 1)
                dy = pointer_from_address(load_word(addresses, 1) + size * begin * step_dy, dtype)
                x = pointer_from_address(load_word(addresses, 2) + size * begin * step_x, dtype)
                if vectors:
                    j = 0
                    while j + W <= m:
                        total += _term(load_wide(dy, j, W), load_wide(x, j, W))
                        j += W
                    if j < m:
                        total += _term(load_wide_first(dy, j, m - j, W), load_wide_first(x, j, m - j, W))
                else:
                    for j in range(m):
                        a = splat(load_wide_scalar(dy, j * step_dy), W)
                        total += _term(a, splat(load_wide_scalar(x, j * step_x), W))
                i += m
            value = reduce_add(total) if vectors else extract(total, 0)
            store_scalar(args.workspace, chunk * channels + channel, value)

    return rows_sums


@functools.cache
def make_channels_sums(dtype: str, compute: str, size: int, W: int) -> RangeKernel:
    """The same sums where channels lie side by side.  A tile is one chunk of W channels."""

    @range_kernel(
        "activation_prelu_channels",
        ARGS.types(dy=dtype, x=dtype, workspace=compute),
        spec=(dtype, compute, size, W),
    )
    def channels_sums(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = args.plan
        loops = load_word(plan, LOOPS)
        channels = load_word(loop_at(plan, loops - 1), 0)
        blocks = (channels + W - 1) // W
        bases, addresses = stack_words(8), stack_words(8)
        store_bases(args, plan, bases, size)
        for tile in range(lo, hi):
            chunk, first = tile // blocks, tile % blocks * W
            count = min(W, channels - first)
            total = zeros(compute, W)
            for i in range(chunk * args.tile, min((chunk + 1) * args.tile, args.n)):
                store_addresses(plan, bases, addresses, size, i, loops - 1)
                dy = pointer_from_address(load_word(addresses, 1) + size * first, dtype)
                x = pointer_from_address(load_word(addresses, 2) + size * first, dtype)
                if count == W:
                    total += _term(load_wide(dy, 0, W), load_wide(x, 0, W))
                else:
                    total += _term(load_wide_first(dy, 0, count, W), load_wide_first(x, 0, count, W))
            store_first(args.workspace, chunk * channels + first, count, total)

    return channels_sums


@functools.cache
def make_combine(dtype: str, compute: str) -> RangeKernel:
    """out[channel] = the sum of its chunks' sums, in float64 and in their order.  A tile is one channel."""

    @range_kernel("activation_prelu_combine", ARGS.types(out=dtype, workspace=compute), spec=(dtype, compute))
    def combine(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        chunks = (args.n + args.tile - 1) // args.tile
        for channel in range(lo, hi):
            total = 0.0
            for chunk in range(chunks):
                total += load_wide_scalar(args.workspace, chunk * args.channels + channel)
            store_narrow_scalar(args.out, channel, scalar(total, compute))

    return combine
