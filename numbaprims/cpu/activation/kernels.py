"""Activations as formulas of the pointwise engine."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.activation import gradients
from numbaprims.cpu.activation.formulas import BINARY, FORWARD
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.pointwise.emit import emitter
from numbaprims.cpu.pointwise.form import ARGS, Form, Formula, Operand
from numbaprims.cpu.simd import lanes, stream_fence
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.gradients import leaky_relu as prelu_gradient

#: Operands of a kernel by name -> their slot; that of arrays in a launch, but for glu's second halves.
SLOTS = {name: slot for slot, name in enumerate(("out", "x", "dy", "y", "weight", "gate", "dgate"))}
HALF_OF = {"gate": "x", "dgate": "out"}

#: Operations for an element, as `formulas.graph.COSTS` counts them; what is not listed is bound by the caches.
#: Measured where the caches hide (Zen 5, AVX-512): twice the cycles of a vector.
OPERATIONS = {
    "softsign": 6.5, "sqrt": 10.5, "exp": 11.0, "elu": 14.0, "selu": 13.0, "celu": 19.0, "sigmoid": 13.0, "silu": 13.5,
    "glu": 14.5, "tanh": 14.5, "gelu": 24.0, "gelu_tanh": 19.0, "mish": 16.5, "softplus": 31.0, "softplus_1": 25.0,
    "log": 12.5, "power": 130.0, "exp2": 11.0, "expm1": 14.0, "log1p": 19.0, "erf": 24.0, "reciprocal": 8.0,
    "rsqrt": 16.0, "sin": 28.0, "cos": 28.0, "tan": 45.0, "asin": 28.0, "acos": 30.0, "atan": 36.0, "sinh": 26.0,
    "cosh": 25.0, "asinh": 55.0, "acosh": 52.0, "atanh": 42.0, "log2": 32.0, "log10": 33.0, "erfc": 58.0,
    "log_sigmoid": 26.0, "tanh_shrink": 26.0,
}  # fmt: skip
CHEAP = 5.5
#: To round a result to bfloat16, NaN kept (Zen 4: silu takes 302 us for 1e6 elements, 171 in float32).
ROUNDING = {"bf16": 15.0}
#: With more, the arithmetic takes longer than memory.
MEMORY_BOUND = 22.0


def _formulas() -> dict[str, Formula]:
    """Of all kinds and their gradients; "of_two": with a slope for each channel, or with a gate."""
    found = {kind: Formula(*known) for kind, known in FORWARD.items()}
    found |= {f"{kind}_backward": Formula(*known) for kind, known in gradients.BACKWARD.items()}
    found |= {f"{kind}_of_two": Formula(function) for kind, function in BINARY.items()}
    return found | {
        "prelu_of_two_backward": Formula(prelu_gradient),
        "glu_of_two_backward": Formula(gradients.glu),
    }


_emit = emitter(_formulas())


@functools.cache
def make_kernel(form: Form) -> RangeKernel:
    """The range kernel of a form."""
    text, stream = form.text, form.stream

    @range_kernel("activation", ARGS.types(), spec=(text,))
    def activation(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        _emit(text, args, lo, hi)
        if stream:
            stream_fence()

    return activation


def step_lanes(kind: str, dtype: str, target: Any, stream: bool) -> int:
    """Lanes of a step of the kernel of contiguous elements.

    Where vectors take two turns, formulas that memory hides are computed by halves: `neg` of 4,096 floats that lie 64
    bytes apart took 0.56 us, 0.40 so, `floor` of 65,536 5.5 and 4.9; an exponential takes 1.5 times as long (Zen 4).
    """
    cheap = OPERATIONS.get(kind, CHEAP) <= CHEAP and DTYPES[dtype].accumulate == dtype
    if cheap and not stream and target.rates.two_turns(target.vector_bytes):
        return compute_lanes(dtype, target, 1) // 2
    return compute_lanes(dtype, target, step_registers(kind, target, stream))


def compute_lanes(dtype: str, target: Any, registers: int) -> int:
    """Lanes of a step of so many registers, in the type that is computed in."""
    return lanes(DTYPES[dtype].accumulate, target.vector_bytes) * registers


def step_registers(kind: str, target: Any, stream: bool = False) -> int:
    """Registers of a step.

    With 32 registers four chains of the longer formulas hide their latencies: 2 to 10 % on data in the caches.
    Streaming, the formulas that memory hides lose 4 % that way, to bursts of stores behind bursts of arithmetic; what
    has next to no arithmetic gains 0 to 8 %.
    """
    cost = OPERATIONS.get(kind, CHEAP)
    many = not CHEAP < cost <= MEMORY_BOUND if stream else cost > CHEAP
    return 4 if target.vector_bytes == 64 and many else 2


def form_of(problem: Any, target: Any, stream: bool = False) -> Form:
    """The kernel of contiguous elements of a problem: all solvers use it, and so give the same bits."""
    kind, dtype = problem.kind, problem.dtype
    results = [name for name in problem.operands if name in ("out", "dgate")]
    # a gate stands behind the halves, as in the formulas; dy before what it is multiplied by
    operands = [name for name in ("dy", "x", "y", "weight", "gate") if name in problem.operands]
    if operands == ["dy"]:
        operands *= 2  # formulas of gradients take what was saved, too
    two = "weight" in operands or "gate" in operands
    return Form(
        formula=kind + "_of_two" * two + "_backward" * (problem.direction == "backward"),
        compute=DTYPES[dtype].accumulate,
        results=tuple(Operand(SLOTS[name], dtype) for name in results),
        operands=tuple(Operand(SLOTS[name], dtype) for name in operands),
        W=step_lanes(kind, dtype, target, stream),
        stream=stream,
    )


def epilogue_kernel(kind: str, dtype: str, W: int) -> RangeKernel:
    """The kernel that applies a kind to contiguous elements of a computed type ("f32", "f64"; "i32" for relu).

    Slot 0 of its arguments is the result, slot 1 x, which may be the same address; f0, f1 and f2 are the parameters in
    the order of the table of kinds, n and tile the number of elements. Kinds are those of `ops.epilogue.Activation`:
    "gelu_tanh" is one, prelu and glu are not. `W` is the lanes of a register.
    """
    return make_kernel(Form(kind, dtype, (Operand(0, dtype),), (Operand(1, dtype),), W))
