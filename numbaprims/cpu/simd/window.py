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
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.memory import (
    I32,
    first_lanes_value,
    masked_load_value,
    masked_store_value,
    splat_value,
    vector_at,
)
from numbaprims.cpu.simd.types import Pointer, Vec

_I64 = ir.IntType(64)


def _literals(*numba_types: Any) -> tuple[Any, ...] | None:
    if not all(isinstance(t, types.Literal) for t in numba_types):
        return None
    return tuple(t.literal_value for t in numba_types)


def _constant(x: int) -> Any:
    return ir.Constant(_I64, x)


def _row_at(builder: Any, x: Any, none: Any, row_step: Any, row: Any, rows: Any) -> Any:
    """Where a row begins; `none` for a row that is not there."""
    there = builder.icmp_unsigned("<", row, rows)
    return builder.select(there, builder.gep(x, [builder.mul(row, row_step)]), none)


class _Columns:
    """Loads of W columns, `step` (1 or 2) apart, from column + tap on; zeros where columns are not there."""

    def __init__(self, builder: Any, column: Any, columns: Any, step: int, lanes: int, whole: bool) -> None:
        self.builder, self.column, self.columns, self.step, self.lanes = builder, column, columns, step, lanes
        self.whole = whole
        self.masks: dict[int, Any] = {}

    def _part(self, row: Any, offset: int, elem: str, vector: Any) -> Any:
        builder = self.builder
        at = builder.add(self.column, _constant(offset))
        if self.whole:
            value = builder.load(vector_at(builder, row, at, vector))
            value.align = 1
            return widen_value(builder, value, elem)
        if offset not in self.masks:
            lane = ir.Constant(ir.VectorType(I32, self.lanes), list(range(self.lanes)))
            first = builder.add(splat_value(builder, builder.trunc(at, I32), self.lanes), lane)
            limit = splat_value(builder, builder.trunc(self.columns, I32), self.lanes)
            self.masks[offset] = builder.icmp_unsigned("<", first, limit)
        return widen_value(builder, masked_load_value(builder, row, at, self.masks[offset], vector), elem)

    def load(self, row: Any, taps: int, elem: str, vector: Any) -> list[Any]:
        """One vector for each tap of a row of the window."""
        if self.step == 1:
            return [self._part(row, tap, elem, vector) for tap in range(taps)]
        out = []
        for tap in range(0, taps, 2):
            pair = [self._part(row, tap + part * self.lanes, elem, vector) for part in (0, 1)]
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
        weights = []
        for r in range(taps_r):
            for s in range(taps_s):
                at = builder.add(builder.mul(w_row_v, _constant(r)), builder.mul(w_column_v, _constant(s)))
                value = widen_value(builder, builder.load(builder.gep(w_at, [at])), w.elem)
                weights.append(splat_value(builder, value, lanes))
        load = _Columns(builder, column_v, columns_v, step_w, lanes, bool(is_whole))
        sums: list[Any] = [None] * height
        for i in range((height - 1) * step_h + taps_r):
            begin = _row_at(builder, plane, empty, row_step_v, builder.add(row_v, _constant(i)), rows_v)
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
def window_end(typingctx, out, row_step, rows, columns, sums, alpha, c, c_step, beta, shift, has_c):  # type: ignore[no-untyped-def]
    """out[i * row_step + l] = alpha * sums[i][l] + beta * c[i * c_step + l] + shift, i < rows and l < columns.

    c is not looked at where the literal `has_c` is 0.
    """
    literal = _literals(has_c)
    if literal is None or not isinstance(sums, types.UniTuple) or not isinstance(out, Pointer):
        return None
    lanes = sums.dtype.n

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        out_at, row_step_v, rows_v, columns_v, tile, alpha_v, c_at, c_step_v, beta_v, shift_v = args[:10]
        mask = first_lanes_value(builder, columns_v, lanes)
        stored = context.get_value_type(Vec(out.elem, lanes))
        with builder.goto_entry_block():
            room = builder.alloca(stored)
            room.align = 64
        spare = builder.bitcast(room, out_at.type)
        for i in range(sums.count):
            # A branch around the store of a row that is not there would draw that row's sums into it, one chain of
            # dependent multiply-adds behind the other: 512 planes of 14 x 14 took 30 us instead of 20.
            there = builder.icmp_signed("<", _constant(i), rows_v)
            value = builder.fmul(builder.extract_value(tile, i), alpha_v)
            if literal[0]:
                begin = builder.select(there, builder.gep(c_at, [builder.mul(c_step_v, _constant(i))]), spare)
                more = masked_load_value(builder, begin, _constant(0), mask, stored)
                value = multiply_add_value(builder, widen_value(builder, more, out.elem), beta_v, value)
            value = narrow_value(builder, builder.fadd(value, shift_v), out.elem)
            begin = builder.select(there, builder.gep(out_at, [builder.mul(row_step_v, _constant(i))]), spare)
            masked_store_value(builder, begin, _constant(0), mask, value)
        return context.get_dummy_value()

    vec, i64 = sums.dtype, types.int64
    return types.void(out, i64, i64, i64, sums, vec, c, i64, vec, vec, has_c), codegen
