"""Range kernels over contiguous elements, one for each kind, direction and type.

A tile is a run of `tile` elements; [lo, hi) is one longer run.  A step is `W` lanes, several registers wide:
their instructions stand side by side, so that the latency of one register's arithmetic hides behind the
others'.
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
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import load_wide, load_wide_first, store_narrow, store_narrow_first


@functools.cache
def make_forward(kind: str, dtype: str, W: int) -> RangeKernel:
    """out = f(x)"""

    @range_kernel("activation_forward", ARGS.types(out=dtype, x=dtype), spec=(kind, dtype, W))
    def forward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, x = args.out, args.x
        p0, p1, p2 = args.p0, args.p1, args.p2
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        while i + W <= end:
            store_narrow(out, i, forward_of(kind, load_wide(x, i, W), p0, p1, p2))
            i += W
        if i < end:
            a = load_wide_first(x, i, end - i, W)
            store_narrow_first(out, i, end - i, forward_of(kind, a, p0, p1, p2))

    return forward


@functools.cache
def make_binary(kind: str, dtype: str, W: int) -> RangeKernel:
    """out = f(x, weight) for prelu, f(x, gate) for glu"""
    gated = kind == "glu"

    @range_kernel("activation_binary", ARGS.types(out=dtype, x=dtype, weight=dtype, gate=dtype), spec=(kind, dtype, W))
    def binary(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, x = args.out, args.x
        other = args.gate if gated else args.weight
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        while i + W <= end:
            store_narrow(out, i, binary_of(kind, load_wide(x, i, W), load_wide(other, i, W)))
            i += W
        if i < end:
            a, b = load_wide_first(x, i, end - i, W), load_wide_first(other, i, end - i, W)
            store_narrow_first(out, i, end - i, binary_of(kind, a, b))

    return binary


@functools.cache
def make_backward(kind: str, dtype: str, W: int, reads: str) -> RangeKernel:
    """out = dx from dy and from what `reads` names: x, y, or nothing"""
    reads_x, reads_y = reads == "x", reads == "y"

    @range_kernel(
        "activation_backward", ARGS.types(out=dtype, dy=dtype, x=dtype, y=dtype), spec=(kind, dtype, W, reads)
    )
    def backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, dy = args.out, args.dy
        saved = args.x if reads_x else args.y if reads_y else args.dy
        p0, p1, p2 = args.p0, args.p1, args.p2
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        while i + W <= end:
            a, b = load_wide(dy, i, W), load_wide(saved, i, W)
            store_narrow(out, i, backward_of(kind, a, b, p0, p1, p2))
            i += W
        if i < end:
            a, b = load_wide_first(dy, i, end - i, W), load_wide_first(saved, i, end - i, W)
            store_narrow_first(out, i, end - i, backward_of(kind, a, b, p0, p1, p2))

    return backward


@functools.cache
def make_prelu_backward(dtype: str, W: int) -> RangeKernel:
    """out = dx from dy, x and the slope of each element"""

    @range_kernel("activation_prelu_backward", ARGS.types(out=dtype, dy=dtype, x=dtype, weight=dtype), spec=(dtype, W))
    def prelu_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, dy, x, weight = args.out, args.dy, args.x, args.weight
        i = lo * args.tile
        end = min(hi * args.tile, args.n)
        while i + W <= end:
            a, b = load_wide(dy, i, W), load_wide(x, i, W)
            store_narrow(out, i, prelu_backward_of(a, b, load_wide(weight, i, W)))
            i += W
        if i < end:
            rest = end - i
            a, b = load_wide_first(dy, i, rest, W), load_wide_first(x, i, rest, W)
            store_narrow_first(out, i, rest, prelu_backward_of(a, b, load_wide_first(weight, i, rest, W)))

    return prelu_backward


@functools.cache
def make_glu_backward(dtype: str, W: int) -> RangeKernel:
    """out, dgate = the two halves of dx from dy and the two halves of x"""
    types = ARGS.types(out=dtype, dgate=dtype, dy=dtype, x=dtype, gate=dtype)

    @range_kernel("activation_glu_backward", types, spec=(dtype, W))
    def glu_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, dgate, dy, x, gate = args.out, args.dgate, args.dy, args.x, args.gate
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
