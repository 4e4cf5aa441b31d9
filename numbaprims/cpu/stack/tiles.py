"""A program for each part of a call's arrays: what it hands on stays in the caches of the worker that runs it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from numbaprims.cpu.interpreter import C_PROGRAM, C_WORDS
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Program, array
from numbaprims.cpu.program_words import ALONE, ARRAYS, FURTHER, SCRATCH
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.simd import Arguments, address_of
from numbaprims.cpu.simd.arguments import block_of, call_range, load_word, stack_words, store_word

#: Arrays of a call, at most.
MOST = 13
# program: that of a tile, which takes the same arrays, further on by n_k bytes for each image and c_k for each of its
# blocks of channels.  scratch: its scratch memory.
TILES = Arguments(
    arrays=tuple(f"a{k}" for k in range(MOST)),
    ints=("program", "blocks", *(f"{d}_{k}" for d in "nc" for k in range(MOST))),
    own=("scratch",),
)
NEAR, FAR = TILES.slot("a0"), TILES.slot(f"a{ARRAYS}")
IMAGES, BLOCKS = TILES.slot("n_0"), TILES.slot("c_0")
CALL_WORDS = C_WORDS + FURTHER + MOST - ARRAYS


@functools.cache
def make_tiles() -> RangeKernel:
    """The range kernel over tiles, images times blocks of channels."""

    @range_kernel("stack_tiles", TILES.types(), spec=(MOST, ARRAYS, FURTHER))
    def stack_tiles(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        call = stack_words(CALL_WORDS)
        words, own = call + 8 * C_WORDS, block_of(args)
        store_word(call, C_PROGRAM, args.program)
        store_word(words, SCRATCH, address_of(args.scratch[worker]))
        for tile in range(lo, hi):
            n, c = divmod(tile, args.blocks)
            for k in range(MOST):
                at, to = NEAR + k, k
                if k >= ARRAYS:
                    at, to = FAR + k - ARRAYS, FURTHER + k - ARRAYS
                place = load_word(own, at)
                if place != 0:
                    place += n * load_word(own, IMAGES + k) + c * load_word(own, BLOCKS + k)
                store_word(words, to, place)
            call_range(load_word(args.program, ALONE), call, 0, 1, 0)

    return stack_tiles


def over_tiles(
    inner: Program, images: int, blocks: int, bytes_apart: Mapping[int, tuple[int, int]], rates: Any, work: float
) -> Program:
    """The program of all tiles from one tile's; `bytes_apart` is of each array (from image to image, from block to
    block), `work` the seconds that one core takes for them."""
    ints = {"program": inner.address, "blocks": blocks}
    for k, apart in bytes_apart.items():
        ints |= dict(zip((f"n_{k}", f"c_{k}"), apart, strict=True))
    tiles = images * blocks
    return Program.of(
        TILES, ints, [(make_tiles(), tiles, rates.grain(tiles, work))], binds={f"a{k}": array(k) for k in bytes_apart},
        regions=Regions(own={"scratch": inner.shared + inner.worker}), keep=(inner,), **rates.waking(work),
    )  # fmt: skip
