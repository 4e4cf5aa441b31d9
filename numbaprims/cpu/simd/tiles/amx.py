"""Intel's tile registers (AMX): eight of 16 rows of 64 bytes, and products of them.

A tile of A holds 16 rows of 64 bytes, one of B 16 groups of 32 bits (2 bf16 or 4 bytes of neighbouring k) of 16
columns; one instruction adds their product to 16 x 16 sums.  LLVM keeps the order of these instructions, which name no
memory; between `amx_open` and `amx_close` no other function may be called.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.emit import declare, number, prefetch_value
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.memory import int_literal
from numbaprims.cpu.simd.types import Pointer

I8 = ir.IntType(8)
#: Rows of a tile, and bytes of one.
ROWS, BYTES = 16, 64
#: Lines of the next panel of B that a step of k prefetches: packed panels of 32 rows pass one of B several times.
AHEAD = 4
#: What is multiplied -> the instruction, and the feature that a CPU needs beside amx-tile.
PRODUCTS = {
    "bf16": ("tdpbf16ps", "amx-bf16"), "f16": ("tdpfp16ps", "amx-fp16"),
    "s8s8": ("tdpbssd", "amx-int8"), "u8s8": ("tdpbusd", "amx-int8"),
    "x3": ("tdpbf16ps", "amx-bf16"), "x4": ("tdpbf16ps", "amx-bf16"), "x6": ("tdpbf16ps", "amx-bf16"),
}  # fmt: skip
#: Of numbers in pieces of bf16: which ones of A and B a step multiplies; each takes one operand of the product before.
PIECES = {
    "x3": ((1, 0), (0, 0), (0, 1)),
    "x4": ((1, 1), (1, 0), (0, 0), (0, 1)),
    "x6": ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)),
}


def pieces(kind: str) -> tuple[tuple[int, int], ...]:
    """The pieces of A and B that are multiplied; of whole numbers one."""
    return PIECES.get(kind, ((0, 0),))


def piece_count(kind: str) -> int:
    """Into how many pieces a number is cut."""
    return 1 + max(a for a, _ in pieces(kind))


def amx_feature(kind: str) -> str:
    """ "amx" where tiles of such a kind can be multiplied here and the system grants it, or "portable"."""
    needed = {"amx-tile", PRODUCTS[kind][1]}
    return "amx" if needed <= target.current().features and target.tiles_granted() else "portable"


def _emit(builder: Any, name: str, *values: Any) -> None:
    kinds = [value.type for value in values]
    builder.call(declare(builder, f"llvm.x86.{name}", ir.VoidType(), kinds), values)


def _tile(n: int) -> Any:
    return ir.Constant(I8, n)


@intrinsic
def amx_open(typingctx):  # type: ignore[no-untyped-def]
    """Configure all tiles: 16 rows of 64 bytes."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        # Intel's manual, LDTILECFG: palette 1, bytes of a row (16 bits each) from byte 16 on, rows from byte 48 on
        words = [1, *[0] * 15, *[BYTES, 0] * 8, *[0] * 16, *[ROWS] * 8, *[0] * 8]
        table = cgutils.global_constant(builder, "amx_configuration", ir.Constant(ir.ArrayType(I8, len(words)), words))
        _emit(builder, "ldtilecfg", builder.bitcast(table, I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def amx_close(typingctx):  # type: ignore[no-untyped-def]
    """Give the tiles back: a switch of threads need not save them."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _emit(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic(prefer_literal=True)
def amx_multiply(typingctx, total, step, a, row, b, steps, first, turn, R, C, kind):  # type: ignore[no-untyped-def]
    """total (+)= A B: 16 R x 16 C sums, rows `step` elements apart; `first`: they are written, not added to.

    A is `steps` blocks of 32 rows of 64 bytes, of numbers in pieces a block for each, where `row` is 0; else its rows
    lie `row` words of 32 bits apart, one step of 64 bytes behind the other.  B is `steps` blocks of 16 groups of 32
    columns of 32 bits, of numbers in pieces a block for each; R and C are 1 or 2.  `turn`: which part of the next
    panel of B, the one behind this, is prefetched.  A step loads R + C tiles of 1 KiB for R C products of 16 cycles;
    tiles of A, which stream, pass the first-level cache by.
    """
    rows, columns = int_literal(R), int_literal(C)
    if rows is None or columns is None or not isinstance(kind, types.StringLiteral):
        return None
    product, pairs = PRODUCTS[kind.literal_value][0], pieces(kind.literal_value)
    count = piece_count(kind.literal_value)
    if not all(isinstance(p, Pointer) for p in (total, a, b)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        sums, a_start, b_start = (builder.bitcast(args[i], I8.as_pointer()) for i in (0, 2, 4))
        width = builder.mul(args[1], number(4))
        block, packed = number(2 * ROWS * BYTES * count), builder.icmp_signed("==", args[3], number(0))
        a_width = builder.select(packed, number(BYTES), builder.mul(args[3], number(4)))
        a_block = builder.select(packed, block, number(BYTES))

        def at(pointer: Any, offset: Any) -> Any:
            return builder.gep(pointer, [offset])

        places = []
        for i in range(rows):
            row = at(sums, builder.mul(width, number(ROWS * i)))
            places += [(_tile(2 * i + j), at(row, number(BYTES * j)), width) for j in range(columns)]
        with builder.if_else(builder.icmp_signed("!=", args[6], ir.Constant(args[6].type, 0))) as (fresh, further):
            with fresh:
                for tile, *_ in places:
                    _emit(builder, "tilezero", tile)
            with further:
                for place in places:
                    _emit(builder, "tileloadd64", *place)

        def one(state: list[Any]) -> list[Any]:
            a_at, b_at, ahead = state
            held = (-1, -1)
            for pair in pairs:
                left, right = (2 * ROWS * BYTES * piece for piece in pair)
                for i in range(rows):
                    if held[0] != pair[0]:
                        place = at(a_at, builder.add(number(left), builder.mul(a_width, number(ROWS * i))))
                        _emit(builder, "tileloaddt164", _tile(4 + i), place, a_width)
                    for j in range(columns):
                        if i == 0 and held[1] != pair[1]:
                            place = at(b_at, number(right + BYTES * j))
                            _emit(builder, "tileloadd64", _tile(6 + j), place, number(2 * BYTES))
                        _emit(builder, product, _tile(2 * i + j), _tile(4 + i), _tile(6 + j))
                held = pair
            for line in range(AHEAD * count):
                prefetch_value(builder, ahead, number(BYTES * line), 2, False)
            return [at(a_at, a_block), at(b_at, block), at(ahead, number(AHEAD * count * BYTES))]

        parts = builder.add(builder.mul(args[7], number(AHEAD * count * BYTES)), block)
        after = at(b_start, builder.mul(args[5], parts))
        repeat(builder, args[5], [a_start, b_start, after], one, "tiles")
        for place in places:
            _emit(builder, "tilestored64", *place)
        return context.get_dummy_value()

    return types.void(total, types.int64, a, types.int64, b, *[types.int64] * 3, R, C, kind), codegen
