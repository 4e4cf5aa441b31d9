"""Windows that walk over a plane: RT rows of sums, a vector of neighbouring columns each, held in registers.

An input row that several rows of sums need is loaded once for all of them.  Everything is unrolled when the code is
emitted, so that every sum and every weight keeps a register.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.convert import compute_element, narrow_value, widen_value
from numbaprims.cpu.simd.emit import (
    I32,
    first_lanes_value,
    load_value,
    masked_load_value,
    masked_store_value,
    number,
    splat_value,
)
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.types import Pointer, Vec, stack_block


def _literals(*numba_types: Any) -> tuple[Any, ...] | None:
    if not all(isinstance(t, types.Literal) for t in numba_types):
        return None
    return tuple(t.literal_value for t in numba_types)


def _row_at(builder: Any, x: Any, none: Any, row_step: Any, row: Any, rows: Any) -> Any:
    """Where a row begins; `none` for a row that is not there."""
    there = builder.icmp_unsigned("<", row, rows)
    return builder.select(there, builder.gep(x, [builder.mul(row, row_step)]), none)


def _weights(builder: Any, w: Any, row_step: Any, column_step: Any, R: int, S: int, elem: str, lanes: int) -> list[Any]:
    """A vector for each element of a window, repeated."""
    out = []
    for r in range(R):
        for s in range(S):
            at = builder.add(builder.mul(row_step, number(r)), builder.mul(column_step, number(s)))
            value = widen_value(builder, builder.load(builder.gep(w, [at])), elem)
            out.append(splat_value(builder, value, lanes))
    return out


class _Columns:
    """Loads of W columns, `step` (1 or 2) apart, from column + tap on; zeros where columns are not there, and in the
    lanes from `left` on."""

    def __init__(
        self, builder: Any, column: Any, columns: Any, step: int, lanes: int, whole: bool, left: Any = None
    ) -> None:
        self.builder, self.column, self.columns, self.step, self.lanes = builder, column, columns, step, lanes
        self.whole, self.left = whole, left
        self.masks: dict[tuple[int, int], Any] = {}

    def mask(self, tap: int, part: int = 0) -> Any:
        """The lanes whose columns, from column + tap + part * W on, are there."""
        if (tap, part) not in self.masks:
            builder, skipped = self.builder, part * self.lanes
            lane = ir.Constant(ir.VectorType(I32, self.lanes), list(range(self.lanes)))
            first = builder.trunc(builder.add(self.column, number(tap + skipped)), I32)
            limit = splat_value(builder, builder.trunc(self.columns, I32), self.lanes)
            mask = builder.icmp_unsigned("<", builder.add(splat_value(builder, first, self.lanes), lane), limit)
            if self.left is not None:
                last = builder.sub(builder.mul(self.left, number(self.step)), number(skipped))
                mask = builder.and_(mask, first_lanes_value(builder, last, self.lanes))
            self.masks[tap, part] = mask
        return self.masks[tap, part]

    def _part(self, row: Any, tap: int, part: int, elem: str, vector: Any) -> Any:
        builder = self.builder
        at = builder.add(self.column, number(tap + part * self.lanes))
        mask = None if self.whole else self.mask(tap, part)
        return widen_value(builder, load_value(builder, row, at, vector, mask), elem)

    def load(self, row: Any, taps: int, elem: str, vector: Any) -> list[Any]:
        """One vector for each tap of a row of the window."""
        if self.step == 1:
            return [self._part(row, tap, 0, elem, vector) for tap in range(taps)]
        out = []
        for tap in range(0, taps, 2):
            pair = [self._part(row, tap, part, elem, vector) for part in (0, 1)]
            for odd in range(min(2, taps - tap)):
                out.append(shuffle_value(self.builder, pair[0], pair[1], list(range(odd, 2 * self.lanes, 2))))
        return out


@intrinsic(prefer_literal=True)
def window_rows(  # type: ignore[no-untyped-def]
    typingctx, x, none, row_step, row, rows, column, columns, w, w_row, w_column, whole, RT, R, S, SH, SW, W
):
    """RT vectors: lane l of vector i sums x[row + i * SH + r, column + l * SW + s] * w[r * w_row + s * w_column].

    x is a plane of rows x columns, its rows `row_step` elements apart; what lies outside counts as zero, and `none` is
    a row of zeros.  A literal `whole` = 1 says that no column is outside, which drops the masks.  SW is 1 or 2.
    Sums run over s within r, in ascending order.
    """
    literal = _literals(whole, RT, R, S, SH, SW, W)
    if literal is None or not isinstance(x, Pointer) or not isinstance(w, Pointer) or literal[5] not in (1, 2):
        return None
    is_whole, height, taps_r, taps_s, step_h, step_w, lanes = literal
    result = types.UniTuple(Vec(compute_element(x.elem), lanes), height)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        plane, empty, row_step_v, row_v, rows_v, column_v, columns_v, w_at, w_row_v, w_column_v = args[:10]
        stored = context.get_value_type(Vec(x.elem, lanes))
        weights = _weights(builder, w_at, w_row_v, w_column_v, taps_r, taps_s, w.elem, lanes)
        load = _Columns(builder, column_v, columns_v, step_w, lanes, bool(is_whole))
        sums: list[Any] = [None] * height
        for i in range((height - 1) * step_h + taps_r):
            begin = _row_at(builder, plane, empty, row_step_v, builder.add(row_v, number(i)), rows_v)
            values = load.load(begin, taps_s, x.elem, stored)
            for s in range(taps_s):
                for o in range(height):
                    r = i - o * step_h
                    if 0 <= r < taps_r:
                        weight = weights[r * taps_s + s]
                        if sums[o] is None:
                            sums[o] = builder.fmul(values[s], weight)
                        else:
                            sums[o] = multiply_add_value(builder, values[s], weight, sums[o])
        return context.make_tuple(builder, result, sums)

    i64 = types.int64
    return result(x, x, i64, i64, i64, i64, i64, w, i64, i64, whole, RT, R, S, SH, SW, W), codegen


@intrinsic(prefer_literal=True)
def window_spread(  # type: ignore[no-untyped-def]
    typingctx, y, none, row_step, row, rows, column, columns, w, w_row, w_column, RT, R, S, SH, SW, W
):
    """The gradient of `window_rows` by its plane: RT * SH rows of SW vectors, whose lanes are neighbouring columns.

    Element (i, l) sums y[row + (i - r) / SH, column + (l - s) / SW] * w[r * w_row + s * w_column] over the r and s that
    leave no remainder; what lies outside of y, rows x columns, counts as zero.
    """
    literal = _literals(RT, R, S, SH, SW, W)
    if literal is None or not isinstance(y, Pointer) or not isinstance(w, Pointer) or literal[4] not in (1, 2):
        return None
    height, taps_r, taps_s, step_h, step_w, lanes = literal
    result = types.UniTuple(Vec(compute_element(y.elem), lanes), height * step_h * step_w)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        plane, empty, row_step_v, row_v, rows_v, column_v, columns_v, w_at, w_row_v, w_column_v = args[:10]
        stored = context.get_value_type(Vec(y.elem, lanes))
        weights = _weights(builder, w_at, w_row_v, w_column_v, taps_r, taps_s, w.elem, lanes)
        reach_h, reach_w = (taps_r - 1) // step_h, (taps_s - 1) // step_w
        first = builder.sub(column_v, number(reach_w))
        load = _Columns(builder, first, columns_v, 1, lanes, False)
        sums: list[list[Any]] = [[None] * step_w for _ in range(height * step_h)]
        for up in range(-reach_h, height):
            begin = _row_at(builder, plane, empty, row_step_v, builder.add(row_v, number(up)), rows_v)
            # values[b] lies b - reach_w columns from `column`
            values = load.load(begin, reach_w + 1, y.elem, stored)
            for i in range(height * step_h):
                r = i - up * step_h
                if not 0 <= r < taps_r:
                    continue
                for s in range(taps_s):
                    weight, value = weights[r * taps_s + s], values[reach_w - s // step_w]
                    so_far = sums[i][s % step_w]
                    if so_far is None:
                        sums[i][s % step_w] = builder.fmul(value, weight)
                    else:
                        sums[i][s % step_w] = multiply_add_value(builder, value, weight, so_far)
        zero = ir.Constant(context.get_value_type(result.dtype), None)
        out = []
        for row_of_sums in sums:
            parts = [zero if value is None else value for value in row_of_sums]
            if step_w == 2:
                for half in (0, lanes // 2):
                    order = [lane + lanes * odd for lane in range(half, half + lanes // 2) for odd in (0, 1)]
                    out.append(shuffle_value(builder, parts[0], parts[1], order))
            else:
                out += parts
        return context.make_tuple(builder, result, out)

    i64 = types.int64
    return result(y, y, i64, i64, i64, i64, i64, w, i64, i64, RT, R, S, SH, SW, W), codegen


@intrinsic(prefer_literal=True)
def window_gradient(  # type: ignore[no-untyped-def]
    typingctx, sums, x, none, row_step, row, rows, column, columns, y, y_step, left, RT, R, S, SH, SW
):
    """The gradient of `window_rows` by its weights, R * S vectors: `sums` with the products of a tile added.

    Vector r * S + s gets x[row + i * SH + r, column + l * SW + s] * y[i * y_step + l] for i < RT, in lane l < left.
    """
    literal = _literals(RT, R, S, SH, SW)
    if (
        literal is None
        or not isinstance(sums, types.UniTuple)
        or not isinstance(x, Pointer)
        or literal[4] not in (1, 2)
    ):
        return None
    height, taps_r, taps_s, step_h, step_w = literal
    lanes = sums.dtype.n

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        tile, plane, empty, row_step_v, row_v, rows_v, column_v, columns_v, y_at, y_step_v, left_v = args[:11]
        there = first_lanes_value(builder, left_v, lanes)
        stored, y_stored = (context.get_value_type(Vec(p.elem, lanes)) for p in (x, y))
        ys = []
        for i in range(height):
            value = masked_load_value(builder, y_at, builder.mul(y_step_v, number(i)), there, y_stored)
            ys.append(widen_value(builder, value, y.elem))
        # an x beside the last column of y must not meet its zeros: infinity times zero is NaN
        load = _Columns(builder, column_v, columns_v, step_w, lanes, False, left_v)
        out = [builder.extract_value(tile, i) for i in range(sums.count)]
        for i in range((height - 1) * step_h + taps_r):
            begin = _row_at(builder, plane, empty, row_step_v, builder.add(row_v, number(i)), rows_v)
            values = load.load(begin, taps_s, x.elem, stored)
            for o in range(height):
                r = i - o * step_h
                if 0 <= r < taps_r:
                    for s in range(taps_s):
                        at = r * taps_s + s
                        out[at] = multiply_add_value(builder, values[s], ys[o], out[at])
        return context.make_tuple(builder, sums, out)

    i64 = types.int64
    return sums(sums, x, x, i64, i64, i64, i64, i64, y, i64, i64, RT, R, S, SH, SW), codegen


@intrinsic(prefer_literal=True)
def window_end(  # type: ignore[no-untyped-def]
    typingctx, out, row_step, row, rows, column, columns, sums, alpha, c, c_step, beta, shift, has_c, NV
):
    """Store rows of NV vectors of sums in a plane, rows x columns, from (row, column) on: alpha sum + beta c + shift.

    Elements outside of the plane are dropped; c is not looked at where the literal `has_c` is 0.
    """
    literal = _literals(has_c, NV)
    if literal is None or not isinstance(sums, types.UniTuple) or not isinstance(out, Pointer):
        return None
    lanes, vectors = sums.dtype.n, literal[1]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        out_at, step_v, row_v, rows_v, column_v, columns_v, tile, alpha_v, c_at, c_step_v, beta_v, shift_v = args[:12]
        stored = context.get_value_type(Vec(out.elem, lanes))
        room = stack_block(context, builder, stored, 1)
        spare, c_spare = (builder.bitcast(room, pointer.type) for pointer in (out_at, c_at))
        c_stored = context.get_value_type(Vec(c.elem, lanes))
        load = _Columns(builder, column_v, columns_v, 1, lanes, False)
        for i in range(sums.count // vectors):
            # A branch around the store of a row that is not there would draw that row's sums into it, one chain of
            # dependent multiply-adds behind the other: 512 planes of 14 x 14 took 30 us instead of 20.
            at = builder.add(row_v, number(i))
            there = builder.icmp_unsigned("<", at, rows_v)
            for v in range(vectors):
                mask = load.mask(0, v)
                column_at = builder.add(column_v, number(v * lanes))
                value = builder.fmul(builder.extract_value(tile, i * vectors + v), alpha_v)
                if literal[0]:
                    begin = builder.gep(c_at, [builder.add(builder.mul(c_step_v, at), column_at)])
                    begin = builder.select(there, begin, c_spare)
                    more = masked_load_value(builder, begin, number(0), mask, c_stored)
                    value = multiply_add_value(builder, widen_value(builder, more, c.elem), beta_v, value)
                value = narrow_value(builder, builder.fadd(value, shift_v), out.elem)
                begin = builder.gep(out_at, [builder.add(builder.mul(step_v, at), column_at)])
                masked_store_value(builder, builder.select(there, begin, spare), number(0), mask, value)
        return context.get_dummy_value()

    vec, i64 = sums.dtype, types.int64
    return types.void(out, i64, i64, i64, i64, i64, sums, vec, c, i64, vec, vec, has_c, NV), codegen
