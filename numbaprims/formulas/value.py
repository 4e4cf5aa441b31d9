"""How the mathematics of kernels is written: Python over `Value`, run once, when a kernel's code is generated.

A `Value` has operators, so that ``x * y`` emits one instruction: of vectors on the CPU, of one thread's numbers on the
GPU. What a function written over Values returns is inlined where it is used, whatever its length, and costs Numba one
call to type and to lower. Nothing here is called from a kernel.

No product is an operand of ``+`` or ``-``: `mad` says so where that is meant. So the bits do not depend on what a
compiler chooses to fuse.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

#: bits of a float -> bits of its mantissa
MANTISSA = {32: 23, 64: 52}
#: bits of a float -> a number that, added to another below 2**(mantissa bits - 1), rounds that to an integer, which
#: then stands in the low bits of the sum
SHIFTER = {width: 1.5 * 2.0**bits for width, bits in MANTISSA.items()}


class Value(ABC):
    """Floats, integers (arithmetic wraps, ``>>`` keeps the sign) or conditions, with the builder that emits code."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    # ------------------------------------------------------------ what a machine says

    @property
    @abstractmethod
    def width(self) -> int:
        """Bits of a number."""

    @property
    @abstractmethod
    def integers(self) -> Any:
        """The type of integers of the same size."""

    @property
    @abstractmethod
    def floats(self) -> Any:
        """The type of floats of the same size."""

    @abstractmethod
    def integers_of(self, width: int) -> Any:
        """The type of as many integers of so many bits."""

    @property
    def fused(self) -> bool:
        """Whether `mad` rounds once."""
        return True

    def anywhere(self) -> Any:
        """Whether a condition holds for any number: LLVM's value of one bit."""
        return self.value

    @abstractmethod
    def constant(self, number: Any) -> Self:
        """A number in this value's type."""

    @abstractmethod
    def multiply_add(self, b: Self, c: Self) -> Self:
        """As `mad`."""

    def smaller(self, limit: Self) -> Self:
        """As `at_most`."""
        # the operand order of vminps: one instruction
        return select(self > limit, limit, self)

    def larger(self, limit: Self) -> Self:
        """As `at_least`."""
        return select(self < limit, limit, self)

    def greatest(self, x: Self) -> Self:
        """The larger of the two; NaN where either is NaN."""
        most = select(self < x, x, self)  # NaN in `self` stays
        return select(x.new(x.builder.fcmp_unordered("uno", x.value, x.value)), x, most)

    def without_sign(self) -> Self:
        """As `magnitude`."""
        return from_bits(bits(self) & ((1 << (self.width - 1)) - 1))

    def scaled(self, shifted: Self, plus: Any = None) -> Self:
        """As `scale`, and with a summand as `scale_plus`."""
        # Two factors, because 2**n need not be a normal number. The upper half of the shifter's bits is 0 modulo what
        # the shift to the exponent drops.
        width, mantissa = self.width, MANTISSA[self.width]
        half = bits(shifted).shifted_right(1)
        first = (half << mantissa) + float_bits(1.0, width)
        second = ((bits(shifted) - half) << mantissa) + float_bits(1.0, width)
        product, factor = self * from_bits(first), from_bits(second)
        return product * factor if plus is None else mad(product, factor, plus)

    # ------------------------------------------------------------ operators

    @property
    def is_float(self) -> bool:
        """Whether it holds floats."""
        return bool(self.value.type != self.integers)

    def like(self, number: Any) -> Self:
        """A number in this value's type; a Value is given back."""
        return number if isinstance(number, type(self)) else self.constant(number)

    def new(self, value: Any) -> Self:
        """What another instruction of this builder gave."""
        return type(self)(self.builder, value)

    def _emit(self, for_float: str, for_int: str, a: Any, b: Any) -> Self:
        method = getattr(self.builder, for_float if self.is_float else for_int)
        return self.new(method(self.like(a).value, self.like(b).value))

    def __add__(self, other: Any) -> Self:
        return self._emit("fadd", "add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Self:
        return self._emit("fsub", "sub", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._emit("fsub", "sub", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._emit("fmul", "mul", self, other)

    __rmul__ = __mul__

    def __and__(self, other: Any) -> Self:
        return self._emit("", "and_", self, other)

    def __or__(self, other: Any) -> Self:
        return self._emit("", "or_", self, other)

    def __xor__(self, other: Any) -> Self:
        return self._emit("", "xor", self, other)

    def __lshift__(self, count: int) -> Self:
        return self._emit("", "shl", self, count)

    def __rshift__(self, count: int) -> Self:
        return self._emit("", "ashr", self, count)

    def shifted_right(self, count: int) -> Self:
        """The bits `count` places lower, zeros above them (AVX2 cannot keep the sign of 64 bits)."""
        return self._emit("", "lshr", self, count)

    def _compare(self, sense: str, other: Any) -> Self:
        compare = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        return self.new(compare(sense, self.value, self.like(other).value))

    def __lt__(self, other: Any) -> Self:
        return self._compare("<", other)

    def __gt__(self, other: Any) -> Self:
        return self._compare(">", other)

    def __le__(self, other: Any) -> Self:
        return self._compare("<=", other)

    def __ge__(self, other: Any) -> Self:
        return self._compare(">=", other)

    def equals(self, other: Any) -> Self:
        """Where the two are equal; like every comparison nowhere that either is NaN."""
        return self._compare("==", other)

    def not_above(self, other: Any) -> Self:
        """Where it is not larger, NaN being nowhere larger."""
        return self.new(self.builder.fcmp_unordered("<=", self.value, self.like(other).value))


V = TypeVar("V", bound=Value)


def mad(a: V, b: Any, c: Any) -> V:
    """a * b + c: rounded once where the machine has fused multiply-add, else twice."""
    return a.multiply_add(a.like(b), a.like(c))


def select(where: V, a: Any, b: Any) -> V:
    """a where the condition holds, else b; one of the two may be a number."""
    a, b = (a, a.like(b)) if isinstance(a, Value) else (b.like(a), b)
    return where.new(where.builder.select(where.value, a.value, b.value))


def rarely(where: V, usual: Sequence[V], other: Callable[[], Sequence[V]]) -> list[V]:
    """`usual`, and where the condition holds what `other` gives: a branch, taken if it holds for any number."""
    b, before = where.builder, where.builder.block
    body, after = b.append_basic_block("rare"), b.append_basic_block("usual")
    b.cbranch(where.anywhere(), body, after).set_weights([1, 99])
    b.position_at_end(body)
    found = [select(where, x, y) for x, y in zip(other(), usual, strict=True)]
    end = b.block
    b.branch(after)
    b.position_at_end(after)
    merged = []
    for x, y in zip(usual, found, strict=True):
        phi = b.phi(x.value.type)
        phi.add_incoming(x.value, before)
        phi.add_incoming(y.value, end)
        merged.append(x.new(phi))
    return merged


def repeat_while(x: V, where: Callable[[V], V], step: Callable[[V], V]) -> V:
    """x, each number of which becomes ``step(x)`` again and again, as long as a condition of it holds."""
    b, before = x.builder, x.builder.block
    body, after = b.append_basic_block("while"), b.append_basic_block("done")
    b.cbranch(where(x).anywhere(), body, after)
    b.position_at_end(body)
    phi = b.phi(x.value.type)
    left = x.new(phi)
    left = select(where(left), step(left), left)
    again = where(left).anywhere()
    end = b.block
    b.cbranch(again, body, after)
    b.position_at_end(after)
    merged = b.phi(x.value.type)
    phi.add_incoming(x.value, before)
    phi.add_incoming(left.value, end)
    merged.add_incoming(x.value, before)
    merged.add_incoming(left.value, end)
    return x.new(merged)


def at_most(x: V, limit: Any) -> V:
    """The smaller of the two; NaN in x stays."""
    return x.smaller(x.like(limit))


def at_least(x: V, limit: Any) -> V:
    """The larger of the two; NaN in x stays."""
    return x.larger(x.like(limit))


def between(x: V, limits: tuple[float, float]) -> V:
    """x, or the limit that it is beyond; NaN stays."""
    return at_least(at_most(x, limits[1]), limits[0])


def bits(x: V) -> V:
    """The bits of floats as integers of the same size."""
    return x.new(x.builder.bitcast(x.value, x.integers))


def from_bits(i: V) -> V:
    """The floats of these bits."""
    return i.new(i.builder.bitcast(i.value, i.floats))


def to_float(i: V) -> V:
    """Integers as floats of the same size."""
    return i.new(i.builder.sitofp(i.value, i.floats))


def bits_shifted(i: V, count: V, left: bool) -> V:
    """Integers shifted by as many places as others say, which 0 or the sign is left of where those are too many or
    negative."""
    last = i.width - 1
    whole = (count & ~last).equals(0)
    if left:
        return select(whole, i.new(i.builder.shl(i.value, (count & last).value)), 0)
    return i.new(i.builder.ashr(i.value, select(whole, count, last).value))


def integer_bits(x: V) -> V:
    """The bits of integers that floats hold, below 2**(mantissa bits - 1)."""
    return bits(x + SHIFTER[x.width]) - float_bits(SHIFTER[x.width], x.width)


def low_byte(i: V, signed: bool) -> V:
    """The lowest 8 bits of integers as floats."""
    i = (i << (i.width - 8)) >> (i.width - 8) if signed else i & 255
    return from_bits(i + float_bits(SHIFTER[i.width], i.width)) - SHIFTER[i.width]


def magnitude(x: V) -> V:
    """|x|: the sign bit cleared."""
    return x.without_sign()


def negative(x: V) -> V:
    """-x."""
    return x.like(-0.0) - x


def with_sign_of(x: V, sign: V) -> V:
    """|x| with the sign of another number."""
    mask = -(1 << (x.width - 1))
    return from_bits((bits(x) & ~mask) | (bits(sign) & mask))


def nearest_magnitude(x: V) -> V:
    """|x| rounded to an integer, halves to even."""
    # 2**23 (2**52) and what is above have no fraction; a sum with it is rounded to an integer
    whole = 2.0 ** MANTISSA[x.width]
    a = magnitude(x)
    return select(a < whole, (a + whole) - whole, a)


def nearest(x: V) -> V:
    """The nearest integer, halves to even."""
    return with_sign_of(nearest_magnitude(x), x)


def floor(x: V) -> V:
    """The largest integer that is not above x."""
    n = nearest(x)
    return select(x < n, n - 1.0, n)


def polynomial(x: V, coefficients: Sequence[float]) -> V:
    """c0 + c1 x + c2 x**2 + ... by Horner's rule.

    Every step depends on the one before, but there are other elements in flight, and no other scheme has fewer
    operations.
    """
    value = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = mad(value, x, c)
    return value


def float_bits(x: float, width: int) -> int:
    """The bits of a number as float32 or float64."""
    return int(struct.unpack("<i" if width == 32 else "<q", struct.pack("<f" if width == 32 else "<d", x))[0])


def power_of_2(shifted: V, factor: float = 1.0) -> V:
    """factor * 2**n for an integer n given as SHIFTER + n; `factor` is a power of 2, and the result a normal number."""
    width = shifted.width
    return from_bits((bits(shifted) << MANTISSA[width]) + float_bits(factor, width))


def scale(x: V, shifted: V) -> V:
    """x * 2**n for an integer n given as SHIFTER + n; results below the normal range are rounded once.

    |n| must not exceed twice the range of exponents (252 in float32).
    """
    return x.scaled(shifted)


def scale_plus(x: V, shifted: V, plus: Any) -> V:
    """x * 2**n + a number that is large beside subnormal ones: the bits of a sum with `scale`, which is a product."""
    return x.scaled(shifted, plus)
