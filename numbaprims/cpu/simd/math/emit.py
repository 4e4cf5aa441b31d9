"""How the mathematics is written: Python over `Value`, run once, when a kernel's code is generated.

A `Value` is an LLVM vector with operators, so `x * y` emits one instruction.  A function written over Values
costs Numba one call to type and to lower, whatever its length, and cannot pass vectors through memory.

No product is an operand of `+` or `-`: `mad` says so where that is meant.  Kernels are compiled with
contraction allowed, and where there is nothing to contract the bits are the same in every kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.memory import declare, suffix
from numbaprims.cpu.simd.types import Vec

Number = "Value | float | int"


class Value:
    """A vector of floats or of integers (arithmetic wraps, `>>` keeps the sign), or a mask."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @property
    def width(self) -> int:
        """Bits of a lane."""
        element = self.value.type.element
        if isinstance(element, ir.IntType):
            return int(element.width)
        return 32 if isinstance(element, ir.FloatType) else 64

    @property
    def is_float(self) -> bool:
        """Whether lanes are floats."""
        return not isinstance(self.value.type.element, ir.IntType)

    def like(self, number: Any) -> Value:
        """A number in every lane, in this vector's type; a Value is given back."""
        if isinstance(number, Value):
            return number
        kind = self.value.type
        return Value(self.builder, ir.Constant(kind, [number] * kind.count))

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

    def __truediv__(self, other: Any) -> Value:
        return self._emit("fdiv", "", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._emit("fdiv", "", other, self)

    def __and__(self, other: Any) -> Value:
        return self._emit("", "and_", self, other)

    def __or__(self, other: Any) -> Value:
        return self._emit("", "or_", self, other)

    def __lshift__(self, count: int) -> Value:
        return self._emit("", "shl", self, count)

    def __rshift__(self, count: int) -> Value:
        return self._emit("", "ashr", self, count)

    def shifted_right(self, count: int) -> Value:
        """The bits `count` places lower, zeros above them (AVX2 cannot keep the sign of 64 bits)."""
        return self._emit("", "lshr", self, count)

    def _compare(self, sense: str, other: Any) -> Value:
        compare = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        return self._new(compare(sense, self.value, self.like(other).value))

    def __lt__(self, other: Any) -> Value:
        return self._compare("<", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(">", other)

    def equals(self, other: Any) -> Value:
        """Where the two are equal."""
        return self._compare("==", other)


def mad(a: Value, b: Any, c: Any) -> Value:
    """a * b + c: rounded once where the target has fused multiply-add, else twice."""
    b, c = a.like(b), a.like(c)
    if not target.current().has_fma:
        # as a call of libm for every lane a fused operation would take some 50 times as long
        return a * b + c
    vector = a.value.type
    function = declare(a.builder, f"llvm.fma.{suffix(vector)}", vector, [vector] * 3)
    return Value(a.builder, a.builder.call(function, [a.value, b.value, c.value]))


def select(where: Value, a: Any, b: Any) -> Value:
    """a where the mask is set, else b; one of the two may be a number."""
    a, b = (a, a.like(b)) if isinstance(a, Value) else (b.like(a), b)
    return Value(where.builder, where.builder.select(where.value, a.value, b.value))


def at_most(x: Value, limit: float) -> Value:
    """The smaller of the two; NaN stays (the operand order of vminps: one instruction)."""
    return select(x > limit, limit, x)


def at_least(x: Value, limit: float) -> Value:
    """The larger of the two; NaN stays."""
    return select(x < limit, limit, x)


def bits(x: Value) -> Value:
    """The bits of floats as integers of the same size."""
    kind = ir.VectorType(ir.IntType(x.width), x.value.type.count)
    return Value(x.builder, x.builder.bitcast(x.value, kind))


def from_bits(i: Value) -> Value:
    """The floats of these bits."""
    element = ir.FloatType() if i.width == 32 else ir.DoubleType()
    return Value(i.builder, i.builder.bitcast(i.value, ir.VectorType(element, i.value.type.count)))


def to_float(i: Value) -> Value:
    """Integers as floats of the same size."""
    element = ir.FloatType() if i.width == 32 else ir.DoubleType()
    return Value(i.builder, i.builder.sitofp(i.value, ir.VectorType(element, i.value.type.count)))


def magnitude(x: Value) -> Value:
    """|x|: the sign bit cleared."""
    return from_bits(bits(x) & ((1 << (x.width - 1)) - 1))


def negative_magnitude(x: Value) -> Value:
    """-|x|: the sign bit set."""
    return from_bits(bits(x) | -(1 << (x.width - 1)))


def with_sign_of(x: Value, sign: Value) -> Value:
    """|x| with the sign of another vector."""
    mask = -(1 << (x.width - 1))
    return from_bits((bits(x) & ~mask) | (bits(sign) & mask))


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 x + c2 x**2 + ... by Horner's rule.

    Every step depends on the one before, but loops over vectors have many of them in flight, and no other
    scheme has fewer operations.
    """
    value: Any = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = mad(value, x, c)
    return value  # type: ignore[no-any-return]


def float_bits(x: float, width: int) -> int:
    """The bits of a number as float32 or float64."""
    return int(struct.unpack("<i" if width == 32 else "<q", struct.pack("<f" if width == 32 else "<d", x))[0])


#: width -> bits of the mantissa
MANTISSA = {32: 23, 64: 52}
#: width -> a number that, added to another below 2**(mantissa bits - 1), rounds that to an integer, which
#: then stands in the low bits of the sum
SHIFTER = {width: 1.5 * 2.0**bits for width, bits in MANTISSA.items()}


def scale(x: Value, shifted: Value) -> Value:
    """x * 2**n for an integer n given as SHIFTER + n; results below the normal range are rounded once.

    |n| must not exceed twice the range of exponents (252 in float32).
    """
    width, mantissa = x.width, MANTISSA[x.width]
    if "avx512f" in target.current().features:
        scaled = _scale_avx512(x, shifted - SHIFTER[width])
        if scaled is not None:
            return scaled
    # Two factors, because 2**n need not be a normal number.  The upper half of the shifter's bits is 0 modulo
    # what the shift to the exponent drops.
    half = bits(shifted).shifted_right(1)
    first = (half << mantissa) + float_bits(1.0, width)
    second = ((bits(shifted) - half) << mantissa) + float_bits(1.0, width)
    return x * from_bits(first) * from_bits(second)


def _scale_avx512(x: Value, n: Value) -> Value | None:
    """By vscalefps or vscalefpd, which give the same bits; None where the vector has no size of theirs."""
    builder, vector = x.builder, x.value.type
    lanes, width = vector.count, x.width
    size = lanes * width
    if size > 512 and lanes % 2 == 0:
        parts = []
        for half in (list(range(lanes // 2)), list(range(lanes // 2, lanes))):
            a, b = (Value(builder, shuffle_value(builder, v.value, v.value, half)) for v in (x, n))
            parts.append(_scale_avx512(a, b))
        if parts[0] is None or parts[1] is None:
            return None
        return Value(builder, shuffle_value(builder, parts[0].value, parts[1].value, list(range(lanes))))
    if size not in (128, 256, 512) or (size < 512 and "avx512vl" not in target.current().features):
        return None
    mask = ir.IntType(max(8, lanes))
    arguments = [x.value, n.value, ir.Constant(vector, ir.Undefined), ir.Constant(mask, -1)]
    if size == 512:
        arguments.append(ir.Constant(ir.IntType(32), 4))  # the current rounding mode
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if width == 32 else 'pd'}.{size}"
    function = declare(builder, name, vector, [a.type for a in arguments])
    return Value(builder, builder.call(function, arguments))


def vector_function(emit: Callable[[Value], Value]) -> Callable[..., Any]:
    """Decorator: makes a function of Values a function of f32 and f64 `Vec`s, for kernels.

    It has the name and the docstring of the decorated stub.
    """

    def decorate(stub: Callable[..., Any]) -> Any:
        def typer(typingctx, x):  # type: ignore[no-untyped-def]
            if not (isinstance(x, Vec) and x.elem in ("f32", "f64")):
                return None

            def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
                return emit(Value(builder, arguments[0])).value

            return x(x), codegen

        typer.__name__ = typer.__qualname__ = stub.__name__
        typer.__module__, typer.__doc__ = stub.__module__, stub.__doc__
        return intrinsic(typer)

    return decorate
