"""The gradient of a maximum whose windows move by an element, from x alone: a row after the other.

The first of the largest elements of a window is the first of its row, in the first row whose largest is that of all.
So there are two steps that are alike: the largest of each row's windows, and where it is, from the elements beside it;
then, from the rows' maxima above and below, what of dy a row gets, which goes to where its maxima are.  No places, and
all of it in registers and a few rows.  Elements are compared as integers in the order of floats, in which every NaN is
the same and the largest.
"""

from __future__ import annotations

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
from numbaprims.cpu.simd.loops import keep_rolled_value, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.windows.arguments import ARGS
from numbaprims.cpu.windows.planes import fill
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.value import at_least, at_most

#: Rows of a ring: as many as a row's windows reach up and down.
ROWS = 16
#: Rows and columns of a window, at most.
MOST = 5


class _Rows:
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

    def beside(self, before: Any, here: Any, behind: Any, d: int) -> Any:
        """The elements d further."""
        if not d:
            return here
        pair = (here, behind) if d > 0 else (before, here)
        first = d if d > 0 else self.W + d
        return shuffle_value(self.b, *pair, list(range(first, first + self.W)))

    def walk(
        self, vectors: Value, full: Value, none: list[Any], made: Callable[[Any, bool], list[Any]],
        use: Callable[..., None],
    ) -> None:  # fmt: skip
        """`use(j, before, here, behind, whole)` for every vector of a row, each a list that `made(j, whole)` gives;
        `none` stands for what is outside.  The first `full` vectors are whole."""
        b, W, count = self.b, self.W, len(none)

        def step(whole: bool) -> Callable[[list[Any]], list[Any]]:
            def one(state: list[Any]) -> list[Any]:
                keep_rolled_value(b)
                j, before, here = state[0], state[1 : 1 + count], state[1 + count :]
                behind = made(j + W, whole)
                use(j, before, here, behind, whole)
                return [j + W, *here, *behind]

            return one

        zero = vectors.like(0)
        state = [zero, *none, *made(zero, False)]
        state = repeat(b, full - 1, state, step(True), "whole")
        state = repeat(b, vectors - 1 - at_least(full - 1, 0), state, step(False), "rest")
        use(state[0], state[1 : 1 + count], state[1 + count :], none, False)


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
def give_maxima(typingctx, out, x, dy, nowhere, keys, taps, h, w, oh, ow, pitch, nothing, KH, KW, before_h, before_w):  # type: ignore[no-untyped-def]
    """Write dx of a plane.

    `keys` and `taps` are rings of `ROWS` rows, `pitch` apart: a row's maxima, and where they are in its windows;
    `nowhere` is a row of zeros.
    """
    high, wide, above, ahead = (each.literal_value for each in (KH, KW, before_h, before_w))

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        b, (to, source, given, none_at, keys_at, taps_at) = builder, args[:6]
        height, width, rows, columns, pitch = (Value(b, each) for each in args[6:11])
        p = _Rows(b, args[11].type)
        W, zero, zeros_ = p.W, height.like(0), constant(p.vector, 0.0)
        vectors = (at_least(width, columns) + (W - 1)) // W
        full = at_most(width, columns) // W

        def ring(r: Any) -> Any:
            return (r & (ROWS - 1)) * pitch

        def put_maxima(s: Any) -> None:
            start, line = ring(s), s * width

            def made(j: Any, whole: bool) -> list[Any]:
                mask = None if whole else first_lanes_value(b, width - j, W)
                key = p.key(load_wide_value(b, source, line + j, x.elem, W, mask))
                return [key if whole else b.select(mask, key, p.least)]

            def use(j: Any, before: Any, here: Any, behind: Any, whole: bool) -> None:
                best, tap = None, p.number(0)
                for t in range(wide):
                    key = p.beside(*before, *here, *behind, t - ahead)
                    if best is None:
                        best = key
                        continue
                    larger = b.icmp_signed(">", key, best)
                    best, tap = b.select(larger, key, best), b.select(larger, p.number(t), tap)
                store_value(b, keys_at, start + j, best)
                store_value(b, taps_at, start + j, tap)

            p.walk(vectors, full, [p.least], made, use)

        def put_least(s: Any) -> None:
            start = ring(s)

            def one(state: list[Any]) -> list[Any]:
                store_value(b, keys_at, start + state[0], p.least)
                return [state[0] + W]

            repeat(b, vectors, [zero], one, "least")

        def give_row(r: Any) -> None:
            # the windows that have this row as their last, ..., as their first
            lines = []
            for t in reversed(range(high)):
                o = r + (above - t)
                inside = b.and_((o >= 0).value, (o < rows).value)
                lines.append(b.select(inside, element_at(b, given, o * columns), none_at))
            starts, own = [ring(r + d) for d in range(1 - high, high)], ring(r)
            line = r * width

            def made(j: Any, whole: bool) -> list[Any]:
                mask = None if whole else first_lanes_value(b, columns - j, W)
                maxima = [load_value(b, keys_at, start + j, p.keys) for start in starts]
                masks = _chosen(p, maxima[high - 1], maxima[: high - 1][::-1], maxima[high:])
                total = zeros_
                for at, (chosen, from_row) in enumerate(zip(masks, lines[::-1], strict=True)):
                    value = load_wide_value(b, from_row, j, dy.elem, W, mask)
                    more = value if at == 0 else b.fadd(total, value)
                    total = more if chosen is None else b.select(chosen, more, total)
                if wide == 1:
                    return [total]
                tap = load_value(b, taps_at, own + j, p.keys)
                return [b.select(b.icmp_signed("==", tap, p.number(t)), total, zeros_) for t in range(wide)]

            def use(j: Any, before: Any, here: Any, behind: Any, whole: bool) -> None:
                parts = [p.beside(*each, ahead - t) for t, each in enumerate(zip(before, here, behind, strict=True))]
                mask = None if whole else first_lanes_value(b, width - j, W)
                store_narrow_value(b, to, line + j, functools.reduce(b.fadd, parts), out.elem, mask)

            p.walk(vectors, full, [zeros_] * wide, made, use)

        def over(count: Any, first: Any, *steps: Callable[[Any], None]) -> Any:
            def one(state: list[Any]) -> list[Any]:
                for step in steps:
                    step(state[0])
                return [state[0] + 1]

            return repeat(b, count, [first], one, "row")[0]

        def behind(s: Any) -> None:
            give_row(s - (high - 1))

        over(zero + (high - 1), zero - (high - 1), put_least)
        begun = at_most(height, high - 1)
        s = over(begun, zero, put_maxima)
        s = over(height - begun, s, put_maxima, behind)
        s = over(zero + (high - 1) - begun, s, put_least)
        over(begun, s, put_least, behind)
        return context.get_dummy_value()

    words = [types.int64] * 5
    return types.void(out, x, dy, nowhere, keys, taps, *words, nothing, KH, KW, before_h, before_w), codegen


@functools.cache
def make_maxima(dtype: str, W: int, KH: int, KW: int, BEFORE_H: int, BEFORE_W: int) -> RangeKernel:
    """Kernel over planes of dx of a maximum."""
    acc = DTYPES[dtype].accumulate
    KEY = "i64" if acc == "f64" else "i32"
    types_ = ARGS.types(out=dtype, x=dtype, dy=dtype, keys=KEY, taps=KEY, nowhere=dtype)

    @range_kernel("windows_maxima", types_, spec=(dtype, W, KH, KW, BEFORE_H, BEFORE_W))
    def windows_maxima(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        keys, taps, nowhere = args.keys[worker], args.taps[worker], args.nowhere[worker]
        nothing = zeros(acc, W)
        fill(cast_pointer(nowhere, acc), args.pitch, nothing, W)
        for plane in range(lo, hi):
            n, c = divmod(plane, args.c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            x = advance(args.x, n * args.x_n + c * args.x_c)
            dy = advance(args.dy, n * args.dy_n + c * args.dy_c)
            give_maxima(
                out, x, dy, nowhere, keys, taps, args.size_h, args.size_w, args.outs_h, args.outs_w, args.pitch,
                nothing, KH, KW, BEFORE_H, BEFORE_W,
            )  # fmt: skip

    return windows_maxima
