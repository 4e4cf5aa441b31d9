"""A convolution in any direction as one form of matrix product, of which nothing is unfolded in memory.

    result[u, v] = sum over k of plain[u, k] * source[v, k]

`plain` is a matrix; `source` is gathered.  An index v is four digits, a plain one c and three places d, h, w; so is k.
An element's place in the source is the sum of v's place and k's, and what lies outside of the source is 0:

    place = v.digit * v.gain + v.base + k.digit * k.gain       (for each of d, h, w)
    offset = v.c * v.step + k.c * k.step + places * source.steps

========  =====================  =========================  ==========================  ===============
          u                      v: c, places               k: c, places                plain, source
========  =====================  =========================  ==========================  ===============
forward   channels of y          images, pixels of y        channels of x, taps         w, x
data      channels of x          images, pixels of x        channels of y, taps         w, y
weight    channels of y          channels of x, taps        images, pixels of y         y, x
========  =====================  =========================  ==========================  ===============

The data gradient of a stride s is s * s products (of two dimensions): the pixels of x with one remainder by s meet the
same taps, which are evenly spaced, and step by 1 through y.  So no multiply-add is spent on the zeros between.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

Four = tuple[int, int, int, int]
Triple = tuple[int, int, int]


class Digits(NamedTuple):
    """An index of four digits."""

    counts: Four
    """c, d, h, w."""
    gain: Triple
    base: Triple
    step: int
    """In the source, of c."""

    @property
    def length(self) -> int:
        """How many values there are."""
        return math.prod(self.counts)


class Steps(NamedTuple):
    """Strides of plain, result or c, in elements."""

    u: int
    other: Four
    """Of the digits of k (plain) or of v (result and c)."""
    base: int
    group: int


class Product(NamedTuple):
    """One product for each group; all strides in elements."""

    u: int
    v: Digits
    k: Digits
    plain: Steps
    source_size: Triple
    source_steps: Triple
    source_group: int
    out: Steps
    c: Steps


def products(problem: Any) -> list[Product]:
    """The products of a problem; more than one for the data gradient of a stride."""
    p, s = problem, problem.strides
    groups = {
        "x": p.group_c * s.x[1], "w": p.group_k * s.w[0], "y": p.group_k * s.y[1],
    }  # fmt: skip
    if p.direction == "forward":
        v = Digits((p.n, *p.y_size), p.stride, _negative(p.padding), s.x[0])
        k = Digits((p.group_c, *p.kernel), p.dilation, (0, 0, 0), s.x[1])
        plain = Steps(s.w[0], s.w[1:], 0, groups["w"])
        out, c = (Steps(t[1], (t[0], *t[2:]), 0, p.group_k * t[1]) for t in (s.y, s.c))
        return [Product(p.group_k, v, k, plain, p.x_size, s.x[2:], groups["x"], out, c)]
    if p.direction == "weight":
        v = Digits((p.group_c, *p.kernel), p.dilation, _negative(p.padding), s.x[1])
        k = Digits((p.n, *p.y_size), p.stride, (0, 0, 0), s.x[0])
        plain = Steps(s.y[1], (s.y[0], *s.y[2:]), 0, groups["y"])
        out, c = (Steps(t[0], t[1:], 0, p.group_k * t[0]) for t in (s.w, s.c))
        return [Product(p.group_k, v, k, plain, p.x_size, s.x[2:], groups["x"], out, c)]
    return [_phase(p, phase) for phase in itertools.product(*map(range, map(min, p.stride, p.x_size)))]


def _negative(triple: Triple) -> Triple:
    return -triple[0], -triple[1], -triple[2]


def _phase(p: Any, phase: tuple[int, ...]) -> Product:
    """The data gradient of the pixels whose places leave these remainders by the stride."""
    s = p.strides
    counts, taps, bases, gains, firsts, periods = [], [], [], [], [], []
    for f, step, gap, pad, size, kernel in zip(phase, p.stride, p.dilation, p.padding, p.x_size, p.kernel, strict=True):
        meeting = [tap for tap in range(kernel) if (f + pad - tap * gap) % step == 0]
        period = step // math.gcd(step, gap)
        first = meeting[0] if meeting else 0
        counts.append(-(-(size - f) // step))
        taps.append(len(meeting))
        firsts.append(first)
        periods.append(period)
        bases.append((f + pad - first * gap) // step)
        gains.append(-(period * gap // step))
    v = Digits((p.n, *counts), (1, 1, 1), tuple(bases), s.y[0])  # type: ignore[arg-type]
    k = Digits((p.group_k, *taps), tuple(gains), (0, 0, 0), s.y[1])  # type: ignore[arg-type]
    w = s.w[2:]
    plain = Steps(
        s.w[1], (s.w[0], *(n * t for n, t in zip(periods, w, strict=True))),  # type: ignore[arg-type]
        sum(n * t for n, t in zip(firsts, w, strict=True)), p.group_k * s.w[0],
    )  # fmt: skip

    def result(steps: Any) -> Steps:
        spread = (n * t for n, t in zip(p.stride, steps[2:], strict=True))
        begin = sum(n * t for n, t in zip(phase, steps[2:], strict=True))
        return Steps(steps[1], (steps[0], *spread), begin, p.group_c * steps[1])  # type: ignore[arg-type]

    return Product(
        p.group_c, v, k, plain, p.y_size, s.y[2:], p.group_k * s.y[1], result(s.x), result(s.c)
    )  # fmt: skip


def spans(problem: Any) -> int:
    """Elements from the first to the last of the widest operand or result, or of c."""
    p, s = problem, problem.strides
    x, w, y = (p.n, p.c, *p.x_size), (p.k, p.group_c, *p.kernel), (p.n, p.k, *p.y_size)
    result = {"forward": y, "data": x}.get(p.direction, w)

    def span(steps: tuple[int, ...], sizes: tuple[int, ...]) -> int:
        return sum(abs(step) * (size - 1) for step, size in zip(steps, sizes, strict=True))

    return max(span(s.x, x), span(s.w, w), span(s.y, y), span(s.c, result))
