"""How the mathematics of kernels is written: Python over `Value`, run once, when a kernel's code is generated.

A `Value` is a float32, float64, integer or condition of one thread, with operators, so that ``x * y`` emits one
instruction.  What a function written over Values returns is inlined where it is used, whatever its length, and costs
Numba one call to type and to lower.  Nothing here is called from a kernel.

No product is an operand of ``+`` or ``-``: `mad` says so where one rounding is meant, and so the bits do not depend on
what the assembler chooses to fuse.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from numbaprims.gpu.device.emit import F32, F64, I32, I64, asm, call_nvvm
from numbaprims.gpu.device.warp import maximum_value

#: bits of a float -> bits of its mantissa
MANTISSA = {32: 23, 64: 52}
#: bits of a float -> a number that, added to another below 2**(mantissa bits - 1), rounds that to an integer, which
#: then stands in the low bits of the sum
SHIFTER = {width: 1.5 * 2.0**bits for width, bits in MANTISSA.items()}
_ROUND = {32: "ftz.f32", 64: "ftz.f64"}


class Value:
    """A number or a condition of one thread; integers wrap, ``>>`` keeps the sign."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @property
    def width(self) -> int:
        """Bits."""
        kind = self.value.type
        return int(kind.width) if isinstance(kind, ir.IntType) else 64 if kind == F64 else 32

    @property
    def is_float(self) -> bool:
        """Whether it is a float."""
        return not isinstance(self.value.type, ir.IntType)

    def like(self, number: Any) -> Value:
        """A number in this value's type; a Value is given back."""
        return number if isinstance(number, Value) else self._new(ir.Constant(self.value.type, number))

    def _new(self, value: Any) -> Value:
        return Value(self.builder, value)

    def _emit(self, for_float: str, for_int: str, a: Any, b: Any) -> Value:
        method = getattr(self.builder, for_float if self.is_float else for_int)
        return self._new(method(self.like(a).value, self.like(b).value))

    def __add__(self, other: Any) -> Value:
        return self._emit("fadd", "add", self, other)

    def __sub__(self, other: Any) -> Value:
        return self._emit("fsub", "sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self._emit("fsub", "sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self._emit("fmul", "mul", self, other)

    def __and__(self, other: Any) -> Value:
        return self._new(self.builder.and_(self.value, self.like(other).value))

    def __or__(self, other: Any) -> Value:
        return self._new(self.builder.or_(self.value, self.like(other).value))

    def __lshift__(self, count: int) -> Value:
        return self._new(self.builder.shl(self.value, self.like(count).value))

    def __rshift__(self, count: int) -> Value:
        return self._new(self.builder.ashr(self.value, self.like(count).value))

    def _compare(self, sense: str, other: Any) -> Value:
        compare = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        return self._new(compare(sense, self.value, self.like(other).value))

    def __lt__(self, other: Any) -> Value:
        return self._compare("<", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(">", other)

    def __le__(self, other: Any) -> Value:
        return self._compare("<=", other)

    def __ge__(self, other: Any) -> Value:
        return self._compare(">=", other)

    def equals(self, other: Any) -> Value:
        """Whether the two are equal; like every comparison false where one is NaN."""
        return self._compare("==", other)


def mad(a: Value, b: Any, c: Any) -> Value:
    """a * b + c, rounded once."""
    values = [a.value, a.like(b).value, a.like(c).value]
    return Value(a.builder, call_nvvm(a.builder, f"llvm.fma.f{a.width}", a.value.type, values))


def select(where: Value, a: Any, b: Any) -> Value:
    """a where the condition holds, else b; one of the two may be a number."""
    a, b = (a, a.like(b)) if isinstance(a, Value) else (b.like(a), b)
    return Value(where.builder, where.builder.select(where.value, a.value, b.value))


def at_most(x: Value, limit: Any) -> Value:
    """The smaller of the two; NaN if one is."""
    return Value(x.builder, maximum_value(x.builder, x.value, x.like(limit).value, minimum=True))


def at_least(x: Value, limit: Any) -> Value:
    """The larger of the two; NaN if one is."""
    return Value(x.builder, maximum_value(x.builder, x.value, x.like(limit).value))


def bits(x: Value) -> Value:
    """The bits of a float as an integer of the same size."""
    return Value(x.builder, x.builder.bitcast(x.value, I64 if x.width == 64 else I32))


def from_bits(i: Value) -> Value:
    """The float of these bits."""
    return Value(i.builder, i.builder.bitcast(i.value, F64 if i.width == 64 else F32))


def to_float(i: Value) -> Value:
    """An integer as a float of the same size."""
    return Value(i.builder, i.builder.sitofp(i.value, F64 if i.width == 64 else F32))


def magnitude(x: Value) -> Value:
    """|x|: the sign bit cleared (an operand's modifier, no instruction of its own)."""
    name = "llvm.nvvm.fabs.d" if x.width == 64 else "llvm.nvvm.fabs.f"
    return Value(x.builder, call_nvvm(x.builder, name, x.value.type, [x.value]))


def negative(x: Value) -> Value:
    """-x."""
    return x.like(-0.0) - x


def with_sign_of(x: Value, sign: Value) -> Value:
    """|x| with the sign of another number."""
    mask = -(1 << (x.width - 1))
    return from_bits((bits(x) & ~mask) | (bits(sign) & mask))


def float_bits(x: float, width: int) -> int:
    """The bits of a number as float32 or float64."""
    return int(struct.unpack("<i" if width == 32 else "<q", struct.pack("<f" if width == 32 else "<d", x))[0])


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 x + c2 x**2 + ... by Horner's rule: the fewest operations, and other elements hide the latency."""
    value: Any = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = mad(value, x, c)
    return value


def scale(x: Value, shifted: Value) -> Value:
    """x * 2**n for an integer n given as SHIFTER + n; results below the normal range are rounded once.

    |n| must not exceed twice the range of exponents (252 in float32).
    """
    width, mantissa = x.width, MANTISSA[x.width]
    # Two factors, because 2**n need not be a normal number.  The upper half of the shifter's bits is 0 modulo what the
    # shift to the exponent drops.
    i = bits(shifted)
    half = i >> 1
    first = (half << mantissa) + float_bits(1.0, width)
    second = ((i - half) << mantissa) + float_bits(1.0, width)
    return (x * from_bits(first)) * from_bits(second)


def scale_normal(x: Value, shifted: Value) -> Value:
    """x * 2**n where the result is a normal number: n is added to the exponent of x, one instruction."""
    return from_bits(bits(x) + (bits(shifted) << MANTISSA[x.width]))


def approximate(name: str, x: Value) -> Value:
    """An approximation of the hardware for normal numbers: "rcp" (1/x) or "rsqrt", 1 ULP in float32, 2**-20 in
    float64."""
    return Value(x.builder, asm(x.builder, f"{name}.approx.{_ROUND[x.width]} $0, $1;", [x.value], [x.value.type])[0])
