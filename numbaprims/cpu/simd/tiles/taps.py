"""Register tiles over taps: sums over a table of offsets, for convolutions without a matrix of patches."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.convert import compute_element, narrow_value, widen_value
from numbaprims.cpu.simd.emit import (
    I32,
    I64,
    counting,
    load_value,
    masked_load_value,
    masked_store_value,
    number,
    splat_value,
    store_value,
    vector_at,
)
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.types import Pointer, Vec, stack_block

PLACE = 4  # words that tell where a vector of pixels lies: its place in the copied grid, row, column


def _literals(*numba_types: Any) -> tuple[Any, ...] | None:
    if not all(isinstance(t, types.Literal) for t in numba_types):
        return None
    return tuple(t.literal_value for t in numba_types)


def _there(builder: Any, first: Any, limit: Any, lanes: int) -> Any:
    """The lanes l with 0 <= first + l < limit."""
    index = splat_value(builder, builder.trunc(first, I32), lanes)
    index = builder.add(index, counting(index.type))
    return builder.icmp_unsigned("<", index, splat_value(builder, builder.trunc(limit, I32), lanes))


@intrinsic(prefer_literal=True)
def load_phases(typingctx, p, first, count, PHASES, W):  # type: ignore[no-untyped-def]
    """PHASES vectors: lane l of vector b is element first + l * PHASES + b of p; zero if that is not in [0, count)."""
    literal = _literals(PHASES, W)
    if literal is None or not isinstance(p, Pointer):
        return None
    phases, lanes = literal
    result = types.UniTuple(Vec(compute_element(p.elem), lanes), phases)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        stored = context.get_value_type(Vec(p.elem, lanes))
        parts = []
        for part in range(phases):
            at = builder.add(args[1], number(part * lanes))
            value = masked_load_value(builder, args[0], at, _there(builder, at, args[2], lanes), stored)
            parts.append(widen_value(builder, value, p.elem))
        return context.make_tuple(builder, result, _deinterleave(builder, parts, lanes))

    return result(p, types.int64, types.int64, PHASES, W), codegen


@intrinsic(prefer_literal=True)
def load_phases_inside(typingctx, p, first, PHASES, W):  # type: ignore[no-untyped-def]
    """`load_phases` of elements that are all there."""
    literal = _literals(PHASES, W)
    if literal is None or not isinstance(p, Pointer):
        return None
    phases, lanes = literal
    result = types.UniTuple(Vec(compute_element(p.elem), lanes), phases)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        stored = context.get_value_type(Vec(p.elem, lanes))
        parts = []
        for part in range(phases):
            value = load_value(builder, args[0], builder.add(args[1], number(part * lanes)), stored)
            parts.append(widen_value(builder, value, p.elem))
        return context.make_tuple(builder, result, _deinterleave(builder, parts, lanes))

    return result(p, types.int64, PHASES, W), codegen


def _deinterleave(builder: Any, parts: list[Any], lanes: int) -> list[Any]:
    """Vectors of consecutive elements -> one vector for each remainder of the element's number."""
    phases = len(parts)
    if phases == 1:
        return parts
    if phases % 2 == 0:
        # even and odd elements of neighbours first, whose even and odd ones are those of 4, ...
        even, odd = (
            [
                shuffle_value(builder, parts[i], parts[i + 1], list(range(half, 2 * lanes, 2)))
                for i in range(0, phases, 2)
            ]
            for half in (0, 1)
        )
        out: list[Any] = [None] * phases
        out[::2], out[1::2] = _deinterleave(builder, even, lanes), _deinterleave(builder, odd, lanes)
        return out
    vector = parts[0].type
    out = []
    for phase in range(phases):
        value = ir.Constant(vector, ir.Undefined)
        for lane in range(lanes):
            part, at = divmod(lane * phases + phase, lanes)
            scalar = builder.extract_element(parts[part], ir.Constant(I32, at))
            value = builder.insert_element(value, scalar, ir.Constant(I32, lane))
        out.append(value)
    return out


def _loop(builder: Any, count: Any, offsets: Any, w: Any, w_step: int, sums: list[Any], update: Any) -> Any:
    """`count` updates (sums, offset, address of the weights) -> sums, the sums in registers."""
    before = builder.block
    body, after = builder.append_basic_block("taps"), builder.append_basic_block("taps_end")
    builder.cbranch(builder.icmp_signed(">", count, number(0)), body, after)
    builder.position_at_end(body)
    t, w_phi = builder.phi(I64), builder.phi(w.type)
    phis = [builder.phi(value.type) for value in sums]
    current = update(list(phis), builder.load(builder.gep(offsets, [t])), w_phi)
    t_next, w_next = builder.add(t, number(1)), builder.gep(w_phi, [number(w_step)])
    end = builder.block
    builder.cbranch(builder.icmp_signed("<", t_next, count), body, after)
    pairs = ((t, number(0), t_next), (w_phi, w, w_next), *zip(phis, sums, current, strict=True))
    for phi, first, again in pairs:
        phi.add_incoming(first, before)
        phi.add_incoming(again, end)
    builder.position_at_end(after)
    merged = []
    for first, again in zip(sums, current, strict=True):
        phi = builder.phi(first.type)
        phi.add_incoming(first, before)
        phi.add_incoming(again, end)
        merged.append(phi)
    return merged


@intrinsic(prefer_literal=True)
def tile_taps(typingctx, x, places, offsets, w, count, gap, MR, NV, W, CROSS):  # type: ignore[no-untyped-def]
    """The tile sum over t < count of w[t * MR + i] * x[places[3 v] + offsets[t] + lane]: MR filters x NV vectors.

    `places` and `offsets` are addresses of int64 words.
    """
    literal = _literals(MR, NV, W, CROSS)
    if literal is None or not isinstance(x, Pointer) or not isinstance(w, Pointer):
        return None
    rows, vectors, lanes, cross = literal
    result = types.UniTuple(Vec(x.elem, lanes), rows * vectors)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        where, table = (builder.inttoptr(address, I64.as_pointer()) for address in args[1:3])
        begins = [builder.gep(args[0], [builder.load(builder.gep(where, [number(PLACE * v)]))]) for v in range(vectors)]

        last = vectors - 1
        if cross:
            lane = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
            cut = builder.trunc(builder.load(builder.gep(where, [number(PLACE * last + 3)])), I32)
            behind = builder.icmp_unsigned(">=", lane, splat_value(builder, cut, lanes))
            next_row = builder.gep(begins[last], [args[5]])

        def update(sums: list[Any], offset: Any, w_at: Any) -> list[Any]:
            xs = []
            for v, begin in enumerate(begins):
                value = load_value(builder, begin, offset, vector)
                if cross and v == last:
                    at = vector_at(builder, next_row, offset, vector)
                    value = masked_load_value(builder, at, number(0), behind, vector, value)
                xs.append(value)
            out = []
            for i in range(rows):
                weight = splat_value(builder, builder.load(builder.gep(w_at, [number(i)])), lanes)
                out += [multiply_add_value(builder, weight, xs[v], sums[i * vectors + v]) for v in range(vectors)]
            return out

        zero = [ir.Constant(vector, None)] * (rows * vectors)
        sums = _loop(builder, args[4], table, args[3], rows, zero, update)
        return context.make_tuple(builder, result, sums)

    return result(x, types.int64, types.int64, w, types.int64, types.int64, MR, NV, W, CROSS), codegen


@intrinsic(prefer_literal=True)
def grid_end(  # type: ignore[no-untyped-def]
    typingctx, out, k_step, row_step, filters, places, pitch, rows, columns, tile, alpha, shifts,
    c, c_k_step, c_row_step, beta, has_c, NV,
):  # fmt: skip
    """Store a tile of filters x NV vectors of pixels of a grid, rows x pitch, in planes.

    `places` is the address of three int64 words for each vector: its place in the grid, row p and column q.

    out[i, p, q] = alpha * sum + shifts[i] + beta * c[i, p, q] for the pixels at p * pitch + q with q < columns; others
    are dropped, and so are filters from `filters` on.  A vector crosses one row's end at most: pitch >= W.  c is not
    looked at where the literal `has_c` is 0.
    """
    literal = _literals(has_c, NV)
    if literal is None or not isinstance(tile, types.UniTuple) or not isinstance(out, Pointer):
        return None
    lanes, vectors = tile.dtype.n, literal[1]
    height = tile.count // vectors

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        (out_at, k_step_v, row_step_v, filters_v, places_v, pitch_v, rows_v, columns_v, sums, alpha_v, shifts_v,
         c_at, c_k_v, c_row_v, beta_v) = args[:15]  # fmt: skip
        stored = context.get_value_type(Vec(out.elem, lanes))
        room = stack_block(context, builder, stored, 1)
        spare, c_spare = (builder.bitcast(room, pointer.type) for pointer in (out_at, c_at))
        c_stored = context.get_value_type(Vec(c.elem, lanes))

        def piece(values: list[Any], p: Any, q: Any, mask: Any) -> None:
            begin = builder.gep(out_at, [builder.add(builder.mul(p, row_step_v), q)])
            more = builder.gep(c_at, [builder.add(builder.mul(p, c_row_v), q)])
            for i, value in enumerate(values):
                there = builder.icmp_signed("<", number(i), filters_v)
                if literal[0]:
                    place = builder.select(there, builder.gep(more, [builder.mul(c_k_v, number(i))]), c_spare)
                    added = masked_load_value(builder, place, number(0), mask, c_stored)
                    added = widen_value(builder, added, c.elem)
                    value = multiply_add_value(builder, added, beta_v, value)
                place = builder.select(there, builder.gep(begin, [builder.mul(k_step_v, number(i))]), spare)
                masked_store_value(builder, place, number(0), mask, narrow_value(builder, value, out.elem))

        where = builder.inttoptr(places_v, I64.as_pointer())
        nothing = number(0)
        for v in range(vectors):
            p, q = (builder.load(builder.gep(where, [number(PLACE * v + word)])) for word in (1, 2))
            values = []
            for i in range(height):
                shift = splat_value(builder, builder.load(builder.gep(shifts_v, [number(i)])), lanes)
                values.append(multiply_add_value(builder, builder.extract_value(sums, i * vectors + v), alpha_v, shift))
            here = builder.icmp_signed("<", p, rows_v)
            piece(values, p, q, _there(builder, q, builder.select(here, columns_v, nothing), lanes))
            next_p, next_q = builder.add(p, number(1)), builder.sub(q, pitch_v)
            crosses = builder.icmp_signed(">", builder.add(q, number(lanes)), pitch_v)
            here = builder.icmp_signed("<", next_p, rows_v)
            with builder.if_then(builder.and_(crosses, here)):
                piece(values, next_p, next_q, _there(builder, next_q, columns_v, lanes))
        return context.get_dummy_value()

    vec, i64 = tile.dtype, types.int64
    return types.void(out, *[i64] * 7, tile, vec, shifts, c, i64, i64, vec, has_c, NV), codegen


@intrinsic(prefer_literal=True)
def stream_end(typingctx, out, k_step, row_step, filters, places, tile, alpha, shifts, NV):  # type: ignore[no-untyped-def]
    """`grid_end` without c where every vector is whole and begins a cache line: written past the caches."""
    literal = _literals(NV)
    if literal is None or not isinstance(tile, types.UniTuple) or not isinstance(out, Pointer):
        return None
    if out.elem != tile.dtype.elem:
        return None
    lanes, vectors = tile.dtype.n, literal[0]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        out_at, k_step_v, row_step_v, filters_v, places_v, sums, alpha_v, shifts_v = args[:8]
        stored = context.get_value_type(tile.dtype)
        room = stack_block(context, builder, stored, 1)
        spare = builder.bitcast(room, out_at.type)
        where = builder.inttoptr(places_v, I64.as_pointer())
        for v in range(vectors):
            p, q = (builder.load(builder.gep(where, [number(PLACE * v + word)])) for word in (1, 2))
            begin = builder.gep(out_at, [builder.add(builder.mul(p, row_step_v), q)])
            for i in range(tile.count // vectors):
                shift = splat_value(builder, builder.load(builder.gep(shifts_v, [number(i)])), lanes)
                value = multiply_add_value(builder, builder.extract_value(sums, i * vectors + v), alpha_v, shift)
                there = builder.icmp_signed("<", number(i), filters_v)
                place = builder.select(there, builder.gep(begin, [builder.mul(k_step_v, number(i))]), spare)
                store_value(builder, place, number(0), value, stream=True)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(out, *[i64] * 4, tile, tile.dtype, shifts, NV), codegen


@intrinsic(prefer_literal=True)
def tile_taps_pixels(typingctx, x, step, offsets, w, count, MP, NV, W):  # type: ignore[no-untyped-def]
    """The tile sum over t < count of x[i * step + offsets[t]] * w[(t * NV + v) * W + lane]: MP pixels x NV vectors.

    `offsets` is the address of int64 words.
    """
    literal = _literals(MP, NV, W)
    if literal is None or not isinstance(x, Pointer) or not isinstance(w, Pointer):
        return None
    pixels, vectors, lanes = literal
    result = types.UniTuple(Vec(x.elem, lanes), pixels * vectors)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        table = builder.inttoptr(args[2], I64.as_pointer())
        begins = [builder.gep(args[0], [builder.mul(args[1], number(i))]) for i in range(pixels)]

        def update(sums: list[Any], offset: Any, w_at: Any) -> list[Any]:
            weights = [load_value(builder, w_at, number(v * lanes), vector) for v in range(vectors)]
            out = []
            for i, begin in enumerate(begins):
                pixel = splat_value(builder, builder.load(builder.gep(begin, [offset])), lanes)
                out += [multiply_add_value(builder, pixel, weights[v], sums[i * vectors + v]) for v in range(vectors)]
            return out

        zero = [ir.Constant(vector, None)] * (pixels * vectors)
        sums = _loop(builder, args[4], table, args[3], vectors * lanes, zero, update)
        return context.make_tuple(builder, result, sums)

    return result(x, types.int64, types.int64, w, types.int64, MP, NV, W), codegen


@intrinsic(prefer_literal=True)
def pixels_end(  # type: ignore[no-untyped-def]
    typingctx, out, step, pixels, filters, tile, alpha, shifts, c, c_step, beta, has_c, NV
):
    """Store pixels x NV vectors of filters: out[i * step + k] = alpha sum + shifts[k] + beta c[i * c_step + k].

    Pixels from `pixels` on and filters from `filters` on are dropped; c is not looked at where `has_c` is 0.
    """
    literal = _literals(has_c, NV)
    if literal is None or not isinstance(tile, types.UniTuple) or not isinstance(out, Pointer):
        return None
    lanes, vectors = tile.dtype.n, literal[1]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        out_at, step_v, pixels_v, filters_v, sums, alpha_v, shifts_v, c_at, c_step_v, beta_v = args[:10]
        stored = context.get_value_type(Vec(out.elem, lanes))
        vector = context.get_value_type(tile.dtype)
        room = stack_block(context, builder, stored, 1)
        spare, c_spare = (builder.bitcast(room, pointer.type) for pointer in (out_at, c_at))
        c_stored = context.get_value_type(Vec(c.elem, lanes))
        for v in range(vectors):
            at = number(v * lanes)
            mask = _there(builder, at, filters_v, lanes)
            shift = load_value(builder, shifts_v, at, vector)
            for i in range(tile.count // vectors):
                there = builder.icmp_signed("<", number(i), pixels_v)
                value = multiply_add_value(builder, builder.extract_value(sums, i * vectors + v), alpha_v, shift)
                if literal[0]:
                    place = builder.gep(c_at, [builder.add(builder.mul(c_step_v, number(i)), at)])
                    place = builder.select(there, place, c_spare)
                    added = masked_load_value(builder, place, number(0), mask, c_stored)
                    value = multiply_add_value(builder, widen_value(builder, added, c.elem), beta_v, value)
                place = builder.gep(out_at, [builder.add(builder.mul(step_v, number(i)), at)])
                place = builder.select(there, place, spare)
                masked_store_value(builder, place, number(0), mask, narrow_value(builder, value, out.elem))
        return context.get_dummy_value()

    vec, i64 = tile.dtype, types.int64
    return types.void(out, i64, i64, i64, tile, vec, shifts, c, i64, vec, has_c, NV), codegen
