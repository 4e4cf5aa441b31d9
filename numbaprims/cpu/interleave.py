"""Phases over the same rows in turns, some rows at a time: what one phase leaves for the next is still in a cache."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Block, Phase, Run
from numbaprims.cpu.simd import Arguments
from numbaprims.cpu.simd.arguments import block_of, call_range, load_word

#: Phases that take turns, at most.
MOST = 6
# some: tiles at a time.  Of each phase its kernel, how many bytes behind these its arguments lie, its tiles for one.
TURNS = Arguments(arrays=(), ints=("phases", "some", *(f"{word}_{k}" for k in range(MOST) for word in "kat")))
FIRST = TURNS.slot("k_0")


@functools.cache
def make_turns() -> RangeKernel:
    """The range kernel over tiles, each of which is some tiles of every phase."""

    @range_kernel("interleaved", TURNS.types(), spec=(MOST, FIRST))
    def interleaved(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        own, some = block_of(args), args.some
        for first in range(lo, hi, some):
            end = min(first + some, hi)
            for k in range(args.phases):
                at = FIRST + 3 * k
                each = load_word(own, at + 2)
                call_range(load_word(own, at), own + load_word(own, at + 1), worker, first * each, end * each)

    return interleaved


def in_turns(runs: Sequence[Run], tiles: int, some: int) -> Run:
    """One run of runs of one phase each, whose tiles are so many times `tiles`; `some` of these at a time."""
    phases, blocks = [run.phases[0] for run in runs], [run.blocks[0] for run in runs]
    ints = {"phases": len(runs), "some": some}
    own = Block(TURNS, {**ints, f"t_{MOST - 1}": 0}, {})
    at = own.words
    for k, (phase, block) in enumerate(zip(phases, blocks, strict=True)):
        ints |= {f"k_{k}": phase.kernel.address, f"a_{k}": 8 * at, f"t_{k}": phase.tiles // tiles}
        at += block.words
    # chunks of work: those of all phases together
    chunk = tiles / sum(phase.tiles / max(1, phase.chunk) for phase in phases)
    own = Block(TURNS, {f"t_{MOST - 1}": 0} | ints, {})
    return Run((Phase(make_turns(), tiles, max(1, int(chunk))),), (own, *blocks))
