"""The code of every GPU kernel: registers, spills, address spaces, float64 by accident, the opcodes it promises."""

import pytest
from gpu import gates


@pytest.mark.parametrize("module", gates.modules())
def test_code(module):
    variants = gates.gates(module)
    images = [gate.kernel().images(gate.archs) for gate in variants]
    found = []
    for arch in gates.ARCHS:
        here = [
            (gate, of[gate.archs.index(arch)]) for gate, of in zip(variants, images, strict=True) if arch in gate.archs
        ]
        for (gate, _), sass in zip(here, gates.opcodes([image for _, image in here]), strict=True):
            found += [f"{arch} {gate.name}: {wrong}" for wrong in gates.complaints(gate, arch, sass)]
    assert not found, "\n".join(found)


def test_every_folder_of_kernels_has_gates():
    """A module that compiles a kernel is gated, by itself or by another module of its folder."""
    assert {name.split(".")[0] for name in gates.modules()} >= {"gemv", "ger", "activation"}
