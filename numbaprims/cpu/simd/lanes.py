"""Moving values between lanes: extract, insert, shuffles, reductions, transposes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbaprims.cpu.simd.arithmetic import extreme_value
from numbaprims.cpu.simd.convert import compute_element, widen_value
from numbaprims.cpu.simd.emit import I32, llvm_vector, load_value, number
from numbaprims.cpu.simd.types import ELEMENTS, Pointer, Vec, scalar_type


def shuffle_value(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """Lanes of a (0 ...) and b (from a's count on), in the order of `lanes`."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


@intrinsic
def extract(typingctx, v, i):  # type: ignore[no-untyped-def]
    """Lane i."""
    if not isinstance(v, Vec):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.extract_element(args[0], args[1])

    return scalar_type(v.elem)(v, types.int64), codegen


@intrinsic
def reduce_add(typingctx, v):  # type: ignore[no-untyped-def]
    """The sum of the lanes as a tree: the upper half is added to the lower half until one lane is left."""
    if not isinstance(v, Vec) or ELEMENTS[v.elem][1] == "h" or v.n & (v.n - 1):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return reduce_value(builder, args[0], builder.fadd if ELEMENTS[v.elem][1] == "f" else builder.add)

    return scalar_type(v.elem)(v), codegen


@intrinsic
def insert(typingctx, v, i, x):  # type: ignore[no-untyped-def]
    """v with x in lane i."""
    if not isinstance(v, Vec) or not isinstance(types.unliteral(x), types.Number):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = context.cast(builder, args[2], signature.args[2], scalar_type(v.elem))
        return builder.insert_element(args[0], value, args[1])

    return v(v, types.int64, types.unliteral(x)), codegen


@intrinsic(prefer_literal=True)
def shuffle(typingctx, a, b, lanes):  # type: ignore[no-untyped-def]
    """The lanes of a (0 ... W - 1) and b (W ... 2 W - 1) that a literal string lists: "0 4 1 5"."""
    if not (isinstance(a, Vec) and a == b and isinstance(lanes, types.StringLiteral)):
        return None
    chosen = [int(word) for word in lanes.literal_value.replace(",", " ").split()]
    if not chosen or not all(0 <= lane < 2 * a.n for lane in chosen):
        raise TypingError(f"lanes is {lanes.literal_value!r}; it must list numbers from 0 to {2 * a.n - 1}")

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return shuffle_value(builder, args[0], args[1], chosen)

    return Vec(a.elem, len(chosen))(a, b, lanes), codegen


def _permutation(name: str, doc: str, lanes: Any, *, operands: int, factor: Any = 1) -> Any:
    """An intrinsic that orders the lanes of one or two vectors; the result has `factor` times as many."""

    def result_type(v: Any, *others: Any) -> Any:
        if not isinstance(v, Vec) or any(other != v for other in others) or int(v.n * factor) < 1:
            return None
        return Vec(v.elem, int(v.n * factor))

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return shuffle_value(builder, args[0], args[-1], lanes(signature.args[0].n))

    def one(typingctx, v):  # type: ignore[no-untyped-def]
        result = result_type(v)
        return None if result is None else (result(v), codegen)

    def two(typingctx, a, b):  # type: ignore[no-untyped-def]
        result = result_type(a, b)
        return None if result is None else (result(a, b), codegen)

    typer = one if operands == 1 else two
    typer.__name__ = typer.__qualname__ = name
    typer.__doc__ = doc
    return intrinsic(typer)


def _interleaved(n: int, start: int) -> list[int]:
    return [lane + n * odd for lane in range(start, start + n // 2) for odd in (0, 1)]


reverse = _permutation("reverse", "The last lane first.", lambda n: list(range(n - 1, -1, -1)), operands=1)
concat = _permutation("concat", "The lanes of a, then those of b.", lambda n: list(range(2 * n)), operands=2, factor=2)
split_low = _permutation(
    "split_low", "The lower half of the lanes.", lambda n: list(range(n // 2)), operands=1, factor=0.5
)
split_high = _permutation(
    "split_high", "The upper half of the lanes.", lambda n: list(range(n // 2, n)), operands=1, factor=0.5
)
interleave_low = _permutation(
    "interleave_low",
    "a[0], b[0], a[1], b[1], ...: the lower halves.",
    lambda n: _interleaved(n, 0),
    operands=2,
)
interleave_high = _permutation(
    "interleave_high", "a[W/2], b[W/2], a[W/2 + 1], ...: the upper halves.",
    lambda n: _interleaved(n, n // 2), operands=2,
)  # fmt: skip


@intrinsic(prefer_literal=True)
def rotate(typingctx, v, by):  # type: ignore[no-untyped-def]
    """Lane (i + by) mod W in lane i, for a literal `by` of any sign."""
    if not (isinstance(v, Vec) and isinstance(by, types.IntegerLiteral)):
        return None
    lanes = [(lane + by.literal_value) % v.n for lane in range(v.n)]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return shuffle_value(builder, args[0], args[0], lanes)

    return v(v, by), codegen


def reduce_value(builder: Any, value: Any, combine: Any) -> Any:
    """The upper half is combined with the lower half until one lane is left."""
    n = value.type.count
    while n > 1:
        n //= 2
        low = shuffle_value(builder, value, value, list(range(n)))
        high = shuffle_value(builder, value, value, list(range(n, 2 * n)))
        value = combine(low, high)
    return builder.extract_element(value, ir.Constant(I32, 0))


def _reduce_extreme(name: str, doc: str, sense: str, number: bool) -> Any:
    def typer(typingctx, v):  # type: ignore[no-untyped-def]
        if not isinstance(v, Vec) or ELEMENTS[v.elem][1] == "h" or v.n & (v.n - 1):
            return None
        kind = ELEMENTS[v.elem][1]

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return reduce_value(
                builder, args[0], lambda low, high: extreme_value(builder, low, high, sense, kind, number)
            )

        return scalar_type(v.elem)(v), codegen

    typer.__name__ = typer.__qualname__ = name
    typer.__doc__ = doc
    return intrinsic(typer)


reduce_min = _reduce_extreme("reduce_min", "The smallest lane; NaN where any is NaN.", "<", False)
reduce_max = _reduce_extreme("reduce_max", "The largest lane; NaN where any is NaN.", ">", False)
reduce_min_number = _reduce_extreme("reduce_min_number", "The smallest lane that is not NaN, if any.", "<", True)
reduce_max_number = _reduce_extreme("reduce_max_number", "The largest lane that is not NaN, if any.", ">", True)


@intrinsic
def transpose(typingctx, rows):  # type: ignore[no-untyped-def]
    """Transpose k <= W vectors of W lanes, both powers of two: a k x W matrix becomes W x k, by rows.

    Lane l of vector q of the result is lane (q W + l) div k of vector (q W + l) mod k.  For k = W lane j of
    vector i becomes lane i of vector j.  log2 k stages of k shuffles each.
    """
    if not isinstance(rows, types.UniTuple) or not isinstance(rows.dtype, Vec):
        return None
    k, n = rows.count, rows.dtype.n
    if k > n or k & (k - 1) or n & (n - 1):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vectors = [builder.extract_value(args[0], i) for i in range(k)]
        if k == n:
            transposed = _square(builder, vectors, ELEMENTS[rows.dtype.elem][0])
        else:
            transposed = _interleave(builder, vectors)
        return context.make_tuple(builder, rows, transposed)

    return rows(rows), codegen


def _square(builder: Any, rows: list[Any], bits: int) -> list[Any]:
    """First inside blocks of 128 bits, whose halves every x86 interleaves in one instruction (vunpcklps); then of
    the blocks, whose even and odd ones are one instruction each (vinsertf128, vperm2f128, vshuff64x2).

    Swapping the off-diagonal quarters of blocks of 8, 4, 2 lanes takes as many stages, but vpermt2ps for two of
    them, which overwrites an operand: 14.8 instead of 12.5 ns for 16 x 16 f32, 3.6 instead of 2.4 for 8 x 8 (AVX2).
    """
    n = len(rows)
    block = min(n, 128 // bits)
    rows, step = _square_blocks(builder, rows, block), block
    while step < n:
        out = list(rows)
        for i in (i for i in range(n) if not i & step):
            for odd, to in ((0, i), (block, i + step)):
                out[to] = shuffle_value(builder, rows[i], rows[i + step], _every_other(n, block, odd))
        rows = out
        step *= 2
    return rows


def _every_other(n: int, block: int, first: int) -> list[int]:
    """The lanes of every second block of two vectors."""
    return [at + lane for at in range(first, 2 * n, 2 * block) for lane in range(block)]


def _square_blocks(builder: Any, rows: list[Any], block: int) -> list[Any]:
    """Of every `block` vectors their blocks of as many lanes, transposed where they are."""
    n, step = rows[0].type.count, 1
    while step < block:
        # of rows `step` apart: runs of `step` lanes of the one and the other
        out = list(rows)
        for i in (i for i in range(len(rows)) if not i & step):
            for half, to in ((0, i), (block // 2, i + step)):
                lanes: list[int] = []
                for run in (at + x for at in range(0, n, block) for x in range(half, half + block // 2, step)):
                    lanes += range(run, run + step)
                    lanes += range(n + run, n + run + step)
                out[to] = shuffle_value(builder, rows[i], rows[i + step], lanes)
        rows = out
        step *= 2
    # the rows of a block now stand in bit-reversed order
    width = block.bit_length() - 1
    order = [sum(1 << (width - 1 - b) for b in range(width) if i >> b & 1) for i in range(block)]
    return [rows[start + i] for start in range(0, len(rows), block) for i in order]


@intrinsic(prefer_literal=True)
def load_turned(typingctx, p, row_stride, jump_at, jump, rows, columns):  # type: ignore[no-untyped-def]
    """Columns of some rows, `row_stride` elements apart: vector c has element c of each row.

    Rows from `jump_at` on lie `jump` elements further; the literal `rows` says that none does.  Where `rows` or
    `columns` is what 128 bits hold, of which the other is a multiple, elements stay as they are stored; else there are
    as many of both, in the compute type.  Parts of rows are put beside those of the rows 128 bits' elements below as
    they are loaded, which saves `transpose` its stages across 128 bits, or one of them: 13.3 instead of 18.5 ns for
    16 x 16 f32 in the first-level cache (Zen 4).
    """
    n, m = (each.literal_value if isinstance(each, types.IntegerLiteral) else 0 for each in (rows, columns))
    if not n or not m or not isinstance(p, Pointer):
        return None
    narrow = 128 // ELEMENTS[p.elem][0] in (n, m)
    elem = p.elem if narrow else compute_element(p.elem)
    block = min(n, m, 128 // ELEMENTS[elem][0])
    if n & (n - 1) or m & (m - 1) or not (narrow and max(n, m) >= block or n == m):
        raise TypingError(f"{n} rows and {m} columns of {p.elem}: powers of two, as many or what 128 bits hold")
    result = types.UniTuple(Vec(elem, n), m)
    even = isinstance(jump_at, types.IntegerLiteral) and jump_at.literal_value == n

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        starts = [builder.mul(args[1], number(row)) for row in range(n)]
        if not even:
            none = number(0)
            for row, start in enumerate(starts):
                jumps = builder.icmp_signed(">=", number(row), args[2])
                starts[row] = builder.add(start, builder.select(jumps, args[3], none))

        def part(row: int, first: int, count: int) -> Any:
            at = builder.add(starts[row], number(first))
            value = load_value(builder, args[0], at, llvm_vector(p.elem, count))
            return value if narrow else widen_value(builder, value, p.elem)

        def joined(parts: list[Any]) -> Any:
            while len(parts) > 1:
                lanes = list(range(2 * parts[0].type.count))
                parts = [shuffle_value(builder, a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            return parts[0]

        if m == block:
            beside = [joined([part(at, 0, m) for at in range(r, n, block)]) for r in range(block)]
            return context.make_tuple(builder, result, _square_blocks(builder, beside, block))
        if n == block:
            found = _square_blocks(builder, [part(at, 0, m) for at in range(n)], block)
            within = [list(range(c - c % block, c - c % block + block)) for c in range(m)]
            columns = [shuffle_value(builder, *2 * [found[c % block]], within[c]) for c in range(m)]
            return context.make_tuple(builder, result, columns)
        half, found = n // 2, list[Any]()
        for first in (0, half):
            below = [at + r for at in range(0, n, 2 * block) for r in range(block)]
            beside = [joined([part(row, first, half), part(row + block, first, half)]) for row in below]
            beside = _square_blocks(builder, beside, block)
            if half > block:
                pairs = [(beside[c], beside[block + c]) for c in range(block)]
                beside = [
                    shuffle_value(builder, a, b, _every_other(n, block, odd)) for odd in (0, block) for a, b in pairs
                ]
            found += beside
        return context.make_tuple(builder, result, found)

    return result(p, types.int64, jump_at if even else types.int64, types.int64, rows, columns), codegen


def _weave(name: str, doc: str, back: bool) -> Any:
    def typer(typingctx, vectors):  # type: ignore[no-untyped-def]
        if not isinstance(vectors, types.UniTuple) or not isinstance(vectors.dtype, Vec):
            return None
        k, n = vectors.count, vectors.dtype.n

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            given = [builder.extract_value(args[0], i) for i in range(k)]
            out = []
            for q in range(k):
                places = [divmod(lane * k + q, n) if back else divmod(q * n + lane, k)[::-1] for lane in range(n)]
                lanes = [place + n * min(of, 1) for of, place in places]
                value = shuffle_value(builder, given[0], given[1], lanes)
                for at in range(2, k):
                    lanes = [place + n if of == at else lane for lane, (of, place) in enumerate(places)]
                    value = shuffle_value(builder, value, given[at], lanes)
                out.append(value)
            return context.make_tuple(builder, vectors, out)

        return vectors(vectors), codegen

    typer.__name__ = typer.__qualname__ = name
    typer.__doc__ = doc
    return intrinsic(typer)


weave = _weave("weave", "The first lanes of k vectors, then the second ones, and so on, in k vectors.", False)
unweave = _weave(
    "unweave", "Every k-th lane of k vectors one behind the other, from each on: what `weave` undoes.", True
)


def _interleave(builder: Any, vectors: list[Any]) -> list[Any]:
    """The even vectors interleaved among themselves, the odd ones, then the two with one another."""
    if len(vectors) == 1:
        return vectors
    n = vectors[0].type.count
    out = []
    for a, b in zip(_interleave(builder, vectors[::2]), _interleave(builder, vectors[1::2]), strict=True):
        out.append(shuffle_value(builder, a, b, _interleaved(n, 0)))
        out.append(shuffle_value(builder, a, b, _interleaved(n, n // 2)))
    return out
