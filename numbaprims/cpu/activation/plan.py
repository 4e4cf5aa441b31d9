"""A problem's loops as a block of integers that kernels walk, and the addresses that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numbaprims.cpu.activation.arguments import ARGS, SLOTS
from numbaprims.cpu.jit import helper
from numbaprims.cpu.simd import FLOAT_SLOT, address_of, float_bits, load_word, store_word

# Words of a plan: this head; then of each operand its slot, whether it is written, and where its loops begin;
# then of each loop, the outermost first, its length and every operand's stride.  Lengths and strides count
# elements.
OPERANDS, LOOPS, TILE_A, TILE_B, HEAD = 0, 1, 2, 3, 4
SLOT, IS_OUT, OFFSET, OPERAND = 0, 1, 2, 3

HALF_SLOT = ARGS.slot("half")


def make_plan(
    operands: Sequence[str],
    shape: Sequence[int],
    strides: Sequence[Sequence[int]],
    offsets: Sequence[int],
    tile: tuple[int, int] = (1, 1),
) -> np.ndarray:
    """The plan of loops over named operands; `tile` is the block that a tile takes of the two innermost ones."""
    words = [len(operands), len(shape), *tile]
    for name, offset in zip(operands, offsets, strict=True):
        words += [SLOTS[name], int(name in ("out", "dgate")), offset]
    for axis, length in enumerate(shape):
        words += [length, *(steps[axis] for steps in strides)]
    return np.array(words, np.int64)


@helper
def operand_at(plan, k):  # type: ignore[no-untyped-def]
    """The address of operand k's words."""
    return plan + 8 * (HEAD + OPERAND * k)


@helper
def loop_at(plan, d):  # type: ignore[no-untyped-def]
    """The address of loop d's words: its length, then the operands' strides."""
    operands = load_word(plan, OPERANDS)
    return plan + 8 * (HEAD + OPERAND * operands + (1 + operands) * d)


@helper
def store_bases(args, plan, bases, size):  # type: ignore[no-untyped-def]
    """bases[k] = where operand k's loops begin, as addresses; an element has `size` bytes."""
    for k in range(load_word(plan, OPERANDS)):
        operand = operand_at(plan, k)
        slot = load_word(operand, SLOT)
        address = address_of(args.out)
        if slot == 1:
            address = address_of(args.x)
        elif slot == 2:
            address = address_of(args.dy)
        elif slot == 3:
            address = address_of(args.y)
        elif slot == 4:
            address = address_of(args.weight)
        elif slot == 5:
            address = address_of(args.gate)
        elif slot == 6:
            address = address_of(args.dgate)
        store_word(bases, k, address + size * load_word(operand, OFFSET))


@helper
def store_addresses(plan, bases, addresses, size, index, loops):  # type: ignore[no-untyped-def]
    """addresses[k] = where operand k is at iteration `index` of the outermost `loops` loops."""
    operands = load_word(plan, OPERANDS)
    for k in range(operands):
        store_word(addresses, k, load_word(bases, k))
    for d in range(loops - 1, -1, -1):
        loop = loop_at(plan, d)
        length = load_word(loop, 0)
        digit = index % length
        index = index // length
        for k in range(operands):
            store_word(addresses, k, load_word(addresses, k) + size * digit * load_word(loop, 1 + k))


@helper
def store_parameters(args, block):  # type: ignore[no-untyped-def]
    """The kind's parameters into the argument block of a kernel that is called from one, and its other constants."""
    store_word(block, FLOAT_SLOT, float_bits(args.p0))
    store_word(block, FLOAT_SLOT + 1, float_bits(args.p1))
    store_word(block, FLOAT_SLOT + 2, float_bits(args.p2))
    store_word(block, HALF_SLOT, 0)
