"""Sums of tensor cores, in registers as wgmma leaves them, on their way to memory.

Of every square of 8 x 8 a lane holds two neighbours in a row, and behind them those of the square 8 rows below.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.gpu.device.emit import (
    F32,
    GLOBAL,
    I32,
    SHARED,
    asm,
    element_pointer,
    element_type,
    int_literal,
    intrinsic,
    read_only,
    string_literal,
    tuple_of,
    types,
    unpack,
    void,
)  # fmt: skip


@intrinsic
def part_of(typingctx, values, part, count):  # type: ignore[no-untyped-def]
    """`count` of a tuple's elements from part * count on: they stay in registers.

    A jump to one of the parts, which copies it, where `part` is no literal; an index of an element by itself would be
    a jump for each.
    """
    n = int_literal(count)
    if n is None or not isinstance(values, types.UniTuple) or len(values) % n:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        every = unpack(builder, args[0], sig.args[0])
        fixed = int_literal(part)
        if fixed is not None:
            return tuple_of(context, builder, sig.return_type, every[fixed * n : (fixed + 1) * n])
        after = builder.append_basic_block("part.after")
        number = builder.trunc(args[1], I32) if args[1].type.width > 32 else args[1]
        jump, ways = builder.switch(number, after), []
        for first in range(0, len(every), n):
            way = builder.append_basic_block("part")
            if first:
                jump.add_case(ir.Constant(I32, first // n), way)
            else:
                jump.default = way
            builder.position_at_end(way)
            builder.branch(after)
            ways.append((way, every[first : first + n]))
        builder.position_at_end(after)
        chosen = []
        for position in range(n):
            one = builder.phi(every[0].type)
            for way, members in ways:
                one.add_incoming(members[position], way)
            chosen.append(one)
        return tuple_of(context, builder, sig.return_type, chosen)

    return types.UniTuple(values.dtype, n)(values, part, count), codegen


@intrinsic
def load_pairs(typingctx, place, index, end, count):  # type: ignore[no-untyped-def]
    """`count` pairs of 16-bit elements, at index, index + 8, ..., each one uint32; from `end` on any numbers.

    All of them even.
    """
    n = int_literal(count)
    if n is None or element_type(place) is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        words = []
        for step in range(n):
            at = builder.add(args[1], ir.Constant(I32, 8 * step))
            at = builder.select(builder.icmp_signed("<", at, args[2]), at, ir.Constant(I32, 0))
            pointer = element_pointer(context, builder, sig.args[0], args[0], types.int32, at)
            words.append(builder.load(builder.bitcast(pointer, ir.PointerType(I32))))
            words[-1].align = 4
        return tuple_of(context, builder, sig.return_type, words)

    return types.UniTuple(types.uint32, n)(place, types.int32, types.int32, count), codegen


@intrinsic
def pack_scaled(typingctx, values, scale, dtype):  # type: ignore[no-untyped-def]
    """A tuple of float32, times `scale`, in 16 bits, two in each uint32, the first one low."""
    name = string_literal(dtype)
    if name not in ("f16", "bf16") or len(values) % 2:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        scaled = [builder.fmul(value, args[1]) for value in unpack(builder, args[0], sig.args[0])]
        words = [_packed(builder, scaled[first], scaled[first + 1], name) for first in range(0, len(scaled), 2)]
        return tuple_of(context, builder, sig.return_type, words)

    return types.UniTuple(types.uint32, len(values) // 2)(values, types.float32, dtype), codegen


def _packed(builder: Any, low: Any, high: Any, dtype: str) -> Any:
    return asm(builder, f"cvt.rn.{dtype}x2.f32 $0, $1, $2;", [high, low], [I32])[0]


@intrinsic
def pack_ended(typingctx, values, scale, pairs, floor, pair_dtype, dtype):  # type: ignore[no-untyped-def]
    """max(values scale + pairs, floor), in 16 bits, two in each uint32; NaN stays NaN.

    `values` are a lane's sums of some squares side by side, of each of which `pairs` has the addends of two columns.
    """
    source, target = string_literal(pair_dtype), string_literal(dtype)
    halves = ("f16", "bf16")
    if source not in halves or target not in halves or len(values) != 4 * len(pairs):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        sums, words = unpack(builder, args[0], sig.args[0]), []
        for number, pair in enumerate(unpack(builder, args[2], sig.args[2])):
            low, high = builder.shl(pair, ir.Constant(I32, 16)), builder.and_(pair, ir.Constant(I32, 0xFFFF0000))
            addends = [builder.bitcast(half, F32) for half in (low, high)]
            if source == "f16":
                text = "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }"
                addends = asm(builder, text, [pair], [F32, F32])
            for first in (4 * number, 4 * number + 2):
                ended = [
                    asm(
                        builder, "{ .reg .f32 x; fma.rn.f32 x, $1, $2, $3; max.NaN.f32 $0, x, $4; }",
                        [sums[first + column], args[1], addends[column], args[3]], [F32],
                    )[0]
                    for column in (0, 1)
                ]  # fmt: skip
                words.append(_packed(builder, *ended, target))
        return tuple_of(context, builder, sig.return_type, words)

    packed = types.UniTuple(types.uint32, len(values) // 2)
    return packed(values, types.float32, pairs, types.float32, pair_dtype, dtype), codegen


@intrinsic
def store_from_shared(typingctx, place, index, address):  # type: ignore[no-untyped-def]
    """Write 16 bytes at an address of shared memory to place[index], both aligned to 16."""
    if element_type(place) is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        words = ir.VectorType(I32, 4)
        value = builder.load(builder.inttoptr(args[2], ir.PointerType(words, SHARED)))
        value.align = 16
        pointer = element_pointer(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        builder.store(value, builder.bitcast(read_only(builder, pointer), ir.PointerType(words, GLOBAL))).align = 16
        return void(context)

    return types.void(place, index, types.uint32), codegen
