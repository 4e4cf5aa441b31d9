"""gemv and its transpose against NumPy, torch and SciPy's BLAS."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

from numbaprims.bench import rivals
from numbaprims.bench.cases import (
    DTYPES,
    OURS,
    Case,
    Contender,
    Workload,
    disagreement,
    generator,
    parse_shape,
    select,
    sum_bound,
)
from numbaprims.bench.operands import Operand, chosen_solver, on_host

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


def memory(case: Case) -> float:
    """Bytes of the operands of a case."""
    return float(case["m"] * case["n"] * {"f64": 8, "f32": 4}.get(case.dtype, 2))


def workload(case: Case, threads: int) -> Workload:
    """y = A x, or y = A^T x with `trans`; A is M x N and C-ordered."""
    import numbaprims

    dtype, trans = DTYPES[case.dtype], case.get("trans", False)
    m, n = case["m"], case["n"]
    rng = generator(case)
    a = Operand.of(rng.random((m, n), np.float32) * 2 - 1, dtype)
    x = Operand.of(rng.random(m if trans else n, np.float32) * 2 - 1, dtype)
    y = Operand.empty((n if trans else m,), dtype)
    ours = (a.ours, x.ours, y.ours)

    def check(got: np.ndarray) -> str | None:
        matrix = a.values().astype(np.float64)
        want = (matrix.T if trans else matrix) @ x.values().astype(np.float64)
        return disagreement(got, want, sum_bound(float(np.abs(want).max()), m if trans else n, dtype))

    contenders = {OURS: Contender(lambda: numbaprims.gemv(ours[0], ours[1], trans=trans, out=ours[2]), y.values)}
    contenders |= _rivals(a, x, y, trans)
    return Workload(
        contenders,
        check,
        flops=2.0 * m * n,
        bytes=float(a.storage.nbytes + x.storage.nbytes + y.storage.nbytes),
        bound="read",
        solver=lambda: chosen_solver(numbaprims.gemv, ours[0], ours[1], trans=trans, out=ours[2]),
        output=y.storage,
    )


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
