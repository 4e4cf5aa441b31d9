"""Rows of a gradient: the elements of x lie in S phases of the stride, and all of a phase have the same taps.

Lane l of phase f is element S l + f, which window l - k holds for each k of the phase.  So a row is made of vectors of
windows as they lie, and its phases are interleaved once, when it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.convert import narrow_value, widen_value
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.loops import keep_rolled_value, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.cpu.simd.memory import (
    I64,
    first_lanes_value,
    masked_load_value,
    masked_store_value,
    splat_value,
    vector_at,
)
from numbaprims.cpu.simd.types import Vec
from numbaprims.cpu.windows.combine import exponent_of, short_places
from numbaprims.formulas import windows as formulas


def phases(K: int, S: int, D: int, before: int) -> list[list[int]]:
    """For each phase the k of the windows l - k that hold its element l."""
    taps = [[t * D - before - phase for t in range(K)] for phase in range(S)]
    return [[at // S for at in of if at % S == 0] for of in taps]


def margins(K: int, S: int, D: int, before: int) -> tuple[int, int]:
    """How many windows more are read in front of a row and behind it."""
    reach = [0, *(k for taps in phases(K, S, D, before) for k in taps)]
    return max(reach), -min(reach)


def _read(builder: Any, pointer: Any, i: Any, vector: Any) -> Any:
    loaded = builder.load(vector_at(builder, pointer, i, vector))
    loaded.align = 1
    return loaded


def _piece(builder: Any, vectors: list[Any], r: int) -> Any:
    """The r-th vector of the phases' elements in their order."""
    S, W = len(vectors), vectors[0].type.count
    places = [divmod(r * W + lane, S) for lane in range(W)]
    value = vectors[0]
    for f, other in enumerate(vectors[1:], 1):
        # what is of no phase yet may be any lane
        own = [lane if f == 1 else at for at, (lane, _) in enumerate(places)]
        lanes = [W + lane if phase == f else own[at] for at, (lane, phase) in enumerate(places)]
        value = shuffle_value(builder, value, other, lanes)
    return value


def _give_row(
    builder: Any, out: Any, elem: str, at: Any, width: Any, S: int, W: int,
    found: Callable[[Any], list[Any]], finish: Callable[[Any, Any, Any], Any],
) -> None:  # fmt: skip
    """Write `width` elements of a row from `at` on: `found(j)` are its phases from window j on, `finish(value, place,
    mask)` the result."""

    def write(j: Any, left: Any) -> None:
        vectors = found(j)
        for r in range(S):
            place = builder.add(builder.add(at, builder.mul(j, I64(S))), I64(r * W))
            mask = None if left is None else first_lanes_value(builder, builder.sub(left, I64(r * W)), W)
            value = narrow_value(builder, finish(_piece(builder, vectors, r), place, mask), elem)
            if mask is None:
                builder.store(value, vector_at(builder, out, place, value.type)).align = 1
            else:
                masked_store_value(builder, out, place, mask, value)

    def whole(state: list[Any]) -> list[Any]:
        keep_rolled_value(builder)
        write(state[0], None)
        return [builder.add(state[0], I64(W))]

    def rest(state: list[Any]) -> list[Any]:
        write(j, left)
        return []

    (j,) = repeat(builder, builder.sdiv(width, I64(S * W)), [I64(0)], whole, "windows")
    left = builder.sub(width, builder.mul(j, I64(S)))
    repeat(builder, builder.zext(builder.icmp_signed(">", left, I64(0)), I64), [], rest, "rest")


@intrinsic(prefer_literal=True)
def give_places(typingctx, out, n, width, indices, dy, rows, apart, front, nothing, KH, KW, before_h, before_w):  # type: ignore[no-untyped-def]
    """Write the gradient of a maximum over a plane of n elements, around each of which is a window of KH x KW.

    The windows' row r gives `rows[front + r * apart + v]` to what lies v elements behind their first column, whatever
    row of the plane that is in; a gradient is the sum of one element of each r.  There are zeros around them.
    """
    W, taps = nothing.n, range(KW.literal_value)
    over = [KH.literal_value, before_h.literal_value, before_w.literal_value]
    deep = range(over[0])

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector, wide = context.get_value_type(nothing), ir.VectorType(ir.IntType(32), W)
        size, line, start = args[1], args[2], args[7]
        lanes = ir.Constant(wide, list(range(W)))
        starts = [builder.add(start, builder.mul(args[6], I64(r))) for r in deep]

        def spread(number: Any) -> Any:
            return splat_value(builder, builder.trunc(number, ir.IntType(32)), W)

        # from a window's place to that of each of its elements
        offsets = [
            [spread(builder.add(builder.mul(line, I64(r - over[1])), I64(t - over[2]))) for t in taps] for r in deep
        ]

        def block(state: list[Any], mask: Any) -> list[Any]:
            j, before = state[0], state[1:]
            if mask is None:
                places = _read(builder, args[3], j, ir.VectorType(I64, W))
                stored = _read(builder, args[4], j, context.get_value_type(Vec(dy.elem, W)))
            else:
                places = masked_load_value(builder, args[3], j, mask, ir.VectorType(I64, W))
                stored = masked_load_value(builder, args[4], j, mask, context.get_value_type(Vec(dy.elem, W)))
            value = widen_value(builder, stored, dy.elem)
            from_here = builder.sub(short_places(builder, places), builder.add(spread(j), lanes))
            totals: list[Any] = [None for _ in deep]
            for t in taps:
                lanes_of = list(range(W - t, 2 * W - t))
                offset = shuffle_value(builder, before[0], from_here, lanes_of) if t else from_here
                part = shuffle_value(builder, before[1], value, lanes_of) if t else value
                for r, total in enumerate(totals):
                    here = builder.icmp_signed("==", offset, offsets[r][t])
                    totals[r] = (
                        builder.select(here, part, vector(None))
                        if total is None
                        else builder.select(here, builder.fadd(total, part), total)
                    )
            for r, total in enumerate(totals):
                builder.store(total, vector_at(builder, args[5], builder.add(starts[r], j), vector)).align = 1
            return [builder.add(j, I64(W)), from_here, value]

        def whole(state: list[Any]) -> list[Any]:
            keep_rolled_value(builder)
            return block(state, None)

        def rest(state: list[Any]) -> list[Any]:
            return block(state, first_lanes_value(builder, builder.sub(size, state[0]), W))

        state = [I64(0), wide(None), args[8]]
        state = repeat(builder, builder.sdiv(size, I64(W)), state, whole, "windows")
        # what is left, and what the last windows give behind their vector
        over_all = builder.add(size, I64(len(taps) - 1 + W - 1))
        repeat(builder, builder.sub(builder.sdiv(over_all, I64(W)), builder.sdiv(size, I64(W))), state, rest, "rest")

        def found(j: Any) -> list[Any]:
            total = None
            for r, first in enumerate(starts):
                ahead = builder.add(builder.mul(line, I64(over[1] - r)), I64(over[2]))
                part = _read(builder, args[5], builder.add(builder.add(first, ahead), j), vector)
                total = part if total is None else builder.fadd(total, part)
            return [total]

        _give_row(builder, args[0], out.elem, I64(0), size, 1, W, found, lambda value, place, mask: value)
        return context.get_dummy_value()

    words = [types.int64] * 2
    return types.void(
        out, *words, indices, dy, rows, *words, nothing, KH, KW, before_h, before_w
    ), codegen  # fmt: skip


@intrinsic(prefer_literal=True)
def give_sums(typingctx, kind, out, at, width, x, values, i, empty, p, K, S, D, before):  # type: ignore[no-untyped-def]
    """Write a row of the gradient of an average or an lp norm; element `i` of `values` has its first window."""
    name, W = kind.literal_value, empty.n
    numbers = [number.literal_value for number in (K, S, D, before)]
    taps = phases(*numbers)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector, stored = context.get_value_type(empty), context.get_value_type(Vec(x.elem, W))
        exponent = exponent_of(name, builder, args[7], args[8])

        def found(j: Any) -> list[Any]:
            first = builder.add(args[6], j)
            read = {k: _read(builder, args[5], builder.add(first, I64(-k)), vector) for of in taps for k in of}
            phases_ = []
            for of in taps:
                total = read[of[0]] if of else args[7].type(None)
                for k in of[1:]:
                    total = builder.fadd(total, read[k])
                phases_.append(total)
            return phases_

        def finish(value: Any, place: Any, mask: Any) -> Any:
            if name == "avg":
                return value
            if mask is None:
                loaded = _read(builder, args[4], place, stored)
            else:
                loaded = masked_load_value(builder, args[4], place, mask, stored)
            element = Value(builder, widen_value(builder, loaded, x.elem))
            return formulas.gradient_end(name, Value(builder, value), element, exponent, power_value).value

        _give_row(builder, args[1], out.elem, args[2], args[3], numbers[1], W, found, finish)
        return context.get_dummy_value()

    return types.void(
        kind, out, types.int64, types.int64, x, values, types.int64, empty, types.float64, K, S, D, before
    ), codegen  # fmt: skip
