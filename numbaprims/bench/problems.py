"""The problems of benchmark cases, for the commands `find` and `tune`: nothing is computed, nothing is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbaprims.bench.cases import DTYPES, STEMS, Case, load_suites, stem_module
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import conv_suites
from numbaprims.bench.stems.shared import blank
from numbaprims.dispatch.explain import problem_of
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


def _empty(shape: tuple[int, ...], dtype: str) -> Any:
    return Operand.empty(shape, dtype).ours


def convolution(
    x: tuple[int, ...], weight: tuple[int, ...], dtype: str, *, direction: str = "forward", layout: str = "NCHW",
    groups: int = 1, **steps: str,
) -> Problem:  # fmt: skip
    """A convolution in any number of dimensions: x (n, c, ...), weight (k, c, ...), steps such as stride="2x1x1".

    ValueError: an unknown direction or type, steps of another number of dimensions, a filter that does not fit.
    """
    if dtype not in DTYPES or direction not in ("forward", "data", "weight"):
        raise ValueError(f"dtype {dtype!r} and direction {direction!r} given, allowed are {', '.join(DTYPES)}; "
                         "forward, data, weight")  # fmt: skip
    rank, kind = len(x) - 2, DTYPES[dtype]
    words: dict[str, Any] = {"groups": groups, "layout": layout}
    for name, text in steps.items():
        words[name] = conv_suites.steps(text, rank, name)
    weight = (weight[0], weight[1] // groups, *weight[2:])

    def image(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *shape[2:], shape[1]) if layout == "NHWC" else shape

    out = tuple(
        (size + 2 * before - apart * (taps - 1) - 1) // step + 1
        for size, taps, before, apart, step in zip(
            x[2:], weight[2:], words["padding"], words["dilation"], words["stride"], strict=True
        )
    )
    if min(out) < 1:
        raise ValueError(f"shapes: a filter {weight[2:]} given that does not fit the padded image {x[2:]}")
    images, filters = _empty(image(x), kind), _empty(weight, kind)
    if direction == "forward":
        return problem_of("conv", images, filters, **words)
    dy = _empty(image((x[0], weight[0], *out)), kind)
    if direction == "data":
        return problem_of("conv_backward_data", dy, filters, image(x), **words)
    return problem_of("conv_backward_weight", dy, images, weight, **words)
