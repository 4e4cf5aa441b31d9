"""The contract of a solver on the CPU: it says what to run as a program."""

from __future__ import annotations

import abc
from typing import Any

from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import Program
from numbaprims.cpu.regions import Regions
from numbaprims.dispatch import solver as _solver
from numbaprims.dispatch.solver import Config, Launcher

__all__ = ["Config", "Program", "Regions", "Solver", "run"]


class Solver(_solver.Solver, abc.ABC):
    """One way to compute one primitive on the CPU."""

    @abc.abstractmethod
    def program(self, problem: Any, target: Any, config: Config) -> Program:
        """Compile or load the kernels; the program takes the problem's arrays, outputs first."""

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        """Bytes of what its program keeps in scratch memory, by name."""
        return Regions()

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        return self.regions(problem, target, config).nbytes

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        program = self.program(problem, target, config)
        if not isinstance(program, Program):
            raise TypeError(f"solver {self.name!r} of {problem.stem} gives {program!r} as its program")
        return make_launcher(program)


def run(program: Program, *arrays: Any) -> None:
    """Run a program once: the packing of a plan's weights."""
    make_launcher(program)(*arrays)
