"""Bits: logic, shifts, fields, permutations, counts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import NUMPY, types_of, width
from ..machine import Batch, Step
from ..operands import Context
from ..parse import Instruction
from ..registry import instruction

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instruction("and", "or", "xor")
def _logic(context: Context, ins: Instruction) -> Step:
    kind, ufunc = types_of(ins.modifiers)[-1], _LOGIC[ins.opcode]
    first, second = (context.read(operand, kind) for operand in ins.operands[1:])
    put = context.write(ins.operands[0])
    return lambda batch: put(batch, ufunc(first(batch), second(batch)))


@instruction("not", "cnot")
def _not(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    get, put = context.read(ins.operands[1], kind), context.write(ins.operands[0])
    if ins.opcode == "cnot":
        return lambda batch: put(batch, np.equal(get(batch), 0).astype(NUMPY[kind]))
    return lambda batch: put(batch, ~get(batch))


@instruction("shl", "shr")
def _shift(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    dtype, bits = NUMPY[kind], 8 * width(kind)
    get, put = context.read(ins.operands[1], kind), context.write(ins.operands[0])
    count = context.constant(ins.operands[2])
    ufunc = np.left_shift if ins.opcode == "shl" else np.right_shift
    keeps_sign = ins.opcode == "shr" and kind[0] == "s"
    if count is not None and count < bits:
        amount = dtype(count)
        return lambda batch: put(batch, ufunc(get(batch), amount))
    read_count = context.read(ins.operands[2], "u32")

    def shift(batch: Batch) -> None:
        number = np.minimum(read_count(batch), np.uint32(bits))
        value = get(batch)
        if keeps_sign:
            put(batch, ufunc(value, np.minimum(number, np.uint32(bits - 1)).astype(dtype)))
        else:  # NumPy leaves a shift by the whole width open; PTX gives 0
            moved = ufunc(value, np.where(number < bits, number, 0).astype(dtype))
            put(batch, np.where(number < bits, moved, dtype(0)))

    return shift


@instruction("shf")
def _funnel(context: Context, ins: Instruction) -> Step:
    low, high, count = (context.read(operand, "u32") for operand in ins.operands[1:])
    put = context.write(ins.operands[0])
    wraps, right = ins.has("wrap"), ins.modifiers[0] == "r"

    def shift(batch: Batch) -> None:
        number = np.asarray(count(batch))
        number = (number & np.uint32(31) if wraps else np.minimum(number, np.uint32(32))).astype(np.uint64)
        pair = (np.asarray(high(batch)).astype(np.uint64) << np.uint64(32)) | np.asarray(low(batch)).astype(np.uint64)
        moved = pair >> number if right else (pair << number) >> np.uint64(32)
        put(batch, moved.astype(np.uint32))

    return shift


@instruction("lop3")
def _logic_table(context: Context, ins: Instruction) -> Step:
    a, b, c = (context.read(operand, "u32") for operand in ins.operands[1:4])
    put, table = context.write(ins.operands[0]), int(ins.operands[4], 0)

    def look_up(batch: Batch) -> None:
        x, y, z = a(batch), b(batch), c(batch)
        result: Any = np.uint32(0)
        for row in range(8):
            if table >> row & 1:
                result = result | ((x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z))
        put(batch, result)

    return look_up


@instruction("prmt")
def _permute(context: Context, ins: Instruction) -> Step:
    """Four bytes out of eight; bit 3 of a selector copies the byte's sign instead. Only the plain mode."""
    a, b, c = (context.read(operand, "u32") for operand in ins.operands[1:4])
    put = context.write(ins.operands[0])

    def permute(batch: Batch) -> None:
        pair = (np.asarray(b(batch)).astype(np.uint64) << np.uint64(32)) | np.asarray(a(batch)).astype(np.uint64)
        selectors = np.asarray(c(batch)).astype(np.uint64)
        result: Any = np.uint64(0)
        for index in range(4):
            selector = (selectors >> np.uint64(4 * index)) & np.uint64(15)
            byte = (pair >> ((selector & np.uint64(7)) << np.uint64(3))) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            result = result | (np.where(selector & np.uint64(8), sign, byte) << np.uint64(8 * index))
        put(batch, result.astype(np.uint32))

    return permute


def _mask(length: Any) -> Any:
    """The low `length` bits set, for 0 to 64."""
    length = np.asarray(length, np.uint64)
    return np.where(
        length >= 64, ~np.uint64(0), (np.uint64(1) << np.where(length >= 64, np.uint64(0), length)) - np.uint64(1)
    )


@instruction("bfe")
def _extract(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    bits = 8 * width(kind)
    get, put = context.read(ins.operands[1], f"u{bits}"), context.write(ins.operands[0])
    position, length = (context.read(operand, "u32") for operand in ins.operands[2:4])

    def extract(batch: Batch) -> None:
        value = np.asarray(get(batch)).astype(np.uint64)
        start, count = (np.asarray(r(batch)).astype(np.uint64) & np.uint64(255) for r in (position, length))
        field = np.where(start < 64, value >> np.minimum(start, np.uint64(63)), np.uint64(0)) & _mask(
            np.minimum(count, 64)
        )
        if kind[0] == "s":  # extend the field's top bit, or the value's where the field leaves it
            top = np.minimum(start + count - np.uint64(1), np.uint64(bits - 1))
            sign = np.where(count > 0, (value >> top) & np.uint64(1), np.uint64(0))
            kept = np.where(start < bits, np.minimum(count, np.uint64(bits) - np.minimum(start, np.uint64(bits))), 0)
            field = np.where(sign.astype(bool), field | ~_mask(kept), field)
        put(batch, field.astype(f"u{bits // 8}"))

    return extract


@instruction("bfi")
def _insert(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    field, base = (context.read(operand, kind) for operand in ins.operands[1:3])
    position, length = (context.read(operand, "u32") for operand in ins.operands[3:5])
    put = context.write(ins.operands[0])

    def insert(batch: Batch) -> None:
        start, count = (np.asarray(r(batch)).astype(np.uint64) & np.uint64(255) for r in (position, length))
        inside = np.minimum(start, np.uint64(63))
        mask = np.where(start < 64, _mask(np.minimum(count, 64)) << inside, np.uint64(0))
        moved = np.asarray(field(batch)).astype(np.uint64) << inside
        put(batch, ((np.asarray(base(batch)).astype(np.uint64) & ~mask) | (moved & mask)).astype(NUMPY[kind]))

    return insert


def leading_zeros(value: Any, bits: int) -> Any:
    value = np.asarray(value).astype(np.uint64)
    result = np.full(value.shape, bits, np.uint32)
    for position in range(bits):
        result = np.where((value >> np.uint64(position)) & np.uint64(1), np.uint32(bits - 1 - position), result)
    return result


def _counting(function: Callable[[Any, int], Any]) -> Callable[[Context, Instruction], Step]:
    def build(context: Context, ins: Instruction) -> Step:
        kind = types_of(ins.modifiers)[-1]
        bits = 8 * width(kind)
        get, put = context.read(ins.operands[1], f"b{bits}"), context.write(ins.operands[0])
        return lambda batch: put(batch, function(get(batch), bits))

    return build


def _reverse(value: Any, bits: int) -> Any:
    dtype = np.asarray(value).dtype.type
    result = dtype(0)
    for position in range(bits):
        result = result | (((value >> dtype(position)) & dtype(1)) << dtype(bits - 1 - position))
    return result


def _population(value: Any, bits: int) -> Any:
    raw = np.ascontiguousarray(np.atleast_1d(value)).view(np.uint8).reshape(-1, bits // 8)
    return np.unpackbits(raw, axis=1).sum(1, dtype=np.uint32)


instruction("popc")(_counting(_population))
instruction("clz")(_counting(leading_zeros))
instruction("brev")(_counting(_reverse))


@instruction("bfind")
def _find(context: Context, ins: Instruction) -> Step:
    """The position of the most significant bit that differs from the sign; all ones if there is none."""
    kind = types_of(ins.modifiers)[-1]
    bits = 8 * width(kind)
    get, put = context.read(ins.operands[1], kind), context.write(ins.operands[0])

    def find(batch: Batch) -> None:
        value = np.asarray(get(batch))
        if kind[0] == "s":
            value = np.where(value < 0, ~value, value)
        zeros = leading_zeros(value.astype(f"u{bits // 8}"), bits)
        found = zeros if ins.has("shiftamt") else np.uint32(bits - 1) - zeros
        put(batch, np.where(zeros == bits, np.uint32(0xFFFFFFFF), found))

    return find


@instruction("fns")
def _find_nth(context: Context, ins: Instruction) -> Step:
    mask, base, offset = (context.read(operand, "s32") for operand in ins.operands[1:4])
    put = context.write(ins.operands[0])

    def find(batch: Batch) -> None:
        rows = zip(*(batch.row(get(batch)).tolist() for get in (mask, base, offset)), strict=True)
        put(batch, np.array([_nth_set_bit(m & 0xFFFFFFFF, b, o) for m, b, o in rows], np.uint32))

    return find


def _nth_set_bit(mask: int, base: int, offset: int) -> int:
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    step, left = (1, offset) if offset > 0 else (-1, -offset)
    position = base
    while 0 <= position < 32:
        left -= mask >> position & 1
        if left == 0:
            return position
        position += step
    return 0xFFFFFFFF
