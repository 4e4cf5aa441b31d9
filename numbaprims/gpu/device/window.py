"""Products of a window that slides over a row in shared memory, for the sums that a thread keeps of some channels and
neighbouring pixels: straight code, written out here because LLVM does not unroll loops of so many sums by itself."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.gpu.device.emit import I64, element_type, int_literal, intrinsic, tuple_of, types, unpack, void
from numbaprims.gpu.device.memory import _load, _store


def _vector(number: Any) -> int:
    """Elements in 16 bytes."""
    return 128 // int(number.bitwidth)


def _parts(context: Any, builder: Any, place: tuple[Any, Any], begin: Any, offset: int, count: int, vector: int) -> Any:
    """`count` elements from `begin` + `offset` on, by vectors of 16 bytes where there are so many."""
    found: list[Any] = []
    while len(found) < count:
        size = min(vector, count - len(found))
        at = builder.add(begin, ir.Constant(I64, offset + len(found)))
        found += _load(context, builder, (*place, types.int64, at), size, readonly=False)
    return found


@intrinsic
def window_row(typingctx, sums, shared, at, weights_at, taps, gap, gain, pixels, phase, room):  # type: ignore[no-untyped-def]
    """sums[k, e] + the sum over s of weights[s, k] row[e gain + s gap], for `pixels` e and the tuple's channels k.

    `shared` has the row from `at` on with the elements of a stride side by side: element x lies `phase` (x mod `gain`)
    + x div `gain` behind; and the weights from `weights_at` on, those of a tap `room` behind those of the one before.
    Both places, `phase` and `room` are multiples of 16 bytes, and so are the channels or a half of it.  The tuple is
    [k][e].  Taps are added from the first to the last of those with one remainder by the gain, remainder by remainder.
    """
    literals = [int_literal(x) for x in (taps, gap, gain, pixels, phase, room)]
    number = element_type(shared)
    if None in literals or not isinstance(sums, types.UniTuple) or sums.dtype != number:
        return None
    count, step, stride, width, words, between = (int(x or 0) for x in literals)
    channels = len(sums) // width
    vector = _vector(number)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        total = unpack(builder, args[0], sig.args[0])
        place = sig.args[1], args[1]
        for remainder in range(stride):
            mine = [s for s in range(count) if s * step % stride == remainder]
            if not mine:
                continue
            reach = mine[-1] * step // stride
            whole = -(-(width + reach) // vector) * vector
            row = _parts(context, builder, place, args[2], remainder * words, whole, vector)
            for s in mine:
                factors = _parts(context, builder, place, args[3], s * between, channels, vector)
                for k, factor in enumerate(factors):
                    for e in range(width):
                        mine_at = k * width + e
                        total[mine_at] = builder.fma(factor, row[s * step // stride + e], total[mine_at])
        return tuple_of(context, builder, sig.return_type, total)

    return sums(sums, shared, types.int64, types.int64, taps, gap, gain, pixels, phase, room), codegen


@intrinsic
def window_gradient(typingctx, sums, shared, at, other_at, rows, taps, row_step, gap, gain, pixels, phase, room):  # type: ignore[no-untyped-def]
    """sums[k, r, s] + the sum over `pixels` e of other[k, e] * row[r][e gain + s gap], for the tuple's channels k.

    `shared` has the rows from `at` on, `row_step` apart, each as `window_row` takes it; and the channels of the other
    operand from `other_at` on, `room` apart.  All of these are multiples of 16 bytes, unless `pixels` is 1.  The tuple
    is [k][r][s]; pixels are added from the first to the last.
    """
    literals = [int_literal(x) for x in (rows, taps, row_step, gap, gain, pixels, phase, room)]
    number = element_type(shared)
    if None in literals or not isinstance(sums, types.UniTuple) or sums.dtype != number:
        return None
    lines, count, below, step, stride, width, words, between = (int(x or 0) for x in literals)
    channels = len(sums) // (lines * count)
    vector = _vector(number) if width > 1 else 1

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        total = unpack(builder, args[0], sig.args[0])
        place = sig.args[1], args[1]
        others = [_parts(context, builder, place, args[3], k * between, width, vector) for k in range(channels)]
        for r in range(lines):
            for remainder in range(stride):
                mine = [s for s in range(count) if s * step % stride == remainder]
                if not mine:
                    continue
                first, reach = mine[0] * step // stride, mine[-1] * step // stride
                begin = first // vector * vector
                whole = -(-(width + reach - begin) // vector) * vector
                row = _parts(context, builder, place, args[2], r * below + remainder * words + begin, whole, vector)
                for k in range(channels):
                    for s in mine:
                        at_sum = (k * lines + r) * count + s
                        for e in range(width):
                            x = row[s * step // stride - begin + e]
                            total[at_sum] = builder.fma(others[k][e], x, total[at_sum])
        return tuple_of(context, builder, sig.return_type, total)

    where = types.int64, types.int64
    return sums(sums, shared, *where, rows, taps, row_step, gap, gain, pixels, phase, room), codegen


@intrinsic
def store_sums(typingctx, sums, shared, at, pixels, channel_step, pixel_step):  # type: ignore[no-untyped-def]
    """Write sums [k][e] of `pixels` e to `at` + k `channel_step` + e `pixel_step`, by vectors along the step of 1."""
    width, of_k, of_e = (int_literal(x) for x in (pixels, channel_step, pixel_step))
    number = element_type(shared)
    if None in (width, of_k, of_e) or not isinstance(sums, types.UniTuple) or sums.dtype != number:
        return None
    vector = _vector(number)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        values = unpack(builder, args[0], sig.args[0])
        channels = len(values) // width
        if of_e == 1:
            runs = [[(k, e + i) for i in range(vector)] for k in range(channels) for e in range(0, width, vector)]
        else:
            runs = [[(k + i, e) for i in range(vector)] for e in range(width) for k in range(0, channels, vector)]
        for run in runs:
            k, e = run[0]
            where = builder.add(args[2], ir.Constant(I64, k * of_k + e * of_e))
            parts = [values[k * width + e] for k, e in run]
            _store(context, builder, (sig.args[1], args[1], types.int64, where), parts)
        return void(context)

    return types.void(sums, shared, types.int64, pixels, channel_step, pixel_step), codegen


@intrinsic
def store_apart(typingctx, sums, shared, at, step):  # type: ignore[no-untyped-def]
    """Write the numbers of a tuple to `at`, `at` + `step`, ..."""
    between, number = int_literal(step), element_type(shared)
    if between is None or not isinstance(sums, types.UniTuple) or sums.dtype != number:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        for i, value in enumerate(unpack(builder, args[0], sig.args[0])):
            where = builder.add(args[2], ir.Constant(I64, i * between))
            _store(context, builder, (sig.args[1], args[1], types.int64, where), [value])
        return void(context)

    return types.void(sums, shared, types.int64, step), codegen
