"""The `Value` of the CPU, an LLVM vector, and functions of Values as functions of `Vec`s for kernels.

A function written over Values cannot pass vectors through memory.  Kernels are compiled with contraction
allowed, and as no product is an operand of `+` or `-` the bits are the same in every kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.arithmetic import greatest_value
from numbaprims.cpu.simd.emit import constant, declare, element_bits, suffix
from numbaprims.cpu.simd.half import like
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.types import Vec
from numbaprims.formulas import value
from numbaprims.formulas.value import SHIFTER


class Value(value.Value):
    """A vector of floats or of integers, a mask, or one number: an index, a count."""

    __slots__ = ()

    @property
    def width(self) -> int:
        """Bits of a lane."""
        kind = self.value.type
        return element_bits(kind.element if isinstance(kind, ir.VectorType) else kind)

    @property
    def integers(self) -> Any:
        """The vector of integers of the same size."""
        return like(self.value, ir.IntType(self.width))

    @property
    def floats(self) -> Any:
        """The vector of floats of the same size."""
        return like(self.value, ir.FloatType() if self.width == 32 else ir.DoubleType())

    def integers_of(self, width: int) -> Any:
        """The vector of as many integers of so many bits."""
        return like(self.value, ir.IntType(width))

    @property
    def fused(self) -> bool:
        """Whether the target has fused multiply-add."""
        return bool(target.current().has_fma)

    def anywhere(self) -> Any:
        """Whether any lane of a mask is set."""
        if not isinstance(self.value.type, ir.VectorType):
            return self.value
        whole = ir.IntType(self.value.type.count)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(self.value, whole), ir.Constant(whole, 0))

    def constant(self, number: Any) -> Value:
        """A number in every lane, in this vector's type."""
        return self.new(constant(self.value.type, number))

    def multiply_add(self, b: value.Value, c: value.Value) -> Value:
        """self * b + c: rounded once where the target has fused multiply-add, else twice."""
        if not target.current().has_fma:
            # as a call of libm for every lane a fused operation would take some 50 times as long
            return self * b + c
        vector = self.value.type
        function = declare(self.builder, f"llvm.fma.{suffix(vector)}", vector, [vector] * 3)
        return self.new(self.builder.call(function, [self.value, b.value, c.value]))

    def not_below(self, limit: float) -> Value:
        """Where it is at least the limit, or NaN."""
        return self.new(self.builder.fcmp_unordered(">=", self.value, self.like(limit).value))

    def greatest(self, x: Value) -> Value:
        """The larger of the two; NaN where either is NaN."""
        return self.new(greatest_value(self.builder, self.value, x.value))

    def scaled(self, shifted: Value, plus: Any = None) -> Value:
        """As `scale`, of an x of about 1: one instruction with AVX-512, and one that leaves 0 out (`_scale_avx512`)."""
        if "avx512f" in target.current().features:
            n = shifted - SHIFTER[self.width]
            scaled = _scale_avx512(self, n, n.not_below(SMALLEST[self.width]))
            if scaled is not None:
                return scaled if plus is None else scaled + plus
        return super().scaled(shifted, plus)

    def __floordiv__(self, other: Any) -> Value:
        """Of integers; what is below zero is rounded up."""
        return self._emit("", "sdiv", self, other)

    def __mod__(self, other: Any) -> Value:
        """What is left of that."""
        return self._emit("", "srem", self, other)

    def __truediv__(self, other: Any) -> Value:
        return self._emit("fdiv", "", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._emit("fdiv", "", other, self)


#: 2**n is 0, rounded, below the exponent of half of the smallest number.
SMALLEST = {32: -150.0, 64: -1075.0}


def _scale_avx512(x: Value, n: Value, kept: Value) -> Value | None:
    """By vscalefps or vscalefpd, which give the same bits; 0 where `kept` is not set; None where the vector has no size
    of theirs.

    On Intel's CPUs a lane that is subnormal, or 0 for it would be less, makes the instruction take 220 cycles: softmax
    of rows of which half was -inf took 287 us for 14 (Granite Rapids).  Lanes that are not computed do not.
    """
    builder, vector = x.builder, x.value.type
    lanes, width = vector.count, x.width
    size = lanes * width
    if size > 512 and lanes % 2 == 0:
        parts = []
        for half in (list(range(lanes // 2)), list(range(lanes // 2, lanes))):
            parts.append(_scale_avx512(*(v.new(shuffle_value(builder, v.value, v.value, half)) for v in (x, n, kept))))
        if parts[0] is None or parts[1] is None:
            return None
        return Value(builder, shuffle_value(builder, parts[0].value, parts[1].value, list(range(lanes))))
    if size not in (128, 256, 512) or (size < 512 and "avx512vl" not in target.current().features):
        return None
    mask = builder.bitcast(kept.value, ir.IntType(lanes))
    mask = mask if lanes >= 8 else builder.zext(mask, ir.IntType(8))
    arguments = [x.value, n.value, ir.Constant(vector, None), mask]
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
