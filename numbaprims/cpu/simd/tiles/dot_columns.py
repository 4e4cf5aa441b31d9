"""Register tiles of int8 products whose B is not packed: by rows, four of which are interleaved, or by columns."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.dot import byte_kind, dot_feature, dot_value
from numbaprims.cpu.simd.emit import I32, first_lanes_value, least, load_value, number, prefetch_value, splat_value
from numbaprims.cpu.simd.loops import once, repeat
from numbaprims.cpu.simd.types import Pointer, Vec

_ROWS = 4  # rows of B in a group, and vectors of sums for each row of A


def _shuffled(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), order))


def _interleaved(builder: Any, a: Any, b: Any, upper: bool, size: int) -> Any:
    """Elements of `size` bytes of a and b in turn, of the lower or upper half of every 16 bytes: one instruction."""
    narrow = ir.VectorType(ir.IntType(8 * size), a.type.count // size)
    n = 16 // size
    order = [
        lane for at in range(0, narrow.count, n) for i in range(n // 2)
        for lane in (at + i + upper * n // 2, narrow.count + at + i + upper * n // 2)
    ]  # fmt: skip
    a, b = builder.bitcast(a, narrow), builder.bitcast(b, narrow)
    return builder.bitcast(_shuffled(builder, a, b, order), ir.VectorType(ir.IntType(8), a.type.count * size))


@intrinsic(prefer_literal=True)
def tile_dot_columns(typingctx, a, b, b_step, columns, k, shift, ahead, MR, W, summed, kind):  # type: ignore[no-untyped-def]
    """The tile sum over p < k of (a[i, p] + shift) b[p * b_step + j], i < MR, j < 4 W, exact in int32.

    a is a packed panel of bytes, unsigned or signed as `kind` ("u8s8" or "s8s8") says: row i's four of k from 4 g on
    are the 32-bit word g * MR + i.  b holds int8; columns past `columns` are not read: give
    a literal 4 W where all are there.  `summed`: whether shift is read.
    Columns `ahead` of these are prefetched.
    The result is a UniTuple of 4 MR vectors, row by row.
    """
    literals = (MR, W, summed, kind)
    if not all(isinstance(t, types.Literal) for t in literals):
        return None
    height, lanes, has_shift, name = (t.literal_value for t in literals)
    if not all(isinstance(p, Pointer) for p in (a, b)) or b.elem != "i8":
        return None
    result = types.UniTuple(Vec("i32", lanes), _ROWS * height)
    whole = isinstance(columns, types.Literal) and columns.literal_value == _ROWS * lanes
    feature, dot = dot_feature(name, lanes), dot_value(name)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        bytes_ = ir.VectorType(ir.IntType(8), _ROWS * lanes)
        a_start, b_start, step_v, columns_v, k_v, shift_v, ahead_v = args[:7]
        a_start = builder.bitcast(a_start, I32.as_pointer())
        mask = None if whole else first_lanes_value(builder, columns_v, _ROWS * lanes)
        one = ir.Constant(bytes_, [1] * bytes_.count)

        def update(state: list[Any], there: Any = None) -> list[Any]:
            a_at, b_at, *sums = state
            rows = []
            for t in range(_ROWS):
                at, keep = builder.mul(number(t), step_v), None
                if there is not None:
                    # rows past k: the last one again, as zeros
                    keep = builder.icmp_signed("<", number(t), there)
                    at = builder.select(keep, at, number(0))
                row = load_value(builder, b_at, at, bytes_, mask)
                if there is None:
                    # no prefetcher follows from row to row: 4 x 4096 x 4096 took 1.8 ms without, 1.3 with it (Zen 4)
                    prefetch_value(builder, b_at, builder.add(at, ahead_v), 2, False)
                rows.append(row if keep is None else builder.select(keep, row, ir.Constant(bytes_, None)))
            pairs = [_interleaved(builder, rows[t], rows[t + 1], up, 1) for t in (0, 2) for up in (False, True)]
            groups = [_interleaved(builder, pairs[h], pairs[h + 2], up, 2) for h in (0, 1) for up in (False, True)]
            out = []
            for i in range(height):
                word = builder.load(builder.gep(a_at, [number(i)]))
                word.align = 4
                av = builder.bitcast(splat_value(builder, word, lanes), bytes_)
                out += [dot(builder, sums[_ROWS * i + v], av, groups[v], feature) for v in range(_ROWS)]
            if has_shift:
                out += [dot(builder, sums[_ROWS * height + v], one, groups[v], feature) for v in range(_ROWS)]
            a_next = builder.gep(a_at, [number(height)])
            return [a_next, builder.gep(b_at, [builder.mul(number(_ROWS), step_v)]), *out]

        zero = ir.Constant(vector, None)
        state = [a_start, b_start, *[zero] * (_ROWS * (height + has_shift))]
        state = repeat(builder, builder.sdiv(k_v, number(_ROWS)), state, update, "groups")
        rest = builder.srem(k_v, number(_ROWS))
        there = builder.icmp_signed(">", rest, number(0))
        _, _, *sums = once(builder, there, state, lambda at: update(at, rest), "rest")
        if has_shift:
            off = splat_value(builder, builder.trunc(shift_v, I32), lanes)
            more = [builder.mul(x, off) for x in sums[_ROWS * height :]]
            sums = [builder.add(x, more[at % _ROWS]) for at, x in enumerate(sums[: _ROWS * height])]
        # vector v of the groups holds columns 16 L + 4 v ... + 3 in its lanes 4 L ... + 3
        out = []
        for i in range(height):
            low, high = (
                _shuffled(builder, *sums[_ROWS * i + h : _ROWS * i + h + 2], list(range(2 * lanes))) for h in (0, 2)
            )
            for v in range(_ROWS):
                order = []
                for column in range(v * lanes, (v + 1) * lanes):
                    block, group = divmod(column, 16)
                    order.append(group // 4 * lanes + 4 * block + group % 4)
                out.append(_shuffled(builder, low, high, order))
        return context.make_tuple(builder, result, out)

    return result(a, b, *(types.int64,) * 5, MR, W, summed, kind), codegen


@intrinsic(prefer_literal=True)
def tile_inner_dot(typingctx, a, a_step, rows, b, b_step, columns, k, shift, R, C, W):  # type: ignore[no-untyped-def]
    """R C vectors whose lanes add up to the inner products of rows of bytes, exact in int32.

    Vector i C + j: sum over p < k of (a[i a_step + p] + shift) b[j b_step + p], where b is signed, and so is a or not,
    with what `byte_kind` adds to it.  Rows past `rows` (and `columns` of b) repeat the last one.
    """
    if not all(isinstance(t, types.Literal) for t in (R, C, W)):
        return None
    height, width, lanes = (t.literal_value for t in (R, C, W))
    if not all(isinstance(p, Pointer) for p in (a, b)) or a.elem not in ("i8", "u8") or b.elem != "i8":
        return None
    result = types.UniTuple(Vec("i32", lanes), height * width)
    kind, added = byte_kind(a.elem == "i8", lanes)
    feature, dot = dot_feature(kind, lanes), dot_value(kind)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        bytes_ = ir.VectorType(ir.IntType(8), 4 * lanes)
        a_at, a_step_v, rows_v, b_at, b_step_v, columns_v, k_v, shift_v = args[:8]
        one, flip = ir.Constant(bytes_, [1] * bytes_.count), ir.Constant(bytes_, [-128] * bytes_.count)

        def starts(count: int, there: Any, step: Any) -> list[Any]:
            last = builder.sub(there, number(1))
            return [builder.mul(least(builder, number(i), last), step) for i in range(count)]

        a_rows, b_rows = starts(height, rows_v, a_step_v), starts(width, columns_v, b_step_v)

        def update(state: list[Any], mask: Any = None) -> list[Any]:
            at, *sums = state
            bs = [load_value(builder, b_at, builder.add(row, at), bytes_, mask) for row in b_rows]
            for i, row in enumerate(a_rows):
                x = load_value(builder, a_at, builder.add(row, at), bytes_, mask)
                x = builder.xor(x, flip) if added else x
                for j in range(width):
                    sums[i * width + j] = dot(builder, sums[i * width + j], x, bs[j], feature)
            for j in range(width):
                sums[height * width + j] = dot(builder, sums[height * width + j], one, bs[j], feature)
            return [builder.add(at, number(bytes_.count)), *sums]

        state = [number(0), *[ir.Constant(vector, None)] * (height * width + width)]
        state = repeat(builder, builder.sdiv(k_v, number(bytes_.count)), state, update, "inner")
        rest = builder.srem(k_v, number(bytes_.count))
        mask = first_lanes_value(builder, rest, bytes_.count)
        there = builder.icmp_signed(">", rest, number(0))
        _, *sums = once(builder, there, state, lambda at: update(at, mask), "rest")
        off = splat_value(builder, builder.trunc(shift_v, I32), lanes)
        more = [builder.mul(x, off) for x in sums[height * width :]]
        out = [builder.add(x, more[at % width]) for at, x in enumerate(sums[: height * width])]
        return context.make_tuple(builder, result, out)

    i64 = types.int64
    return result(a, i64, i64, b, i64, i64, i64, i64, R, C, W), codegen
