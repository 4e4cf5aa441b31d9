"""Register tiles: MR rows x NV vectors of W lanes, held in registers, the accumulators of a matrix product.

A tile is a UniTuple of MR * NV vectors, row by row.  Loops over a tile are unrolled when the code is emitted, so
that every accumulator keeps a register of its own.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.convert import compute_element, narrow_value, widen_value
from numbaprims.cpu.simd.emit import (
    I32,
    I64,
    first_lane,
    first_lanes_value,
    least,
    load_value,
    number,
    prefetch_value,
    splat_value,
    store_value,
)
from numbaprims.cpu.simd.loops import keep_order, repeat, unknown_value
from numbaprims.cpu.simd.tiles.short import short_half, short_pair
from numbaprims.cpu.simd.types import Pointer, Vec, llvm_element, stack_block


def _literals(*numba_types: Any) -> tuple[Any, ...] | None:
    """The values of literal arguments, or None as long as Numba has not made them literal."""
    if not all(isinstance(t, types.Literal) for t in numba_types):
        return None
    return tuple(t.literal_value for t in numba_types)


def _row_starts(builder: Any, stride: Any, rows: int) -> list[Any]:
    return [builder.mul(stride, number(row)) for row in range(rows)]


@intrinsic(prefer_literal=True)
def tile_zeros(typingctx, elem, MR, NV, W):  # type: ignore[no-untyped-def]
    """A tile of zeros."""
    literal = _literals(elem, MR, NV, W)
    if literal is None:
        return None
    name, rows, vectors, lanes = literal
    result = types.UniTuple(Vec(name, lanes), rows * vectors)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        zero = ir.Constant(context.get_value_type(Vec(name, lanes)), None)
        return context.make_tuple(builder, result, [zero] * (rows * vectors))

    return result(elem, MR, NV, W), codegen


@intrinsic(prefer_literal=True)
def tile_load(typingctx, p, row_stride, MR, NV, W):  # type: ignore[no-untyped-def]
    """The tile whose rows begin `row_stride` elements apart at p."""
    literal = _literals(MR, NV, W)
    if literal is None or not isinstance(p, Pointer):
        return None
    rows, vectors, lanes = literal
    result = types.UniTuple(Vec(p.elem, lanes), rows * vectors)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        out = []
        for start in _row_starts(builder, args[1], rows):
            for v in range(vectors):
                index = builder.add(start, number(v * lanes))
                out.append(load_value(builder, args[0], index, vector))
        return context.make_tuple(builder, result, out)

    return result(p, types.int64, MR, NV, W), codegen


@intrinsic(prefer_literal=True)
def tile_prefetch(typingctx, p, row_stride, MR, NV, W):  # type: ignore[no-untyped-def]
    """Ask for the lines of a tile that will be written: rows begin `row_stride` elements apart at p."""
    literal = _literals(MR, NV, W)
    if literal is None or not isinstance(p, Pointer):
        return None
    rows, vectors, lanes = literal

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        size = context.get_abi_sizeof(context.get_value_type(Vec(p.elem, lanes))) // lanes
        for start in _row_starts(builder, args[1], rows):
            # the last element too: rows need not begin with a line
            for at in [*range(0, vectors * lanes, max(1, 64 // size)), vectors * lanes - 1]:
                prefetch_value(builder, args[0], builder.add(start, number(at)), 3, True)
        return context.get_dummy_value()

    return types.void(p, types.int64, MR, NV, W), codegen


@intrinsic(prefer_literal=True)
def tile_store(typingctx, p, row_stride, tile, MR, NV, W):  # type: ignore[no-untyped-def]
    """Store a tile; rows begin `row_stride` elements apart at p."""
    literal = _literals(MR, NV, W)
    if literal is None:
        return None
    rows, vectors, lanes = literal

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        for i, start in enumerate(_row_starts(builder, args[1], rows)):
            for v in range(vectors):
                index = builder.add(start, number(v * lanes))
                store_value(builder, args[0], index, builder.extract_value(args[2], i * vectors + v))
        return context.get_dummy_value()

    return types.void(p, types.int64, tile, MR, NV, W), codegen


def _elementwise(name: str, doc: str, emit: Any, second: str) -> Any:
    """An intrinsic over all vectors of a tile; `second` says whether the other operand is a tile or a vector."""

    def typer(typingctx, tile, other):  # type: ignore[no-untyped-def]
        if not isinstance(tile, types.UniTuple):
            return None

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            vector = context.get_value_type(signature.args[0].dtype)
            out = []
            for i in range(signature.args[0].count):
                right = builder.extract_value(args[1], i) if second == "tile" else args[1]
                out.append(emit(builder, vector, builder.extract_value(args[0], i), right))
            return context.make_tuple(builder, signature.return_type, out)

        return tile(tile, other), codegen

    typer.__name__ = typer.__qualname__ = name
    typer.__doc__ = doc
    return intrinsic(typer)


def _is_float(vector: Any) -> bool:
    return isinstance(vector.element, (ir.FloatType, ir.DoubleType))


tile_add = _elementwise(
    "tile_add", "The sum of two tiles.",
    lambda b, v, x, y: b.fadd(x, y) if _is_float(v) else b.add(x, y), "tile",
)  # fmt: skip
tile_scale = _elementwise(
    "tile_scale", "A tile times one vector (a splat factor).",
    lambda b, v, x, y: b.fmul(x, y) if _is_float(v) else b.mul(x, y), "vector",
)  # fmt: skip


@intrinsic(prefer_literal=True)
def load_rows(typingctx, p, row_stride, rows, W):  # type: ignore[no-untyped-def]
    """A tuple of `rows` vectors that begin `row_stride` elements apart at p: what `transpose` takes."""
    literal = _literals(rows, W)
    if literal is None or not isinstance(p, Pointer):
        return None
    count, lanes = literal
    result = types.UniTuple(Vec(p.elem, lanes), count)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        out = [load_value(builder, args[0], start, vector) for start in _row_starts(builder, args[1], count)]
        return context.make_tuple(builder, result, out)

    return result(p, types.int64, rows, W), codegen


@intrinsic(prefer_literal=True)
def store_rows(typingctx, p, row_stride, vectors):  # type: ignore[no-untyped-def]
    """Store a tuple of vectors `row_stride` elements apart, in order and in p's type; a later may overwrite the end of
    another."""
    if not isinstance(vectors, types.UniTuple):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        for i, start in enumerate(_row_starts(builder, args[1], vectors.count)):
            store_value(builder, args[0], start, narrow_value(builder, builder.extract_value(args[2], i), p.elem))
        return context.get_dummy_value()

    return types.void(p, types.int64, vectors), codegen


@intrinsic(prefer_literal=True)
def stack_tile(typingctx, elem, MR, NV, W):  # type: ignore[no-untyped-def]
    """Uninitialised room for a tile on the stack, MR * NV * W elements, 64-byte aligned."""
    literal = _literals(elem, MR, NV, W)
    if literal is None:
        return None
    name, rows, vectors, lanes = literal
    element = llvm_element(name)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(stack_block(context, builder, element, rows * vectors * lanes), element.as_pointer())

    return Pointer(name)(elem, MR, NV, W), codegen


@intrinsic(prefer_literal=True)
def tile_multiply(typingctx, a, a_row, a_k, rows, b, b_k, columns, k, MR, NV, W):  # type: ignore[no-untyped-def]
    """The tile sum over p < k of a[i * a_row + p * a_k] * b[j + p * b_k], in the compute type of a and b.

    Packed panels: a_row = 1, a_k = MR, b_k = NV * W as literals.  Matrices where they lie: run-time steps.  Rows of A
    past `rows` repeat the last one; columns past `columns` (at least (NV - 1) * W + 1) are not read: give literal MR
    and NV * W where all are there, which drops the masks.

    One loop with the MR * NV sums as phi nodes, unrolled by 4: MR * NV independent chains already hide the latency of
    a multiply-add, unrolling saves the loop's own instructions.
    """
    return _multiplied(a, b, columns, MR, NV, W)


@intrinsic(prefer_literal=True)
def tile_multiply_pairs(typingctx, a, a_row, a_k, rows, b, b_k, columns, k, MR, NV, W):  # type: ignore[no-untyped-def]
    """`tile_multiply` by whole rows; in those of bfloat16 `pair_halves` has interleaved vectors 2 i and 2 i + 1.

    Two of them come by one load, a shift and a mask; as neighbours each would take an extension and a shift.
    """
    return _multiplied(a, b, columns, MR, NV, W, (_pair, None) if isinstance(b, Pointer) and b.elem == "bf16" else None)


@intrinsic(prefer_literal=True)
def tile_multiply_short(typingctx, a, a_row, a_k, rows, b, b_k, columns, k, MR, NV, W):  # type: ignore[no-untyped-def]
    """`tile_multiply` by whole rows of f16 that `pack_short` has packed, times 2 ** -112."""
    return _multiplied(a, b, columns, MR, NV, W, (short_pair, short_half))


@intrinsic(prefer_literal=True)
def tile_multiply_ahead(typingctx, a, a_row, a_k, rows, b, b_k, columns, k, ahead, every, MR, NV, W):  # type: ignore[no-untyped-def]
    """`tile_multiply` that prefetches `every` (1, 2 or 4) rows of NV vectors for each four of k, between steps: from
    b + ahead on, b_k apart."""
    return _multiplied(a, b, columns, MR, NV, W, every=every)


def _multiplied(a: Any, b: Any, columns: Any, MR: Any, NV: Any, W: Any, pairs: Any = None, every: Any = None) -> Any:
    """`pairs`: what reads two neighbouring vectors, and one that has no neighbour (None: as it lies)."""
    literal = _literals(MR, NV, W)
    asked = every.literal_value if isinstance(every, types.IntegerLiteral) else 0
    if literal is None or not isinstance(a, Pointer) or not isinstance(b, Pointer):
        return None
    height, vectors, lanes = literal
    result = types.UniTuple(Vec(compute_element(a.elem), lanes), height * vectors)
    whole = isinstance(columns, types.Literal) and columns.literal_value == vectors * lanes

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        stored = context.get_value_type(Vec(b.elem, lanes))
        a_start, a_row_v, a_k_v, rows_v, b_start, b_k_v, columns_v, k_value = args[:8]

        # 16 registers: steps of k stay apart. LLVM else asks for the B of all four and keeps 24 places in A: 6 x 2 sums
        # went to the stack, and 1760 x 64 x 1760 took 7.5 ms instead of 5.2 (Zen 4 by AVX2)
        few = target.current().isa == "avx2"
        last = builder.sub(rows_v, number(1))
        row_starts = []
        for i in range(height):
            row_starts.append(builder.mul(least(builder, number(i), last), a_row_v))
        mask = None
        if not whole:
            mask = first_lanes_value(builder, builder.sub(columns_v, number((vectors - 1) * lanes)), lanes)

        def update(sums: list[Any], a_at: Any, b_at: Any, u: int) -> list[Any]:
            b_row = builder.mul(number(u), b_k_v)
            a_column = builder.mul(number(u), a_k_v)
            if few:
                a_at, a_column = unknown_value(builder, builder.gep(a_at, [a_column])), number(0)
            bs: list[Any] = []
            for v in range(vectors):
                index = builder.add(b_row, number(v * lanes))
                if pairs and v < vectors // 2 * 2:
                    bs += pairs[0](builder, b_at, index, lanes) if v % 2 == 0 else ()
                    continue
                if pairs and pairs[1]:
                    bs.append(pairs[1](builder, b_at, index, lanes))
                    continue
                value = load_value(builder, b_at, index, stored, mask if v == vectors - 1 else None)
                bs.append(widen_value(builder, value, b.elem))
            out = []
            for i in range(height):
                scalar = builder.load(builder.gep(a_at, [builder.add(row_starts[i], a_column)]))
                av = splat_value(builder, widen_value(builder, scalar, a.elem), lanes)
                row = [multiply_add_value(builder, av, bs[v], sums[i * vectors + v]) for v in range(vectors)]
                out += keep_order(builder, row, (height + 1) * vectors) if few else row
            return out

        def loop(count: Any, steps: int, state: list[Any], name: str) -> list[Any]:
            """`count` times `steps` updates of (address of a, address of b, sums, what is prefetched)."""

            def step(at: list[Any]) -> list[Any]:
                a_at, b_at, *sums = at[: 2 + height * vectors]
                next_at = at[2 + height * vectors :]
                for u in range(steps):
                    sums = update(sums, a_at, b_at, u)
                    if next_at and u % (4 // asked) == 0:
                        for v in range(vectors):
                            # of vectors that lie across two lines the second: the first came with what lies before;
                            # into the second-level cache: the first holds what is multiplied now
                            prefetch_value(builder, next_at[0], number((v + 1) * lanes - 1), 2, False)
                        next_at = [builder.gep(next_at[0], [b_k_v])]
                a_next = builder.gep(a_at, [builder.mul(number(steps), a_k_v)])
                return [a_next, builder.gep(b_at, [builder.mul(number(steps), b_k_v)]), *sums, *next_at]

            return repeat(builder, count, state, step, name)

        sums = [ir.Constant(vector, None)] * (height * vectors)
        ahead = [builder.gep(b_start, [args[8]])] if asked else []
        state = loop(builder.sdiv(k_value, number(4)), 4, [a_start, b_start, *sums, *ahead], "k4")
        _, _, *sums = loop(builder.srem(k_value, number(4)), 1, state[: 2 + height * vectors], "k1")
        return context.make_tuple(builder, result, sums)

    i64 = types.int64
    more = (i64, every) if asked else ()
    return result(a, i64, i64, i64, b, i64, columns if whole else i64, i64, *more, MR, NV, W), codegen


def _pair(builder: Any, p: Any, at: Any, lanes: int) -> list[Any]:
    """Two vectors of float32 of 2 * lanes interleaved bfloat16."""
    words = ir.VectorType(I32, lanes)
    value = builder.bitcast(load_value(builder, p, at, ir.VectorType(ir.IntType(16), 2 * lanes)), words)
    low = builder.shl(value, ir.Constant(words, [16] * lanes))
    high = builder.and_(value, ir.Constant(words, [0xFFFF0000] * lanes))
    return [builder.bitcast(each, ir.VectorType(ir.FloatType(), lanes)) for each in (low, high)]


@intrinsic(prefer_literal=True)
def pair_halves(typingctx, p, at, W):  # type: ignore[no-untyped-def]
    """Interleave, in place, the W elements of 16 bits at p + at and the W behind them."""
    if not isinstance(p, Pointer) or not isinstance(W, types.IntegerLiteral):
        return None
    lanes = W.literal_value
    vector = ir.VectorType(ir.IntType(16), 2 * lanes)
    order = [lane // 2 + lanes * (lane % 2) for lane in range(2 * lanes)]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = load_value(builder, args[0], args[1], vector)
        mask = ir.Constant(ir.VectorType(I32, 2 * lanes), order)
        mixed = builder.shuffle_vector(value, ir.Constant(vector, None), mask)
        store_value(builder, args[0], args[1], mixed)
        return context.get_dummy_value()

    return types.void(p, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def tile_inner(typingctx, x, x_step, rows, y, y_step, columns, k, R, C, W):  # type: ignore[no-untyped-def]
    """R * C vectors of partial inner products of rows of x and rows of y, whose elements are neighbours.

    Lane l of vector i * C + j sums x[i * x_step + p] * y[j * y_step + p] over p = l (mod W).  Rows past `rows` (and
    `columns` of y) repeat the last one; the last k % W elements are read under a mask.
    """
    literal = _literals(R, C, W)
    if literal is None or not isinstance(x, Pointer) or not isinstance(y, Pointer):
        return None
    height, width, lanes = literal
    result = types.UniTuple(Vec(compute_element(x.elem), lanes), height * width)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(result.dtype)
        x_at, x_step_v, rows_v, y_at, y_step_v, columns_v, k_value = args[:7]

        def starts(count: int, there: Any, step: Any) -> list[Any]:
            last = builder.sub(there, number(1))
            return [builder.mul(least(builder, number(i), last), step) for i in range(count)]

        x_starts, y_starts = starts(height, rows_v, x_step_v), starts(width, columns_v, y_step_v)

        def rows_at(pointer: Any, elem: str, begins: list[Any], p: Any, mask: Any) -> list[Any]:
            stored = context.get_value_type(Vec(elem, lanes))
            out = []
            for begin in begins:
                index = builder.add(begin, p)
                value = load_value(builder, pointer, index, stored, mask)
                out.append(widen_value(builder, value, elem))
            return out

        # The fewer operands are held, the others come one by one.  LLVM else asks for all first, unrolls, and has every
        # sum on the stack: 8x8457x2560 T took 7.7 ms instead of 4.0 (Zen 4)
        def update(sums: list[Any], p: Any, mask: Any) -> list[Any]:
            sides = [(x_at, x.elem, x_starts), (y_at, y.elem, y_starts)]
            turned = width <= height  # y is held
            pointer, elem, begins = sides[turned]
            held = rows_at(pointer, elem, begins, p, mask)
            new: dict[tuple[int, int], Any] = {}
            pointer, elem, begins = sides[not turned]
            for n, begin in enumerate(begins):
                (one,) = rows_at(pointer, elem, [begin], p, mask)
                places = [(n, m) if turned else (m, n) for m in range(len(held))]
                row = [
                    multiply_add_value(builder, one, other, sums[i * width + j])
                    for other, (i, j) in zip(held, places, strict=True)
                ]
                new |= zip(places, keep_order(builder, row, height * width + height + width), strict=True)
            for begin in x_starts if mask is None else ():
                at = builder.add(builder.add(begin, p), builder.mul(x_step_v, number(height)))
                prefetch_value(builder, x_at, builder.add(at, number(lanes - 1)), 2, False)
            return [new[place] for place in sorted(new)]

        whole = builder.and_(k_value, number(-lanes))
        zero = ir.Constant(vector, None)
        before = builder.block
        body, tail, end = (builder.append_basic_block(f"inner_{name}") for name in ("body", "tail", "end"))
        after = builder.append_basic_block("inner_after")
        builder.cbranch(builder.icmp_signed(">", whole, number(0)), body, after)
        builder.position_at_end(body)
        p = builder.phi(I64)
        phis = [builder.phi(vector) for _ in range(height * width)]
        current = update(list(phis), p, None)
        p_next = builder.add(p, number(lanes))
        body_end = builder.block
        builder.cbranch(builder.icmp_signed("<", p_next, whole), body, after)
        p.add_incoming(number(0), before)
        p.add_incoming(p_next, body_end)
        for phi, value in zip(phis, current, strict=True):
            phi.add_incoming(zero, before)
            phi.add_incoming(value, body_end)
        builder.position_at_end(after)
        sums = []
        for value in current:
            phi = builder.phi(vector)
            phi.add_incoming(zero, before)
            phi.add_incoming(value, body_end)
            sums.append(phi)
        builder.cbranch(builder.icmp_signed("<", whole, k_value), tail, end)
        builder.position_at_end(tail)
        mask = first_lanes_value(builder, builder.sub(k_value, whole), lanes)
        rest = update(sums, whole, mask)
        tail_end = builder.block
        builder.branch(end)
        builder.position_at_end(end)
        out = []
        for value, more in zip(sums, rest, strict=True):
            phi = builder.phi(vector)
            phi.add_incoming(value, after)
            phi.add_incoming(more, tail_end)
            out.append(phi)
        return context.make_tuple(builder, result, out)

    i64 = types.int64
    return result(x, i64, i64, y, i64, i64, i64, R, C, W), codegen


@intrinsic(prefer_literal=True)
def tile_reduce_store(typingctx, p, row_step, rows, column_step, columns, tile, R, C):  # type: ignore[no-untyped-def]
    """p[i * row_step + j * column_step] = sum of the lanes of vector i * C + j, for i < rows and j < columns.

    The upper half of a vector is added to its lower half until one lane is left.
    """
    literal = _literals(R, C)
    if literal is None:
        return None
    height, width = literal
    integers = tile.dtype.elem == "i32"

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer, row_step_v, rows_v, column_step_v, columns_v, tile_value = args[:6]
        for i in range(height):
            for j in range(width):
                inside = builder.and_(
                    builder.icmp_signed("<", number(i), rows_v),
                    builder.icmp_signed("<", number(j), columns_v),
                )
                value = builder.extract_value(tile_value, i * width + j)
                n = value.type.count
                while n > 1:
                    n //= 2
                    low, high = (
                        builder.shuffle_vector(
                            value, value, ir.Constant(ir.VectorType(I32, n), list(range(at, at + n)))
                        )
                        for at in (0, n)
                    )
                    value = (builder.add if integers else builder.fadd)(low, high)
                with builder.if_then(inside):
                    index = builder.add(
                        builder.mul(number(i), row_step_v),
                        builder.mul(number(j), column_step_v),
                    )
                    scalar = first_lane(builder, value)
                    builder.store(scalar, builder.gep(pointer, [index]))
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(p, i64, i64, i64, i64, tile, R, C), codegen
