"""Where a thread's result lies, which elements its window has, and which windows have an element: in 32 or 64 bits."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import block_index, device_function, thread_index, types

THREADS = 256


class Geometry(NamedTuple):
    """Device functions over indices of one size."""

    index: Any
    result: Any
    split: Any
    window: Any
    taps: Any
    covering: Any
    offset: Any


@functools.cache
def geometry(wide: bool) -> Geometry:
    """The functions, with indices of int64 if `wide`, else of int32."""
    I, U = (types.int64, types.uint64) if wide else (types.int32, types.uint32)  # noqa: E741

    @device_function
    def ratio(a, b):  # type: ignore[no-untyped-def]
        # of numbers that are not negative, rounded down
        return I(quotient(U(a), U(b)))

    @device_function
    def ratio_up(a, b):  # type: ignore[no-untyped-def]
        return I(quotient(U(I(max(I(a), I(0))) + b - 1), U(b)))

    @device_function
    def split(number, channels, n0, n1, n2, V, last, rank):  # type: ignore[no-untyped-def]
        """(batch, channel, z, y, x) of a result by its number; `channels` are packs of V, innermost if `last`."""
        rest, c, z, y = number, I(0), I(0), I(0)
        if last:
            rest = ratio(number, channels)
            c = I((number - rest * channels) * V)
        before = rest
        rest = ratio(before, n2)
        x = I(before - rest * n2)
        if rank > 1:
            row = rest
            rest = ratio(row, n1)
            y = I(row - rest * n1)
        if rank > 2:
            plane = rest
            rest = ratio(plane, n0)
            z = I(plane - rest * n0)
        if not last:
            image = rest
            rest = ratio(image, channels)
            c = I((image - rest * channels) * V)
        return rest, c, z, y, x

    @device_function
    def result():  # type: ignore[no-untyped-def]
        """The number of this thread's result."""
        return I(I(block_index()) * THREADS + I(thread_index()))

    @device_function
    def window(o, size, out, kernel, stride, before, dilation, adaptive, dilated):  # type: ignore[no-untyped-def]
        """(start, first, end): window o begins at `start`, and its taps first ... end - 1 lie inside."""
        if adaptive:
            start = ratio(o * size, out)
            first, end = I(0), I(ratio_up((o + 1) * size, out) - start)
        else:
            start = I(o * stride - before)
            if dilated:
                first = ratio_up(-start, dilation)
                end = I(min(kernel, ratio_up(size - start, dilation)))
            else:
                first = I(max(I(-start), I(0)))
                end = I(min(kernel, I(size - start)))
        return start, first, end

    @device_function
    def taps(place, kernel, dilation, limit, adaptive, dilated, padded):  # type: ignore[no-untyped-def]
        """How many taps of a window count in its mean: those inside, or those before `limit` if `padded`."""
        start, first, end = place
        count = I(end - first)
        if padded and not adaptive:
            if dilated:
                count = I(min(kernel, ratio_up(limit - start, dilation)))
            else:
                count = I(min(kernel, I(limit - start)))
        return count

    @device_function
    def covering(at, size, out, kernel, stride, before, dilation, adaptive):  # type: ignore[no-untyped-def]
        """(first, end): the windows first ... end - 1 reach over place `at` (with gaps, if they are dilated)."""
        if adaptive:
            first = ratio(at * out, size)
            end = ratio_up((at + 1) * out, size)
        else:
            first = ratio_up(at + before - (kernel - 1) * dilation, stride)
            end = I(min(out, I(ratio(at + before, stride) + 1)))
        return first, end

    @device_function
    def offset(n, c, z, y, x, sn, sc, sz, sy, sx):  # type: ignore[no-untyped-def]
        """The element's offset."""
        return I(n * sn + c * sc + z * sz + y * sy + x * sx)

    return Geometry(I, result, split, window, taps, covering, offset)
