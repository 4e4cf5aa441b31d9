"""gemv and its transpose against NumPy, torch and SciPy's BLAS."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench import rivals
from numbaprims.bench.cases import (
    Case,
    Contender,
    Workload,
    disagreement,
    parse_shape,
    select,
    sum_bound,
)
from numbaprims.bench.operands import Operand, on_host
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours

DIMENSIONS = ("m", "n")


def cases(options: Namespace) -> list[Case]:
    """The cases that the options select; the suites run plain and transposed, given shapes as given."""
    found: list[Case] = []
    for dtype in options.dtype:
        for name, suite in select("gemv", options.shapes, DIMENSIONS):
            given = name == "given"
            shapes = [suite] if given else [parse_shape(text, DIMENSIONS) for text in suite["nn"]]
            for trans in (False, True):
                if options.trans_a and not trans or given and trans != options.trans_a:
                    continue
                switches = (("trans", True),) if trans else ()
                found += [Case("gemv", name, sizes, dtype, switches) for sizes in shapes]
    return found


def ours(case: Case, draw: Draw) -> Ours:
    """y = A x, or y = A^T x with `trans`; A is M x N and C-ordered."""
    m, n, trans = case["m"], case["n"], case.get("trans", False)
    reads = {"a": draw((m, n)), "x": draw((m if trans else n,))}
    out = shared.output(case, (n if trans else m,))

    def check(got: np.ndarray) -> str | None:
        matrix, x = (shared.exact(each.values()) for each in reads.values())
        want = (matrix.T if trans else matrix) @ x
        return disagreement(got, want, sum_bound(float(np.abs(want).max()), len(x), out.dtype))

    call = partial(numbaprims.gemv, *(each.ours for each in reads.values()), trans=trans, out=out.ours)
    return Ours(call, reads, out=out, checked=check, bound="read")


def workload(case: Case, threads: int) -> Workload:
    """Our call and every rival."""
    p = ours(case, shared.drawn(case))
    assert p.out is not None
    return p.workload(case, _rivals(p.reads["a"], p.reads["x"], p.out, case.get("trans", False)))


memory = shared.memory(lambda c: c["m"] * c["n"])


def _rivals(a: Operand, x: Operand, y: Operand, trans: bool) -> dict[str, Contender]:
    found: dict[str, Contender] = {}

    def flip(matrix: Any) -> Any:
        return matrix.T if trans else matrix

    if a.dtype in ("f32", "f64") and on_host():
        matrix, vector, out = flip(a.storage), x.storage, y.storage
        found["numpy"] = Contender(lambda: np.matmul(matrix, vector, out=out), y.values)
        scipy = rivals.load_rival("scipy")
        if scipy is not None:
            from scipy.linalg import blas

            gemv = blas.sgemv if a.dtype == "f32" else blas.dgemv
            # Fortran order, as BLAS wants it: the transpose of our C-ordered matrix, without a copy.
            stored = a.storage.T
            found["scipy"] = Contender(
                lambda: gemv(1.0, stored, vector, beta=0.0, y=out, overwrite_y=1, trans=0 if trans else 1),
                y.values,
            )
    torch = rivals.load_rival("torch")
    if torch is not None and a.dtype != "i8":
        t_matrix, t_vector, t_out = flip(a.torch), x.torch, y.torch
        found["torch"] = Contender(lambda: torch.mv(t_matrix, t_vector, out=t_out), y.values)
    cupy = None if on_host() or a.dtype == "bf16" else rivals.load_rival("cupy")
    if cupy is not None:
        c_matrix, c_vector, c_out = flip(a.cupy), x.cupy, y.cupy
        found["cupy"] = Contender(lambda: cupy.matmul(c_matrix, c_vector, out=c_out), y.values)
    return found
