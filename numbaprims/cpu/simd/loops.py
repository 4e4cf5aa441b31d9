"""Loops that intrinsics emit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.emit import I64, element_bits, number, raw
from numbaprims.formulas.value import Value


def repeat(
    builder: Any, count: Any, state: list[Any], step: Callable[[list[Any]], list[Any]], label: str, rolled: bool = False
) -> list[Any]:
    """Emit `count` times `step`, which takes the values of the state and gives the next ones; the last are returned.

    `count` may be 0 or less: the state is then what it was.  Values in it stay Values.  A `rolled` loop is not
    unrolled any further: of rows of some hundred elements the loops for what is left would take longer than the first.
    """

    def like(values: Sequence[Any]) -> list[Any]:
        return [x.new(value) if isinstance(x, Value) else value for x, value in zip(state, values, strict=True)]

    count, start, before = raw(count), [raw(x) for x in state], builder.block
    body, after = builder.append_basic_block(label), builder.append_basic_block(label + "_end")
    builder.cbranch(builder.icmp_signed(">", count, number(0)), body, after)
    builder.position_at_end(body)
    left = builder.phi(I64)
    phis = [builder.phi(value.type) for value in start]
    again = [raw(x) for x in step(like(phis))]
    less = builder.sub(left, number(1))
    if rolled:
        builder.asm(ir.FunctionType(ir.VoidType(), []), "", "", [], True).attributes.add("convergent")
    end = builder.block
    builder.cbranch(builder.icmp_signed(">", less, number(0)), body, after)
    builder.position_at_end(after)
    merged = [builder.phi(value.type) for value in start]
    left.add_incoming(count, before)
    left.add_incoming(less, end)
    for group in (phis, merged):
        for phi, at_first, next_time in zip(group, start, again, strict=True):
            phi.add_incoming(at_first, before)
            phi.add_incoming(next_time, end)
    return like(merged)


def once(builder: Any, where: Any, state: list[Any], step: Callable[[list[Any]], list[Any]], label: str) -> list[Any]:
    """As `repeat`, one time where a condition holds."""
    return repeat(builder, builder.zext(raw(where), I64), state, step, label)


def keep_rolled_value(builder: Any) -> None:
    """In a loop that runs a few times: no compiler unrolls it, because LLVM unrolls none with a call; it is no
    instruction.  For Zen 4 it unrolls every short loop eightfold, and rows of 56 elements run in what is left over."""
    builder.asm(ir.FunctionType(ir.VoidType(), []), "", "", [], True)


@intrinsic
def keep_rolled(typingctx):  # type: ignore[no-untyped-def]
    """As `keep_rolled_value`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        keep_rolled_value(builder)
        return context.get_dummy_value()

    return types.void(), codegen


def unknown_value(builder: Any, value: Any) -> Any:
    """As `unknown`, of an integer or a pointer."""
    return builder.asm(ir.FunctionType(value.type, [value.type]), "", "=r,0", [value], False)


@intrinsic
def unknown(typingctx, n):  # type: ignore[no-untyped-def]
    """An integer, which no compiler knows to be the same every time around a loop; it is no instruction.

    What is computed from it is computed where it stands.  Sixteen multiples of two strides, taken out of a loop, are
    read from the stack again each time: with 300 instructions a block fewer of its cache misses are under way at once.
    """
    if not isinstance(n, types.Integer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        wide = context.cast(builder, args[0], signature.args[0], types.int64)
        return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [wide], True)

    return types.int64(n), codegen


def keep_order(builder: Any, values: Sequence[Any], tile: int) -> list[Any]:
    """The vectors, behind a place that no load or store passes, for the compiler; it is no instruction.

    What computes the values comes before it, what uses them after.  It is left out where a tile of so many sums and
    operands leaves registers free.  LLVM's schedulers ask early for what a loop needs next, as the models of Intel's
    CPUs have it do: with 31 of 32 registers taken that put sums on the stack.  Vectors of one lane, or
    wider than a register, have no such place.
    """
    isa, kinds = target.current().isa, [value.type for value in values]
    bits, width = kinds[0].count * element_bits(kinds[0].element), 8 * target.current().vector_bytes
    if tile < (30 if isa in ("avx512", "neon") else 14) or not 128 <= bits <= width:
        return list(values)
    register = "w" if isa == "neon" else "v" if isa == "avx512" else "x"
    constraints = [f"={register}"] * len(values) + [str(n) for n in range(len(values))] + ["~{memory}"]
    single = len(values) == 1
    function = ir.FunctionType(kinds[0] if single else ir.LiteralStructType(kinds), kinds)
    found = builder.asm(function, "", ",".join(constraints), list(values), True)
    return [found] if single else [builder.extract_value(found, n) for n in range(len(values))]
