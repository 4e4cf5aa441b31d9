"""The instructions that operations become on AArch64.  This assembly has never run: LLVM emits it, no more."""

import dataclasses
import re

import pytest
from llvmlite import binding as llvm, ir

from numbaprims.cpu import target
from numbaprims.cpu.simd.arithmetic import extreme_value, multiply_add_value
from numbaprims.cpu.simd.compare import compare_value
from numbaprims.cpu.simd.convert import narrow_value, widen_value
from numbaprims.cpu.simd.dot import dot_feature, dot_s8s8_value, dot_u8s8_value
from numbaprims.cpu.simd.lanes import reduce_value, shuffle_value
from numbaprims.cpu.simd.memory import splat_value

TRIPLE = "aarch64-unknown-linux-gnu"
FEATURES = frozenset({"neon", "fp-armv8", "dotprod", "i8mm"})
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
def test_assembly(name, monkeypatch):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    arm = dataclasses.replace(
        target.current(), triple=TRIPLE, features=FEATURES, vector_bytes=16, has_fma=True, has_f16c=True
    )
    monkeypatch.setattr(target, "current", lambda: arm)
    arguments, emit, instructions = OPERATIONS[name]
    module = ir.Module()
    module.triple = TRIPLE
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [*arguments, ir.PointerType()]), "operation")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.store(emit(builder, *function.args[:-1]), function.args[-1])
    builder.ret_void()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
        features=",".join(f"+{feature}" for feature in sorted(FEATURES)), opt=3
    )
    assembly = machine.emit_assembly(llvm.parse_assembly(str(module)))
    for instruction in instructions:
        assert re.search(rf"^\s+({instruction})\w*\s", assembly, re.M), assembly
    assert "\tbl\t" not in assembly  # no library routine
