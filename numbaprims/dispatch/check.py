"""Results against the float64 definition: the one table of tolerances, which `find`, `tune` and the tests share.

A rounding error is bounded at every element by max|.| (K eps_acc + eps_out), where K counts the roundings behind one
element, and over all of them, as errors of random signs are, by the same with sqrt(K). The second finds what the first
has room for: with K = 4608 a window that misses a row of its taps.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np

from numbaprims import arrays, settings
from numbaprims.dispatch import examples
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.solver import Solver
from numbaprims.reference.convert import from_float64, to_float64
from numbaprims.tuning import records


class Precision(NamedTuple):
    """eps of the stored result and of the type in which sums are kept, and the smallest stored number."""

    out: float
    accumulate: float
    smallest: float


PRECISION = {
    "f64": Precision(2.0**-52, 2.0**-52, 2.0**-1074),
    "f32": Precision(2.0**-23, 2.0**-23, 2.0**-149),
    "f16": Precision(2.0**-10, 2.0**-23, 2.0**-24),
    "bf16": Precision(2.0**-7, 2.0**-23, 2.0**-133),
}
TF32 = 2.0**-10
"""eps of the operands where the settings let a GPU round them to tfloat32."""
JUMPS = frozenset({
    "round", "threshold", "log", "sqrt", "power", "power_2", "log2", "log10", "log1p", "reciprocal", "rsqrt", "sign",
    "floor", "ceil", "tan", "asin", "acos", "acosh", "atanh", "shrink",
})  # fmt: skip
"""Activations that turn a rounding of the sum before them into any difference at all, at a point or two."""
SPARED = 1e-3
"""The part of a result, after such an activation, that may differ."""


def bound(dtype: str, k: int, magnitude: Any, coarse: float = 0.0) -> Any:
    """How far an element may lie from its definition: magnitude (k eps_acc + eps_out) + eps_out."""
    eps = PRECISION[dtype]
    return magnitude * (k * eps.accumulate + max(eps.out, coarse)) + eps.out


def complaint(
    have: np.ndarray, want: np.ndarray, dtype: str, k: int, max_abs: Any = None, *, coarse: float = 0.0, spared: int = 0
) -> str | None:
    """Why a result, as float64, is not what the definition gives, rounded `k` times; None where it is.

    `max_abs` is the largest magnitude that rounding errors are relative to: default the largest |want|; a number where
    partial results exceed it; an array for a bound relative to each element. Integers may be off by `k` units.
    """
    if have.shape != want.shape:
        return f"its shape is {have.shape}, not {want.shape}"
    if dtype in PRECISION:
        # Overflow belongs to the type: what rounds to infinity in it may be infinite.
        overflow = np.isinf(to_float64(from_float64(want, dtype), dtype)) & np.isinf(have)
        want = np.where(overflow, np.copysign(np.inf, want), want)
    finite = np.isfinite(want)
    values = np.where(finite, want, 0.0)
    error = np.abs(np.where(finite, have, 0.0) - values)
    magnitude = np.broadcast_to(np.abs(values).max(initial=0.0) if max_abs is None else max_abs, want.shape)
    tolerance = bound(dtype, k, magnitude, coarse) if dtype in PRECISION else np.full(want.shape, float(k))
    wrong = ~np.where(finite, error <= tolerance, (have == want) | (np.isnan(have) & np.isnan(want)))
    if wrong.sum() > spared:
        return first_wrong(wrong, have, want, tolerance, dtype)
    if dtype not in PRECISION:
        return None
    eps, counted = PRECISION[dtype], finite & ~wrong
    rms = root_mean_square(error[counted])
    scale = root_mean_square(values[counted] if max_abs is None else magnitude[counted])
    limit = scale * (math.sqrt(k) * eps.accumulate + 0.5 * max(eps.out, coarse)) + eps.smallest
    return None if rms <= limit else f"its RMS error {rms:.3g} exceeds {limit:.3g} ({dtype}, k={k})"


def root_mean_square(x: np.ndarray) -> float:
    """Without overflow."""
    unit = np.abs(x).max(initial=0.0)
    return float(unit * math.sqrt(np.mean(np.square(x / unit)))) if unit else 0.0


def first_wrong(wrong: np.ndarray, have: np.ndarray, want: np.ndarray, tolerance: Any, dtype: str) -> str:
    """How many elements are wrong, and the first of them."""
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    allowed = "" if tolerance is None else f", tolerance {tolerance[index]:.3g}"
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are wrong ({dtype}); the first at {index}: "
        f"{float(have[index])!r}, expected {float(want[index])!r}{allowed}"
    )


# ---------------------------------------------------------------- a solver's result


class Check:
    """What the definition makes of a problem's example call, to hold the results of solvers to."""

    def __init__(self, problem: Problem, call: examples.Call) -> None:
        self.problem = problem
        self._k = problem.roundings()
        args, kwargs = copy.deepcopy((call.args, call.kwargs))  # it may write to its operands
        with settings.config(device="reference"):
            self._expected = [values for values, _ in _arrays(call._replace(args=args, kwargs=kwargs)())]

    def __call__(self, solver: Solver, result: Any, device: str) -> tuple[float, str | None]:
        """(the largest difference, relative to the largest value; why the result is wrong, or None)."""
        worst, why = 0.0, None
        coarse = TF32 * solver.amplification if settings.current().allow_tf32 and device != "cpu" else 0.0
        fused = getattr(getattr(self.problem, "activation", None), "kind", "")
        for (have, dtype), want in zip(_arrays(result), self._expected, strict=True):
            finite = np.isfinite(want)
            largest = float(np.abs(want[finite]).max(initial=0.0))
            apart = np.abs(have - want)[~((have == want) | (np.isnan(have) & np.isnan(want)))]
            error = float(np.max(apart, initial=0.0)) / (largest or 1.0)
            worst = math.inf if math.isnan(error) else max(worst, error)
            # operands are numbers below 1: a sum that happens to be small has terms that are not
            why = why or complaint(
                have, want, dtype, self._k * solver.amplification, max(largest, math.sqrt(self._k)),
                coarse=coarse if dtype == "f32" else 0.0, spared=1 + int(SPARED * want.size) if fused in JUMPS else 0,
            )  # fmt: skip
        return worst, why


def check_of(problem: Problem, call: examples.Call) -> Check:
    """The check of a problem; that of the last one is kept, since its configs come in one batch after another."""
    key = records.dump([problem.stem, records.fields_of(problem)])
    if key not in _last:
        found = Check(problem, call)
        _last.clear()
        _last[key] = found
    return _last[key]


_last: dict[str, Check] = {}


def _arrays(result: Any) -> list[tuple[np.ndarray, str]]:
    """(values as float64, dtype) of each array of a result, which may hold tuples of them, and what is no array."""
    if isinstance(result, tuple):
        return [pair for x in result for pair in _arrays(x)]
    found = []
    for x in (result,) if hasattr(result, "shape") else ():
        if hasattr(x, "to_host"):
            x = x.to_host()
        elif hasattr(x, "cpu"):
            x = x.cpu()
        storage, dtype, _ = arrays.enter(x, "result")
        found.append((to_float64(storage, dtype), dtype))
    return found
