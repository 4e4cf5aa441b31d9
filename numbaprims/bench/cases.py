"""What a benchmark measures: cases, the workload of a case, and the suites of shapes that ship as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, resources
from types import ModuleType
from typing import Any

import numpy as np

from numbaprims.arrays import aligned_empty
from numbaprims.stems import STEMS

OURS = "numbaprims"

# What the commands and the records say, and what the library says.
DTYPES = {"f32": "f32", "f64": "f64", "bf16": "bf16", "f16": "f16", "int8": "i8"}


@dataclass(frozen=True)
class Case:
    """One problem to be timed: sizes, type, and the switches of the command line that are on."""

    stem: str
    suite: str
    sizes: tuple[tuple[str, int], ...]
    dtype: str = "f32"
    switches: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, name: str) -> Any:
        for key, value in (*self.sizes, *self.switches):
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """A size or a switch, `default` when the case does not have it."""
        return dict((*self.sizes, *self.switches)).get(name, default)

    @property
    def shape(self) -> str:
        """64x3136x576"""
        return "x".join(str(value) for _, value in self.sizes)

    @property
    def label(self) -> str:
        """What a table prints: "64x3136x576 trans_b", "gelu 64Ki"."""
        kind = [self["kind"]] if "kind" in dict(self.switches) else []
        size = _elements(self["n"]) if self.stem == "activation" else self.shape
        return " ".join([*kind, size, *_words(tuple(each for each in self.switches if each[0] != "kind"))])

    @property
    def command(self) -> str:
        """The command that measures this case alone."""
        words = [f"numbaprims bench {self.stem} --shapes {self.shape} --dtype {self.dtype}"]
        for key, value in self.switches:
            option = f"--{key.replace('_', '-')}"
            words.append(option if value is True else f"{option} {value}")
        return " ".join(words)


def _words(switches: tuple[tuple[str, Any], ...]) -> list[str]:
    return [key if value is True else f"{key} {value}" for key, value in switches]


def _elements(count: int) -> str:
    for unit, name in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if count % unit == 0:
            return f"{count // unit}{name}"
    return str(count)


@dataclass
class Contender:
    """One way to compute a case. `call` is what is timed; `result` shows afterwards what it wrote.

    reset   puts the operands back, for calls that accumulate into one of them
    form    which of several forms is timed, where there was a choice ("reordered weight")
    check   its own check, for a contender with other operands than the rest
    """

    call: Callable[[], Any]
    result: Callable[[], np.ndarray]
    reset: Callable[[], Any] | None = None
    form: str = ""
    check: Callable[[np.ndarray], str | None] | None = None


@dataclass
class Workload:
    """A case with its arrays: who computes it, what the answer is, what it costs.

    flops   arithmetic operations of the definition
    bytes   memory that has to be read and written at least once
    bound   the roof that the case stands under: fma, read, copy or update; "copy or fma" for the lower of the two;
            "read and fma" for parts in turn
    check   what is wrong with a result in one sentence, or None
    parts   of "read and fma": bytes and operations of what runs one after the other, each under the lower of the two
    level   bytes of what is read again and again, where that is read from counts; 0: all bytes
    more    numbers that are measured after the times where they are asked for, by the name they get in the record
    """

    contenders: dict[str, Contender]
    check: Callable[[np.ndarray], str | None]
    flops: float
    bytes: float
    bound: str
    solver: Callable[[], str]
    output: np.ndarray | None = None
    level: float = 0.0
    parts: Sequence[tuple[float, float]] = ()
    more: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


@cache
def load_suites(stem: str) -> Mapping[str, Any]:
    """The suites of a stem, from shapes/<stem>.toml in this package."""
    text = resources.files(__package__).joinpath("shapes", f"{stem}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def default_suites(stem: str) -> list[str]:
    """The suites that run when none is named."""
    return [name for name, suite in load_suites(stem).items() if suite["default"]]


def stem_module(stem: str) -> ModuleType:
    """The module that knows the cases and contenders of a stem."""
    if stem not in STEMS:
        raise ValueError(f"stem: {stem!r} given, allowed are {', '.join(STEMS)}")
    return import_module(f"{__package__}.stems.{stem}")


def parse_shape(text: str, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """'64x3136x576' as (("m", 64), ("n", 3136), ("k", 576)).

    ValueError: another number of sizes, or one that is not a positive whole number.
    """
    parts = text.lower().split("x")
    if len(parts) != len(names) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        form = "x".join(name.upper() for name in names)
        raise ValueError(f"shapes: {text!r} given, allowed are {form} with positive whole numbers, or a suite")
    return tuple(zip(names, map(int, parts), strict=True))


def select(stem: str, wanted: list[str] | None, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """(suite, suite's table) or ("given", sizes) for what --shapes names; the default suites for None."""
    suites = load_suites(stem)
    if wanted is None:
        wanted = default_suites(stem)
    elif wanted == ["all"]:
        wanted = [name for name in suites if name != "quick"]
    chosen: list[tuple[str, Any]] = []
    for word in wanted:
        if word in suites:
            chosen.append((word, suites[word]))
        elif word[:1].isdecimal():
            chosen.append(("given", parse_shape(word, names)))
        else:
            known = ", ".join(suites)
            raise ValueError(f"shapes: {word!r} given, allowed are {known}, all, or sizes such as 64x64")
    return chosen


# Arrays ---------------------------------------------------------------------------------------------


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line."""
    out = aligned_empty(values.shape, values.dtype)
    np.copyto(out, values)
    return out


def generator(case: Case) -> np.random.Generator:
    """The same operands in every run: seeded by the case's name."""
    return np.random.default_rng(list(f"{case.stem} {case.label}".encode()))


def poison(out: np.ndarray) -> None:
    """Fill an output with values that cannot pass a check, so that an element nobody wrote is noticed."""
    if out.dtype.kind == "f":
        out.fill(np.nan)
    elif out.dtype.itemsize == 2:
        out.view(np.uint16).fill(0x7FC1)  # a NaN as bf16
    else:
        out.fill(np.iinfo(out.dtype).min)


def disagreement(got: np.ndarray, want: np.ndarray, bound: float) -> str | None:
    """Where a result is further than `bound` from its reference, as a sentence; None if nowhere."""
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    got64 = np.asarray(got, np.float64)
    if not np.isfinite(got64).all():
        return f"{int((~np.isfinite(got64)).sum())} of {got.size} elements are not finite"
    error = np.abs(got64 - want)
    if error.size and error.max() > bound:
        where = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        return f"off by {error.max():.3g} at {where}, allowed {bound:.3g}"
    return None


# Rounding unit of a stored result, and of the type that sums are formed in.
EPS = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
EPS_SUM = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-24, "bf16": 2.0**-24}


def sum_bound(largest: float, terms: int, dtype: str) -> float:
    """Allowed error of a sum of `terms` products: largest * (terms * eps_sum + eps_out) + eps_out.

    `largest` is the largest sum of absolute products, so that cancellation cannot turn a right result away.
    """
    if dtype == "i8":
        return 0.0
    return largest * (terms * EPS_SUM[dtype] + 2 * EPS[dtype]) + EPS[dtype]
