"""The code of every GPU kernel: registers, spills, address spaces, float64 by accident, the opcodes it promises."""

import pytest
from gpu import gates


@pytest.mark.parametrize("module", gates.modules())
def test_code(module):
    variants = gates.gates(module)
    images = [gate.kernel().images(gates.ARCHS) for gate in variants]
    found = []
    for number, arch in enumerate(gates.ARCHS):
        for gate, sass in zip(variants, gates.opcodes([pair[number] for pair in images]), strict=True):
            found += [f"{arch} {gate.name}: {wrong}" for wrong in gates.complaints(gate, arch, sass)]
    assert not found, "\n".join(found)


def test_every_folder_of_kernels_has_gates():
    """A module that compiles a kernel is gated, by itself or by another module of its folder."""
    assert {name.split(".")[0] for name in gates.modules()} >= {"gemv", "ger", "activation"}
