"""Within a warp: indices, shuffles, votes, sums and maxima of 32 lanes.

A sum over 32 lanes takes five shuffles and five additions, in the fixed order of a butterfly: all lanes get the same
bits.  All 32 lanes must take part; a lane that has nothing to add adds the neutral element.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.gpu.device.emit import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    asm,
    call_nvvm,
    int_literal,
    intrinsic,
    string_literal,
    types,
)  # fmt: skip

WARP = 32
"""Lanes of a warp."""
_ALL = "0xffffffff"


@intrinsic
def lane_index(typingctx):  # type: ignore[no-untyped-def]
    """This thread's number in its warp, uint32."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.and_(call_nvvm(builder, "llvm.nvvm.read.ptx.sreg.tid.x", I32), ir.Constant(I32, 31))

    return types.uint32(), codegen


@intrinsic
def warp_index(typingctx):  # type: ignore[no-untyped-def]
    """The number of this thread's warp in its block, uint32."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.lshr(call_nvvm(builder, "llvm.nvvm.read.ptx.sreg.tid.x", I32), ir.Constant(I32, 5))

    return types.uint32(), codegen


@intrinsic
def uniform(typingctx, value):  # type: ignore[no-untyped-def]
    """A value that all lanes have in common, read from lane 0: what depends on it stays in uniform registers.

    All lanes must take part.
    """
    number = types.unliteral(value)
    if number not in _SHUFFLED:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return _shuffle(builder, "idx", args[0], ir.Constant(I32, 0))

    return number(number), codegen


def _shuffle_word(builder: Any, mode: str, value: Any, lane: Any) -> Any:
    clamp = "0" if mode == "up" else "0x1f"
    return asm(
        builder, f"shfl.sync.{mode}.b32 $0, $1, $2, {clamp}, {_ALL};", [value, lane], [I32], collective=True
    )[0]  # fmt: skip


def _shuffle(builder: Any, mode: str, value: Any, lane: Any) -> Any:
    """The value of another lane; a value of 8 bytes takes two shuffles."""
    if value.type == I32:
        return _shuffle_word(builder, mode, value, lane)
    if value.type == F32:
        return builder.bitcast(_shuffle_word(builder, mode, builder.bitcast(value, I32), lane), F32)
    if value.type in (I8, I16):
        return builder.trunc(_shuffle_word(builder, mode, builder.zext(value, I32), lane), value.type)
    whole = builder.bitcast(value, I64) if value.type == F64 else value
    low = _shuffle_word(builder, mode, builder.trunc(whole, I32), lane)
    high = _shuffle_word(builder, mode, builder.trunc(builder.lshr(whole, ir.Constant(I64, 32)), I32), lane)
    whole = builder.or_(builder.zext(low, I64), builder.shl(builder.zext(high, I64), ir.Constant(I64, 32)))
    return builder.bitcast(whole, F64) if value.type == F64 else whole


_SHUFFLED = (
    types.float32, types.float64, types.int8, types.uint8, types.int16, types.uint16, types.int32, types.uint32,
    types.int64, types.uint64,
)  # fmt: skip


def _define_shuffle(mode: str, doc: str) -> Any:
    def shuffle(typingctx, value, lane):  # type: ignore[no-untyped-def]
        number = types.unliteral(value)
        if number not in _SHUFFLED:
            return None

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            return _shuffle(builder, mode, args[0], args[1])

        return number(number, types.uint32), codegen

    shuffle.__doc__ = doc
    return intrinsic(shuffle)


shuffle = _define_shuffle("idx", "The value that `lane` holds.")
shuffle_xor = _define_shuffle("bfly", "The value of the lane whose number is this lane's xor `lane`.")
shuffle_up = _define_shuffle("up", "The value of the lane `lane` below; the lowest lanes keep their own.")
shuffle_down = _define_shuffle("down", "The value of the lane `lane` above; the highest lanes keep their own.")


@intrinsic
def ballot(typingctx, condition):  # type: ignore[no-untyped-def]
    """One bit a lane: whether its condition holds; uint32."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        bit = builder.zext(args[0], I32)
        text = f"{{ .reg .pred p; setp.ne.b32 p, $1, 0; vote.sync.ballot.b32 $0, p, {_ALL}; }}"
        return asm(builder, text, [bit], [I32], collective=True)[0]

    return types.uint32(types.boolean), codegen


def _define_vote(mode: str, doc: str) -> Any:
    def vote(typingctx, condition):  # type: ignore[no-untyped-def]
        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            text = (
                f"{{ .reg .pred p, q; setp.ne.b32 p, $1, 0; vote.sync.{mode}.pred q, p, {_ALL}; "
                "selp.u32 $0, 1, 0, q; }"
            )
            bit = asm(builder, text, [builder.zext(args[0], I32)], [I32], collective=True)[0]
            return builder.icmp_unsigned("!=", bit, ir.Constant(I32, 0))

        return types.boolean(types.boolean), codegen

    vote.__doc__ = doc
    return intrinsic(vote)


warp_any = _define_vote("any", "Whether the condition holds in a lane.")
warp_all = _define_vote("all", "Whether the condition holds in all lanes.")


@intrinsic
def warp_barrier(typingctx):  # type: ignore[no-untyped-def]
    """Wait for all lanes of the warp; what they wrote to memory before is seen after."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        asm(builder, f"bar.warp.sync {_ALL};", collective=True, memory=True)
        return context.get_dummy_value()

    return types.void(), codegen


_FLOATS = (types.float32, types.float64)
_NUMBERS = (*_FLOATS, types.int32, types.uint32)


def maximum_value(builder: Any, x: Any, y: Any, *, minimum: bool = False) -> Any:
    """The larger of two floats, NaN if one is NaN (the hardware's plain max drops NaN)."""
    if x.type == F32:
        return asm(builder, f"{'min' if minimum else 'max'}.NaN.f32 $0, $1, $2;", [x, y], [F32])[0]
    # there is no NaN form for float64: x wins where it is larger or NaN, else y, which may be NaN
    first = builder.fcmp_unordered("<" if minimum else ">", x, y)  # true too where either is NaN
    larger = builder.select(first, x, y)
    return builder.select(builder.fcmp_unordered("uno", y, y), y, larger)


def _combine(builder: Any, operation: str, number: Any, x: Any, y: Any) -> Any:
    real = number in _FLOATS
    if operation == "sum":
        return builder.fadd(x, y) if real else builder.add(x, y)
    if real:
        return maximum_value(builder, x, y, minimum=operation == "min")
    compare = builder.icmp_signed if number.signed else builder.icmp_unsigned
    return builder.select(compare(">" if operation == "max" else "<", x, y), x, y)


def butterfly(builder: Any, operation: str, number: Any, value: Any, width: int) -> Any:
    """Combine over groups of `width` lanes, in the order width/2, ..., 2, 1 of the butterfly."""
    step = width // 2
    while step:
        other = _shuffle(builder, "bfly", value, ir.Constant(I32, step))
        value = _combine(builder, operation, number, value, other)
        step //= 2
    return value


def _define_reduction(operation: str, doc: str) -> Any:
    def reduction(typingctx, value):  # type: ignore[no-untyped-def]
        number = types.unliteral(value)
        if number not in _NUMBERS:
            return None

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            if number not in _FLOATS:  # one instruction
                kind = "s32" if number.signed else "u32"
                name = "add" if operation == "sum" else operation
                return asm(builder, f"redux.sync.{name}.{kind} $0, $1, {_ALL};", [args[0]], [I32], collective=True)[0]
            return butterfly(builder, operation, number, args[0], WARP)

        return number(number), codegen

    reduction.__doc__ = doc
    return intrinsic(reduction)


warp_sum = _define_reduction("sum", "The sum over the warp, in every lane, in a fixed order: the same bits each time.")
warp_max = _define_reduction("max", "The maximum over the warp, in every lane; NaN if a lane has NaN.")
warp_min = _define_reduction("min", "The minimum over the warp, in every lane; NaN if a lane has NaN.")


@intrinsic
def group_reduce(typingctx, value, width, operation):  # type: ignore[no-untyped-def]
    """Reduce over each group of `width` lanes (a power of two): operation "sum", "max" or "min"."""
    lanes, name = int_literal(width), string_literal(operation)
    number = types.unliteral(value)
    if lanes not in (1, 2, 4, 8, 16, 32) or name not in ("sum", "max", "min") or number not in _NUMBERS:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return butterfly(builder, name, number, args[0], lanes)

    return number(number, width, operation), codegen


def _define_maximum(name: str, doc: str) -> Any:
    def maximum(typingctx, x, y):  # type: ignore[no-untyped-def]
        number = types.unliteral(x)
        if number not in _FLOATS:
            return None

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            return maximum_value(builder, *args, minimum=name == "minimum")

        return number(number, number), codegen

    maximum.__doc__ = doc
    return intrinsic(maximum)


maximum = _define_maximum("maximum", "The larger of two floats; NaN if one is NaN, as numpy.maximum.")
minimum = _define_maximum("minimum", "The smaller of two floats; NaN if one is NaN, as numpy.minimum.")
