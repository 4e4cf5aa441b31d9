"""One element at a time, wherever it lies.  Never chosen where another solver can."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbaprims.cpu.activation.arguments import ARGS
from numbaprims.cpu.activation.plan import (
    LOOPS,
    OPERANDS,
    SLOT,
    make_plan,
    operand_at,
    store_addresses,
    store_bases,
    store_parameters,
)
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import INT_SLOT, call_range, load_word, stack_words, store_word

# Elements of a tile: some 10 us.
TILE = 512


def plan_elements(problem: Any) -> np.ndarray:
    """The plan of a problem's loops as they are."""
    return make_plan(problem.operands, *problem.loops)


@functools.cache
def make_elements(size: int) -> RangeKernel:
    """Elements of `size` bytes, one by one, through the kernel at `args.compute`."""

    @range_kernel("activation_elements", ARGS.types(), spec=(size,))
    def elements(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = args.plan
        operands, loops = load_word(plan, OPERANDS), load_word(plan, LOOPS)
        bases, addresses = stack_words(8), stack_words(8)
        block = stack_words(80)
        store_bases(args, plan, bases, size)
        store_parameters(args, block)
        store_word(block, INT_SLOT, 1)
        store_word(block, INT_SLOT + 1, 1)
        for element in range(lo * args.tile, min(hi * args.tile, args.n)):
            store_addresses(plan, bases, addresses, size, element, loops)
            for k in range(operands):
                store_word(block, load_word(operand_at(plan, k), SLOT), load_word(addresses, k))
            call_range(args.compute, block, worker, 0, 1)

    return elements
