"""Dropout and random numbers as formulas of the pointwise engine: a thread draws a block's words and uses those of its
elements.

A block of Philox takes 20 products of 32 bits, both halves of each: some 110 instructions for four elements. In float32
a dropout moves 32 bytes with them, for which an H100 leaves 280 (`gpu.pointwise` has the count), so that the bound is
the bytes. Of arrays with gaps each thread has one element, and draws four words for it.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.random import drawn
from numbaprims.gpu.jit import GpuKernel, gpu_kernel, types
from numbaprims.gpu.pointwise.emit import emitter
from numbaprims.gpu.pointwise.form import THREADS, Form, Formula


def lanes(dtype: str) -> int:
    """Elements of a thread: those of a block, or of 16 bytes."""
    return 2 if dtype == "f64" else 4


#: "kind:type": what is drawn depends on the type that it is stored in.
FORMULAS = {
    f"{kind}:{dtype}": Formula(functools.partial(drawn, kind, dtype), numbers=2, words=5, packs=True)
    for kind in ("dropout", "uniform", "normal")
    for dtype in ("f64", "f32", "f16", "bf16")
}
_emit = emitter(FORMULAS)


@functools.cache
def make_kernel(form: Form) -> GpuKernel:
    """The kernel of a form."""
    text = form.text

    @gpu_kernel("random", types.void(form.parameters(FORMULAS[form.formula])), form, threads=THREADS, registers=64)
    def random(given):  # type: ignore[no-untyped-def]
        _emit(text, given)

    return random


def _form(kind: str, dtype: str, V: int = 0, loops: int = 1) -> Form:
    compute = "f64" if dtype == "f64" else "f32"
    return Form(f"{kind}:{dtype}", compute, dtype, dtype * (kind == "dropout"), V or lanes(dtype), loops, False)


_VECTORS = ("LDG.E.128", "STG.E.128")
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_kernel, (_form("dropout", "f32"),), _VECTORS),
    (make_kernel, (_form("dropout", "bf16"),), ("LDG.E.64", "STG.E.64")),
    (make_kernel, (_form("dropout", "f64"),), _VECTORS),
    (make_kernel, (_form("uniform", "f32"),), ("STG.E.128",)),
    (make_kernel, (_form("normal", "f32"),), ("STG.E.128",)),
    (make_kernel, (_form("normal", "f64"),), ("STG.E.128",)),
    (make_kernel, (_form("dropout", "f32", 1, 4),), ("LDG.E", "STG.E")),
]
