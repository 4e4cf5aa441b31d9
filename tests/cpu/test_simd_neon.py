"""The instructions that operations become on AArch64.  This assembly has never run: LLVM emits it, no more."""

import re

import pytest
from assembly import emitted, instructions
from llvmlite import ir

from numbaprims.cpu.simd.arithmetic import extreme_value, multiply_add_value
from numbaprims.cpu.simd.compare import compare_value
from numbaprims.cpu.simd.convert import narrow_value, widen_value
from numbaprims.cpu.simd.dot import dot_feature, dot_s8s8_value, dot_u8s8_value
from numbaprims.cpu.simd.emit import splat_value
from numbaprims.cpu.simd.lanes import reduce_value, shuffle_value

FEATURES = "+neon,+fp-armv8,+dotprod,+i8mm"
F32, I8, I16, I32 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)


def vector(element, lanes):
    return ir.VectorType(element, lanes)


#: operation -> (types of the arguments, what emits it, the instructions that must come up)
OPERATIONS = {
    "fma": ([vector(F32, 4)] * 3, multiply_add_value, ["fmla"]),
    "minimum": ([vector(F32, 4)] * 2, lambda b, x, y: extreme_value(b, x, y, "<", "f"), ["fmin"]),
    "max_number": ([vector(F32, 4)] * 2, lambda b, x, y: extreme_value(b, x, y, ">", "f", True), ["fmaxnm"]),
    "select": (
        [vector(F32, 4)] * 2,
        lambda b, x, y: b.select(compare_value(b, "<", x, y, "f"), x, y),
        ["fcmgt", "b[si][tf]"],
    ),
    "splat": ([F32], lambda b, x: splat_value(b, x, 4), ["dup"]),
    "interleave_low": (
        [vector(F32, 4)] * 2, lambda b, x, y: b.fadd(x, shuffle_value(b, x, y, [0, 4, 1, 5])), ["zip1"],
    ),
    "reduce_add": ([vector(F32, 4)], lambda b, x: reduce_value(b, x, b.fadd), ["fadd"]),
    "widen f16": ([vector(I16, 4)], lambda b, x: widen_value(b, x, "f16"), ["fcvtl"]),
    "narrow f16": ([vector(F32, 4)], lambda b, x: narrow_value(b, x, "f16"), ["fcvtn"]),
    "widen bf16": ([vector(I16, 4)], lambda b, x: widen_value(b, x, "bf16"), ["shll"]),
    "narrow i8": ([vector(I32, 16)], lambda b, x: narrow_value(b, x, "i8"), ["sqxtn|smin"]),
    "dot_s8s8": (
        [vector(I32, 4), vector(I8, 16), vector(I8, 16)],
        lambda b, *v: dot_s8s8_value(b, *v, dot_feature("s8s8", 4)),
        ["sdot"],
    ),
    "dot_u8s8": (
        [vector(I32, 4), vector(I8, 16), vector(I8, 16)],
        lambda b, *v: dot_u8s8_value(b, *v, dot_feature("u8s8", 4)),
        ["usdot"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_assembly(name):
    arguments, emit, wanted = OPERATIONS[name]
    assembly = instructions(emitted("generic", emit, arguments, FEATURES), "generic", FEATURES)
    for instruction in wanted:
        assert any(re.match(rf"({instruction})\w*\s", line) for line in assembly), assembly
    assert not any(line.startswith("bl\t") for line in assembly)  # no library routine
