"""The `Value` of 8-bit integers: what would be four vectors of float32 is one of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from numbaprims.cpu.simd.emit import constant, declare, suffix
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.formulas.value import bits_shifted, select


class Byte(Value):
    """8-bit integers: sums and products saturate."""

    __slots__ = ()
    letter = ""

    @property
    def floats(self) -> Any:
        """Of the same size there are none: bits are what they are."""
        return self.integers

    def constant(self, number: Any) -> Self:
        return self.new(constant(self.value.type, int(number)))

    def _saturated(self, op: str, a: Any, b: Any) -> Self:
        vector = self.value.type
        function = declare(self.builder, f"llvm.{self.letter}{op}.sat.{suffix(vector)}", vector, [vector] * 2)
        return self.new(self.builder.call(function, [self.like(a).value, self.like(b).value]))

    def __add__(self, other: Any) -> Self:
        return self._saturated("add", self, other)

    def __sub__(self, other: Any) -> Self:
        return self._saturated("sub", self, other)

    def __mul__(self, other: Any) -> Self:
        b, narrow, wide = self.builder, self.value.type, self.integers_of(16)
        extend = b.sext if self.letter == "s" else b.zext
        product = b.mul(extend(self.value, wide), extend(self.like(other).value, wide))
        low, high = (-128, 127) if self.letter == "s" else (0, 255)
        compare = b.icmp_signed if self.letter == "s" else b.icmp_unsigned
        for sense, limit in (("<", high), (">", low)):
            bound = constant(wide, limit)
            product = b.select(compare(sense, product, bound), product, bound)
        return self.new(b.trunc(product, narrow))

    def _compare(self, sense: str, other: Any) -> Self:
        compare = self.builder.icmp_signed if self.letter == "s" else self.builder.icmp_unsigned
        return self.new(compare(sense, self.value, self.like(other).value))


class _Signed(Byte):
    letter = "s"

    def right(self, count: Value) -> Value:
        """As `bits_shifted`."""
        return bits_shifted(self, count, False)


class _Unsigned(Byte):
    letter = "u"

    def right(self, count: Value) -> Value:
        return select((count & -8).equals(0), self.new(self.builder.lshr(self.value, (count & 7).value)), 0)


#: The type that is computed in -> its Values.
VALUES: dict[str, type[Value]] = {"i8": _Signed, "u8": _Unsigned}
#: What floats that hold integers need, and integers do not.
TABLE: dict[str, Callable[..., Any]] = {
    "is_nan": lambda x: x.new(x.builder.icmp_signed("!=", x.value, x.value)),
    "integer_bits": lambda x: x,
    "low_byte": lambda x, signed: x,
    "left_shift": lambda a, b: bits_shifted(a, b, True),
    "right_shift": lambda a, b: a.right(b),
}
