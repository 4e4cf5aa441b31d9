"""From a kind's name, a literal in a kernel, to the code of its formula."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.activation.formulas import BINARY, FORWARD
from numbaprims.cpu.activation.gradients import BACKWARD, glu as glu_gradient
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.memory import splat_value
from numbaprims.cpu.simd.types import Vec
from numbaprims.formulas.gradients import leaky_relu as prelu_gradient


def _parameters(builder: Any, like: Any, scalars: Any, count: int) -> list[Value]:
    """The first `count` float64 arguments as vectors; LLVM moves the conversions out of the loop."""
    element = like.type.element
    values = []
    for scalar in scalars[:count]:
        narrow = scalar if scalar.type == element else builder.fptrunc(scalar, element)
        values.append(Value(builder, splat_value(builder, narrow, like.type.count)))
    return values


@intrinsic(prefer_literal=True)
def forward_of(typingctx, kind, x, p0, p1, p2):  # type: ignore[no-untyped-def]
    """kind(x) of every lane."""
    if not (isinstance(kind, types.StringLiteral) and isinstance(x, Vec)):
        return None
    formula, count = FORWARD[kind.literal_value]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        parameters = _parameters(builder, args[1], args[2:], count)
        return formula(Value(builder, args[1]), *parameters).value

    return x(kind, x, types.float64, types.float64, types.float64), codegen


@intrinsic(prefer_literal=True)
def binary_of(typingctx, kind, x, other):  # type: ignore[no-untyped-def]
    """kind(x, weight or gate) of every lane."""
    if not (isinstance(kind, types.StringLiteral) and isinstance(x, Vec)):
        return None
    formula = BINARY[kind.literal_value]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return formula(Value(builder, args[1]), Value(builder, args[2])).value

    return x(kind, x, x), codegen


@intrinsic(prefer_literal=True)
def backward_of(typingctx, kind, dy, saved, p0, p1, p2):  # type: ignore[no-untyped-def]
    """dx of every lane, from dy and x or y."""
    if not (isinstance(kind, types.StringLiteral) and isinstance(dy, Vec)):
        return None
    formula, count = BACKWARD[kind.literal_value]

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        parameters = _parameters(builder, args[1], args[3:], count)
        return formula(Value(builder, args[1]), Value(builder, args[2]), *parameters).value

    return dy(kind, dy, dy, types.float64, types.float64, types.float64), codegen


@intrinsic
def prelu_backward_of(typingctx, dy, x, weight):  # type: ignore[no-untyped-def]
    """dx of prelu with a vector of slopes."""
    if not isinstance(dy, Vec):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return prelu_gradient(*(Value(builder, arg) for arg in args)).value

    return dy(dy, dy, dy), codegen


@intrinsic
def glu_backward_of(typingctx, dy, x, gate):  # type: ignore[no-untyped-def]
    """(dx, dgate) of glu."""
    if not isinstance(dy, Vec):
        return None
    pair = types.UniTuple(dy, 2)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        both = glu_gradient(*(Value(builder, arg) for arg in args))
        return context.make_tuple(builder, pair, [value.value for value in both])

    return pair(dy, dy, dy), codegen
