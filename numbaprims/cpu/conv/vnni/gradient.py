"""Gradients by data as forward convolutions: one for each phase of the stride, with the window turned round.

The passes of `implicit/passes.py` have taps that step backwards through dy.  Counted from the last they step forwards,
and the weights backwards: signs of steps and where they begin say it all.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from numbaprims.cpu.conv.implicit.passes import passes
from numbaprims.cpu.program import Part, Program, array, join
from numbaprims.dtypes import DTYPES


class Phase(NamedTuple):
    """A forward convolution, and at which elements of the gradient, of the weights and of c it begins."""

    problem: Any
    w_group: int
    """Elements from the weights of a group to those of the next."""
    out: int
    w: int
    c: int


def forward_phases(problem: Any) -> list[Phase]:
    """What a gradient by data consists of, the longest first; one to which no tap comes has no channels."""
    p, found = problem, []
    for walk in passes(p):
        if not walk.pixels:
            continue
        last = [max(taps - 1, 0) for taps in walk.taps]
        padding = [pad - gap * end for pad, gap, end in zip(walk.padding, walk.dilation, last, strict=True)]
        k, c, z, r, s = walk.w
        none = walk.window == 0
        forward = dataclasses.replace(
            p, direction="forward", c=0 if none else p.k, k=p.c, x_size=p.y_size, y_size=walk.grid,
            kernel=(1, 1, 1) if none else walk.taps, stride=(1, 1, 1), dilation=tuple(-gap for gap in walk.dilation),
            padding=tuple(padding), x_dtype=p.y_dtype, y_dtype=p.x_dtype, x_order=p.y_order, y_order=p.x_order,
            w_order=p.w_order if p.stride == (1, 1, 1) else "strided",
            strides=p.strides._replace(x=walk.x, w=(k, c, -z, -r, -s), y=walk.y, c=walk.c),
        )  # fmt: skip
        end = sum(step * tap for step, tap in zip(walk.w[2:], last, strict=True))
        found.append(Phase(forward, walk.w_group, walk.y_base, 0 if none else walk.w_base + end, walk.c_base))
    return sorted(found, key=lambda phase: -phase.problem.flops())


def joined(problem: Any, programs: list[Program]) -> Program:
    """The programs of the phases as one of the gradient."""
    p, parts = problem, []
    for phase, program in zip(forward_phases(p), programs, strict=True):
        size, w_size = DTYPES[p.x_dtype].itemsize, DTYPES[p.w_dtype].itemsize
        arrays = [array(0, size * phase.out), array(1), array(2, w_size * phase.w), array(3, size * phase.c), array(4)]
        parts.append(Part(program, arrays, range(6)))
    return join(parts, parallel=any(program.parallel for program in programs))
