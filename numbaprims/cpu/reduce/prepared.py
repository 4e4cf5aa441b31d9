"""Formulas in two phases: what is known of each channel, in scratch memory, and then the rows of channels.

At inference with channels last their factors are computed once.  In training statistics are sums down the columns, a
block of channels at a time, in pieces of rows; the results follow in whole rows, the last piece first: gradients of 3
to 10 MB take 0.72 to 0.93 of the time so, of more 0.97 (Emerald Rapids, 2 MiB of second level).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from numbaprims.cpu.program import Part, Program, Region, array, join
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.reductions import FINISHED, PREPARED, named
from numbaprims.formulas.stacks import ENDING

#: Rows side by side compute what they have in common once for all of them: of fewer it is not worth a phase.
ROWS = 16

#: The program of a problem by a solver, its own or that of rows, with stores of its choice or plain ones.
Make = Callable[[Any, bool], Program]


def joined(problem: Any, make: Make) -> Program | None:
    """The two phases, None where there is one: `make(part, last)` is the program of either."""
    base, _, ending = problem.formula.partition(ENDING)
    table = PREPARED if problem.layout == "rows" else FINISHED
    channels, rows = (problem.n, problem.rows)[:: 1 if table is PREPARED else -1]
    one_run = len(problem.kept) == len(problem.reduced) == 1 or (table is PREPARED and len(problem.reduced) == 1)
    if base not in table or (ending and "backward" in base) or not one_run or rows < ROWS or channels < 2:
        return None
    first, last = map(named, table[base])
    arrays = {each.name: k for k, each in enumerate(problem.arrays)}
    compute, along = problem.compute, ((0,) * len(problem.kept), (1,))
    inputs = [name for name, kind in first.operands if kind != "number"]
    handed = [name for name, _ in first.results if name not in arrays]
    places = {name: array(k) for name, k in arrays.items()} | {name: Region(name) for name in handed}

    def word(name: str, kind: str) -> str:
        return f"{name}:{kind}:{problem.arrays[arrays[name]].dtype if name in arrays else compute}"

    given = [name for name, _ in first.results]
    kind = "row" if table is PREPARED else "one"
    begin = dataclasses.replace(
        problem, formula=table[base][0], kept=(1,) if kind == "row" else problem.kept, in_place=False,
        results=tuple(word(name, kind) for name in given),
        inputs=tuple(word(name, of) for name, of in first.operands if of != "number"),
        strides=tuple(
            ((0,), (1,)) if kind == "row" else problem.strides[arrays[name]] if name in arrays else ((1,), (0,))
            for name in (*given, *inputs)
        ),
    )  # fmt: skip
    taken = [problem.arrays[0].name, *(name for name, _ in last.operands)]
    kinds = ["row", *(kind for _, kind in last.operands)]
    lie = [problem.strides[arrays[name]] if kind == "row" else along for name, kind in zip(taken, kinds, strict=True)]
    if table is FINISHED:
        lie = [each if kind == "along" else each[::-1] for each, kind in zip(lie, kinds, strict=True)]
    words = tuple(map(word, taken, kinds))
    end = dataclasses.replace(
        problem, formula=ENDING.join((table[base][1], ending)) if ending else table[base][1], layout="rows",
        kept=problem.kept if table is PREPARED else problem.reduced, reduced=(channels,), strides=tuple(lie),
        results=words[:1], inputs=words[1:],
    )  # fmt: skip
    numbers = range(sum(kind == "number" for _, kind in first.operands))
    programs = make(begin, False), make(end, True)
    if table is FINISHED:  # what the sums have read last is in the caches still
        (run,) = programs[1].runs
        back = run._replace(phases=tuple(each._replace(back=True) for each in run.phases))
        programs = programs[0], dataclasses.replace(programs[1], runs=(back,))
    parts = [
        Part(programs[0], [places[name] for name in (*given, *inputs)], list(numbers)),
        Part(programs[1], [places[name] for name in taken], []),
    ]
    return join(parts, shared=dict.fromkeys(handed, channels * DTYPES[compute].itemsize))
