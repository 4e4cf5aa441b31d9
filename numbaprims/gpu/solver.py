"""Solvers of a GPU: `bind` gives the launcher of a program (launch.py), which all else is read from."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Solver as Base
from numbaprims.gpu.launch import Program, program_of


class Solver(Base):
    """What those on a GPU share."""

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        """What is run for aligned arrays; compiles nothing."""
        return program_of(self.bind(problem, target, config))

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        return self.program(problem, target, config).nbytes
