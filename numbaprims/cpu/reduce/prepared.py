"""Formulas whose rows have a dear value in common, which is computed once, into scratch memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from numbaprims.cpu.program import Part, Program, array, join, scratch
from numbaprims.cpu.solver import Config
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.reductions import PREPARED, named
from numbaprims.formulas.stacks import ENDING

#: Rows side by side compute it once for all of them: of fewer it is not worth a phase.
ROWS = 16


def prepared(problem: Any) -> bool:
    """Whether a problem is one of those."""
    return (
        problem.formula.partition(ENDING)[0] in PREPARED
        and problem.rows >= ROWS
        and len(problem.reduced) == 1 < problem.n
    )


def program(problem: Any, make: Callable[[Any, Config], Program], config: Config) -> Program:
    """The value, then what is left of a problem, each by `make`."""
    formula, _, ending = problem.formula.partition(ENDING)
    first, last = PREPARED[formula]
    numbers = {each.name: k for k, each in enumerate(problem.arrays)}
    ((value, _),) = named(first).results
    taken = [numbers[name] for name, kind in named(first).operands if kind != "number"]
    compute, n = problem.compute, problem.n
    begin = dataclasses.replace(
        problem, formula=first, kept=(1,), results=(f"{value}:row:{compute}",), in_place=False,
        inputs=tuple(f"{problem.arrays[k].name}:row:{problem.arrays[k].dtype}" for k in taken),
        strides=(((0,), (1,)),) * (1 + len(taken)),
    )  # fmt: skip
    left = [numbers.get(name) for name, _ in named(last).operands]
    lie = ((0,) * len(problem.kept), (1,))
    results = len(problem.results)
    end = dataclasses.replace(
        problem, formula=ENDING.join((last, ending)) if ending else last,
        inputs=tuple(f"{value}:along:{compute}" if k is None else problem.inputs[k - results] for k in left),
        strides=(*problem.strides[:results], *(lie if k is None else problem.strides[k] for k in left)),
    )  # fmt: skip
    parts = [
        Part(make(begin, {"stores": "plain"}), [scratch(), *map(array, taken)], [0]),
        Part(
            make(end, config), [*map(array, range(results)), *(scratch() if k is None else array(k) for k in left)], []
        ),
    ]
    return join(parts, shared=n * DTYPES[compute].itemsize)
