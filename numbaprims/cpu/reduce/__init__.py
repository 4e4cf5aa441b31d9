"""The reduce engine: formulas with reductions (`numbaprims.formulas.reductions`) as range kernels.

variant  what a kernel's code depends on, and the plan of a problem's sizes and strides that it reads
emit     a formula's values and passes as vector code;  memory  where elements lie;  sums  reductions;  stores  results
kernels  range kernels of it: whole rows, chunks of rows, merged chunks
solvers  which there are, and what they are estimated to take
"""

from __future__ import annotations

from numbaprims.cpu import target
from numbaprims.cpu.reduce.solvers import SOLVERS as SOLVERS
from numbaprims.cpu.reduce.variant import Variant
from numbaprims.cpu.simd import lanes
from numbaprims.formulas.reductions import graph_of


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """The kernels of whole rows, in float32, of some length."""
    width = lanes("f32", target.current().vector_bytes)
    found: list[tuple[str, tuple[object, ...]]] = []
    for formula, arrays, kept, reduced in (
        ("softmax", 2, 1, 1), ("log_softmax", 2, 1, 1), ("batch_norm", 6, 2, 1), ("batch_norm_train", 6, 1, 2),
    ):  # fmt: skip
        variant = Variant(
            formula=formula, online=0, dtypes=",".join(["f32"] * arrays), compute="f32", lanes="along", W=width, U=4,
            registers=0, kept=kept, reduced=reduced, stores="plain", ahead=0, role="rows",
            digest=graph_of(formula).digest,
        )  # fmt: skip
        found.append(("numbaprims.cpu.reduce.kernels:make_kernel", (variant,)))
    return found
