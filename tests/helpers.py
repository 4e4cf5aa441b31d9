"""What tests of primitives share: the one table of tolerances, comparisons, exact inputs, array layouts.

A comparison that cannot fail is an error: results must be finite and not all zero, and the tolerance smaller
than the values, unless a test says `vacuous=True` (empty arrays, planted NaN and infinities).
Data come from a seed that the test draws, so the arguments that pytest or Hypothesis prints, with the test's
name, reproduce a failure.
"""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import choose, explain
from numbaprims.dispatch.check import PRECISION, bound, complaint, first_wrong
from numbaprims.ops._activation_errors import ACTIVATION_ERRORS as ACTIVATION_ERRORS
from numbaprims.ops.activation_kinds import DOMAINS
from numbaprims.reference import convert
from numbaprims.reference.convert import from_float64

FLOATS = ("f64", "f32", "f16", "bf16")
#: Those of them that NumPy has here.
NUMPY_FLOATS = FLOATS if find_spec("ml_dtypes") else FLOATS[:3]
SEEDS = st.integers(0, 2**32 - 1)
#: Whether tools/test_on_arm64.sh emulates this machine: what is timed there says nothing.
EMULATED = "NUMBAPRIMS_TEST_EMULATED" in os.environ


#: Binary digits of exact integers in the type of the sums, and the largest integer used as an input.
EXACT_DIGITS = {"f64": 53, "f32": 24, "f16": 24, "bf16": 24, "i8": 31, "u8": 31, "i32": 31}
LARGEST_INTEGER = {"f64": 1024, "f32": 32, "f16": 8, "bf16": 8, "i8": 127, "u8": 255, "i32": 127}


# ---------------------------------------------------------------- conversions


def to_float64(x: Any, dtype: str | None = None) -> np.ndarray:
    """The values of a caller's array, or of the storage of one whose dtype is given, as float64."""
    if dtype is None:
        x, dtype, _ = arrays.enter(x, "x")
    return convert.to_float64(x, dtype)


def caller_array(values: Any, dtype: str, library: str = "numpy") -> Any:
    """An array of `library` ("numpy", "torch"; bf16 by ml_dtypes) with the values rounded to `dtype`."""
    return in_library(from_float64(values, dtype), dtype, library)


def in_library(storage: np.ndarray, dtype: str, library: str = "numpy") -> Any:
    """The caller's array over a storage array, whose memory and strides it shares."""
    if library == "torch":
        import torch

        if storage.flags.writeable:
            tensor = torch.from_numpy(storage)
        else:
            raise ValueError("torch has no read-only tensors")
        views = {"f16": torch.float16, "bf16": torch.bfloat16, "bool": torch.bool}
        return tensor.view(views[dtype]) if dtype in views else tensor
    if dtype == "bf16":
        import ml_dtypes

        return storage.view(ml_dtypes.bfloat16)
    views_of = {"f16": np.float16, "bool": np.bool_}
    return storage.view(views_of[dtype]) if dtype in views_of else storage


def in_turn(names: Any, values: Any) -> list[Any]:
    """Each name (or tuple) with one of the values, in turn; with the others under --slow."""
    own = [name if isinstance(name, tuple) else (name,) for name in names]
    return [
        pytest.param(*name, value, marks=[pytest.mark.slow] * (at % len(values) != turn))
        for at, name in enumerate(own)
        for turn, value in enumerate(values)
    ]


def solver_names(stem: str) -> list[str]:
    """The solvers of a stem on the device that --device names, which conftest.py makes the default one."""
    from numbaprims import settings
    from numbaprims.dispatch import registry

    return [solver.name for solver in registry.solvers(stem, settings.current().device or "cpu")]


def has_module(name: str) -> bool:
    """Whether an optional module can be imported; tests pass without torch and do more with it."""
    return name in sys.modules or find_spec(name) is not None


def forced(stem: str, solver: str) -> Any:
    """A context in which calls of a stem take one solver; the default one where the solver is "", or where it is one of
    the CPU's and --device names another."""
    elsewhere = (numbaprims.settings.current().device or "cpu") != "cpu"
    left = not solver or (elsewhere and solver not in solver_names(stem))
    return numbaprims.config(algorithm={} if left else {stem: solver})


def refused(stem: str, solver: str, *args: Any, function: str = "", **kwargs: Any) -> str | None:
    """Why a solver refuses a call that asks for it by name, or None."""
    problem, device = explain.problem_and_device("refused", function or stem, args, kwargs, None)
    (found,) = choose.candidates(problem, device, asked=solver, alone=True)
    return found.refusal


def printed_with_threads(script: str) -> set[str]:
    """What a script prints with 1, 2, 3 and 8 threads, in a process of its own: one, which loads its kernels once."""
    every = """
import sys, numbaprims
from numbaprims.cpu.threads import count
for threads in (1, 2, 3, 8):
    with numbaprims.config(threads=threads):
        assert count() == threads
        exec(sys.argv[1], {})
    print(end="\\0")
"""
    env = dict(os.environ, NUMBA_NUM_THREADS="8")
    run = subprocess.run([sys.executable, "-c", every, script], env=env, capture_output=True, text=True, check=True)
    *found, rest = run.stdout.split("\0")
    assert len(found) == 4 and not rest and all(found)
    return set(found)


# ---------------------------------------------------------------- inputs


def entered(patch: pytest.MonkeyPatch, where: Any, name: str) -> list[str]:
    """The names of arrays that calls look at in Python, by a function of a module: native code did not know them."""
    seen: list[str] = []
    enter = getattr(where, name)
    patch.setattr(where, name, lambda x, name: seen.append(name) or enter(x, name))
    return seen


#: Calls after which native code knows the next: one before it is there, one that comes again, two for a pattern.
KNOWN = 4


def recognised(call: Callable[[], Any], where: Any, name: str) -> tuple[bool, Any]:
    """Run a call often enough to be known: whether native code then does it alone, and what it gives."""
    for _ in range(KNOWN):
        call()
    with pytest.MonkeyPatch.context() as patch:
        seen = entered(patch, where, name)
        result = call()
    return not seen, result


def exact_integers(shape: Any, dtype: str, n_acc: int, rng: np.random.Generator) -> np.ndarray:
    """Random small integers such that every sum of `n_acc` products of two of them is exact in any order.

    The sums stay below a quarter of what the accumulator holds exactly, so that a bias, c and small integral
    alpha and beta fit too. Float types give float64 values, integer types their own arrays over their whole
    range as far as int32 sums allow.
    """
    if dtype in ("i8", "u8"):
        info = np.iinfo(arrays.DTYPES[dtype].storage)
        assert n_acc * 255 * 255 < 2**31, "int32 sums would wrap around"
        return rng.integers(info.min, info.max, size=shape, endpoint=True, dtype=info.dtype)
    largest = min(LARGEST_INTEGER[dtype], math.isqrt(2 ** (EXACT_DIGITS[dtype] - 2) // max(n_acc, 1)))
    assert largest >= 1, f"no sum of {n_acc} integers is exact in {dtype}"
    return rng.integers(-largest, largest, size=shape, endpoint=True).astype(np.float64)


def real_values(shape: Any, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Storage of standard normal values (integers: the whole range)."""
    if dtype in ("i8", "u8", "i32"):
        info = np.iinfo(arrays.DTYPES[dtype].storage)
        return rng.integers(info.min, info.max, size=shape, endpoint=True, dtype=info.dtype)
    return from_float64(rng.standard_normal(shape), dtype)


def nan_filled(shape: Any, dtype: str, layout: str = "C") -> np.ndarray:
    """Storage for a result, filled with NaN (integers: 0x55...), so that what is not written shows."""
    storage = arrays.DTYPES[dtype].storage
    poison = from_float64(np.nan, dtype) if dtype in PRECISION else int("55" * storage.itemsize, 16)
    return lay_out(np.full(shape, poison, storage), layout)


#: Layouts that `lay_out` makes; the last three are for inputs only.
OUT_LAYOUTS = ("C", "F", "negative", "sliced", "padded", "offset")
LAYOUTS = (*OUT_LAYOUTS, "broadcast", "readonly", "unaligned")


def lay_out(storage: np.ndarray, layout: str) -> np.ndarray:
    """An array with the contents of `storage` in another memory layout.

    C, F; negative: every stride; sliced: every second element of each dimension; padded: rows longer than
    what is used; offset: C but not aligned to a cache line; broadcast: stride 0 along the first dimension,
    whose first entry is repeated (the contents change); readonly; unaligned: a field of a packed record.
    What surrounds the elements is NaN, so that reading it shows.
    """
    if layout == "C" or storage.ndim == 0:
        return storage.copy()
    if layout == "F":
        return storage.copy(order="F")
    if layout == "negative":
        flip = (slice(None, None, -1),) * storage.ndim
        return storage[flip].copy()[flip]
    if layout == "broadcast":
        first = storage[:1].copy() if storage.shape[0] else storage
        return np.broadcast_to(first, storage.shape)
    if layout == "readonly":
        view = storage.copy()
        view.flags.writeable = False
        return view
    if layout == "unaligned":
        record = np.zeros(storage.shape, np.dtype([("pad", "u1"), ("x", storage.dtype)]))
        record["x"] = storage
        return record["x"]
    if layout == "offset":
        flat = np.empty(storage.size + 3, storage.dtype)
        _poison(flat)
        view = flat[3:].reshape(storage.shape)
    else:
        last = layout == "padded"
        sizes = [size if last and axis < storage.ndim - 1 else 2 * size + 1 for axis, size in enumerate(storage.shape)]
        base = np.empty(sizes, storage.dtype)
        _poison(base)
        if layout == "padded":
            view = base[..., 1 : 1 + storage.shape[-1]]
        elif layout == "sliced":
            view = base[(slice(1, None, 2),) * storage.ndim]
        else:
            raise ValueError(f"unknown layout {layout!r}")
    view[...] = storage
    return view


def _poison(storage: np.ndarray) -> None:
    """Fill with NaN: all bits set is one in every float type, and a large value in the integers."""
    storage.view(np.uint8 if storage.itemsize == 1 else f"u{storage.itemsize}").fill(2 ** (8 * storage.itemsize) - 1)


# ---------------------------------------------------------------- strategies


def sizes(largest: int = 70, smallest: int = 1) -> st.SearchStrategy[int]:
    """Sizes of one dimension: small ones, those around vector and tile widths, and any up to `largest`."""
    edges = [n + d for n in (4, 8, 16, 32, 48, 64, 96, 128) for d in (-1, 0, 1) if smallest <= n + d <= largest]
    return st.one_of(st.integers(smallest, min(9, largest)), st.sampled_from(edges), st.integers(smallest, largest))


def shapes(min_dims: int = 1, max_dims: int = 3, largest: int = 40, smallest: int = 0) -> st.SearchStrategy[tuple]:
    """Shapes, empty ones too unless `smallest` is 1."""
    return st.lists(sizes(largest, smallest), min_size=min_dims, max_size=max_dims).map(tuple)


def input_layouts() -> st.SearchStrategy[str]:
    """The memory layouts of inputs."""
    return st.sampled_from(LAYOUTS)


def out_layouts() -> st.SearchStrategy[str]:
    """The memory layouts of results."""
    return st.sampled_from(OUT_LAYOUTS)


def float_dtypes() -> st.SearchStrategy[str]:
    """The four floating-point element types."""
    return st.sampled_from(FLOATS)


# ---------------------------------------------------------------- comparisons


def assert_exact(actual: Any, expected: Any, dtype: str | None = None, *, vacuous: bool = False) -> None:
    """Equal values at every element, expected rounded once to the result's type; NaN equals NaN, -0 equals 0.

    `actual` is a caller's array, or storage if `dtype` is given.
    """
    if dtype is None:
        actual, dtype, _ = arrays.enter(actual, "actual")
    want = to_float64(from_float64(expected, dtype), dtype) if dtype in PRECISION else np.asarray(expected, np.float64)
    have = to_float64(actual, dtype)
    assert have.shape == want.shape, f"shape {have.shape}, expected {want.shape}"
    _assert_not_vacuous(want, vacuous)
    wrong = ~((have == want) | (np.isnan(have) & np.isnan(want)))
    if wrong.any():
        raise AssertionError(first_wrong(wrong, have, want, None, dtype))


def assert_close(
    actual: Any,
    reference: Any,
    *,
    k: int,
    dtype: str | None = None,
    max_abs: Any = None,
    coarse: float = 0.0,
    vacuous: bool = False,
) -> None:
    """Within max|.| * (k*eps_acc + eps_out) + eps_out at every element, and within the RMS bound over all.

    `k` counts the roundings behind one element (the K of a GEMM). `max_abs` is the largest magnitude that
    rounding errors are relative to: default the largest |reference|; a number where partial results exceed
    it; an array for a bound relative to each element. The RMS bound has sqrt(k): errors of random signs.
    `coarse` is the relative error of what the result was made of, where that is more than eps_out.
    """
    if dtype is None:
        actual, dtype, _ = arrays.enter(actual, "actual")
    want, have = np.asarray(reference, np.float64), to_float64(actual, dtype)
    _assert_not_vacuous(want, vacuous)
    largest = np.abs(np.where(np.isfinite(want), want, 0.0)).max(initial=0.0)
    tolerance = np.min(bound(dtype, k, largest if max_abs is None else max_abs, coarse))
    assert vacuous or tolerance < largest, f"tolerance {tolerance:.3g} exceeds all values"
    why = complaint(have, want, dtype, k, max_abs, coarse=coarse)
    assert why is None, why


def in_domain(x: Any, kind: str) -> Any:
    """Numbers of moderate size, where an activation has a value."""
    low = DOMAINS[kind][0] if kind in DOMAINS else None
    return x if low is None else abs(x) + low if low > 0 else x * 0.125


def assert_near(actual: np.ndarray, reference: Any, dtype: str, eps: float, scale: Any = 0.0) -> None:
    """Within `eps` units of the computed type's eps, relative to the larger of each value and `scale`.

    Besides, a stored half precision is rounded once, and what is less than 128 times the smallest normal number may
    be 0: x sigmoid(x) where e**-x is infinite. NaN and infinities must be where the reference has them.
    """
    precision = PRECISION[dtype]
    want, have = np.asarray(reference, np.float64), to_float64(actual, dtype)
    assert have.shape == want.shape, f"shape {have.shape}, expected {want.shape}"
    finite = np.isfinite(want) & ~(np.isinf(have) & (have == to_float64(from_float64(want, dtype), dtype)))
    special = ~finite & ~((have == want) | (np.isinf(have) & np.isfinite(want)) | (np.isnan(have) & np.isnan(want)))
    assert not special.any(), first_wrong(special, have, want, None, dtype)
    size = np.where(finite, np.abs(want), 0.0)
    scale = np.nan_to_num(np.broadcast_to(scale, want.shape), posinf=0.0)
    underflow = 2.0**-1015 if dtype == "f64" else 2.0**-119
    tolerance = eps * precision.accumulate * np.maximum(size, scale) + underflow
    if precision.out != precision.accumulate:
        tolerance = tolerance + 0.5 * np.maximum(precision.out * size, precision.smallest)
    wrong = finite & ~(np.abs(np.where(finite, have, 0.0) - np.where(finite, want, 0.0)) <= tolerance)
    assert not wrong.any(), first_wrong(wrong, have, want, tolerance, dtype)


def _assert_not_vacuous(want: np.ndarray, vacuous: bool) -> None:
    if not vacuous:
        assert want.size, "nothing to compare: the result is empty (say vacuous=True if it should be)"
        assert np.isfinite(want).all(), "the expected values are not all finite (vacuous=True?)"
        assert want.any(), "the expected values are all zero (vacuous=True?)"
