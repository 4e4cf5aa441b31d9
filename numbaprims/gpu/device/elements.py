"""What engines emit of an element: its place in nested loops, and the number that it is computed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbaprims.formulas.value import between
from numbaprims.gpu.device.emit import F32, F64, I32, I64, asm
from numbaprims.gpu.device.memory import _narrow, _widen
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.jit import STORAGE, types

ELEMENT = {**STORAGE, "i64": types.int64, "bool": types.uint8}
"""Types in memory of all that engines take."""
NUMBER = {"f64": types.float64, "f32": types.float32}
"""What they compute in."""


def as_number(builder: Any, value: Any, dtype: str, number: str) -> Value:
    """A stored element as a number that is computed in."""
    wide, to = _widen(builder, value, dtype), F64 if number == "f64" else F32
    if wide.type == to:
        return Value(builder, wide)
    if wide.type in (F32, F64):
        return Value(builder, builder.fpext(wide, to))
    return Value(builder, (builder.uitofp if dtype in ("u8", "bool") else builder.sitofp)(wide, to))


def as_stored(builder: Any, values: Sequence[Value], dtype: str) -> list[Any]:
    """Numbers as elements of a type, rounded and in its range."""
    to = F64 if dtype == "f64" else F32
    whole = {"i8": (-128.0, 127.0), "u8": (0.0, 255.0), "bool": (0.0, 1.0), "i32": None, "i64": None}
    if dtype in whole:
        limits, kind = whole[dtype], I64 if dtype == "i64" else I32
        # narrower integers are cut
        values = [value if limits is None else between(value, limits) for value in values]
        found = [_saturated(builder, value.value, kind) for value in values]
        return _narrow(builder, found, "u8" if dtype == "bool" else dtype)
    numbers = [value.value for value in values]
    if numbers[0].type != to:
        change = builder.fpext if to == F64 else builder.fptrunc
        numbers = [_odd(builder, each) if dtype in ("f16", "bf16") else change(each, to) for each in numbers]
    return _narrow(builder, numbers, dtype)


def _odd(builder: Any, number: Any) -> Any:
    """float64 as float32, what is between two of them as the one with an odd last digit: which cannot be half-way
    between two floats of 16 bits, so that rounding to those is as if once."""
    (cut,) = asm(builder, "cvt.rz.f32.f64 $0, $1;", [number], [F32])
    inexact = builder.fcmp_ordered("!=", builder.fpext(cut, F64), number)
    return builder.bitcast(builder.or_(builder.bitcast(cut, I32), builder.zext(inexact, I32)), F32)


def _saturated(builder: Any, number: Any, kind: Any) -> Any:
    """The integer towards zero, the nearest in range of a number that is out of it, 0 of NaN.

    By the instruction's own name: LLVM, to which a number out of range has no integer, makes a cut of a 64-bit integer
    that came by way of a double. For 64 bits on either side the instruction makes the least integer of NaN.
    """
    bits = ("f64" if number.type == F64 else "f32"), ("s64" if kind == I64 else "s32")
    (found,) = asm(builder, f"cvt.rzi.{bits[1]}.{bits[0]} $0, $1;", [number], [kind])
    if bits == ("f32", "s32"):
        return found
    return builder.select(builder.fcmp_unordered("uno", number, number), kind(0), found)


def offset_of(builder: Any, indices: Sequence[Any], steps: Sequence[Any]) -> Any:
    """In elements, 64 bits; a step of None is 1.

    A product of two numbers of 32 bits is one instruction. From numbers that are extended first, of which those that do
    not change are so before the loop, LLVM makes the four of a product of 64 bits.
    """

    def far(x: Any) -> Any:
        return x if x.type == I64 else builder.sext(x, I64)

    total: Any = I64(0)
    for k, (index, step) in enumerate(zip(indices, steps, strict=True)):
        if step is None:
            term = far(index)
        elif index.type == step.type == I32:
            term = asm(builder, "mul.wide.s32 $0, $1, $2;", [index, step], [I64])[0]
        else:
            term = builder.mul(far(index), far(step))
        total = builder.add(total, term) if k else term
    return total
