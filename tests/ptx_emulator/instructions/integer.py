"""Integer arithmetic: add, sub, mul, mad, div, rem, min, max, abs, neg, sad, dp4a, dp2a, and carries."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import errors
from ..dtypes import NUMPY, WIDER, types_of, width
from ..machine import Batch, Step
from ..operands import Context
from ..parse import Instruction
from ..registry import instruction
from . import floating
from .floating import is_float_type


def _operands(context: Context, ins: Instruction, kind: str, count: int) -> list[Callable[[Batch], Any]]:
    return [context.read(operand, kind) for operand in ins.operands[1 : 1 + count]]


def _binary(context: Context, ins: Instruction, function: Callable[[Any, Any], Any]) -> Step:
    kind = types_of(ins.modifiers)[-1]
    first, second = _operands(context, ins, kind, 2)
    put = context.write(ins.operands[0])
    return lambda batch: put(batch, function(first(batch), second(batch)))


def _saturating(ufunc: Any) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Any:
        exact = ufunc(np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64))
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

    return compute


@instruction("add", "sub")
def _add(context: Context, ins: Instruction) -> Step:
    ufunc = np.add if ins.opcode == "add" else np.subtract
    kind = types_of(ins.modifiers)[-1]
    if is_float_type(kind):
        return floating.binary(context, ins, ufunc)
    if ins.has("cc"):
        raise errors.Unsupported("carry arithmetic")
    if kind.endswith("x2"):
        return _packed(context, ins, ufunc)
    return _binary(context, ins, _saturating(ufunc) if ins.has("sat") else ufunc)


def _packed(context: Context, ins: Instruction, ufunc: Any) -> Step:
    """u16x2, s16x2: the two halves by themselves."""
    half = np.int16 if types_of(ins.modifiers)[-1][0] == "s" else np.uint16
    first, second = _operands(context, ins, "b32", 2)
    put = context.write(ins.operands[0])

    def compute(batch: Batch) -> None:
        pair = [np.ascontiguousarray(batch.row(get(batch))).view(half) for get in (first, second)]
        put(batch, np.ascontiguousarray(ufunc(*pair)).view(np.uint32))

    return compute


def high_half(a: Any, b: Any, kind: str) -> Any:
    """The upper half of the double-width product."""
    if kind in WIDER:
        wide, shift = NUMPY[WIDER[kind]], 8 * width(kind)
        product = np.asarray(a).astype(wide) * np.asarray(b).astype(wide)
        return (product >> wide(shift)).astype(NUMPY[kind])
    # 64 bits: schoolbook with 32-bit halves, then the correction for negative factors
    x, y = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64)
    mask, shift32 = np.uint64(0xFFFFFFFF), np.uint64(32)
    low, high = x & mask, x >> shift32
    other_low, other_high = y & mask, y >> shift32
    middle = high * other_low + (low * other_low >> shift32)
    middle2 = low * other_high + (middle & mask)
    upper = high * other_high + (middle >> shift32) + (middle2 >> shift32)
    if kind == "s64":
        upper = upper - np.where(np.asarray(a) < 0, y, np.uint64(0)) - np.where(np.asarray(b) < 0, x, np.uint64(0))
        return upper.astype(np.int64)
    return upper


def _product(ins: Instruction, kind: str) -> Callable[[Any, Any], Any]:
    if ins.has("wide"):
        wide = NUMPY[WIDER[kind]]
        return lambda a, b: np.asarray(a).astype(wide) * np.asarray(b).astype(wide)
    if ins.has("hi"):
        return lambda a, b: high_half(a, b, kind)
    return np.multiply


@instruction("mul")
def _multiply(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    if is_float_type(kind):
        return floating.binary(context, ins, np.multiply)
    return _binary(context, ins, _product(ins, kind))


@instruction("mul24")
def _multiply_24(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]

    def product(a: Any, b: Any) -> Any:
        low = [
            np.asarray(x).astype(np.int64) << 40 >> 40 if kind == "s32" else np.asarray(x).astype(np.int64) & 0xFFFFFF
            for x in (a, b)
        ]
        whole = low[0] * low[1]
        return (whole >> 16 if ins.has("hi") else whole).astype(NUMPY[kind])

    return _binary(context, ins, product)


@instruction("mad")
def _multiply_add(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    if is_float_type(kind):
        return floating.fused(context, ins)
    if ins.has("cc", "sat"):
        raise errors.Unsupported("mad with carry or saturation")
    first, second = _operands(context, ins, kind, 2)
    third = context.read(ins.operands[3], WIDER[kind] if ins.has("wide") else kind)
    put, product = context.write(ins.operands[0]), _product(ins, kind)
    return lambda batch: put(batch, product(first(batch), second(batch)) + third(batch))


def quotient(a: Any, b: Any) -> Any:
    """Towards zero. Division by zero gives all ones, as the hardware does (PTX leaves it open)."""
    a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    safe = np.where(b == 0, b.dtype.type(1), b)
    result = a // safe
    if a.dtype.kind == "i":  # NumPy rounds down
        result = result + ((result * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.array(-1).astype(a.dtype), result).astype(a.dtype)


@instruction("div")
def _divide(context: Context, ins: Instruction) -> Step:
    if is_float_type(types_of(ins.modifiers)[-1]):
        return floating.divide(context, ins)
    return _binary(context, ins, quotient)


@instruction("rem")
def _remainder(context: Context, ins: Instruction) -> Step:
    def remainder(a: Any, b: Any) -> Any:
        return np.where(np.asarray(b) == 0, a, a - quotient(a, b) * b).astype(np.asarray(a).dtype)

    return _binary(context, ins, remainder)


@instruction("min", "max")
def _extreme(context: Context, ins: Instruction) -> Step:
    if is_float_type(types_of(ins.modifiers)[-1]):
        return floating.extreme(context, ins)
    ufunc = np.minimum if ins.opcode == "min" else np.maximum
    if types_of(ins.modifiers)[-1].endswith("x2"):
        return _packed(context, ins, ufunc)
    return _binary(context, ins, ufunc)


@instruction("neg", "abs")
def _sign(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    if is_float_type(kind):
        return floating.sign(context, ins)
    ufunc = np.negative if ins.opcode == "neg" else np.abs
    get, put = context.read(ins.operands[1], kind), context.write(ins.operands[0])
    return lambda batch: put(batch, ufunc(get(batch)))


@instruction("sad")
def _absolute_difference(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    a, b, c = _operands(context, ins, kind, 3)
    put = context.write(ins.operands[0])

    def compute(batch: Batch) -> None:
        x, y = a(batch), b(batch)
        put(batch, c(batch) + np.where(np.less(x, y), y - x, x - y).astype(NUMPY[kind]))

    return compute


@instruction("dp4a", "dp2a")
def _dot(context: Context, ins: Instruction) -> Step:
    """d = c + the dot product of four bytes; dp2a: two halves of a with two bytes of b."""
    kinds = types_of(ins.modifiers)
    a, b = _operands(context, ins, "b32", 2)
    put = context.write(ins.operands[0])
    c = context.read(ins.operands[3], "s32" if "s32" in kinds else "u32")
    halves = ins.opcode == "dp2a"
    first = np.dtype(("i" if kinds[0] == "s32" else "u") + ("2" if halves else "1"))
    second = np.dtype("i1" if kinds[1] == "s32" else "u1")

    def compute(batch: Batch) -> None:
        x = np.ascontiguousarray(batch.row(a(batch))).view(first).reshape(-1, 2 if halves else 4).astype(np.int64)
        y = np.ascontiguousarray(batch.row(b(batch))).view(second).reshape(-1, 4).astype(np.int64)
        if halves:
            y = y[:, 2:] if ins.has("hi") else y[:, :2]
        total = (x * y).sum(1) + np.asarray(c(batch)).astype(np.int64)
        put(batch, total.astype(np.uint32))

    return compute
