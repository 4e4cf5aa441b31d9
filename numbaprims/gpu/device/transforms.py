"""What transforms of small tiles need: patches of an image in registers, straight-line programs over them, and stores
of their values far apart.  A tile is a tuple, row by row; every operation on it is unrolled, whatever its size, and
costs Numba one call to type and to lower."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from llvmlite import ir

from numbaprims.formulas.value import mad, negative
from numbaprims.gpu.device.emit import (
    I64,
    element_type,
    int_literal,
    intrinsic,
    string_literal,
    tuple_of,
    types,
    unpack,
    void,
)
from numbaprims.gpu.device.memory import REGISTER, STORAGE, _load, _store, _widen
from numbaprims.gpu.device.value import Value


def run_program(code: str, inputs: list[Value]) -> list[Value]:
    """Emit a program of numbaprims.cook_toom: a value for each of its outputs."""
    values = list(inputs)
    for line in code.split(";"):
        name, *words = line.split()
        if name == "out":
            return [values[int(word)] for word in words]
        if name == "zero":
            values.append(inputs[0].constant(0.0))
            continue
        a = values[int(words[0])]
        if name in ("add", "sub"):
            b = values[int(words[1])]
            values.append(a + b if name == "add" else a - b)
        elif name == "neg":
            values.append(negative(a))
        else:
            factor = a.constant(float(Fraction(words[1])))
            values.append(a * factor if name == "mul" else mad(a, factor, values[int(words[2])]))
    raise ValueError(f"a program ends with 'out': {code!r}")


@intrinsic
def transform(typingctx, tile, height, columns, rows):  # type: ignore[no-untyped-def]
    """A tile of `height` rows with the program `columns` run down each column, then `rows` along each row."""
    n, down, along = int_literal(height), string_literal(columns), string_literal(rows)
    if n is None or down is None or along is None or not isinstance(tile, types.UniTuple) or len(tile) % n:
        return None
    results = [len(code.rpartition("out ")[2].split()) for code in (down, along)]
    made = types.UniTuple(tile.dtype, results[0] * results[1])

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        values = [Value(builder, value) for value in unpack(builder, args[0], sig.args[0])]
        width = len(values) // n
        of_columns = [run_program(down, values[column::width]) for column in range(width)]
        of_rows = [run_program(along, [column[row] for column in of_columns]) for row in range(results[0])]
        return tuple_of(context, builder, made, [value.value for row in of_rows for value in row])

    return made(tile, height, columns, rows), codegen


def _places(builder: Any, first: Any, gap: Any, size: Any, step: Any, count: int) -> list[tuple[Any, Any]]:
    """(whether it exists, the offset of it or of the nearest that does) of `count` places, `gap` apart."""
    found = []
    last = builder.sub(size, ir.Constant(size.type, 1))
    zero = ir.Constant(size.type, 0)
    for _ in range(count):
        inside = builder.icmp_unsigned("<", first, size)
        low = builder.select(builder.icmp_signed("<", first, zero), zero, first)
        near = builder.select(builder.icmp_signed("<", low, last), low, last)
        found.append((inside, builder.mul(builder.sext(near, I64) if step.type == I64 else near, step)))
        first = builder.add(first, gap)
    return found


@intrinsic
def load_patch(typingctx, place, at, corner, gap, size, step, height, width, dtype):  # type: ignore[no-untyped-def]
    """`height` x `width` elements of a plane that nothing writes meanwhile, as numbers; zeros outside of it.

    The plane begins at place[at] and has the `size` (rows, columns), at least 1 x 1; its elements lie `step` apart
    (int64, or int32 where all offsets are).  The patch begins at `corner` and takes every `gap`-th place, pairs of
    int32.  Nothing outside is read: the nearest element is, in its place.
    """
    h, w, name = int_literal(height), int_literal(width), string_literal(dtype)
    if h is None or w is None or name is None or element_type(place) != STORAGE[name]:
        return None
    pair = types.UniTuple(types.int32, 2)
    if not isinstance(step, types.UniTuple) or step.dtype not in (types.int32, types.int64):
        return None
    result = types.UniTuple(REGISTER[name], h * w)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        firsts, gaps, sizes, steps = (unpack(builder, args[k], sig.args[k]) for k in (2, 3, 4, 5))
        downwards, across = (
            _places(builder, firsts[k], gaps[k], sizes[k], steps[k], count) for k, count in enumerate((h, w))
        )
        values = []
        for row_inside, row in downwards:
            begin = builder.add(args[1], row)
            for column_inside, column in across:
                where = (sig.args[0], args[0], step.dtype, builder.add(begin, column))
                number = _widen(builder, _load(context, builder, where, 1, readonly=True)[0], name)
                inside = builder.and_(row_inside, column_inside)
                values.append(builder.select(inside, number, ir.Constant(number.type, 0.0)))
        return tuple_of(context, builder, result, values)

    return result(place, step.dtype, pair, pair, pair, step, height, width, dtype), codegen


@intrinsic
def load_spread(typingctx, place, at, step, count):  # type: ignore[no-untyped-def]
    """The tuple of `count` elements that lie `step` (int64) apart, of memory that nothing writes meanwhile."""
    n = int_literal(count)
    if n is None or element_type(place) is None:
        return None
    result = types.UniTuple(element_type(place), n)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        index, values = args[1], []
        for _ in range(n):
            values += _load(context, builder, (sig.args[0], args[0], types.int64, index), 1, readonly=True)
            index = builder.add(index, args[2])
        return tuple_of(context, builder, result, values)

    return result(place, types.int64, types.int64, count), codegen


@intrinsic
def store_spread(typingctx, place, at, step, values, count):  # type: ignore[no-untyped-def]
    """Store a tuple, `count` elements as one vector, the next vector `step` (int64) elements behind the last."""
    n = int_literal(count)
    if n is None or not isinstance(values, types.UniTuple) or values.dtype != element_type(place) or len(values) % n:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        parts, index = unpack(builder, args[3], sig.args[3]), args[1]
        for first in range(0, len(parts), n):
            _store(context, builder, (sig.args[0], args[0], types.int64, index), parts[first : first + n])
            index = builder.add(index, args[2])
        return void(context)

    return types.void(place, types.int64, types.int64, values, count), codegen
