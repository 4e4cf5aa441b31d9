"""What windows do with vectors, as functions for kernels; the formulas are `numbaprims.formulas.windows`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.jit import helper
from numbaprims.cpu.simd.arithmetic import sqrt_value
from numbaprims.cpu.simd.convert import floats_value, load_wide, load_wide_first, store_narrow, store_narrow_first
from numbaprims.cpu.simd.emit import constant, counting, llvm_vector, load_value, number, splat_value
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.cpu.simd.types import Vec
from numbaprims.formulas import windows as formulas
from numbaprims.formulas.value import nearest


def exponent_of(kind: str, builder: Any, like: Any, p: Any) -> Any:
    """p, a float64, beside vectors of floats; None for a kind that takes none."""
    if kind != "lp":
        return None
    return Value(builder, splat_value(builder, floats_value(builder, p, like.type.element), like.type.count))


def _of(kind: str, formula: Any, builder: Any, *vectors: Any) -> Any:
    """A formula of vectors and, last, p."""
    values = [Value(builder, vector) for vector in vectors[:-1]]
    return formula(kind, *values, exponent_of(kind, builder, vectors[0], vectors[-1]), power_value).value


def fold(kind: str, builder: Any, vectors: Sequence[Any]) -> Any:
    """Vectors joined lane by lane."""
    return functools.reduce(functools.partial(formulas.join, kind), [Value(builder, each) for each in vectors]).value


@intrinsic(prefer_literal=True)
def join_of(typingctx, kind, a, b):  # type: ignore[no-untyped-def]
    """What two parts of windows give together."""
    name = kind.literal_value

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return fold(name, builder, args[1:])

    return a(kind, a, b), codegen


@intrinsic(prefer_literal=True)
def finish_of(typingctx, kind, total, share, p):  # type: ignore[no-untyped-def]
    """The results of windows; the mean of integers, whose `share` is their number, is rounded, halves to even."""
    name, integers = kind.literal_value, kind.literal_value == "avg" and total.elem == "i32"

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        if name == "lp_2":
            return sqrt_value(builder, args[1])
        if integers:  # no quotient of float64 that is no half becomes one
            wide = context.get_value_type(Vec("f64", total.n))
            mean = builder.fdiv(builder.sitofp(args[1], wide), builder.fpext(args[2], wide))
            return builder.fptosi(nearest(Value(builder, mean)).value, args[1].type)
        return _of(name, formulas.finish, builder, *args[1:])

    return total(kind, total, share, types.float64), codegen


@intrinsic(prefer_literal=True)
def end_of(typingctx, kind, total, x, p):  # type: ignore[no-untyped-def]
    """dx of an lp norm."""
    name = kind.literal_value

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _of(name, formulas.gradient_end, builder, *args[1:])

    return total(kind, total, x, types.float64), codegen


def find(builder: Any, best: Any, place: Any, x: Any, at: Any, in_order: bool = False) -> tuple[Any, Any]:
    """(maximum, place) of what was found and one more element a lane."""
    a, b, c, d = (Value(builder, value) for value in (best, place, x, at))
    take = formulas.comes_first(a, b, c, d, in_order).value
    return builder.select(take, x, best), builder.select(take, at, place)


@intrinsic(prefer_literal=True)
def first_of(typingctx, best, place, x, at, in_order):  # type: ignore[no-untyped-def]
    """(maximum, place) of what was found and one more element a lane; `in_order`: whose place is no smaller."""
    result, ordered = types.Tuple([best, place]), in_order.literal_value

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return context.make_tuple(builder, result, find(builder, *args[:4], ordered))

    return result(best, place, x, at, in_order), codegen


@intrinsic
def places_from(typingctx, places, first):  # type: ignore[no-untyped-def]
    """Lane l: how far behind `first` + 2 l a place of a plane lies; -1 where it lies before it."""
    vec, result = Vec("i64", places.n), Vec("i32", places.n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        wide = llvm_vector("i64", vec.n)
        window = builder.shl(counting(wide), constant(wide, 1))
        return short_places(builder, builder.sub(args[0], builder.add(splat_value(builder, args[1], vec.n), window)))

    return result(places, types.int64), codegen


# ---------------------------------------------------------------- along a row


def _fold_first(builder: Any, pairs: Iterable[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The same of maxima and their places."""
    return functools.reduce(lambda a, b: find(builder, *a, *b), pairs)


def _spaced(builder: Any, pointer: Any, i: Any, vec: Vec, K: int, S: int, D: int) -> list[Any]:
    """For each tap t elements i + t D, i + t D + S, ...: wide loads, of which each serves S taps."""
    wide, loaded, taps = llvm_vector(vec.elem, vec.n * S), {}, []
    for at in range(0, K * D, D):
        base = at - at % S
        if base not in loaded:
            loaded[base] = load_value(builder, pointer, builder.add(i, number(base)), wide)
        value = loaded[base]
        taps.append(value if S == 1 else shuffle_value(builder, value, value, list(range(at % S, vec.n * S, S))))
    return taps


@intrinsic(prefer_literal=True)
def fold_row(typingctx, kind, p, i, K, S, D, W):  # type: ignore[no-untyped-def]
    """Lane l: elements i + l S + t D for t < K, joined."""
    name, sizes = kind.literal_value, [size.literal_value for size in (K, S, D)]
    result = Vec(p.elem, W.literal_value)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return fold(name, builder, _spaced(builder, args[1], args[2], result, *sizes))

    return result(kind, p, types.int64, K, S, D, W), codegen


@intrinsic(prefer_literal=True)
def fold_row_first(typingctx, p, places, i, K, S, D, W):  # type: ignore[no-untyped-def]
    """The same of maxima and their places."""
    sizes = [size.literal_value for size in (K, S, D)]
    both = [Vec(pointer.elem, W.literal_value) for pointer in (p, places)]
    result = types.Tuple(both)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        taps = [_spaced(builder, at, args[2], vec, *sizes) for at, vec in zip(args[:2], both, strict=True)]
        return context.make_tuple(builder, result, _fold_first(builder, zip(*taps, strict=True)))

    return result(p, places, types.int64, K, S, D, W), codegen


@intrinsic(prefer_literal=True)
def fold_tiles(typingctx, kind, v, S):  # type: ignore[no-untyped-def]
    """Lane l: lanes l S to l S + S - 1, joined."""
    name, step = kind.literal_value, S.literal_value
    result = Vec(v.elem, v.n // step)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        lanes = [list(range(t, v.n, step)) for t in range(step)]
        return fold(name, builder, [shuffle_value(builder, args[1], args[1], each) for each in lanes])

    return result(kind, v, S), codegen


def _lanes(n: int, K: int, S: int, D: int, before: int, back: bool) -> list[list[int]]:
    """For each tap the lane that every lane of the result reads; n, the first of the identity, where there is none."""
    taps = []
    for t in range(K):
        at = [lane + before - t * D if back else lane * S + t * D - before for lane in range(n)]
        if back:
            at = [place // S if place % S == 0 else n for place in at]
        taps.append([place if 0 <= place < n else n for place in at])
    return taps


@intrinsic(prefer_literal=True)
def fold_lanes(typingctx, kind, v, empty, K, S, D, before, back):  # type: ignore[no-untyped-def]
    """A whole row in a register.  Lane l: lanes l S + t D - before, joined; `back`: those that read lane l so."""
    name, numbers = kind.literal_value, [size.literal_value for size in (K, S, D, before, back)]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        lanes = _lanes(v.n, *numbers)
        return fold(name, builder, [shuffle_value(builder, args[1], args[2], each) for each in lanes])

    return v(kind, v, v, K, S, D, before, back), codegen


@intrinsic(prefer_literal=True)
def fold_lanes_first(typingctx, v, empty, places, nowhere, K, S, D, before):  # type: ignore[no-untyped-def]
    """The same of maxima and their places."""
    numbers = [size.literal_value for size in (K, S, D, before)]
    result = types.Tuple([v, places])

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pairs = [
            (shuffle_value(builder, *args[:2], lanes), shuffle_value(builder, *args[2:4], lanes))
            for lanes in _lanes(v.n, *numbers, False)
        ]
        return context.make_tuple(builder, result, _fold_first(builder, pairs))

    return result(v, v, places, places, K, S, D, before), codegen


@intrinsic
def as_places(typingctx, v):  # type: ignore[no-untyped-def]
    """Places as int64."""
    result = Vec("i64", v.n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return args[0] if v.elem == "i64" else builder.sext(args[0], context.get_value_type(result))

    return result(v), codegen


def short_places(builder: Any, places: Any) -> Any:
    """int64 places as int32, -1 where they are none of those."""
    wide = places.type
    short = builder.icmp_unsigned("<", places, constant(wide, 2**31))
    return builder.trunc(builder.select(short, places, constant(wide, -1)), llvm_vector("i32", wide.count))


@helper
def take(p, i, left, W, FULL):  # type: ignore[no-untyped-def]
    """A vector in its compute type, or the first lanes of one."""
    if FULL:
        value = load_wide(p, i, W)
    else:
        value = load_wide_first(p, i, left, W)
    return value


@helper
def give(p, i, left, value, FULL):  # type: ignore[no-untyped-def]
    """Write a computed vector or the first lanes of it."""
    if FULL:
        store_narrow(p, i, value)
    else:
        store_narrow_first(p, i, left, value)
