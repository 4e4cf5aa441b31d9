"""The `Value` of the GPU: a number or a condition of one thread."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.formulas import value
from numbaprims.formulas.value import MANTISSA, bits, from_bits
from numbaprims.gpu.device.emit import F32, F64, asm, call_nvvm
from numbaprims.gpu.device.warp import maximum_value

_ROUND = {32: "ftz.f32", 64: "ftz.f64"}


class Value(value.Value):
    """A float32, float64, integer or condition of one thread."""

    __slots__ = ()

    @property
    def width(self) -> int:
        """Bits."""
        kind = self.value.type
        return int(kind.width) if isinstance(kind, ir.IntType) else 64 if kind == F64 else 32

    @property
    def integers(self) -> Any:
        """The type of integers of the same size."""
        return ir.IntType(self.width)

    @property
    def floats(self) -> Any:
        """The type of floats of the same size."""
        return F64 if self.width == 64 else F32

    def integers_of(self, width: int) -> Any:
        """The type of integers of so many bits."""
        return ir.IntType(width)

    def constant(self, number: Any) -> Value:
        """A number in this value's type."""
        return self.new(ir.Constant(self.value.type, number))

    def multiply_add(self, b: value.Value, c: value.Value) -> Value:
        """self * b + c, rounded once."""
        values = [self.value, b.value, c.value]
        return self.new(call_nvvm(self.builder, f"llvm.fma.f{self.width}", self.value.type, values))

    def smaller(self, limit: value.Value) -> Value:
        """The smaller of the two; NaN if one is."""
        return self.new(maximum_value(self.builder, self.value, limit.value, minimum=True))

    def larger(self, limit: value.Value) -> Value:
        """The larger of the two; NaN if one is."""
        return self.new(maximum_value(self.builder, self.value, limit.value))

    def without_sign(self) -> Value:
        """|self|: an operand's modifier, no instruction of its own."""
        name = "llvm.nvvm.fabs.d" if self.width == 64 else "llvm.nvvm.fabs.f"
        return self.new(call_nvvm(self.builder, name, self.value.type, [self.value]))


def scale_normal(x: Value, shifted: Value) -> Value:
    """x * 2**n where the result is a normal number: n is added to the exponent of x, one instruction."""
    return from_bits(bits(x) + (bits(shifted) << MANTISSA[x.width]))


def approximate(name: str, x: Value) -> Value:
    """An approximation of the hardware for normal numbers: "rcp" (1/x) or "rsqrt", 1 ULP in float32, 2**-20 in
    float64; "ex2" (2**x), 2 ULP, in float32 only."""
    return x.new(asm(x.builder, f"{name}.approx.{_ROUND[x.width]} $0, $1;", [x.value], [x.value.type])[0])
