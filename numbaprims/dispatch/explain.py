"""`explain`: what a call would do, without doing it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from numbaprims import arrays, settings
from numbaprims.device_arrays import device_of
from numbaprims.dispatch import choose as _choose, examples, registry, tables
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.solver import Config


@dataclasses.dataclass(frozen=True)
class Row:
    """One solver of the explained call."""

    solver: str
    chosen: bool
    refusal: str | None
    estimate: float
    measured: float | None
    config: Config
    source: str
    line: int


class Explanation:
    """A table of solvers: iterate over its rows, index it by solver name, print it (or show it in a notebook)."""

    HEADINGS = ("", "solver", "estimate", "measured", "config", "source", "why not")

    def __init__(
        self, problem: Problem, rule: str, rows: tuple[Row, ...], program: Any = None, rates: str = ""
    ) -> None:
        self.problem = problem
        self.rule = rule
        self.rows = rows
        self.program = program
        """What the chosen solver runs, with ``phases=True``."""
        self.rates = rates
        """Where the rates of the machine come from, by which the solvers are estimated; empty on GPUs."""

    @property
    def chosen(self) -> Row:
        """The row of the solver that the call would run."""
        return next(row for row in self.rows if row.chosen)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.solver == name:
                return row
        raise KeyError(f"no solver {name!r}; there are {', '.join(row.solver for row in self.rows)}")

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                "*" if row.chosen else "",
                row.solver,
                "" if math.isinf(row.estimate) else seconds_text(row.estimate),
                "" if row.measured is None else seconds_text(row.measured),
                ", ".join(f"{name}={value}" for name, value in row.config.items()),
                f"{row.source}:{row.line}",
                row.refusal or "",
            )
            for row in self.rows
        ]

    def table(self, *, wide: bool = False) -> str:
        """The table as text that fits the terminal: the problem as its benchmark's command, paths inside the package,
        refusals below. `wide`: a line for each solver and every field of the problem, as long as it takes."""
        chosen = f"chosen: {self.chosen.solver} ({self.rule})"
        if wide:
            table = tables.aligned(self.HEADINGS, self._cells())
            return "\n".join([f"{self.problem}", chosen, table, *self._rates(), *self._phases()])
        width = tables.terminal_width()
        able = [
            (*cells[:5], f"{tables.short_path(row.source)}:{row.line}")
            for row, cells in zip(self.rows, self._cells(), strict=True)
            if row.refusal is None
        ]
        refused: dict[str, list[str]] = {}
        for row in self.rows:
            if row.refusal is not None:
                refused.setdefault(row.refusal, []).append(row.solver)
        lines = [f"refused: {', '.join(names)}: {refusal}" for refusal, names in refused.items()]
        return "\n".join(
            [
                tables.command_text(self.problem.bench_command(), width),
                *textwrap.wrap(chosen, width),
                tables.fitted(self.HEADINGS[:6], able, width, ("config", "source")),
                *(textwrap.fill(line, width, subsequent_indent="    ") for line in (*lines, *self._rates())),
                *self._phases(),
            ]
        )

    def _rates(self) -> list[str]:
        return [f"estimates by: {self.rates}"] if self.rates else []

    def _phases(self) -> list[str]:
        return (
            [] if self.program is None else ["phases:", textwrap.indent(_folded(str(self.program).split("\n")), "  ")]
        )

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(name)}</th>" for name in self.HEADINGS)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in self._cells()
        )
        return f"<p>{escape(str(self.problem))}</p><table><tr>{head}</tr>{body}</table><p>{escape(self.rule)}</p>"


def seconds_text(value: float) -> str:
    """A time for people: 12.3 us."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def public_function(function: str | Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """The name of a public function, and the function; ValueError where it is none."""
    name = function if isinstance(function, str) else getattr(function, "__name__", repr(function))
    package = importlib.import_module("numbaprims")
    # numpy.exp has a public name too
    if name not in package._LAZY or function not in (name, getattr(package, name)):
        raise ValueError(f"{name!r} is not a public function of numbaprims")
    return name, getattr(package, name)


def problem_of(function: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Problem:
    """The problem that a public function would pose for these arguments; the same checks, nothing is run."""
    name, public = public_function(function)
    package = importlib.import_module("numbaprims")
    # the module that a name is imported from, not the file that its function stands in
    problems = getattr(importlib.import_module(f"numbaprims.{package._LAZY[name]}"), "PROBLEMS", {})
    if name not in problems:
        raise ValueError(f"{name!r} poses no problem to the dispatcher")
    try:
        inspect.signature(public).bind(*args, **kwargs)
    except TypeError as error:  # in the words of the public function
        plain = (p.replace(annotation=p.empty) for p in inspect.signature(public).parameters.values())
        words = ", ".join(map(str, plain))
        raise TypeError(f"{name}: {error}; give the arguments of the call, {name}({words})") from None
    problem: Problem = problems[name](*args, **kwargs)
    return problem


def explain(
    function: str | Callable[..., Any] | Problem,
    *args: Any,
    measure: bool = False,
    phases: bool = False,
    device: str | None = None,
    **kwargs: Any,
) -> Explanation:
    """Say what a call would do, without doing it: every solver, its estimate or its refusal, and the choice.

    Args:
        function: a public function or its name, ``numbaprims.gemm`` or ``"gemm"``; or a problem alone.
        *args: the arguments of the call; arrays are looked at, not computed with.
        measure: also run each solver that can, on scratch arrays, and report its time. What is empty is not run.
        phases: also compile the chosen solver's kernels (those of the CPU) and list what it runs, if anything.
        device: where a problem runs ("cpu", "cuda"); a call's arrays say it themselves.
        **kwargs: the keyword arguments of the call.

    Returns:
        A table-like object: rows with solver, estimate, measured time, config, source file and line. The time is the
        one that this process has measured, else that of the tuning database. As text it fits the terminal;
        ``explain(...).table(wide=True)`` has every field of the problem and a line for each solver.

    Raises:
        ValueError: the function is not one of ours, or the call itself would raise it.

    Example:
        >>> import numpy as np, numbaprims
        >>> a = np.ones((64, 64), np.float32)
        >>> numbaprims.explain("gemm", a, a).chosen.refusal is None
        True
    """
    problem, device = problem_and_device("explain", function, args, kwargs, device)
    state, target = settings.current(), registry.target(device)
    choice = _choose.choose(problem, device, state.algorithm, every=True)
    reference = state.device == "reference"
    rows = []
    for candidate in choice.candidates:
        name = candidate.solver.name
        if measure and candidate.refusal is None and not problem.empty:
            if isinstance(function, Problem):
                made = examples.example_call(problem.stem, problem).on(device)
            else:
                made = examples.Call(function, args, kwargs)
            _known[(device, problem.key(), name)] = _time(made, problem.stem, name, device)
        source, line = candidate.solver.source()
        rows.append(
            Row(
                name,
                candidate.solver is choice.solver and not reference,
                candidate.refusal,
                candidate.estimate,
                _known.get((device, problem.key(), name), candidate.seconds),
                candidate.config,
                source,
                line,
            )
        )
    if reference:  # past the dispatcher
        source = str(importlib.import_module(f"numbaprims.reference.{problem.stem}").__file__)
        rows.append(Row("reference", True, None, math.inf, None, {}, source, 1))
        return Explanation(problem, 'asked for by device="reference": the definition, in float64', tuple(rows))
    program = None
    if phases and not problem.empty and hasattr(choice.solver, "program"):
        program = choice.solver.program(problem, target, choice.config)
    rates = getattr(getattr(target, "rates", None), "source", "")
    return Explanation(problem, choice.rule, tuple(rows), program, rates)


def problem_and_device(
    asking: str,
    function: str | Callable[..., Any] | Problem,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: str | None,
) -> tuple[Problem, str]:
    """The problem that is given, or that of a call, and where it runs."""
    if not isinstance(function, Problem):
        return problem_of(function, *args, **kwargs), device or device_of_call(args, kwargs)
    if args or kwargs:
        raise TypeError(f"{asking} takes a problem alone, or a function with the arguments of its call")
    return function, device or registry.device_of(arrays.NUMPY)


def device_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The device that a call of these arguments would run on."""
    for value in (*args, *kwargs.values()):
        place = device_of(value)
        if place is not None and place != "cpu":
            return arrays.enter(value, "array")[2].device
    return registry.device_of(arrays.NUMPY)


def _time(made: examples.Call, stem: str, solver: str, device: str) -> float:
    """Seconds of the call with one solver; its result goes to an array of its own, not to the caller's `out`."""
    from numbaprims.tuning.timing import Schedule, measure_one

    clock, schedule = registry.clock(device), None
    if clock is not None:
        # so many launches at a time that the device does not wait for the host
        schedule = Schedule(resolution=1e-3)

    own = made._replace(kwargs={name: value for name, value in made.kwargs.items() if name != "out"})
    with settings.config(algorithm={stem: solver}):
        return float(measure_one(lambda: own(), schedule, clock=clock).seconds)


# Times that this process has measured, by device, problem and solver.
_known: dict[tuple[object, ...], float] = {}


def _folded(lines: list[str], most: int = 20) -> str:
    """Lines in which a sequence of up to so many, three times or more, stands once.

    >>> print(_folded(["pack", "multiply", "add", "multiply", "add", "multiply", "add"]))
    pack
    3 times:
      multiply
      add
    """
    found, at = [], 0
    while at < len(lines):
        for length in range(1, most + 1):
            one, count = lines[at : at + length], 1
            while one == lines[at + count * length : at + (count + 1) * length]:
                count += 1
            if count > 2:
                found += [f"{count} times:", textwrap.indent("\n".join(one), "  ")]
                at += count * length
                break
        else:
            found.append(lines[at])
            at += 1
    return "\n".join(found)
