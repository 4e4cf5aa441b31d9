"""Activations as formulas of the pointwise engine, one kernel for each kind; the cheap kinds of a direction share one.

`forward_of` is for kernels that end in an activation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from numbaprims.formulas.gradients import leaky_relu as prelu_gradient
from numbaprims.gpu.activation import formulas, gradients, halves
from numbaprims.gpu.device.emit import I32, intrinsic, string_literal, tuple_of, unpack
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.jit import GpuKernel, gpu_kernel, types
from numbaprims.gpu.pointwise.emit import emitter
from numbaprims.gpu.pointwise.form import THREADS, Form, Formula

SWITCH = "switch"
"""The formula that is told at run time which of the cheap kinds to compute."""


def _switch(kinds: tuple[str, ...], table: Mapping[str, tuple[Callable[..., Any], int]]) -> Formula:
    """A branch for each kind; all threads take the same one."""
    arms = [Formula(*table[kind]) for kind in kinds]

    def function(place: Any, words: Any, operands: Any, numbers: Any, count: int) -> list[list[Value]]:
        builder = words[0].builder
        after = builder.append_basic_block("computed")
        default = builder.append_basic_block("default")
        choice = builder.switch(words[0].value, default)
        found = []
        for number, arm in enumerate(arms):
            block = builder.append_basic_block(kinds[number]) if number else default
            if number:
                choice.add_case(I32(number), block)
            builder.position_at_end(block)
            (values,) = arm.lanes(place, words, operands, numbers, count)
            found.append((builder.basic_block, values))
            builder.branch(after)
        builder.position_at_end(after)
        joined = []
        for lane in range(count):
            phi = builder.phi(found[0][1][lane].value.type)
            for block, values in found:
                phi.add_incoming(values[lane].value, block)
            joined.append(Value(builder, phi))
        return [joined]

    return Formula(function, numbers=3, words=1, packs=True)


#: Of all kinds and their gradients; "half": for 16 bits; "of_two": with a slope for each channel, or with a gate.
FORMULAS = {
    **{kind: Formula(*known) for kind, known in formulas.FORWARD.items()},
    **{f"{kind}_half": Formula(*known) for kind, known in halves.FORWARD.items()},
    **{f"{kind}_backward": Formula(*known) for kind, known in gradients.BACKWARD.items()},
    **{f"{kind}_of_two": Formula(function) for kind, function in formulas.BINARY.items()},
    "prelu_of_two_backward": Formula(prelu_gradient),
    "glu_of_two_backward": Formula(gradients.glu),
    SWITCH: _switch(formulas.CHEAP, formulas.FORWARD),
    f"{SWITCH}_backward": _switch(gradients.CHEAP, gradients.BACKWARD),
}
_emit = emitter(FORMULAS)


@functools.cache
def make_kernel(form: Form) -> GpuKernel:
    """The kernel of a form."""
    text = form.text
    # the gradient of gelu in halves keeps 8 distributions at once: 768 threads with two loads of 16 bytes each
    most = 72 if form.formula == "gelu_backward" else 64

    @gpu_kernel(
        "activation", types.void(form.parameters(FORMULAS[form.formula])), form, threads=THREADS, registers=most
    )
    def activation(given):  # type: ignore[no-untyped-def]
        _emit(text, given)

    return activation


@intrinsic
def forward_of(typingctx, kind, code, x, p0, p1, p2):  # type: ignore[no-untyped-def]
    """kind(x) of a number or of each of a tuple, for kernels that end in an activation.

    `kind` is a literal name or `SWITCH`, which lets `code` choose."""
    kernel = string_literal(kind)
    if kernel is None:
        return None
    element = types.unliteral(x)
    number = element.dtype if isinstance(element, types.UniTuple) else element
    if number not in (types.float32, types.float64):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        code, *numbers = (Value(builder, args[k]) for k in (1, 3, 4, 5))
        lanes = [Value(builder, part) for part in unpack(builder, args[2], element)]
        (found,) = FORMULAS[kernel].lanes(None, [code], [lanes], numbers, len(lanes))
        values = [each.value for each in found]
        return tuple_of(context, builder, element, values) if isinstance(element, types.UniTuple) else values[0]

    return element(kind, types.int32, element, number, number, number), codegen


def _forms(formula: str, dtype: str, operands: int = 1, results: int = 1) -> Form:
    V = {"f64": 2, "f32": 4}.get(dtype, 8)
    compute = "f64" if dtype == "f64" else "f32"
    return Form(formula, compute, ",".join([dtype] * results), ",".join([dtype] * operands), V, 1, False)


_VECTORS = ("LDG.E.128", "STG.E.128")
_SLOPES = _forms("prelu_of_two", "f32", 2)._replace(operands="f32,f32:one", loops=3)
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    *[
        (make_kernel, (_forms(formula, dtype, *counts),), _VECTORS)
        for dtype in ("f32", "bf16")
        for formula, *counts in (
            (SWITCH, 1), (f"{SWITCH}_backward", 2), ("gelu", 1), ("gelu_backward", 2), ("tanh", 1),
            ("mish_backward", 2), ("glu_of_two", 2), ("glu_of_two_backward", 3, 2), ("prelu_of_two_backward", 3),
        )
    ],
    *[
        (make_kernel, (_forms(formula, dtype),), _VECTORS)
        for formula, dtype in (("power", "f32"), ("gelu_half", "f16"), ("tanh_half", "bf16"), ("gelu", "f64"))
    ],
    (make_kernel, (_SLOPES,), (*_VECTORS, "LDG.E")),
    (make_kernel, (_SLOPES._replace(wide=True),), _VECTORS),
    (make_kernel, (_forms("glu_of_two", "f16", 2)._replace(loops=2),), _VECTORS),
    (make_kernel, (_forms(SWITCH, "f32")._replace(V=1, loops=4),), ("LDG.E", "STG.E")),
]  # fmt: skip
