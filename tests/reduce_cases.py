"""Problems of the reduce engine for tests: definitions in float64, operands, arrays with guards, runs of a solver."""

import itertools
from typing import Any, NamedTuple

import numpy as np
from helpers import assert_near

from numbaprims.cpu import target
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.reduce.kernels import make_kernel
from numbaprims.cpu.reduce.solvers import SOLVERS
from numbaprims.cpu.reduce.variant import Variant
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.quantized import REDUCED
from numbaprims.formulas.reductions import FINISHED, FORMULAS, PREPARED, named
from numbaprims.ops._reduction_problem import Operand, Reduction, collapse, layout_of
from numbaprims.reference.activation import activation_backward
from numbaprims.reference.convert import from_float64, to_float64

NAMES = tuple(solver.name for solver in SOLVERS)
NUMBERS = {"eps": 1e-5, "momentum": 0.1, "smoothing": 0.1, "ignore": -100.0}
GUARD = 0xA5
#: Those whose results are floats; integers: test_quantize.py; parts of others: test_batch_norm.py.
FLOATING = tuple(
    name for name in FORMULAS if name not in (*REDUCED, *itertools.chain(*PREPARED.values(), *FINISHED.values()))
)


class Problem(Reduction):
    stem = "reduce"


def kernel_of(text: str) -> Any:
    """The kernel of a variant's text, for another process."""
    return make_kernel(Variant.parse(text))


# ---------------------------------------------------------------- definitions, of operands that broadcast


def softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


def exp_sum(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    top = x.max(axes, keepdims=True)
    return top, np.exp(x - top).sum(axes, keepdims=True)


def log_sum_exp(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    top, total = exp_sum(x, axes)
    return top + np.log(total)


def classes(shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """The index along the reduced axes."""
    sizes = tuple(shape[axis] if axis in axes else 1 for axis in range(len(shape)))
    return np.arange(np.prod(sizes)).reshape(sizes)


def defined(name: str, a: dict[str, Any], axes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The results of a formula."""
    n = int(np.prod([shape[axis] for axis in axes]))

    def total(x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, shape).sum(axes, keepdims=True)

    if 0 in shape:
        return (total(a["x"]),) if name == "total" else (a["x"],)
    if name in ("softmax", "log_softmax"):
        return (softmax(a["x"], axes) if name == "softmax" else a["x"] - log_sum_exp(a["x"], axes),)
    if name == "softmax_backward":
        return (a["y"] * (a["dy"] - total(a["dy"] * a["y"])),)
    if name == "hardmax":
        place = classes(shape, axes)
        top = a["x"] == a["x"].max(axes, keepdims=True)
        return ((place == np.where(top, place, n).min(axes, keepdims=True)).astype(np.float64),)
    if name == "log_softmax_backward":
        return (a["dy"] - np.exp(a["y"]) * total(a["dy"]),)
    if name == "total":
        return (total(a["x"]),)
    if name == "prelu_weight_gradient":
        return (total(np.where(a["x"] > 0, 0.0, a["x"] * a["dy"])),)
    if name == "weighted_mean":
        return (total(a["x"]) / total(a["count"]),)
    if name == "weighted_mean_backward":
        return (a["dy"] / total(a["count"]),)
    if name in ("batch_norm", "batch_norm_along"):
        return ((a["x"] - a["mean"]) / np.sqrt(a["var"] + a["eps"]) * a["scale"] + a["shift"],)
    if name.startswith("batch_norm_train"):
        mean, var = a["x"].mean(axes, keepdims=True), a["x"].var(axes, keepdims=True)
        inv = 1 / np.sqrt(var + a["eps"])
        y = (a["x"] - mean) * inv * a["scale"] + a["shift"]
        if name == "batch_norm_train":
            return y, mean, inv
        stays = 1 - a["momentum"]
        running = a["running_mean"] * stays + mean * a["momentum"]
        return y, mean, inv, running, a["running_var"] * stays + var * n / (n - 1) * a["momentum"]
    name, _, activation = name.partition("+")
    if name == "batch_norm_backward":
        h = (a["x"] - a["saved_mean"]) * a["saved_inv_std"]
        if activation:
            y = h * a["scale"] + a["shift"]
            a = {**a, "dy": activation_backward(np.broadcast_to(a["dy"], shape), y, activation)}
        dscale, dshift = total(a["dy"] * h), total(a["dy"])
        return a["scale"] * a["saved_inv_std"] * (a["dy"] - dshift / n - h * dscale / n), dscale, dshift
    if name == "batch_norm_backward_fixed":
        inv = 1 / np.sqrt(a["var"] + a["eps"])
        return a["dy"] * a["scale"] * inv, total(a["dy"] * (a["x"] - a["mean"]) * inv), total(a["dy"])
    weight = a.get("weight", np.ones((1,) * len(shape)))
    if "soft" in name:
        q = (a["target"] * (1 - a["smoothing"]) + a["smoothing"] / n) * weight
        if name.endswith("backward"):
            return (a["g"] * (np.exp(a["x"] - a["top"]) / a["sum"] * total(q) - q),)
        lse = log_sum_exp(a["x"], axes)
        return -total(q * (a["x"] - lse)), np.ones_like(lse), *exp_sum(a["x"], axes)
    counts = a["target"] != a["ignore"]
    hit = (classes(shape, axes) == a["target"]) & counts
    if name.startswith("nll_loss"):
        if name.endswith("backward"):
            return (np.where(hit, -a["g"] * weight, 0.0),)
        return -total(np.where(hit, a["x"] * weight, 0.0)), total(hit * weight)
    s = a["smoothing"] if name.endswith("backward") or "smooth" in name else 0.0
    q = (hit * (1 - s) + s / n) * weight * counts
    if name.endswith("backward"):
        return (a["g"] * (np.exp(a["x"] - a["top"]) / a["sum"] * total(q) - q),)
    lse = log_sum_exp(a["x"], axes)
    return -total(np.where(q == 0, 0.0, q * (a["x"] - lse))), total(hit * weight), *exp_sum(a["x"], axes)


# ---------------------------------------------------------------- operands


def drawn(name: str, shape: tuple[int, ...], axes: tuple[int, ...], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Operands of a formula as float64; of one value a row, the reduced axes have length 1."""
    one = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    along = tuple(size if axis in axes else 1 for axis, size in enumerate(shape))
    x = rng.normal(0, 3, shape)
    if not x.size:
        return {"x": x}
    given: dict[str, np.ndarray] = {"x": x, "dy": rng.normal(0, 1, shape), "y": softmax(x, axes)}
    if name == "log_softmax_backward":
        given["y"] = np.log(given["y"])
    kinds, shapes = dict(named(name).operands), {"one": one, "along": along, "row": shape}
    for key in ("shift", "mean", "saved_mean", "running_mean", "g"):
        given[key] = rng.normal(0, 1, shapes[kinds.get(key, "one")])
    for key in ("scale", "var", "saved_inv_std", "running_var", "count"):
        given[key] = rng.uniform(0.5, 2, shapes[kinds.get(key, "one")])
    if kinds.get("dy") == "one":
        given["dy"] = rng.normal(0, 1, one)
    given["weight"] = rng.uniform(0.5, 2, along)
    given["top"], given["sum"] = exp_sum(x, axes)
    n = int(np.prod(along))
    target = rng.integers(0, n, one)
    target.flat[::3] = -100
    target.flat[-1] = n - 1
    given["target"] = softmax(rng.normal(0, 1, shape), axes) if "soft" in name.split("_") else target
    return {key: given[key] for key, kind in named(name).operands if kind != "number"}


def dtype_of(name: str, kind: str, dtype: str) -> str:
    """Values of rows have 32 bits at least."""
    if name == "target" and kind == "one":
        return "i64"
    return DTYPES[dtype].accumulate if kind == "one" else dtype


class Guarded(NamedTuple):
    """An array between bytes that nobody may write."""

    base: np.ndarray
    array: np.ndarray

    def blank(self) -> np.generic:
        """An element of guard bytes."""
        return np.frombuffer(bytes([GUARD]) * self.array.itemsize, self.array.dtype)[0]

    def untouched(self) -> bool:
        """Whether only the array's own elements have changed."""
        held = self.array.copy(order="K")
        self.array[...] = self.blank()
        same = bool((self.base == GUARD).all())
        self.array[...] = held
        return same


def guarded(shape: tuple[int, ...], dtype: str, layout: str, offset: int = 3) -> Guarded:
    """`layout`: "C"; "last" (the second axis innermost); "gaps" (behind each innermost run); "apart" (every third)."""
    storage = DTYPES[dtype].storage
    order = list(range(len(shape)))
    if layout == "last":
        order.append(order.pop(1))
    step, strides = (3 if layout == "apart" else 1), [0] * len(shape)
    for at, axis in enumerate(reversed(order)):
        strides[axis] = step * storage.itemsize
        step = step * shape[axis] + (5 if layout == "gaps" and at == 0 else 0)
    base = np.full((step + 64 + 2 * offset) * storage.itemsize, GUARD, np.uint8)
    start = -base.__array_interface__["data"][0] % 64 + offset * storage.itemsize
    return Guarded(base, np.ndarray(shape, storage, base.data, start, strides))


class Case(NamedTuple):
    """A problem with its arrays and its expected results."""

    problem: Problem
    arrays: list[Guarded]
    numbers: list[float]
    wanted: tuple[np.ndarray, ...]

    def results(self) -> list[tuple[np.ndarray, str]]:
        return [(g.array, o.dtype) for g, o in zip(self.arrays, self.problem.arrays, strict=True)][: len(self.wanted)]


def case(
    name: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, layout: str = "C", seed: int = 0,
    given: dict[str, np.ndarray] | None = None, offset: int = 3, **numbers: float,
) -> Case:  # fmt: skip
    """A problem over drawn operands, rounded to the dtype first."""
    formula = named(name)
    values = drawn(name, shape, axes, np.random.default_rng(seed)) | (given or {})
    values = {key: value for key, value in values.items() if key in dict(formula.operands)}
    one = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    kinds = [*formula.results, *((key, kind) for key, kind in formula.operands if kind != "number")]
    operands = [Operand(key, kind, dtype_of(key, kind, dtype)) for key, kind in kinds]
    arrays, exact = [], {}
    for at, operand in enumerate(operands):
        result = at < len(formula.results)
        size = values[operand.name].shape if not result else shape if operand.kind == "row" else one
        made = guarded(size, operand.dtype, layout if operand.kind == "row" else "C", offset)
        if not result:
            made.array[...] = from_float64(values[operand.name], operand.dtype)
            exact[operand.name] = to_float64(made.array, operand.dtype)
        arrays.append(made)
    given_numbers = {key: {**NUMBERS, **numbers}[key] for key, kind in formula.operands if kind == "number"}
    with np.errstate(all="ignore"):
        wanted = defined(name, exact | given_numbers, axes, shape)
    lead = next((at for at, o in enumerate(operands[len(wanted) :], len(wanted)) if o.kind == "row"), 0)
    steps = [[s // g.array.itemsize for s in np.broadcast_to(g.array, shape).strides] for g in arrays]
    kept, reduced, strides = collapse(shape, axes, steps, lead)
    words = [f"{o.name}:{o.kind}:{o.dtype}" for o in operands]
    problem = Problem(
        formula=name, dtype=dtype, kept=kept, reduced=reduced, layout=layout_of(kept, reduced, operands, strides),
        results=tuple(words[: len(wanted)]), inputs=tuple(words[len(wanted) :]), strides=strides,
    )  # fmt: skip
    wanted = tuple(np.broadcast_to(w, g.array.shape) for w, g in zip(wanted, arrays, strict=False))
    return Case(problem, arrays, list(given_numbers.values()), wanted)


# ---------------------------------------------------------------- runs


def solver(name: str) -> Any:
    return SOLVERS[NAMES.index(name)]


def able(problem: Problem) -> list[str]:
    return [each.name for each in SOLVERS if each.why_not(problem, target.current()) is None]


def launched(name: str, of: Case, arrays: list[np.ndarray] | None = None, config: Any = None) -> None:
    """Run a solver on a case's arrays, or on others."""
    chosen, machine = solver(name), target.current()
    if config is None:
        config = next(iter(chosen.configs(of.problem, machine)))
    launch = make_launcher(chosen.program(of.problem, machine, config))
    arrays = arrays or [each.array for each in of.arrays]
    first, more = [*arrays[:7], *[None] * (7 - len(arrays))], arrays[7:]
    floats = {f"f{at}": value for at, value in enumerate(of.numbers)}
    launch(*first, **floats, **({"more": more} if more else {}))


def check(
    of: Case, solvers: list[str] | None = None, units: float = 64.0, results: int = 9, configs: int | None = None
) -> None:
    """Each solver that can, or those that are named; the first results and configurations.  Means are as exact as
    elements are large."""
    for name in solvers or able(of.problem):
        for config in [*solver(name).configs(of.problem, target.current())][:configs]:
            for guard in of.arrays[: len(of.wanted)]:
                guard.array[...] = guard.blank()
            launched(name, of, config=config)
            for k, ((have, dtype), want) in enumerate(zip(of.results()[:results], of.wanted, strict=False)):
                finite = np.abs(np.where(np.isfinite(want), want, 0.0))
                least = 1.0 if "mean" in of.problem.arrays[k].name else 0.0
                try:
                    assert_near(have, want, dtype, units, max(least, finite.max()))
                except AssertionError as error:
                    raise AssertionError(f"{name} {config} {of.problem}: {error}") from None
            assert all(guard.untouched() for guard in of.arrays[: len(of.wanted)]), f"{name} {config}: {of.problem}"
