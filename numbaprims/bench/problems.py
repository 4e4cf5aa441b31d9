"""The problems of benchmark cases, for the commands `find` and `tune`: nothing is computed, nothing is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbaprims.bench.cases import STEMS, Case, load_suites, stem_module
from numbaprims.bench.stems.shared import blank
from numbaprims.dispatch.problem import Problem


def problem_of_case(case: Case) -> Problem:
    """What our call of the case poses."""
    found: Problem = stem_module(case.stem).ours(case, blank(case)).problem()
    return found


def suites_named(word: str) -> Iterator[tuple[str, str]]:
    """(stem, suite) of "resnet50", or of "gemm:square"; ValueError where there is none."""
    stem, _, name = word.rpartition(":")
    known = [(s, suite) for s in STEMS for suite in load_suites(s) if stem in ("", s)]
    found = [pair for pair in known if pair[1] == name]
    if not found:
        names = ", ".join(sorted({suite for _, suite in known}))
        raise ValueError(f"suite: {word!r} given, allowed are {names}, also as STEM:SUITE")
    yield from found


def cases_of(options: Any) -> list[Case]:
    """The cases that the options of `numbaprims bench` select."""
    return list(stem_module(options.subject).cases(options))
