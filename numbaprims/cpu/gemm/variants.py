"""Configs beside the default one: what `numbaprims.tune` tries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numbaprims.cpu.gemm.cost import ceil_div
from numbaprims.cpu.solver import Config


def variants(problem: Any, config: Config, choices: Mapping[str, Sequence[int]]) -> Iterator[Config]:
    """The config, then all combinations of the choices for some of its tunables.

    Blocks are cut into equal ones (`solvers.py`), so of a small problem many sizes mean the same; they come once. The
    rows of a block, `mc`, are rounded down to whole tiles of `mr`.
    """
    seen = set()
    for values in ({}, *_combinations(choices)):
        candidate = {**config, **values}
        if "mc" in values:
            candidate["mc"] = max(
                int(candidate["mr"]), int(candidate["mc"]) // int(candidate["mr"]) * int(candidate["mr"])
            )
        blocks = [
            _cut(size, int(candidate[name])) for name, size in zip(("mc", "nc", "kc"), _sizes(problem), strict=True)
        ]
        place = (candidate["mr"], *blocks)
        if place not in seen:
            seen.add(place)
            yield candidate


def _combinations(choices: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def _sizes(problem: Any) -> tuple[int, int, int]:
    return problem.m, problem.n, problem.k


def _cut(size: int, block: int) -> int:
    """The size of the equal blocks that `block` makes of `size`."""
    return ceil_div(size, max(1, ceil_div(size, block)))
