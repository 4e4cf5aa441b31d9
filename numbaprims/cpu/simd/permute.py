"""Elements by an index that is not known before: permutes of loaded vectors, where the CPU has them, and gathers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.access import gather_value
from numbaprims.cpu.simd.convert import compute_element, load_wide_value, widen_value
from numbaprims.cpu.simd.emit import constant, declare, first_lanes_value, llvm_vector, number, splat_value
from numbaprims.cpu.simd.types import ELEMENTS, Pointer, Vec

#: (bits of an element, lanes) -> what LLVM calls it, for one source and for two.
_AVX512 = {
    (32, 16): ("avx512.permvar.si.512", "d.512"), (32, 8): ("avx2.permd", "d.256"),
    (64, 8): ("avx512.permvar.di.512", "q.512"),
}  # fmt: skip


def can_permute(elem: str, lanes: int) -> bool:
    """Whether this CPU takes a vector's lanes by an index in an instruction, those of two vectors in three or less."""
    isa = target.current().isa
    shape = (ELEMENTS[elem][0], lanes)
    return (isa == "avx512" and shape in _AVX512) or (isa == "avx2" and shape == (32, 8))


def _permute(builder: Any, value: Any, index: Any, bits: int) -> Any:
    kind, like = index.type, value.type
    # the lane is what the lowest bits of an index say
    function = declare(builder, f"llvm.x86.{_AVX512[bits, kind.count][0]}", kind, [kind] * 2)
    return builder.bitcast(builder.call(function, [builder.bitcast(value, kind), index]), like)


def _permute_two(builder: Any, a: Any, b: Any, index: Any, bits: int) -> Any:
    """Lanes of a (0 to W - 1) and b (W to 2 W - 1)."""
    kind, like = index.type, a.type
    if target.current().isa == "avx2":
        low, high = (_permute(builder, value, index, bits) for value in (a, b))
        return builder.select(builder.icmp_signed(">=", index, constant(kind, kind.count)), high, low)
    function = declare(builder, f"llvm.x86.avx512.vpermi2var.{_AVX512[bits, kind.count][1]}", kind, [kind] * 3)
    return builder.bitcast(builder.call(function, [builder.bitcast(a, kind), index, builder.bitcast(b, kind)]), like)


@intrinsic
def splice(typingctx, a, b, first):  # type: ignore[no-untyped-def]
    """Lanes first ... first + W - 1 of a's lanes and then b's; where `can_permute`."""
    if not (isinstance(a, Vec) and a == b and can_permute(a.elem, a.n)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        bits = ELEMENTS[a.elem][0]
        kind = ir.VectorType(ir.IntType(bits), a.n)
        start = args[2] if bits == 64 else builder.trunc(args[2], kind.element)
        index = builder.add(ir.Constant(kind, list(range(a.n))), splat_value(builder, start, a.n))
        return _permute_two(builder, args[0], args[1], index, bits)

    return a(a, b, types.int64), codegen


@intrinsic(prefer_literal=True)
def take(typingctx, p, base, index, n, how):  # type: ignore[no-untyped-def]
    """Element base + index[l] in lane l, in its compute type, of memory of n elements from p on.

    `how` is "gather", or how many vectors from `base` on hold them, "one" or "two", for indices from 0 on; with
    " short" behind it the last of these vectors may reach beyond n.  Where an index is negative any of them is taken.
    The index has integers of the compute type's size.
    """
    if not (isinstance(p, Pointer) and isinstance(index, Vec) and isinstance(how, types.StringLiteral)):
        return None
    elem, lanes = compute_element(p.elem), index.n
    way, _, short = how.literal_value.partition(" ")
    if index.elem != f"i{ELEMENTS[elem][0]}" or (way != "gather" and not can_permute(elem, lanes)):
        raise TypingError(f"{lanes} elements {elem} cannot be taken by {index} in the way {how.literal_value!r}")

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        start = builder.gep(args[0], [args[1]])
        if way == "gather":
            zero = constant(args[2].type, 0)
            inside = builder.select(builder.icmp_signed(">", args[2], zero), args[2], zero)
            found = gather_value(builder, start, inside, llvm_vector(p.elem, lanes))
            return widen_value(builder, found, p.elem)
        vectors = []
        for at in range(0, lanes if way == "one" else 2 * lanes, lanes):
            mask = None
            if short and at + lanes == (lanes if way == "one" else 2 * lanes):
                left = builder.sub(builder.sub(args[3], args[1]), number(at))
                mask = first_lanes_value(builder, left, lanes)
            vectors.append(load_wide_value(builder, start, number(at), p.elem, lanes, mask))
        bits = ELEMENTS[elem][0]
        return (_permute if way == "one" else _permute_two)(builder, *vectors, args[2], bits)

    return Vec(elem, lanes)(p, types.int64, index, types.int64, how), codegen
