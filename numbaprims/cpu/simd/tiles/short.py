"""Pairs of f16 below 2 in 15 bits each, laid so that three instructions make float32 of both.

Two vectors of 16 lie interleaved, two numbers in a word of 32 bits.  Without the exponent's upper bit, which numbers
below 2 do not have, sign, exponent and mantissa of the second stand at the places that float32 has for them: a mask
makes it.  Those of the first fill the gaps, so that each byte of the float32 is eight bits in a row somewhere in
64: vpmultishiftqb, then the same mask.  The sign of word 0 lies in word 1, that of word 1 in word 0.  Both
results are the number times 2 ** -112, exact, zeros and subnormal numbers too.  The conversion vcvtph2ps takes two
cycles of a Zen 4 for each vector.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.emit import I32, constant, declare, load_value, store_value
from numbaprims.cpu.simd.types import Pointer

I16 = ir.IntType(16)
#: The power of two that is left out.
SHORT_SCALE = 112
#: Where sign, exponent and mantissa of an f16 lie in float32, with and without the upper bit of the exponent.
_MASK, _NARROW = 0x8FFFE000, 0x87FFE000
#: The first bit of each byte of both words.
_SHIFTS = [0, 59, 5, 28, 0, 27, 37, 60]


def short_able(lanes: int) -> bool:
    """Whether the CPU has the instruction."""
    return lanes == 16 and "avx512vbmi" in target.current().features


def _floats(builder: Any, words: Any, mask: int) -> Any:
    kept = builder.and_(words, constant(words.type, mask))
    return builder.bitcast(kept, ir.VectorType(ir.FloatType(), words.type.count))


def short_pair(builder: Any, p: Any, at: Any, lanes: int) -> list[Any]:
    """Two vectors of 2 * lanes packed numbers, times 2 ** -112."""
    words, octets = ir.VectorType(I32, lanes), ir.VectorType(ir.IntType(8), 4 * lanes)
    value = builder.bitcast(load_value(builder, p, at, ir.VectorType(I16, 2 * lanes)), octets)
    shift = declare(builder, "llvm.x86.avx512.pmultishift.qb.512", octets, [octets, octets])
    moved = builder.call(shift, [ir.Constant(octets, _SHIFTS * (lanes // 2)), value])
    return [_floats(builder, builder.bitcast(each, words), _NARROW) for each in (moved, value)]


def short_half(builder: Any, p: Any, at: Any, lanes: int) -> Any:
    """A vector of f16 that has no neighbour, times 2 ** -112."""
    value = builder.sext(load_value(builder, p, at, ir.VectorType(I16, lanes)), ir.VectorType(I32, lanes))
    return _floats(builder, builder.shl(value, constant(value.type, 13)), _MASK)


@intrinsic(prefer_literal=True)
def pack_short(typingctx, p, at, W):  # type: ignore[no-untyped-def]
    """Pack, in place, the W f16 at p + at and the W behind them, all of them below 2, as `tile_multiply_short` reads
    them."""
    if not isinstance(p, Pointer) or not isinstance(W, types.IntegerLiteral):
        return None
    lanes = W.literal_value
    half, words = ir.VectorType(I16, lanes), ir.VectorType(I32, lanes)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        def c(x: int) -> Any:
            return constant(words, x)

        def bits(value: Any, mask: int, to: int) -> Any:
            moved = builder.shl if to >= 0 else builder.lshr
            return moved(builder.and_(value, c(mask)), c(abs(to)))

        second = builder.add(args[1], ir.Constant(args[1].type, lanes))
        first, last = (builder.zext(load_value(builder, args[0], i, half), words) for i in (args[1], second))
        order = ir.Constant(words, [lane ^ 1 for lane in range(lanes)])
        sign = builder.shuffle_vector(bits(first, 0x8000, -12), ir.Constant(words, None), order)
        mixed = sign
        for each in (
            bits(last, 0x8000, 16), bits(last, 0x3FFF, 13),
            bits(first, 0x3800, 17), bits(first, 0x07F8, 2), bits(first, 0x0007, 0),
        ):  # fmt: skip
            mixed = builder.or_(mixed, each)
        store_value(builder, args[0], args[1], builder.bitcast(mixed, ir.VectorType(I16, 2 * lanes)))
        return context.get_dummy_value()

    return types.void(p, types.int64, W), codegen
