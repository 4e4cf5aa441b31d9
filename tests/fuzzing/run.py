"""One drawn call, made in every way: by each solver and other configs of it, chosen freely, by a plan, in @njit."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from helpers import in_library

import numbaprims
from fuzzing.calls import Call, Draw, Operand
from fuzzing.convolution import conv
from fuzzing.dense import activation, gemm, gemv, ger
from fuzzing.formulas import (
    attention,
    batch_norm,
    ctc,
    dropout,
    gather,
    norm,
    pooling,
    quantize,
    reduce,
    resize,
    rope,
    scan,
    softmax,
    topk,
)  # fmt: skip
from fuzzing.guard import Guarded, memory
from fuzzing.layers import lrn, stack, tensor
from fuzzing.recurrent import rnn
from numbaprims import settings, workspace
from numbaprims.dispatch import choose, registry
from numbaprims.stems import ENGINES
from numbaprims.tuning import records

#: Every stem of the package -> what draws a call of it.
DRAWS: dict[str, Callable[[Draw], Call]] = {
    "gemm": gemm, "gemv": gemv, "ger": ger, "activation": activation, "conv": conv, "softmax": softmax,
    "reduce": reduce, "batch_norm": batch_norm, "norm": norm, "pooling": pooling, "rnn": rnn, "attention": attention,
    "random": dropout, "ctc": ctc, "resize": resize, "gather": gather, "quantize": quantize, "rope": rope, "scan": scan,
    "topk": topk, "stack": stack, "lrn": lrn, "tensor": tensor,
}  # fmt: skip


def draw(stem: str, seed: int, index: int) -> tuple[Call, Draw]:
    """Case `index` of a stem: the same for the same numbers."""
    target = registry.target("cpu")
    source = Draw([seed, sorted(DRAWS).index(stem), index], target.vector_bytes)
    return DRAWS[stem](source), source


class Placed:
    """A call's arrays between guard pages, each at the end or the beginning of its own."""

    def __init__(self, call: Call, source: Draw) -> None:
        self._all: list[Guarded] = []

        def place(value: Any, writeable: bool = False) -> Any:
            if not isinstance(value, Operand):
                return value
            guarded = Guarded(value.storage, source.chance(2), writeable=writeable)
            self._all.append(guarded)
            return in_library(guarded.array, value.dtype) if value.dtype not in ("i32", "i64") else guarded.array

        self.args = tuple(map(place, call.args))
        self.kwargs = {name: place(value) for name, value in call.kwargs.items()}
        self.out = place(call.out, writeable=True)
        self.storage = self._all[-1].array
        if call.in_place:
            self.kwargs[call.in_place] = self.out

    def strays(self) -> int:
        return sum(guarded.strays() for guarded in self._all)


def ways(call: Call, source: Draw) -> Iterator[tuple[str, Callable[[Placed], Any], str]]:
    """(name, what makes the call, the solver whose rounding errors it has)."""
    placed = Placed(call, source)
    stem = call.stem
    function = getattr(numbaprims, call.function)
    writes = "out" in inspect.signature(function).parameters
    try:
        args, kwargs = call.given(placed.args, placed.kwargs)
        found = numbaprims.explain(call.function, *args, **kwargs, **({"out": placed.out} if writes else {}))
    except ValueError as error:
        if "poses no problem" not in str(error):
            raise
        found = None
    chosen = "" if found is None else found.chosen.solver

    def make(placed: Placed) -> Any:
        args, kwargs = call.given(placed.args, placed.kwargs)
        if writes:
            return function(*args, **kwargs, out=placed.out)
        result = function(*args, **kwargs)
        placed.out[...] = result[0]
        return result

    yield "auto", make, chosen
    yield "auto again", make, chosen
    for row in () if found is None or call.function == "concat" else found:  # that is explained of its first part
        if row.refusal is not None:
            continue
        yield row.solver, functools.partial(_forced, stem, row.solver, make), row.solver
        other = _another_config(found.problem, row.solver, source)
        if other is not None:
            text = ",".join(f"{name}={value}" for name, value in other[1].items())
            yield f"{row.solver}[{text}]", functools.partial(_tried, found.problem, other, make), row.solver
        if call.plan is not None and stem == "conv":
            plan = functools.partial(_planned, call, _forced_plan(row.solver))
            yield f"plan of {row.solver}", plan, row.solver
    if call.plan is not None and stem != "conv":
        yield "plan", functools.partial(_planned, call, {}), chosen
    if _compiles(call):
        yield "@njit", functools.partial(_in_njit, call), chosen


def _forced(stem: str, solver: str, make: Any, placed: Placed) -> Any:
    with numbaprims.config(algorithm={stem: solver}):
        return make(placed)


def _another_config(problem: Any, name: str, source: Draw) -> Any:
    """One solver's config other than its first, for one call in four."""
    if not source.chance(4):
        return None
    device = settings.current().device or "cpu"
    device = "cpu" if device == "auto" else device
    solver = next(solver for solver in registry.solvers(problem.stem, device) if solver.name == name)
    configs = list(itertools.islice(solver.configs(problem, registry.target(device)), 1, 9))
    return (solver, source.one(configs)) if configs else None


def _tried(problem: Any, tried: Any, make: Any, placed: Placed) -> Any:
    text = records.dump(records.fields_of(problem))
    with settings.trial(choose.Trial(problem.stem, text, *tried)):
        return make(placed)


def _forced_plan(solver: str) -> dict[str, Any]:
    return {"algorithm": solver}


def _planned(call: Call, more: dict[str, Any], placed: Placed) -> Any:
    assert call.plan is not None
    try:
        plan, args = call.plan(placed.args, {**placed.kwargs, **more})
        return plan(*args, out=placed.out)
    except ValueError as error:  # of a plan with prepared weights alone
        if "was asked for, but" in str(error):
            return Refused
        raise


class Refused:
    """What a way gives that refuses the call in words."""


# ---------------------------------------------------------------- inside @njit


def _compiles(call: Call) -> bool:
    """float32 and float64, which Numba has, and for a kernel's sake two dimensions only."""
    operands = [x for x in (*call.args, *call.kwargs.values(), call.out) if isinstance(x, Operand)]
    plain = all(x.dtype in ("f32", "f64") and x.layout != "unaligned" and x.storage.ndim in (1, 2) for x in operands)
    return (
        plain
        and call.stem not in ("conv", "rnn", "gather", "topk", *ENGINES)  # theirs: test_jitted_*.py, or none
        and not call.in_place
        and call.out.storage.ndim == (1 if call.stem == "gemv" else 2)
    )


def _in_njit(call: Call, placed: Placed) -> Any:
    values, words, kinds = [], [], []
    for at, (name, value) in enumerate(
        [*((None, x) for x in placed.args), *placed.kwargs.items(), ("out", placed.out)]
    ):
        runtime = isinstance(value, (np.ndarray, float, bool)) or (isinstance(value, int) and name != "axis")
        word = f"v{at}" if runtime else repr(value)
        words.append(word if name is None else f"{name}={word}")
        if runtime:
            values.append(value)
            kinds.append((f"v{at}", _kind(value, name)))
    return _compiled(call.function, tuple(words), tuple(kinds))(*values)


def _kind(value: Any, name: str | None) -> tuple[str, int]:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{'' if name == 'out' else ' const'}", value.ndim
    return type(value).__name__, -1


@functools.cache
def _compiled(function: str, words: tuple[str, ...], kinds: tuple[tuple[str, tuple[str, int]], ...]) -> Any:
    import numba
    from numba import types

    import numbaprims.jitted

    numbaprims.jitted.init()
    signature = []
    for _, (kind, ndim) in kinds:
        if ndim < 0:
            signature.append({"float": types.float64, "bool": types.boolean, "int": types.int64}[kind])
        else:
            name, _, const = kind.partition(" ")
            signature.append(types.Array(getattr(types, name), ndim, "A", readonly=bool(const)))
    names = {"nb": numbaprims}
    parameters = ", ".join(name for name, _ in kinds)
    exec(f"def f({parameters}): return nb.{function}({', '.join(words)})", names)
    return numba.njit([tuple(signature)])(names["f"])


# ---------------------------------------------------------------- judging


def guard_workspace() -> None:
    """Let scratch memory end at a guard page and hold NaN, for the life of the process; each way takes it anew."""
    workspace._allocate = lambda nbytes: memory(nbytes, at_end=True, align=64)[0]  # what aligned loads need


def check(call: Call, source: Draw, note: Callable[[str], None], only: str | None = None) -> Iterator[tuple[str, str]]:
    """Make the call in all ways (or `only` one), each noted before it is tried; yield (way, fault)."""
    bits: np.ndarray | None = None
    note("explain")
    try:
        every = list(ways(call, source))
    except Exception as error:
        yield "explain", f"{type(error).__name__}: {error}"
        return
    for name, make, solver in every:
        placed = Placed(call, source)
        threads = source.one((1, 2, 3))
        if only is not None and name != only:
            continue
        note(name)
        workspace.release()
        try:
            with numbaprims.config(threads=threads):
                result = make(placed)
            if result is Refused:
                continue
            call.check(solver, placed.storage)
            strays = placed.strays()
            assert not strays, f"{strays} bytes beside the arrays' elements were written"
            if call.more is not None:
                call.more(result)
            if name == "auto":
                bits = placed.storage.copy()
            elif name in ("auto again", "@njit") and bits is not None:
                same = np.ascontiguousarray(placed.storage).tobytes() == np.ascontiguousarray(bits).tobytes()
                assert same, "other bits than those of the first call"
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"
