"""Range kernels over contiguous elements, one for each kind, direction and type.

A tile is a run of `tile` elements; [lo, hi) is one longer run.  A step is `W` lanes, several registers wide:
their instructions stand side by side, so that the latency of one register's arithmetic hides behind the
others'.

`streaming` is for results beyond the caches.  A plain store reads the line that it will overwrite, a third of
the traffic of y = f(x); a streaming store does not, but needs whole lines.  So a run begins with the elements
up to a line of `out`, or where a step is shorter than a line (f16 with AVX2) to a multiple of the step.  The
stores stand in the loop that computes, because there the arithmetic of some steps runs while memory moves the
others: a kernel that first computes 8 KiB into the first-level cache and then writes them past it reached 60 to
75 % of a copy, this one 94 to 99 %.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.activation.arguments import ARGS
from numbaprims.cpu.activation.dispatch import (
    backward_of,
    binary_of,
    forward_of,
    glu_backward_of,
    prelu_backward_of,
)
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    load_wide,
    load_wide_first,
    narrow,
    prefetch,
    store_narrow,
    store_narrow_first,
    store_stream,
    stream_fence,
)
from numbaprims.dtypes import DTYPES

# Bytes of a cache line, and how far ahead of a step streaming kernels ask for theirs: the processor's own
# prefetching ends at each page, and without this the costlier kinds reach 76 % of a copy instead of 96 %.
LINE, FAR = 64, 4096


@helper
def _put(out, i, value, dtype, streaming):  # type: ignore[no-untyped-def]
    """Write a step's result."""
    if streaming:
        store_stream(out, i, narrow(value, dtype))
    else:
        store_narrow(out, i, value)


@helper
def _ahead(source, i, size, W, streaming):  # type: ignore[no-untyped-def]
    """Ask for the lines of a later step."""
    if streaming:
        for k in range(0, W, LINE // size):
            prefetch(source, i + FAR // size + k, 3)


@helper
def _to_line(out, i, most, size, W, streaming):  # type: ignore[no-untyped-def]
    """How many elements, at most `most` and fewer than a step, come before streaming stores can begin."""
    return min((-(address_of(out) // size) - i) % min(LINE // size, W), most) if streaming else 0


@functools.cache
def make_forward(kind: str, dtype: str, W: int, streaming: bool = False) -> RangeKernel:
    """out = f(x)"""
    size = DTYPES[dtype].itemsize

    @range_kernel("activation_forward", ARGS.types(out=dtype, x=dtype), spec=(kind, dtype, W, streaming))
    def forward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, x = args.out, args.x
        p0, p1, p2 = args.p0, args.p1, args.p2
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        part = _to_line(out, i, end - i, size, W, streaming)
        while i < end:
            if part > 0:
                store_narrow_first(out, i, part, forward_of(kind, load_wide_first(x, i, part, W), p0, p1, p2))
                i += part
            while i + W <= end:
                _ahead(x, i, size, W, streaming)
                _put(out, i, forward_of(kind, load_wide(x, i, W), p0, p1, p2), dtype, streaming)
                i += W
            part = end - i
        if streaming:
            stream_fence()

    return forward


@functools.cache
def make_binary(kind: str, dtype: str, W: int, streaming: bool = False) -> RangeKernel:
    """out = f(x, weight) for prelu, f(x, gate) for glu"""
    gated, size = kind == "glu", DTYPES[dtype].itemsize
    types = ARGS.types(out=dtype, x=dtype, weight=dtype, gate=dtype)

    @range_kernel("activation_binary", types, spec=(kind, dtype, W, streaming))
    def binary(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, x = args.out, args.x
        other = advance(args.gate, args.half) if gated else args.weight
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        part = _to_line(out, i, end - i, size, W, streaming)
        while i < end:
            if part > 0:
                a, b = load_wide_first(x, i, part, W), load_wide_first(other, i, part, W)
                store_narrow_first(out, i, part, binary_of(kind, a, b))
                i += part
            while i + W <= end:
                _ahead(x, i, size, W, streaming)
                _ahead(other, i, size, W, streaming)
                _put(out, i, binary_of(kind, load_wide(x, i, W), load_wide(other, i, W)), dtype, streaming)
                i += W
            part = end - i
        if streaming:
            stream_fence()

    return binary


@functools.cache
def make_backward(kind: str, dtype: str, W: int, reads: str, streaming: bool = False) -> RangeKernel:
    """out = dx from dy and from what `reads` names: x, y, or nothing"""
    reads_x, reads_y, size = reads == "x", reads == "y", DTYPES[dtype].itemsize
    types = ARGS.types(out=dtype, dy=dtype, x=dtype, y=dtype)

    @range_kernel("activation_backward", types, spec=(kind, dtype, W, reads, streaming))
    def backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, dy = args.out, args.dy
        saved = args.x if reads_x else args.y if reads_y else args.dy
        p0, p1, p2 = args.p0, args.p1, args.p2
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        part = _to_line(out, i, end - i, size, W, streaming)
        while i < end:
            if part > 0:
                a, b = load_wide_first(dy, i, part, W), load_wide_first(saved, i, part, W)
                store_narrow_first(out, i, part, backward_of(kind, a, b, p0, p1, p2))
                i += part
            while i + W <= end:
                _ahead(dy, i, size, W, streaming)
                _ahead(saved, i, size, W, streaming)
                a, b = load_wide(dy, i, W), load_wide(saved, i, W)
                _put(out, i, backward_of(kind, a, b, p0, p1, p2), dtype, streaming)
                i += W
            part = end - i
        if streaming:
            stream_fence()

    return backward


@functools.cache
def make_prelu_backward(dtype: str, W: int, streaming: bool = False) -> RangeKernel:
    """out = dx from dy, x and the slope of each element"""
    size = DTYPES[dtype].itemsize
    types = ARGS.types(out=dtype, dy=dtype, x=dtype, weight=dtype)

    @range_kernel("activation_prelu_backward", types, spec=(dtype, W, streaming))
    def prelu_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, dy, x, weight = args.out, args.dy, args.x, args.weight
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        part = _to_line(out, i, end - i, size, W, streaming)
        while i < end:
            if part > 0:
                a, b = load_wide_first(dy, i, part, W), load_wide_first(x, i, part, W)
                store_narrow_first(out, i, part, prelu_backward_of(a, b, load_wide_first(weight, i, part, W)))
                i += part
            while i + W <= end:
                _ahead(dy, i, size, W, streaming)
                _ahead(x, i, size, W, streaming)
                a, b = load_wide(dy, i, W), load_wide(x, i, W)
                _put(out, i, prelu_backward_of(a, b, load_wide(weight, i, W)), dtype, streaming)
                i += W
            part = end - i
        if streaming:
            stream_fence()

    return prelu_backward


@functools.cache
def make_glu_backward(dtype: str, W: int) -> RangeKernel:
    """out, dgate = the two halves of dx from dy and the two halves of x

    The halves need not begin at the same place of a line, so there is no streaming kernel.
    """
    types = ARGS.types(out=dtype, dgate=dtype, dy=dtype, x=dtype, gate=dtype)

    @range_kernel("activation_glu_backward", types, spec=(dtype, W))
    def glu_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, dy, x = args.out, args.dy, args.x
        dgate, gate = advance(args.dgate, args.half), advance(args.gate, args.half)
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        while i + W <= end:
            da, db = glu_backward_of(load_wide(dy, i, W), load_wide(x, i, W), load_wide(gate, i, W))
            store_narrow(out, i, da)
            store_narrow(dgate, i, db)
            i += W
        if i < end:
            rest = end - i
            a, b = load_wide_first(x, i, rest, W), load_wide_first(gate, i, rest, W)
            da, db = glu_backward_of(load_wide_first(dy, i, rest, W), a, b)
            store_narrow_first(out, i, rest, da)
            store_narrow_first(dgate, i, rest, db)

    return glu_backward
