"""ger, the rank-1 update in place, against NumPy, torch, SciPy's BLAS and numexpr."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial

import numpy as np

import numbaprims
from numbaprims.bench import rivals
from numbaprims.bench.cases import (
    EPS,
    Case,
    Contender,
    Workload,
    disagreement,
    parse_shape,
    select,
)
from numbaprims.bench.operands import Operand, on_host
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours

DIMENSIONS = ("m", "n")


def cases(options: Namespace) -> list[Case]:
    """The cases that the options of the command select."""
    return [
        Case("ger", name, sizes, dtype)
        for dtype in options.dtype
        for name, suite in select("ger", options.shapes, DIMENSIONS)
        for sizes in ([suite] if name == "given" else [parse_shape(text, DIMENSIONS) for text in suite["nn"]])
    ]


def ours(case: Case, draw: Draw) -> Ours:
    """A = x y^T + A in place, as BLAS and training do it."""
    m, n = case["m"], case["n"]
    start = draw((m, n))
    a = Operand(start.storage.copy(), start.dtype)
    # Small: thousands of updates of the same matrix stay far from overflow.
    x, y = draw((m,), -(2.0**-10), 2.0**-10), draw((n,), -(2.0**-4), 2.0**-4)

    def check(got: np.ndarray) -> str | None:
        rows, columns = shared.spread(m, 24), shared.spread(n, 24)
        vx, vy = shared.exact(x.values()), shared.exact(y.values())
        for take_rows, take_columns in ((rows, slice(None)), (slice(None), columns)):
            before = shared.exact(start.values()[take_rows][:, take_columns])
            want = before + vx[take_rows][:, None] * vy[take_columns]
            wrong = disagreement(got[take_rows][:, take_columns], want, 2 * EPS[a.dtype] * float(np.abs(want).max()))
            if wrong:
                return wrong
        return "nothing was added" if np.array_equal(got, start.values()) else None

    call = partial(numbaprims.ger, x.ours, y.ours, a=a.ours, out=a.ours)
    return Ours(
        call, {"a": a, "x": x, "y": y}, out=a, checked=check, reset=lambda: a.set(start.storage), bound="update"
    )


def workload(case: Case, threads: int) -> Workload:
    """Our call and every rival."""
    p = ours(case, shared.drawn(case))
    assert p.reset is not None
    return p.workload(case, _rivals(p.reads["a"], p.reads["x"], p.reads["y"], p.reset))


memory = shared.memory(lambda c: 2 * c["m"] * c["n"])  # with the copy for the check


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
