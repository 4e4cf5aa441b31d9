"""The contract of a solver: one way to compute one primitive on one device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from numbaprims.dispatch.problem import Problem

Config = Mapping[str, int | str]
Launcher = Callable[..., None]


class Solver:
    """Stateless: every fact comes in as an argument.

    A stem's solvers stand in the tuple ``SOLVERS`` of ``numbaprims/<device>/<stem>``, the best first; the last
    refuses nothing that is legal.
    """

    name: ClassVar[str]
    """Stored in databases, never renamed or reused."""
    version: ClassVar[int] = 1
    """Raised when its configs or its results change."""
    amplification: ClassVar[int] = 1
    """How much larger than those of the plain sum its rounding errors may be."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        """None when it can and is right; else one sentence for the user."""
        return None

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        """The same where a user asks for the solver by name: that it would be slow here is then no reason."""
        return self.why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        """Seconds, by formula; runs nothing."""
        raise NotImplementedError

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        """Bytes of scratch memory that one thread's call needs."""
        return 0

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        """Valid settings of the tunables, the default first."""
        return ({},)

    def is_valid(self, problem: Any, target: Any, config: Config) -> bool:
        """Whether `config` (say, from a database) may be used for the problem."""
        return any(dict(config) == dict(known) for known in self.configs(problem, target))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        """Packed or transformed weights, for plans."""
        raise NotImplementedError(f"solver {self.name} prepares no weights")

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        """Compile or load the kernels; the launcher takes the problem's arrays, outputs first."""
        raise NotImplementedError

    def source(self) -> tuple[str, int]:
        """File and line that hold the solver."""
        cls: Any = type(self)
        return _source_of(cls)

    def __repr__(self) -> str:
        return f"<solver {self.name}>"


@functools.cache
def _source_of(cls: Any) -> tuple[str, int]:
    """A class's file and line; once, because Python parses the file for it (20 ms)."""
    try:
        lines, first = inspect.getsourcelines(cls)  # from its decorators on
        below = next(at for at, line in enumerate(lines) if line.lstrip().startswith("class "))
        return inspect.getsourcefile(cls) or "?", first + below
    except (OSError, TypeError):  # made in a notebook or a shell: a class has no file there, but its methods do
        own = vars(cls)
        code = own.get("program", own.get("bind", cls.bind)).__code__
        return code.co_filename, code.co_firstlineno


def default_config(solver: Solver, problem: Problem, target: Any) -> Config:
    """The first of the solver's configs."""
    return next(iter(solver.configs(problem, target)))
