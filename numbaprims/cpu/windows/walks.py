"""A vector's way through windows, written as one operation: Numba types and inlines what is one call at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.convert import load_wide_value
from numbaprims.cpu.simd.emit import counting, first_lanes_value, number, splat_value
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.loops import keep_rolled_value, once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.cpu.simd.types import Vec
from numbaprims.cpu.windows.combine import exponent_of, find, fold
from numbaprims.formulas import windows as formulas
from numbaprims.formulas.value import mad


def _walk(
    builder: Any, counts: Sequence[Any], steps: Sequence[Sequence[Any]], at: list[Any], state: list[Any],
    body: Callable[[list[Any], list[Any]], list[Any]],
) -> list[Any]:  # fmt: skip
    """Nested loops over offsets `at`, to which `steps` are added from one place of a dimension to the next; written out
    where a count is an int."""
    if not counts:
        return body(at, state)
    count, step = counts[0], [each[0] for each in steps]
    inner = [each[1:] for each in steps]

    def turn(values: list[Any]) -> list[Any]:
        here, now = values[: len(at)], values[len(at) :]
        if not isinstance(count, int):
            keep_rolled_value(builder)
        now = _walk(builder, counts[1:], inner, here, now, body)
        return [builder.add(place, by) for place, by in zip(here, step, strict=True)] + now

    if not isinstance(count, int):
        return repeat(builder, count, [*at, *state], turn, "walk")[len(at) :]
    values = [*at, *state]
    for _ in range(count):
        values = turn(values)
    return values[len(at) :]


def _loader(builder: Any, p: Any, W: int, left: Any, full: bool) -> Callable[[Any, Any], Any]:
    """A function of a pointer and an offset that reads W elements in their compute type, or the first of them."""
    mask = None if full else first_lanes_value(builder, left, W)
    return lambda pointer, at: load_wide_value(builder, pointer, at, p.elem, W, mask)


def _sizes(kinds: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Numbers of places: ints where they are literals."""
    return [kind.literal_value if isinstance(kind, types.IntegerLiteral) else value
            for kind, value in zip(kinds, values, strict=True)]  # fmt: skip


def _given(kinds: Sequence[Any]) -> list[Any]:
    return [kind if isinstance(kind, types.Literal) else types.int64 for kind in kinds]


@intrinsic(prefer_literal=True)
def walk_window(typingctx, kind, x, at, here, left, n0, n1, n2, s0, s1, s2, h0, h1, h2, best, place, p, FULL, INDEXED):  # type: ignore[no-untyped-def]
    """(joined, places) of n0 x n1 x n2 elements from `at` on and of `best`; `place` is a vector of the places' type.

    s0, s1, s2: from element to element; h0, h1, h2: of their places, of which `here` is the first.  INDEXED: 0 without
    places, 1 where lanes have one place, 2 where they are neighbours.
    """
    name, full, indexed = kind.literal_value, FULL.literal_value, INDEXED.literal_value
    given, result = (n0, n1, n2), types.Tuple([best, place])

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        load = _loader(builder, x, best.n, args[4], full)
        exponent = exponent_of(name, builder, args[14], args[16])

        def places(at: Any) -> Any:
            element = args[15].type.element
            spread = splat_value(builder, at if element.width == 64 else builder.trunc(at, element), place.n)
            return builder.add(spread, counting(spread.type)) if indexed == 2 else spread

        def body(at: list[Any], state: list[Any]) -> list[Any]:
            value = load(args[1], at[0])
            if indexed:
                return list(find(builder, state[0], state[1], value, places(at[1]), True))
            if state[0] is None:
                return [formulas.first(name, Value(builder, value), exponent, power_value).value, *state[1:]]
            total = formulas.step(name, Value(builder, state[0]), Value(builder, value), exponent, power_value)
            return [total.value, *state[1:]]

        # the first element's place is that of a window of -inf, with which a maximum begins
        sizes, steps = _sizes(given, args[5:8]), [args[8:11], args[11:14]]
        whole = all(isinstance(size, int) and size > 0 for size in sizes)
        start = [args[14], places(args[3])] if indexed else [None if whole else args[14], args[15]]
        state = _walk(builder, sizes, steps, [args[2], args[3]], start, body)
        return context.make_tuple(builder, result, state)

    numbers = [types.int64] * 3
    return result(
        kind, x, *numbers, *_given(given), *numbers, *numbers, best, place, types.float64, FULL, INDEXED
    ), codegen  # fmt: skip


@intrinsic(prefer_literal=True)
def walk_places(typingctx, dy, at, indices, of, here, left, n0, n1, n2, s0, s1, s2, t0, t1, t2, total, FULL):  # type: ignore[no-untyped-def]
    """`total` and dy of the n0 x n1 x n2 windows whose maximum is `here`; dy lies at `at`, their places at `of`."""
    full = FULL.literal_value

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        load = _loader(builder, dy, total.n, args[5], full)
        place = _loader(builder, indices, total.n, args[5], full)
        wanted = splat_value(builder, args[4], total.n)

        def body(at: list[Any], state: list[Any]) -> list[Any]:
            found = builder.icmp_signed("==", place(args[2], at[1]), wanted)
            nothing = state[0].type(None)
            return [builder.fadd(state[0], builder.select(found, load(args[0], at[0]), nothing))]

        return _walk(builder, args[6:9], [args[9:12], args[12:15]], [args[1], args[3]], [args[15]], body)[0]

    return total(dy, types.int64, indices, *[types.int64] * 12, total, FULL), codegen


@intrinsic(prefer_literal=True)
def walk_sums(
    typingctx,
    kind,
    dy,
    at,
    y,
    of,
    shares,
    o0,
    o1,
    o2,
    left,
    n0,
    n1,
    n2,
    s0,
    s1,
    s2,
    t0,
    t1,
    t2,
    b0,
    b1,
    b2,
    total,
    p,
    FULL,
):  # type: ignore[no-untyped-def]
    """`total` and what n0 x n1 x n2 windows give to the elements of an average, or but for a factor of an lp norm.

    dy and y of the first lie at `at` and `of`; it is the o0-th, o1-th, o2-th of the table `shares` of each dimension's
    outputs' shares, and b0, b1, b2 are the steps there.
    """
    name, full, given = kind.literal_value, FULL.literal_value, (n0, n1, n2)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        load = _loader(builder, dy, total.n, args[9], full)
        exponent = exponent_of(name, builder, args[22], args[23])

        def body(at: list[Any], state: list[Any]) -> list[Any]:
            value, sums = Value(builder, load(args[1], at[0])), Value(builder, state[0])
            if name == "avg":
                parts = [builder.load(builder.gep(args[5], [place])) for place in at[2:]]
                share = builder.fmul(builder.fmul(parts[0], parts[1]), parts[2])
                return [mad(value, Value(builder, splat_value(builder, share, total.n)), sums).value]
            other = Value(builder, load(args[3], at[1]))
            return [(sums + formulas.gradient_term(name, value, other, exponent, power_value)).value]

        zero = args[19].type(0)
        tables = [[by if d == k else zero for d in range(3)] for k, by in enumerate(args[19:22])]
        steps, starts = [args[13:16], args[16:19], *tables], [args[2], args[4], *args[6:9]]
        return _walk(builder, _sizes(given, args[10:13]), steps, starts, [args[22]], body)[0]

    return total(
        kind, dy, types.int64, y, types.int64, shares, *[types.int64] * 4, *_given(given), *[types.int64] * 9, total,
        types.float64, FULL,
    ), codegen  # fmt: skip


def _joined(kind: str, builder: Any, vectors: list[Any]) -> Any:
    """The lanes of each vector joined, as the lanes of one: vectors are halved and put together pair by pair."""
    own = vectors[0].type.count  # lanes that belong together
    while own > 1:
        count, half = vectors[0].type.count, own // 2
        alone = len(vectors) == 1
        pairs = [(vectors[0], vectors[0])] if alone else list(zip(vectors[::2], vectors[1::2], strict=True))
        lanes = range(0, count if alone else 2 * count, own)
        first = [start + lane for start in lanes for lane in range(half)]
        halves = [(shuffle_value(builder, a, b, first), shuffle_value(builder, a, b, [lane + half for lane in first]))
                  for a, b in pairs]  # fmt: skip
        vectors = [fold(kind, builder, pair) for pair in halves]
        own = half
    return vectors[0]


@intrinsic(prefer_literal=True)
def walk_planes(typingctx, kind, x, at, between, size, empty, p, G):  # type: ignore[no-untyped-def]
    """Lane g: all elements of a plane joined, which begins at `at` + g `between` and has `size` of them."""
    name, planes, W = kind.literal_value, G.literal_value, empty.n
    result = Vec(empty.elem, planes)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        exponent = exponent_of(name, builder, args[5], args[6])
        starts = [builder.add(args[2], builder.mul(args[3], number(g))) for g in range(planes)]

        def more(i: Any, totals: list[Any], left: Any) -> list[Any]:
            load = _loader(builder, x, W, left, left is None)
            values = [load(args[1], builder.add(start, i)) for start in starts]
            if left is not None and name == "max":
                inside = first_lanes_value(builder, left, W)
                values = [builder.select(inside, value, args[5]) for value in values]
            return [
                formulas.step(name, Value(builder, total), Value(builder, value), exponent, power_value).value
                for total, value in zip(totals, values, strict=True)
            ]

        def whole(state: list[Any]) -> list[Any]:
            return [builder.add(state[0], number(W)), *more(state[0], state[1:], None)]

        def rest(state: list[Any]) -> list[Any]:
            return more(done, state, builder.sub(args[4], done))

        count, start = builder.sdiv(args[4], number(W)), [number(0), *[args[5]] * planes]
        done, *totals = repeat(builder, count, start, whole, "whole")
        totals = once(builder, builder.icmp_signed("<", done, args[4]), totals, rest, "rest")
        return _joined(name, builder, totals)

    return result(kind, x, types.int64, types.int64, types.int64, empty, types.float64, G), codegen
