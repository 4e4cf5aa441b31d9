"""The gradient of a maximum whose windows move by an element, from x alone: down the columns, then along the rows.

The first of the largest elements of a window is the first of its row, in the first row whose largest is that of all.
So dy goes to rows first, where the rows' maxima stand in columns, and along the row then: 2 (K - 1) comparisons and K
sums an element each time, no places.  Elements are compared as integers in the order of floats, in which every NaN is
the same and the largest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import address_of, advance, pointer_from_address, scalar, splat, zeros
from numbaprims.cpu.simd.convert import load_wide_value, store_narrow_value
from numbaprims.cpu.simd.emit import constant, first_lanes_value, llvm_vector, load_value, store_value
from numbaprims.cpu.simd.loops import keep_rolled_value, once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.windows.arguments import ARGS
from numbaprims.cpu.windows.planes import fill
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.value import at_most


class _Plane:
    """What the passes over a plane have in common."""

    def __init__(self, builder: Any, vector: Any, pitch: Any, front: Any) -> None:
        self.b, self.vector, self.W = builder, vector, vector.count
        self.element = vector.element
        bits = 64 if str(self.element) == "double" else 32
        self.keys = llvm_vector(f"i{bits}", self.W)
        self.bits, self.least = bits, constant(self.keys, -(1 << (bits - 1)))
        self.pitch, self.front = pitch, front

    def key(self, x: Any) -> Any:
        """Elements as integers in their order: of NaN the largest, of both zeros one."""
        b = self.b
        most = constant(self.keys, (1 << (self.bits - 1)) - 1)
        plain = b.bitcast(b.fadd(x, constant(self.vector, 0.0)), self.keys)
        below = b.ashr(plain, constant(self.keys, self.bits - 1))
        ordered = b.xor(plain, b.and_(below, most))
        return b.select(b.fcmp_unordered("uno", x, x), most, ordered)

    def row(self, row: Any) -> Value:
        """Where a row of a buffer begins."""
        return self.front + row * self.pitch

    def chosen(self, here: Any, before: Sequence[Any], behind: Sequence[Any]) -> list[Any]:
        """Of the windows that an element is the t-th of, whether it is their largest; neighbours the nearest first."""
        b, above, below = self.b, [None], [None]
        for found, others, sign in ((above, before, ">"), (below, behind, ">=")):
            for other in others:
                new = b.icmp_signed(sign, here, other)
                found.append(new if found[-1] is None else b.and_(found[-1], new))
        masks: list[Any] = []
        for one, other in zip(above, reversed(below), strict=True):
            masks.append(one if other is None else other if one is None else b.and_(one, other))
        return masks

    def given(self, masks: Sequence[Any], values: Sequence[Any]) -> Any:
        """The sum of the values that are chosen."""
        total = constant(self.vector, 0.0)
        for at, (mask, value) in enumerate(zip(masks, values, strict=True)):
            more = value if at == 0 else self.b.fadd(total, value)
            total = more if mask is None else self.b.select(mask, more, total)
        return total

    def along(self, width: Any, step: Callable[[Any, Any], None]) -> None:
        """`step(j, mask)` for the vectors of a row; the last has a mask."""
        b, W = self.b, self.W

        def one(state: list[Any]) -> list[Any]:
            keep_rolled_value(b)
            step(state[0], None)
            return [state[0] + W]

        def last(state: list[Any]) -> list[Any]:
            step(j, first_lanes_value(b, left, W))
            return []

        (j,) = repeat(b, width // W, [width.like(0)], one, "along")
        left = width - j
        once(b, left > 0, [], last, "last")


@intrinsic(prefer_literal=True)
def give_maxima(typingctx, out, x, dy, keys, sums, h, w, oh, ow, pitch, front, nothing, KH, KW, before_h, before_w):  # type: ignore[no-untyped-def]
    """Write dx of a plane.

    Rows of `keys` and of `sums` begin at `front` and lie `pitch` apart; around them, and in KH - 1 rows more, keys are
    the least and sums 0 as far as a window and a vector reach.
    """
    high, wide, above, ahead = (each.literal_value for each in (KH, KW, before_h, before_w))

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        b, (to, source, given, keys_at, sums_at) = builder, args[:5]
        height, width, rows, columns, pitch, front = (Value(b, each) for each in args[5:11])
        p = _Plane(b, args[11].type, pitch, front)
        W, zeros_ = p.W, constant(p.vector, 0.0)
        zero = height.like(0)

        def keyed(state: list[Any]) -> list[Any]:
            """A row of x as keys; behind it lanes with the least."""
            r = state[0]

            def step(j: Any, mask: Any) -> None:
                key = p.key(load_wide_value(b, source, r * width + j, x.elem, W, mask))
                store_value(b, keys_at, p.row(r) + j, key if mask is None else b.select(mask, key, p.least))

            p.along(width, step)
            return [r + 1]

        repeat(b, height, [zero], keyed, "row")

        def largest(r: Any, j: Any) -> Any:
            """Of a row's windows from column j on."""
            found = None
            for t in range(wide):
                key = load_value(b, keys_at, p.row(r) + j + (t - ahead), p.keys)
                found = key if found is None else b.select(b.icmp_signed(">", key, found), key, found)
            return found

        def column(state: list[Any]) -> list[Any]:
            j = state[0]
            mask = first_lanes_value(b, columns - j, W)

            def arriving(o: Any) -> Any:
                return load_wide_value(b, given, o * columns + j, dy.elem, W, mask)

            def row(state: list[Any], new: Any) -> list[Any]:
                r, ring = state[0], [*state[1 : 2 * high - 1], largest(state[0] + (high - 1), j)]
                arrived = [*state[2 * high - 1 :], new(r)]
                masks = p.chosen(ring[high - 1], ring[: high - 1][::-1], ring[high:])
                store_value(b, sums_at, p.row(r) + j, p.given(masks, arrived[::-1]))
                return [r + 1, *ring[1:], *arrived[1:]]

            ring = [p.least] * (high - 1) + [largest(zero + r, j) for r in range(high - 1)]
            # rows of dy that are not there are 0
            arrived = [zeros_] * (high - 1)
            for o in range(above):
                there = b.select((rows > o).value, mask, constant(mask.type, 0))
                arrived = [*arrived[1:], load_wide_value(b, given, columns * o + j, dy.elem, W, there)]
            state = [zero, *ring, *arrived]
            state = repeat(
                b, at_most(height, rows - above), state, lambda s: row(s, lambda r: arriving(r + above)), "down", True
            )
            repeat(b, height - state[0], state, lambda s: row(s, lambda r: zeros_), "below", True)
            return [j + W]

        repeat(b, (columns + (W - 1)) // W, [zero], column, "column")

        def summed(state: list[Any]) -> list[Any]:
            r = state[0]
            start = p.row(r)

            def step(j: Any, mask: Any) -> None:
                def key(d: int) -> Any:
                    return load_value(b, keys_at, start + j + d, p.keys)

                masks = p.chosen(key(0), [key(-d) for d in range(1, wide)], [key(d) for d in range(1, wide)])
                values = [load_value(b, sums_at, start + j + (ahead - t), p.vector) for t in range(wide)]
                store_narrow_value(b, to, r * width + j, p.given(masks, values), out.elem, mask)

            p.along(width, step)
            return [r + 1]

        repeat(b, height, [zero], summed, "row")
        return context.get_dummy_value()

    words = [types.int64] * 6
    return types.void(out, x, dy, keys, sums, *words, nothing, KH, KW, before_h, before_w), codegen


@functools.cache
def make_maxima(dtype: str, W: int, KH: int, KW: int, BEFORE_H: int, BEFORE_W: int) -> RangeKernel:
    """Kernel over planes of dx of a maximum."""
    acc = DTYPES[dtype].accumulate
    KEY, LEAST = ("i64", -(2**63)) if acc == "f64" else ("i32", -(2**31))
    types_ = ARGS.types(out=dtype, x=dtype, dy=dtype)

    @range_kernel("windows_maxima", types_, spec=(dtype, W, KH, KW, BEFORE_H, BEFORE_W))
    def windows_maxima(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = address_of(args.workspace) + worker * args.each
        keys, sums = pointer_from_address(room, KEY), pointer_from_address(room + args.cells, acc)
        nothing = zeros(acc, W)
        rows = args.size_h + KH - 1
        fill(keys, rows * args.pitch, splat(scalar(LEAST, KEY), W), W)
        fill(sums, rows * args.pitch, nothing, W)
        for plane in range(lo, hi):
            n, c = divmod(plane, args.c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            x = advance(args.x, n * args.x_n + c * args.x_c)
            dy = advance(args.dy, n * args.dy_n + c * args.dy_c)
            give_maxima(
                out, x, dy, keys, sums, args.size_h, args.size_w, args.outs_h, args.outs_w, args.pitch, args.front,
                nothing, KH, KW, BEFORE_H, BEFORE_W,
            )  # fmt: skip

    return windows_maxima
