"""Functions of elements of arrays that broadcast, and copies in another order, against torch and NumPy."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import DTYPES, Case, Contender
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops.tensor import BINARY
from numbaprims.reference import tensor as reference

_NUMPY = reference.NAMES
_TORCH = {
    "sub": "subtract", "mul": "multiply", "div": "divide", "min": "minimum", "max": "maximum", "mod": "remainder",
    "equal": "eq", "floor_div": "floor_divide",
}  # fmt: skip
_LIES = ("", "-row-along", "-row-one", "-along-row", "-one-row", "-along-one", "-one-along", "-turned")
#: Tests of numbers, by NumPy's and torch's names -> what `isinf` looks for.
_TESTS: dict[str, dict[str, bool]] = {
    "isnan": {}, "isinf": {}, "isposinf": {"detect_negative": False}, "isneginf": {"detect_positive": False},
}  # fmt: skip
_OF_ONE = ("scale", "cast", *_TESTS)
#: Copies, by the axes of matrices and of images (n, c, h, w as x has them): NCHW to NHWC, back, and the rows of
#: attention's heads side by side. A concatenation puts two arrays one behind the other along axis 1.
_AXES: dict[str, tuple[tuple[int, ...] | None, tuple[int, ...]]] = {
    "transform": ((1, 0), (0, 2, 3, 1)),
    "transform-back": (None, (0, 3, 1, 2)),
    "transform-heads": (None, (0, 2, 1, 3)),
}
MOVES = (*_AXES, "concat")
#: What is done, and how two operands broadcast or the first one lies.
KINDS = (
    *(op + lies for op in BINARY for lies in _LIES),
    *(op + lies for op in ("where", *_OF_ONE) for lies in ("", "-turned")), "fill", *MOVES,
)  # fmt: skip
MATRIX, IMAGE = ("m", "n"), ("n", "c", "h", "w")


def _switches(options: Namespace, kind: str, row: Mapping[str, Any]) -> shared.Switches | None:
    """No case where a kind has no such shape."""
    image = "c" in row
    return None if (kind not in MOVES if image else kind in _AXES and _AXES[kind][0] is None) else ()


def _sizes(case: Case) -> tuple[int, ...]:
    return tuple(size for _, size in case.sizes)


def _axes(case: Case) -> tuple[int, ...] | None:
    """The order of x's axes; None of what is no such copy."""
    matrix, image = _AXES.get(str(case["kind"]), (None, None))
    return matrix if len(case.sizes) == 2 else image


def _moved(case: Case, draw: Draw) -> Ours:
    """A copy in another order, or of two arrays one behind the other."""
    sizes, axes, dtype = _sizes(case), _axes(case), DTYPES[case.dtype]
    reads = {name: draw(sizes) for name in ("x" if axes else "ab")}
    given = [each.ours for each in reads.values()]
    if axes:
        out = Operand.empty(tuple(sizes[axis] for axis in axes), dtype)
        call, posed = partial(numbaprims.transform, given[0], axes, out=out.ours), None
    else:
        out = Operand.empty((sizes[0], 2 * sizes[1], *sizes[2:]), dtype)
        call = partial(numbaprims.concat, given, 1, out=out.ours)
        # a phase for each part; what moves is as much as a copy of the whole
        posed = partial(numbaprims.transform, out.ours, range(len(sizes)))
    take = shared.spread(out.storage.shape[0])

    def definition(values: list[np.ndarray]) -> Any:
        return shared.exact((values[0].transpose(axes) if axes else np.concatenate(values, 1))[take])

    return Ours(call, reads, definition, lambda values: values[take], 1, out, posed=posed)


def _parts(case: Case) -> tuple[str, list[str]]:
    """The operation, and the kinds of its operands."""
    op, _, lies = str(case["kind"]).partition("-")
    count = 1 if op in _OF_ONE else {"where": 3, "fill": 0}.get(op, 2)
    return op, lies.split("-") if lies not in ("", "turned") else ["row"] * count


def ours(case: Case, draw: Draw) -> Ours:
    """Our call, into an array of its own."""
    if case["kind"] in MOVES:
        return _moved(case, draw)
    (op, kinds), m, n = _parts(case), case["m"], case["n"]
    shapes = {"row": (m, n), "along": (n,), "one": (m, 1)}
    reads = {name: draw(shapes[kind], 0.5, 2.0) for name, kind in zip("abc", kinds, strict=False)}
    if case["kind"].endswith("-turned"):
        reads["a"] = draw((n, m), 0.5, 2.0)
    given: list[Any] = [each.ours for each in reads.values()]
    if case["kind"].endswith("-turned"):
        given[0] = given[0].T
    take = shared.spread(m)
    truth = op in _TESTS or (op in BINARY and bool(BINARY[op].gives))
    out = None if truth else Operand.empty((m, n), "f16" if op == "cast" else DTYPES[case.dtype])
    own: dict[str, Any] = {} if out is None else {"out": out.ours}
    call: Callable[[], Any] = {
        **{name: lambda: partial(numbaprims.isinf, *given, **_TESTS[op]) for name in _TESTS},
        "isnan": lambda: partial(numbaprims.isnan, *given),
        "where": lambda: partial(numbaprims.where, *given, **own),
        "scale": lambda: partial(numbaprims.scale, given[0], 0.75, **own),
        "cast": lambda: partial(numbaprims.cast, given[0], "float16", **own),
        "fill": lambda: partial(numbaprims.fill, own["out"], 0.75),
    }.get(op, lambda: partial(numbaprims.binary, given[0], given[1], op, **own))()

    def definition(values: list[np.ndarray]) -> Any:
        a, *more = [shared.exact(value) for value in values] or [np.empty((m, n))]
        a = a.T if case["kind"].endswith("-turned") else a
        found = {
            **{name: lambda: getattr(np, op)(a) for name in _TESTS},
            "where": lambda: np.where(a != 0, *more), "scale": lambda: a * 0.75, "cast": lambda: a,
            "fill": lambda: np.full((m, n), 0.75),
        }.get(op, lambda: reference.binary(a, more[0], None, op, 1.0, 1.0, 0.0))()  # fmt: skip
        return np.broadcast_to(found, (m, n))[take]

    # a cast rounds to fewer digits
    return Ours(call, reads, definition, lambda values: values[take], 1 << 26 if op == "cast" else 1, out)


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    op, given = _parts(case)[0], [each.torch for each in p.reads.values()]
    if case["kind"].endswith("-turned"):
        given[0] = given[0].T
    if op == "concat":
        out = shared.nan_like(torch, p.out.torch)  # type: ignore[union-attr]
        return {"torch": shared.written(torch, partial(torch.cat, given, 1, out=out), out)}
    if axes := _axes(case):
        out, x = shared.nan_like(torch, p.out.torch), given[0].permute(axes)  # type: ignore[union-attr]
        return {"torch": shared.fastest({
            "copy_": shared.written(torch, partial(out.copy_, x), out),
            "contiguous": shared.returned(torch, x.contiguous),
        })}  # fmt: skip
    if p.out is None:
        return {"torch": shared.returned(torch, partial(getattr(torch, _TORCH.get(op, op)), *given))}
    out = shared.nan_like(torch, p.out.torch)
    call: Callable[[], Any] = {
        "where": lambda: partial(torch.where, given[0] != 0, *given[1:], out=out),
        "scale": lambda: partial(torch.mul, *given, 0.75, out=out),
        "cast": lambda: partial(out.copy_, *given),
        "fill": lambda: partial(out.fill_, 0.75),
    }.get(op, lambda: partial(getattr(torch, _TORCH.get(op, op)), *given, out=out))()
    return {"torch": shared.written(torch, call, out)}


def _numpy(case: Case, p: Ours) -> dict[str, Contender]:
    op = _parts(case)[0]
    given: list[Any] = [each.storage for each in p.reads.values()]
    if case["kind"].endswith("-turned"):
        given[0] = given[0].T
    y = np.empty((case["m"], case["n"]) if p.out is None else p.out.storage.shape,
                 bool if p.out is None else p.out.storage.dtype)  # fmt: skip
    if op == "concat":
        return {"numpy": Contender(partial(np.concatenate, given, 1, out=y), lambda: y)}
    if axes := _axes(case):
        return {"numpy": Contender(partial(np.copyto, y, given[0].transpose(axes)), lambda: y)}
    condition = given[0] != 0 if op == "where" else None

    def where() -> None:
        y[...] = np.where(np.asarray(condition), given[1], given[2])

    def cast() -> None:
        np.copyto(y, given[0], casting="unsafe")

    call: Any = {
        "where": lambda: where,
        "scale": lambda: partial(np.multiply, *given, y.dtype.type(0.75), out=y),
        "cast": lambda: cast,
        "fill": lambda: partial(y.fill, 0.75),
    }.get(op, lambda: partial(getattr(np, _NUMPY.get(op, op)), *given, out=y))()
    return {"numpy": Contender(call, lambda: y)}


cases = shared.cases("tensor", [MATRIX, IMAGE], KINDS, _switches)
memory = shared.memory(lambda c: (12 if c["kind"] == "concat" else 6) * math.prod(_sizes(c)))
workload = shared.workload(ours, torch=_torch, numpy=_numpy)
