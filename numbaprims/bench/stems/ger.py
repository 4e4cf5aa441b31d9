"""ger, the rank-1 update in place, against NumPy, torch, SciPy's BLAS and numexpr."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import numpy as np

from numbaprims.bench import rivals
from numbaprims.bench.cases import (
    DTYPES,
    EPS,
    OURS,
    Case,
    Contender,
    Workload,
    disagreement,
    generator,
    parse_shape,
    select,
)
from numbaprims.bench.operands import Operand, chosen_solver, on_host

DIMENSIONS = ("m", "n")


def cases(options: Namespace) -> list[Case]:
    """The cases that the options of the command select."""
    return [
        Case("ger", name, sizes, dtype)
        for dtype in options.dtype
        for name, suite in select("ger", options.shapes, DIMENSIONS)
        for sizes in ([suite] if name == "given" else [parse_shape(text, DIMENSIONS) for text in suite["nn"]])
    ]


def memory(case: Case) -> float:
    """Bytes of the operands of a case, the copy for the check included."""
    return float(2 * case["m"] * case["n"] * {"f64": 8, "f32": 4}.get(case.dtype, 2))


def workload(case: Case, threads: int) -> Workload:
    """A = x y^T + A in place, as BLAS and training do it."""
    import numbaprims

    dtype = DTYPES[case.dtype]
    m, n = case["m"], case["n"]
    rng = generator(case)
    start = Operand.of(rng.random((m, n), np.float32) * 2 - 1, dtype)
    a = Operand(start.storage.copy(), dtype)
    # Small: thousands of updates of the same matrix stay far from overflow.
    x = Operand.of((rng.random(m, np.float32) * 2 - 1) * 2**-10, dtype)
    y = Operand.of((rng.random(n, np.float32) * 2 - 1) * 2**-4, dtype)
    ours = (x.ours, y.ours, a.ours)

    def check(got: np.ndarray) -> str | None:
        rows = np.unique(np.linspace(0, m - 1, 24).astype(int))
        columns = np.unique(np.linspace(0, n - 1, 24).astype(int))
        vx, vy = x.values().astype(np.float64), y.values().astype(np.float64)
        for take_rows, take_columns in ((rows, slice(None)), (slice(None), columns)):
            before = start.values()[take_rows][:, take_columns].astype(np.float64)
            want = before + vx[take_rows][:, None] * vy[take_columns]
            wrong = disagreement(got[take_rows][:, take_columns], want, 2 * EPS[dtype] * float(np.abs(want).max()))
            if wrong:
                return wrong
        if np.array_equal(got, start.values()):
            return "nothing was added"
        return None

    def reset() -> None:
        a.set(start.storage)

    contenders = {
        OURS: Contender(lambda: numbaprims.ger(ours[0], ours[1], a=ours[2], out=ours[2]), a.values, reset),
        **_rivals(a, x, y, reset),
    }
    return Workload(
        contenders,
        check,
        flops=2.0 * m * n,
        bytes=float(2 * a.storage.nbytes + x.storage.nbytes + y.storage.nbytes),
        bound="update",
        solver=lambda: chosen_solver(numbaprims.ger, ours[0], ours[1], a=ours[2], out=ours[2]),
    )


def _rivals(a: Operand, x: Operand, y: Operand, reset: Callable[[], None]) -> dict[str, Contender]:
    found: dict[str, Contender] = {}
    if a.dtype in ("f32", "f64") and on_host():
        matrix, column, row = a.storage, x.storage[:, None], y.storage
        product = np.empty_like(matrix)

        def numpy_call() -> None:
            np.multiply(column, row, out=product)
            np.add(matrix, product, out=matrix)

        found["numpy"] = Contender(numpy_call, a.values, reset)
        numexpr = rivals.load_rival("numexpr")
        if numexpr is not None:
            found["numexpr"] = Contender(
                lambda: numexpr.evaluate(
                    "a + x*y", {"a": matrix, "x": column, "y": row}, out=matrix, casting="same_kind"
                ),
                a.values,
                reset,
            )
        if rivals.load_rival("scipy") is not None:
            from scipy.linalg import blas

            update = blas.sger if a.dtype == "f32" else blas.dger
            stored, vx, vy = matrix.T, x.storage, y.storage
            # Fortran order, as BLAS wants it: A^T = y x^T + A^T, in place.
            found["scipy"] = Contender(lambda: update(1.0, vy, vx, a=stored, overwrite_a=1), a.values, reset)
    torch = rivals.load_rival("torch")
    if torch is not None:
        t_a, t_x, t_y = a.torch, x.torch, y.torch
        found["torch"] = Contender(lambda: t_a.addr_(t_x, t_y), a.values, reset)
    cupy = None if on_host() or a.dtype == "bf16" else rivals.load_rival("cupy")
    if cupy is not None:
        c_a, c_x, c_y = a.cupy, x.cupy, y.cupy
        add = cupy.ElementwiseKernel("T x, T y", "T a", "a += x * y", "numbaprims_rival_ger")
        found["cupy"] = Contender(lambda: add(c_x[:, None], c_y, c_a), a.values, reset)
    return found
