"""The code of every GPU kernel: registers, spills, address spaces, float64 by accident, the opcodes it promises."""

import re
from pathlib import Path

import pytest
from gpu import gates

import numbaprims.gpu


def check(variants):
    images = [gate.kernel().images(gate.archs) for gate in variants]
    found = []
    for arch in gates.ARCHS:
        here = [
            (gate, of[gate.archs.index(arch)]) for gate, of in zip(variants, images, strict=True) if arch in gate.archs
        ]
        for (gate, _), sass in zip(here, gates.opcodes([image for _, image in here]), strict=True):
            found += [f"{arch} {gate.name}: {wrong}" for wrong in gates.complaints(gate, arch, sass)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module", gates.modules())
def test_code(module):
    check(gates.gates(module)[: gates.first(module)])


@pytest.mark.slow
@pytest.mark.parametrize("module", [module for module in gates.modules() if module.split(".")[0] in gates.FIRST])
def test_code_of_the_other_variants(module):
    check(gates.gates(module)[gates.first(module) :])


def test_every_module_with_a_kernel_is_gated():
    root = Path(numbaprims.gpu.__path__[0])
    with_kernels = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if re.search(r"^\s+@gpu_kernel\(", path.read_text(), re.M) and path.name != "jit.py"
    }
    assert with_kernels and with_kernels <= set(gates.modules())
