"""What the formulas of vectors become for CPUs by name: nothing that may be contracted, no calls, no branches."""

import itertools
import re

import pytest
from assembly import CPUS, X86_CPUS, emitted, instructions, named
from llvmlite import ir

from numbaprims.cpu.activation import gradients
from numbaprims.cpu.activation.formulas import BINARY, FORWARD
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.simd.emit import llvm_vector
from numbaprims.cpu.simd.math import exponential
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.log import log1p_value, log_value
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.cpu.simd.math.tanh import sigmoid_value, tanh_value
from numbaprims.formulas.elementary import erf_value, exp2_value, exp_value, expm1_value
from numbaprims.formulas.gradients import leaky_relu
from numbaprims.formulas.hyperbolic import erfc_value

#: The functions of the simd layer.
MATH = {
    "exp": exp_value, "expm1": expm1_value, "log": log_value, "log1p": log1p_value, "tanh": tanh_value,
    "sigmoid": sigmoid_value, "erf": erf_value,
}  # fmt: skip
#: Every formula with the vectors that it takes.
FORMULAS = {
    **{name: (function, 1) for name, function in MATH.items()},
    "pow": (power_value, 2),
    **{f"y {kind}": (formula, 1 + count) for kind, (formula, count) in FORWARD.items()},
    **{f"y {kind} of two": (formula, 2) for kind, formula in BINARY.items()},
    **{f"dx {kind}": (formula, 2 + count) for kind, (formula, count) in gradients.BACKWARD.items()},
    "dx prelu of two": (leaky_relu, 3),
    "dx glu": (gradients.glu, 3),
}


def code_of(cpu, dtype, formula, count=1):
    """The LLVM function of a formula over registers of a CPU."""

    def emit(builder, *arguments):
        results = formula(*(Value(builder, argument) for argument in arguments))
        return tuple(value.value for value in results) if isinstance(results, tuple) else results.value

    element = ir.FloatType() if dtype == "f32" else ir.DoubleType()
    register = ir.VectorType(element, lanes(dtype, named(cpu).vector_bytes))
    return emitted(cpu, emit, [register] * count)


def is_product(value):
    return getattr(value, "opname", "") == "fmul"


def negates(instruction):
    """-0 - x, which has the bits of -x however it is computed."""
    zero = instruction.operands[0]
    return instruction.opname == "fsub" and isinstance(zero, ir.Constant) and "0x8000000000000000" in str(zero)


@pytest.mark.parametrize("dtype", ("f32", "f64"))
@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if named(cpu).has_fma])
def test_nothing_can_be_contracted(cpu, dtype):
    """Kernels allow contraction: a product that is added to something would be fused here and not there."""
    wrong, seen = {}, 0
    for name, (formula, count) in FORMULAS.items():
        for instruction in code_of(cpu, dtype, formula, count).blocks[0].instructions:
            seen += instruction.opname in ("fadd", "fsub")
            if instruction.opname in ("fadd", "fsub") and any(map(is_product, instruction.operands)):
                if not negates(instruction):
                    wrong[name] = str(instruction)
    assert not wrong
    assert seen > 100


@pytest.mark.parametrize("cpu", X86_CPUS)
def test_code_calls_nothing_and_keeps_vectors_in_registers(cpu):
    facts = named(cpu)
    for dtype, name in itertools.product(("f32", "f64"), MATH):
        code = instructions(code_of(cpu, dtype, MATH[name]), cpu)
        case = cpu, dtype, name, code
        computes = [line for line in code if not line.startswith(("mov", "vmov", "vbroadcast"))]
        assert 10 < len(computes) < (80 if facts.has_fma else 110), (len(computes), *case)
        assert not [line for line in code if line.startswith(("call", "j")) or "%rsp)" in line or "%rbp)" in line], case
        assert any(line.startswith("vfmadd") for line in code) == facts.has_fma, case
        if facts.isa == "avx512" and name in ("exp", "sigmoid"):
            assert any(line.startswith("vscalef") for line in code), case


@pytest.mark.parametrize("name", MATH)
def test_code_for_neon(name):
    """Looked at, never run: fused operations on whole registers, no calls."""
    code = instructions(code_of("neoverse-n1", "f32", MATH[name]), "neoverse-n1")
    assert sum("fmla" in line or "fmls" in line for line in code) >= 5
    assert all(".4s" in line for line in code if line.startswith(("fmla", "fmls", "fdiv")))
    assert not [line for line in code if line.startswith(("bl\t", "b\t", "blr"))]


@pytest.mark.parametrize(
    ("emit", "dtype", "lanes"),
    [
        (exponential.exp, "f32", 32), (exponential.exp, "f32", 8), (exponential.exp, "f64", 8),
        (exponential.exp_of_negative, "f32", 16), (exponential.exp_of_negative, "f64", 4),
        (exponential.gaussian, "f32", 16), (exponential.gaussian, "f64", 8),
        (exponential.one_more_than_exp, "f32", 16), (lambda x: exponential.exp_and_sum(x, 2.0)[1], "f32", 16),
        (exp2_value, "f32", 16), (lambda x: erfc_value(x, Value.__truediv__), "f64", 8),
    ],
)  # fmt: skip
def test_what_is_0_is_not_scaled(emit, dtype, lanes):
    """An Intel CPU takes 220 cycles for a lane that is subnormal, or would be less, unless a mask leaves it out."""
    operation = emitted("graniterapids", lambda b, x: emit(Value(b, x)).value, [llvm_vector(dtype, lanes)])
    lines = [line for line in instructions(operation, "graniterapids") if "scalef" in line]
    assert lines and all(re.search(r"\{%k[1-7]\} \{z\}", line) for line in lines), lines
