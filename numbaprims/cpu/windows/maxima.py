"""The gradient of a maximum whose windows move by an element, from x alone: a row after the other.

The first of the largest elements of a window is the first of its row, in the first row whose largest is that of all.
So there are two steps that are alike: the largest of each row's windows, and where it is, from the elements beside it;
then, from the rows' maxima above and below, what of dy a row gets, which goes to where its maxima are.  No places, and
all of it in registers and a few rows.  Elements are compared as integers in the order of floats, in which every NaN is
the same and the largest.

A vector is a part of a row of a plane, whose neighbours are shuffled together from the vectors beside it, or channels
of a pixel, whose neighbours are other vectors.  Pixels are walked in the order of memory, a row of all blocks of
channels before the next row: a block alone reads lines that lie apart, each of which waits for the memory.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import advance, cast_pointer, zeros
from numbaprims.cpu.simd.convert import load_wide_value, store_narrow_value
from numbaprims.cpu.simd.emit import constant, element_at, first_lanes_value, llvm_vector, load_value, store_value
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.loops import keep_rolled_value, once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.windows.arguments import ARGS
from numbaprims.cpu.windows.planes import fill
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.value import at_least, at_most, select

#: Rows and columns of a window, at most.
MOST = 5


def ring_rows(high: int) -> int:
    """Rows of a ring, a power of two: as many as a row's windows reach up and down."""
    return 1 << (2 * high - 2).bit_length()


class _Rows(abc.ABC):
    """What the steps have in common: vectors of a row one after another, each with its neighbours."""

    def __init__(self, builder: Any, vector: Any) -> None:
        self.b, self.vector, self.W = builder, vector, vector.count
        self.bits = 64 if str(vector.element) == "double" else 32
        self.keys = llvm_vector(f"i{self.bits}", self.W)
        self.least = self.number(-(1 << (self.bits - 1)))

    def number(self, n: int) -> Any:
        """The same in all lanes."""
        return constant(self.keys, n)

    def key(self, x: Any) -> Any:
        """Elements as integers in their order: of NaN the largest, of both zeros one."""
        b, most = self.b, self.number((1 << (self.bits - 1)) - 1)
        plain = b.bitcast(b.fadd(x, constant(self.vector, 0.0)), self.keys)
        ordered = b.xor(plain, b.and_(b.ashr(plain, self.number(self.bits - 1)), most))
        return b.select(b.fcmp_unordered("uno", x, x), most, ordered)

    @abc.abstractmethod
    def at(self, j: Value, step: Any) -> Any:
        """Where vector j of a row lies, elements or pixels being `step` apart."""

    @abc.abstractmethod
    def mask(self, size: Value, j: Value, whole: bool) -> Any:
        """The lanes of vector j that a row of `size` elements has; None for all."""

    @abc.abstractmethod
    def walk(
        self, size: Value, used: Value, reach: range, none: list[Any], made: Callable[[Any, bool], list[Any]],
        use: Callable[..., None],
    ) -> None:  # fmt: skip
        """`use(j, beside, whole)` for every vector of a row of `used` elements.

        `made(j, whole)` gives values of vector j of a row of `size` elements, `none` stands for them outside;
        `beside(k, d)` is the k-th of them, d elements further, for d in `reach`.
        """


class _Planes(_Rows):
    """A vector is a part of a row."""

    def at(self, j: Value, step: Any) -> Any:
        return j

    def mask(self, size: Value, j: Value, whole: bool) -> Any:
        return None if whole else first_lanes_value(self.b, size - j, self.W)

    def _beside(self, before: Any, here: Any, behind: Any, d: int) -> Any:
        """The elements d further."""
        if not d:
            return here
        pair = (here, behind) if d > 0 else (before, here)
        first = d if d > 0 else self.W + d
        return shuffle_value(self.b, *pair, list(range(first, first + self.W)))

    def walk(
        self, size: Value, used: Value, reach: range, none: list[Any], made: Callable[[Any, bool], list[Any]],
        use: Callable[..., None],
    ) -> None:  # fmt: skip
        b, W, count = self.b, self.W, len(none)
        vectors, full = (at_least(size, used) + (W - 1)) // W, at_most(size, used) // W

        def take(state: list[Any], behind: list[Any], whole: bool) -> None:
            use(state[0], lambda k, d: self._beside(state[1 + k], state[1 + count + k], behind[k], d), whole)

        def step(whole: bool) -> Callable[[list[Any]], list[Any]]:
            def one(state: list[Any]) -> list[Any]:
                keep_rolled_value(b)
                behind = made(state[0] + W, whole)
                take(state, behind, whole)
                return [state[0] + W, *state[1 + count :], *behind]

            return one

        zero = vectors.like(0)
        state = [zero, *none, *made(zero, False)]
        state = repeat(b, full - 1, state, step(True), "whole")
        state = repeat(b, vectors - 1 - at_least(full - 1, 0), state, step(False), "rest")
        take(state, none, False)


class _Pixels(_Rows):
    """A vector is channels of one pixel, of which all lanes are `inside`, or those of a mask."""

    def __init__(self, builder: Any, vector: Any, inside: Any) -> None:
        super().__init__(builder, vector)
        self.inside = inside

    def at(self, j: Value, step: Any) -> Any:
        return j * step

    def mask(self, size: Value, j: Value, whole: bool) -> Any:
        return self.inside

    def walk(
        self, size: Value, used: Value, reach: range, none: list[Any], made: Callable[[Any, bool], list[Any]],
        use: Callable[..., None],
    ) -> None:  # fmt: skip
        b, count = self.b, len(none)
        back, ahead = -reach[0], reach[-1]  # vectors that are carried: `back` ... `ahead` - 1 from vector j on

        def step(inside: bool) -> Callable[[list[Any]], list[Any]]:
            def one(state: list[Any]) -> list[Any]:
                keep_rolled_value(b)
                j = state[0]
                every = [*state[1:], *(made(j + ahead, True) if inside else none)]
                use(j, lambda k, d: every[(back + d) * count + k], True)
                return [j + 1, *every[count:]]

            return one

        zero = size.like(0)
        state = [zero, *none * back]
        for k in range(ahead):
            first = zero + k
            state += once(b, first < size, none, lambda _, first=first: made(first, True), "first")  # type: ignore[misc]
        within = at_least(at_most(used, size - ahead), 0)
        state = repeat(b, within, state, step(True), "pixels")
        repeat(b, used - within, state, step(False), "rest")


def _chosen(p: _Rows, here: Any, before: Sequence[Any], behind: Sequence[Any]) -> list[Any]:
    """Of the windows that an element is the t-th of, whether it is their largest; neighbours the nearest first."""
    b = p.b
    above, below = [None], [None]
    for found, others, sign in ((above, before, ">"), (below, behind, ">=")):
        for other in others:
            new = b.icmp_signed(sign, here, other)
            found.append(new if found[-1] is None else b.and_(found[-1], new))
    masks: list[Any] = []
    for one, other in zip(above, reversed(below), strict=True):
        masks.append(one if other is None else other if one is None else b.and_(one, other))
    return masks


@intrinsic(prefer_literal=True)
def give_maxima(
    typingctx, out, x, dy, nowhere, keys, taps, first, last, h, w, oh, ow, x_h, x_w, dy_h, dy_w, out_h, out_w, pitch,
    channels, nothing, KH, KW, before_h, before_w, PIXELS, FULL,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Write rows [first, last) of dx of a plane, or of all channels of an image.

    `keys` and `taps` are rings of rows, `pitch` apart, one of each block of channels: a row's maxima, and where they
    are in its windows; `nowhere` is a row of zeros, or a pixel of them.
    """
    high, wide, above, ahead = (each.literal_value for each in (KH, KW, before_h, before_w))
    pixels, full, of_ring = PIXELS.literal_value, FULL.literal_value, ring_rows(high)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        b, (to, source, given, none_at, keys_at, taps_at) = builder, args[:6]
        (first, last, height, width, rows, columns, x_h, x_w, dy_h, dy_w, out_h, out_w, pitch, channels) = (
            Value(b, each) for each in args[6:20]
        )
        vector = args[20].type
        W, zeros_ = vector.count, constant(vector, 0.0)

        def ring(r: Any) -> Any:
            return (r & (of_ring - 1)) * pitch

        def put_maxima(p: _Rows, s: Value, v: Value) -> list[Any]:
            start, line = ring(s) + v * (pitch * of_ring), s * x_h + v * W

            def made(j: Any, whole: bool) -> list[Any]:
                mask = p.mask(width, j, whole)
                key = p.key(load_wide_value(b, source, line + p.at(j, x_w), x.elem, W, mask))
                return [key if mask is None else b.select(mask, key, p.least)]

            def use(j: Any, beside: Callable[[int, int], Any], whole: bool) -> None:
                best, tap = None, p.number(0)
                for t in range(wide):
                    key = beside(0, t - ahead)
                    if best is None:
                        best = key
                        continue
                    larger = b.icmp_signed(">", key, best)
                    best, tap = b.select(larger, key, best), b.select(larger, p.number(t), tap)
                store_value(b, keys_at, start + p.at(j, W), best)
                store_value(b, taps_at, start + p.at(j, W), tap)

            p.walk(width, columns, range(-ahead, wide - ahead), [p.least], made, use)
            return []

        def put_least(p: _Rows, s: Value, v: Value) -> list[Any]:
            start = ring(s) + v * (pitch * of_ring)

            def one(state: list[Any]) -> list[Any]:
                store_value(b, keys_at, start + state[0], p.least)
                return [state[0] + W]

            repeat(b, (pitch + (W - 1)) // W, [s.like(0)], one, "least")
            return []

        def put(p: _Rows, s: Value, v: Value) -> None:
            inside = b.and_((s >= 0).value, (s < height).value)
            once(b, inside, [], lambda _: put_maxima(p, s, v), "row")
            once(b, b.not_(inside), [], lambda _: put_least(p, s, v), "outside")

        def give_row(p: _Rows, r: Value, v: Value) -> None:
            # the windows that have this row as their last, ..., as their first
            lines = []
            for t in reversed(range(high)):
                o = r + (above - t)
                inside = Value(b, b.and_((o >= 0).value, (o < rows).value))
                lines.append(
                    (b.select(inside.value, element_at(b, given, o * dy_h + v * W), none_at), select(inside, dy_w, 0))
                )
            starts = [ring(r + d) + v * (pitch * of_ring) for d in range(1 - high, high)]
            own, line = starts[high - 1], r * out_h + v * W

            def made(j: Any, whole: bool) -> list[Any]:
                mask, at = p.mask(columns, j, whole), p.at(j, W)
                maxima = [load_value(b, keys_at, start + at, p.keys) for start in starts]
                masks = _chosen(p, maxima[high - 1], maxima[: high - 1][::-1], maxima[high:])
                total = zeros_
                for k, (chosen, (from_row, step)) in enumerate(zip(masks, lines[::-1], strict=True)):
                    value = load_wide_value(b, from_row, p.at(j, step), dy.elem, W, mask)
                    more = value if k == 0 else b.fadd(total, value)
                    total = more if chosen is None else b.select(chosen, more, total)
                if wide == 1:
                    return [total]
                tap = load_value(b, taps_at, own + at, p.keys)
                return [b.select(b.icmp_signed("==", tap, p.number(t)), total, zeros_) for t in range(wide)]

            def use(j: Any, beside: Callable[[int, int], Any], whole: bool) -> None:
                parts = [beside(t, ahead - t) for t in range(wide)]
                mask = p.mask(width, j, whole)
                store_narrow_value(b, to, line + p.at(j, out_w), functools.reduce(b.fadd, parts), out.elem, mask)

            p.walk(columns, width, range(ahead + 1 - wide, ahead + 1), [zeros_] * wide, made, use)

        def over(count: Any, first: Value, *steps: Callable[[_Rows, Value, Value], None]) -> Value:
            def block(s: Value, v: Value) -> None:
                inside = None if full else first_lanes_value(b, channels - v * W, W)
                for step in steps:
                    step(_Pixels(b, vector, inside) if pixels else _Planes(b, vector), s, v)

            def one(state: list[Any]) -> list[Any]:
                s = state[0]

                def next_block(at: list[Any]) -> list[Any]:
                    block(s, at[0])
                    return [at[0] + 1]

                repeat(b, (channels + (W - 1)) // W if pixels else 1, [s.like(0)], next_block, "block")
                return [s + 1]

            found: Value = repeat(b, count, [first], one, "row")[0]
            return found

        def behind(p: _Rows, s: Value, v: Value) -> None:
            give_row(p, s - (high - 1), v)

        s = over(first.like(2 * (high - 1)), first - (high - 1), put)
        over(last - first, s, put, behind)
        return context.get_dummy_value()

    words = [types.int64] * 14
    return types.void(
        out, x, dy, nowhere, keys, taps, *words, nothing, KH, KW, before_h, before_w, PIXELS, FULL
    ), codegen  # fmt: skip


@functools.cache
def make_maxima(
    dtype: str, W: int, KH: int, KW: int, BEFORE_H: int, BEFORE_W: int, PIXELS: bool = False, FULL: bool = True
) -> RangeKernel:  # fmt: skip
    """Kernel over bands of rows of dx of a maximum, of a plane or (PIXELS) of all channels, whole vectors if FULL."""
    acc = DTYPES[dtype].accumulate
    KEY = "i64" if acc == "f64" else "i32"
    types_ = ARGS.types(out=dtype, x=dtype, dy=dtype, keys=KEY, taps=KEY, nowhere=dtype)

    @range_kernel("windows_maxima", types_, spec=(dtype, W, KH, KW, BEFORE_H, BEFORE_W, PIXELS, FULL))
    def windows_maxima(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        keys, taps, nowhere = args.keys[worker], args.taps[worker], args.nowhere[worker]
        nothing = zeros(acc, W)
        fill(cast_pointer(nowhere, acc), args.cells, nothing, W)
        for tile in range(lo, hi):
            image, band = divmod(tile, args.bands)
            first = band * args.band
            n, c = image, 0
            if not PIXELS:
                n, c = divmod(image, args.c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            x = advance(args.x, n * args.x_n + c * args.x_c)
            dy = advance(args.dy, n * args.dy_n + c * args.dy_c)
            give_maxima(
                out, x, dy, nowhere, keys, taps, first, min(first + args.band, args.size_h), args.size_h, args.size_w,
                args.outs_h, args.outs_w, args.x_h, args.x_w, args.dy_h, args.dy_w, args.out_h, args.out_w, args.pitch,
                args.c, nothing, KH, KW, BEFORE_H, BEFORE_W, PIXELS, FULL,
            )  # fmt: skip

    return windows_maxima
