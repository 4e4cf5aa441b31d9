"""Results beyond the caches: computed into a buffer in the first-level cache, written past the caches from
there.

A plain store reads the line that it will overwrite, a third of the traffic of y = f(x).  The detour over the
buffer costs a load and a store in the first-level cache an element, which is nothing beside memory, and
spares every kind a second kernel.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.activation.arguments import ARGS
from numbaprims.cpu.activation.plan import store_parameters
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    INT_SLOT,
    address_of,
    call_range,
    load,
    pointer_from_address,
    stack_words,
    store_stream,
    store_word,
    stream_fence,
)

# Bytes of the buffer: with as much of each input it fits the smallest first-level cache, of 32 KiB.
BUFFER = 8192


@functools.cache
def make_stream(size: int, W: int) -> RangeKernel:
    """Contiguous elements of `size` bytes through the kernel at `args.compute`; W bytes a store."""
    step = BUFFER // size
    words = BUFFER // 8
    lanes = W // 8

    @range_kernel("activation_stream", ARGS.types(), spec=(size, W, step))
    def stream(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        block = stack_words(80)
        buffer = stack_words(words)
        store_parameters(args, block)
        out, x, dy, y = address_of(args.out), address_of(args.x), address_of(args.dy), address_of(args.y)
        store_word(block, 0, buffer)
        source = pointer_from_address(buffer, "f64")
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        while i < end:
            target = out + i * size
            # the first step of a tile ends at a multiple of W bytes, where streaming stores may begin
            ahead = (W - target % W) % W // size
            n = min(ahead if ahead else step, end - i)
            aligned = ahead == 0 and n == step
            store_word(block, 0, buffer if aligned else target)
            store_word(block, 1, x + i * size)
            store_word(block, 2, dy + i * size)
            store_word(block, 3, y + i * size)
            store_word(block, INT_SLOT, n)
            store_word(block, INT_SLOT + 1, n)
            call_range(args.compute, block, worker, 0, 1)
            if aligned:
                to = pointer_from_address(target, "f64")
                for j in range(0, words, lanes):
                    store_stream(to, j, load(source, j, lanes))
            i += n
        stream_fence()

    return stream
