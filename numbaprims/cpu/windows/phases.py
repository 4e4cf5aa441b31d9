"""Rows of a gradient: the elements of x lie in S phases of the stride, and all of a phase have the same taps.

Lane l of phase f is element S l + f, which window l - k holds for each k of the phase.  So a row is made of vectors of
windows as they lie, and its phases are interleaved once, when it is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.convert import load_wide_value, store_narrow_value
from numbaprims.cpu.simd.emit import (
    I32,
    constant,
    counting,
    first_lanes_value,
    llvm_vector,
    load_value,
    splat_value,
    store_value,
)
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.loops import keep_rolled_value, once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.power import power_value
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
    builder: Any, out: Any, elem: str, at: Any, width: Value, S: int, W: int,
    found: Callable[[Any], list[Any]], finish: Callable[[Any, Any, Any], Any],
) -> None:  # fmt: skip
    """Write `width` elements of a row from `at` on: `found(j)` are its phases from window j on, `finish(value, place,
    mask)` the result."""

    def write(j: Any, left: Any) -> None:
        vectors = found(j)
        for r in range(S):
            place = at + j * S + r * W
            mask = None if left is None else first_lanes_value(builder, left - r * W, W)
            value = finish(_piece(builder, vectors, r), place, mask)
            store_narrow_value(builder, out, place, value, elem, mask)

    def whole(state: list[Any]) -> list[Any]:
        keep_rolled_value(builder)
        write(state[0], None)
        return [state[0] + W]

    def rest(state: list[Any]) -> list[Any]:
        write(j, left)
        return []

    (j,) = repeat(builder, width // (S * W), [width.like(0)], whole, "windows")
    left = width - j * S
    once(builder, left > 0, [], rest, "rest")


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
        vector, short = args[8].type, llvm_vector("i32", W)
        size, line, apart, front = (Value(builder, args[k]) for k in (1, 2, 6, 7))
        starts = [front + apart * r for r in deep]

        def spread(n: Value) -> Any:
            return splat_value(builder, builder.trunc(n.value, I32), W)

        # from a window's place to that of each of its elements
        offsets = [[spread(line * (r - over[1]) + (t - over[2])) for t in taps] for r in deep]

        def block(state: list[Any], mask: Any) -> list[Any]:
            j, before = state[0], state[1:]
            places = load_value(builder, args[3], j, llvm_vector("i64", W), mask)
            value = load_wide_value(builder, args[4], j, dy.elem, W, mask)
            from_here = builder.sub(short_places(builder, places), builder.add(spread(j), counting(short)))
            totals, zeros = [None for _ in deep], constant(vector, 0.0)
            for t in taps:
                lanes_of = list(range(W - t, 2 * W - t))
                offset = shuffle_value(builder, before[0], from_here, lanes_of) if t else from_here
                part = shuffle_value(builder, before[1], value, lanes_of) if t else value
                for r, total in enumerate(totals):
                    here = builder.icmp_signed("==", offset, offsets[r][t])
                    more, less = (part, zeros) if total is None else (builder.fadd(total, part), total)
                    totals[r] = builder.select(here, more, less)
            for r, total in enumerate(totals):
                store_value(builder, args[5], starts[r] + j, total)
            return [j + W, from_here, value]

        def whole(state: list[Any]) -> list[Any]:
            keep_rolled_value(builder)
            return block(state, None)

        def rest(state: list[Any]) -> list[Any]:
            return block(state, first_lanes_value(builder, size - state[0], W))

        state = [size.like(0), constant(short, 0), args[8]]
        state = repeat(builder, size // W, state, whole, "windows")
        # what is left, and what the last windows give behind their vector
        over_all = (size + (len(taps) - 1 + W - 1)) // W
        repeat(builder, over_all - size // W, state, rest, "rest")

        def found(j: Value) -> list[Any]:
            def part(r: int) -> Any:
                ahead = line * (over[1] - r) + over[2]
                return load_value(builder, args[5], starts[r] + ahead + j, vector)

            return [functools.reduce(builder.fadd, map(part, deep))]

        _give_row(builder, args[0], out.elem, size.like(0), size, 1, W, found, lambda value, place, mask: value)
        return context.get_dummy_value()

    words = [types.int64] * 2
    return types.void(
        out, *words, indices, dy, rows, *words, nothing, KH, KW, before_h, before_w
    ), codegen  # fmt: skip


@intrinsic(prefer_literal=True)
def give_sums(typingctx, kind, out, at, width, x, values, i, empty, p, K, S, D, before):  # type: ignore[no-untyped-def]
    """Write a row of the gradient of an average or an lp norm; element `i` of `values` has its first window."""
    name, W = kind.literal_value, empty.n
    numbers = [size.literal_value for size in (K, S, D, before)]
    taps = phases(*numbers)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = args[7].type
        exponent = exponent_of(name, builder, args[7], args[8])
        at, width, first = (Value(builder, args[k]) for k in (2, 3, 6))

        def found(j: Value) -> list[Any]:
            here = first + j
            read = {k: load_value(builder, args[5], here - k, vector) for of in taps for k in of}
            zeros = constant(vector, 0.0)
            return [functools.reduce(builder.fadd, [read[k] for k in of]) if of else zeros for of in taps]

        def finish(value: Any, place: Any, mask: Any) -> Any:
            if name == "avg":
                return value
            element = Value(builder, load_wide_value(builder, args[4], place, x.elem, W, mask))
            return formulas.gradient_end(name, Value(builder, value), element, exponent, power_value).value

        _give_row(builder, args[1], out.elem, at, width, numbers[1], W, found, finish)
        return context.get_dummy_value()

    return types.void(
        kind, out, types.int64, types.int64, x, values, types.int64, empty, types.float64, K, S, D, before
    ), codegen  # fmt: skip
