"""Windows over images whose channels are neighbours: RT x QT pixels of sums, a vector of channels each, in registers.

An input pixel that several sums need is loaded once for all of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.convert import compute_element, narrow_value, widen_value
from numbaprims.cpu.simd.emit import (
    first_lanes_value,
    load_value,
    masked_load_value,
    masked_store_value,
    number,
    store_value,
)
from numbaprims.cpu.simd.types import Pointer, Vec, stack_block


def _literals(*numba_types: Any) -> tuple[Any, ...] | None:
    if not all(isinstance(t, types.Literal) for t in numba_types):
        return None
    return tuple(t.literal_value for t in numba_types)


class _Pixels:
    """Vectors of the pixels of an image, rows x columns; `none` stands for a pixel that is not there."""

    def __init__(self, builder: Any, pointer: Any, none: Any, place: Any, mask: Any, elem: str, vector: Any) -> None:
        self.builder, self.pointer, self.none = builder, pointer, none
        self.row_step, self.column_step, self.row, self.rows, self.column, self.columns = place
        self.mask, self.elem, self.vector = mask, elem, vector

    def at(self, i: int, j: int) -> Any:
        """The address of pixel (row + i, column + j)."""
        builder = self.builder
        row, column = builder.add(self.row, number(i)), builder.add(self.column, number(j))
        there = builder.icmp_unsigned("<", row, self.rows)
        there = builder.and_(there, builder.icmp_unsigned("<", column, self.columns))
        index = builder.add(builder.mul(row, self.row_step), builder.mul(column, self.column_step))
        return builder.select(there, builder.gep(self.pointer, [index]), self.none)

    def load(self, i: int, j: int) -> Any:
        """Its first channels, computed."""
        value = masked_load_value(self.builder, self.at(i, j), number(0), self.mask, self.vector)
        return widen_value(self.builder, value, self.elem)


def _taps(
    spread: int, RT: int, QT: int, R: int, S: int, SH: int, SW: int
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Input pixel -> what it adds to, as (sum, tap), pixels in the order of rows."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    height, width = (RT * SH, QT * SW) if spread else (RT, QT)
    for o in range(height):
        for p in range(width):
            for r in range(R):
                for s in range(S):
                    if not spread:
                        at = (o * SH + r, p * SW + s)
                    elif (o - r) % SH == 0 and (p - s) % SW == 0:
                        at = ((o - r) // SH, (p - s) // SW)
                    else:
                        continue
                    found.setdefault(at, []).append((o * width + p, r * S + s))
    return dict(sorted(found.items()))


@intrinsic(prefer_literal=True)
def pixel_window(  # type: ignore[no-untyped-def]
    typingctx, x, none, row_step, column_step, row, rows, column, columns, channels, w, spread, RT, QT, R, S, SH, SW, W
):
    """RT x QT vectors of channels: sum (i, j) of x[row + i * SH + r, column + j * SW + s] * w[(r * S + s) * W + lane].

    With a literal `spread` = 1 the gradient of that by x, RT * SH x QT * SW vectors: sum (i, j) over
    x[row + (i - r) / SH, column + (j - s) / SW] times w, for the r and s that leave no remainder.  Pixels outside of x
    count as zero; `none` is a vector of zeros.  Lanes past `channels` are zero.
    """
    literal = _literals(spread, RT, QT, R, S, SH, SW, W)
    if literal is None or not isinstance(x, Pointer) or not isinstance(w, Pointer):
        return None
    lanes = literal[-1]
    order = _taps(*literal[:-1])
    count = literal[1] * literal[2] * (literal[5] * literal[6] if literal[0] else 1)
    result = types.UniTuple(Vec(compute_element(x.elem), lanes), count)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        mask = first_lanes_value(builder, args[8], lanes)
        stored = context.get_value_type(Vec(x.elem, lanes))
        pixels = _Pixels(builder, args[0], args[1], args[2:8], mask, x.elem, stored)
        vector = context.get_value_type(result.dtype)
        taps = range(literal[3] * literal[4])
        weights = [load_value(builder, args[9], number(tap * lanes), vector) for tap in taps]
        sums: list[Any] = [None] * count
        for (i, j), uses in order.items():
            value = pixels.load(i, j)
            for at, tap in uses:
                if sums[at] is None:
                    sums[at] = builder.fmul(value, weights[tap])
                else:
                    sums[at] = multiply_add_value(builder, value, weights[tap], sums[at])
        zero = ir.Constant(vector, None)
        return context.make_tuple(builder, result, [zero if value is None else value for value in sums])

    i64 = types.int64
    return result(x, x, *[i64] * 7, w, spread, RT, QT, R, S, SH, SW, W), codegen


@intrinsic(prefer_literal=True)
def pixel_row(typingctx, sums, x, w, S, SW):  # type: ignore[no-untyped-def]
    """`sums` with a row of taps added, of pixels and taps that are vectors one behind the other: to sum j
    x[j * SW + s] * w[s], s < S."""
    literal = _literals(S, SW)
    if literal is None or not isinstance(sums, types.UniTuple) or not isinstance(x, Pointer):
        return None
    lanes = sums.dtype.n
    order = _taps(0, 1, sums.count, 1, literal[0], 1, literal[1])

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(sums.dtype)
        out = [builder.extract_value(args[0], i) for i in range(sums.count)]
        weights = [load_value(builder, args[2], number(tap * lanes), vector) for tap in range(literal[0])]
        for (_, j), uses in order.items():
            value = load_value(builder, args[1], number(j * lanes), vector)
            for at, tap in uses:
                out[at] = multiply_add_value(builder, value, weights[tap], out[at])
        return context.make_tuple(builder, sums, out)

    return sums(sums, x, w, S, SW), codegen


@intrinsic
def store_pixels(typingctx, p, places, vectors):  # type: ignore[no-untyped-def]
    """Store a tuple of vectors of p's elements, the i-th at p[places[i]]."""
    if not isinstance(vectors, types.UniTuple) or not isinstance(p, Pointer) or not isinstance(places, Pointer):
        return None
    if vectors.dtype.elem != p.elem:
        raise TypingError(f"vectors of {vectors.dtype.elem} stored as {p.elem}")

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        for i in range(vectors.count):
            at = builder.load(builder.gep(args[1], [number(i)]))
            store_value(builder, args[0], at, builder.extract_value(args[2], i))
        return context.get_dummy_value()

    return types.void(p, places, vectors), codegen


@intrinsic(prefer_literal=True)
def pixel_gradient(  # type: ignore[no-untyped-def]
    typingctx, sums, x, none, row_step, column_step, row, rows, column, columns, y, y_step, channels, QT, R, S, SW
):
    """The gradient of `pixel_window` by its weights, R * S vectors: `sums` with the products of QT pixels of y added.

    Vector r * S + s gets x[row + r, column + j * SW + s] * y[j * y_step], j < QT.
    """
    literal = _literals(QT, R, S, SW)
    if literal is None or not isinstance(sums, types.UniTuple) or not isinstance(x, Pointer):
        return None
    lanes = sums.dtype.n
    across, taps_r, taps_s, step = literal
    order = _taps(0, 1, across, taps_r, taps_s, 1, step)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        mask = first_lanes_value(builder, args[11], lanes)
        xs = _Pixels(builder, args[1], args[2], args[3:9], mask, x.elem, context.get_value_type(Vec(x.elem, lanes)))
        stored = context.get_value_type(Vec(y.elem, lanes))
        values = []
        for j in range(across):
            value = masked_load_value(builder, args[9], builder.mul(args[10], number(j)), mask, stored)
            values.append(widen_value(builder, value, y.elem))
        out = [builder.extract_value(args[0], i) for i in range(sums.count)]
        for (i, j), uses in order.items():
            value = xs.load(i, j)
            for at, tap in uses:
                out[tap] = multiply_add_value(builder, value, values[at], out[tap])
        return context.make_tuple(builder, sums, out)

    i64 = types.int64
    return sums(sums, x, x, *[i64] * 6, y, i64, i64, QT, R, S, SW), codegen


@intrinsic(prefer_literal=True)
def pixel_end(  # type: ignore[no-untyped-def]
    typingctx, out, row_step, column_step, row, rows, column, columns, channels, sums, alpha,
    c, c_row_step, c_column_step, beta, shift, has_c, width,
):  # fmt: skip
    """Store rows of `width` pixels of sums from (row, column) of an image on: alpha sum + beta c + shift.

    Pixels outside of the image, rows x columns, are dropped; c is not looked at where the literal `has_c` is 0.
    """
    literal = _literals(has_c, width)
    if literal is None or not isinstance(sums, types.UniTuple) or not isinstance(out, Pointer):
        return None
    lanes, across = sums.dtype.n, literal[1]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        mask = first_lanes_value(builder, args[7], lanes)
        stored = context.get_value_type(Vec(out.elem, lanes))
        room = stack_block(context, builder, stored, 1)
        spare = builder.bitcast(room, args[0].type)
        where = list(args[1:7])
        target = _Pixels(builder, args[0], spare, where, mask, out.elem, stored)
        c_spare, c_stored = builder.bitcast(room, args[10].type), context.get_value_type(Vec(c.elem, lanes))
        more = _Pixels(builder, args[10], c_spare, [args[11], args[12], *where[2:]], mask, c.elem, c_stored)
        for at in range(sums.count):
            i, j = divmod(at, across)
            value = builder.fmul(builder.extract_value(args[8], at), args[9])
            if literal[0]:
                value = multiply_add_value(builder, more.load(i, j), args[13], value)
            value = narrow_value(builder, builder.fadd(value, args[14]), out.elem)
            masked_store_value(builder, target.at(i, j), number(0), mask, value)
        return context.get_dummy_value()

    vec, i64 = sums.dtype, types.int64
    return types.void(out, *[i64] * 7, sums, vec, c, i64, i64, vec, vec, has_c, width), codegen
