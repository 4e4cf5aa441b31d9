"""Any strides, without a copy of the arrays: blocks of elements pass through the kernels for contiguous
elements.

The loops of the problem are cut into blocks of a x b elements of the two innermost ones.  An operand whose
block is contiguous is used where it lies; of the others the block is gathered into a buffer on the stack, and
results are scattered from one.  So there is one kernel for each element size, and the arithmetic is compiled
once for all layouts.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbaprims.cpu.activation.arguments import ARGS
from numbaprims.cpu.activation.plan import (
    IS_OUT,
    LOOPS,
    OPERANDS,
    SLOT,
    TILE_A,
    TILE_B,
    loop_at,
    make_plan,
    operand_at,
    store_addresses,
    store_bases,
    store_parameters,
)
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    INT_SLOT,
    call_range,
    load_scalar,
    load_word,
    pointer_from_address,
    stack_words,
    store_scalar,
    store_word,
)
from numbaprims.dtypes import DTYPES

# Elements of a block that is gathered, and bytes of stack for those of all operands: five of float64 have 512 in each,
# two of float32, the common case, use 8 KiB of the first-level cache.
BLOCK = 1024
STACK = 24 << 10
# Elements of a run that is used where it lies.
RUN = 8192
# A shorter run is gathered together with others: to call the kernel takes some 10 ns.
SHORTEST_RUN = 256
# Edge of a gathered block whose operands are contiguous along different loops: 32 elements of 4 bytes are two
# cache lines, so that each line of a transposed operand is used in full while it is near.
EDGE = 32


def gathered(operands: int, size: int) -> int:
    """Elements of a gathered block of so many operands."""
    return min(BLOCK, STACK // (operands * size) // EDGE * EDGE)


def plan_rows(problem: Any) -> tuple[np.ndarray, int, int]:
    """(plan, tiles, elements of a tile) of a problem's loops."""
    shape, strides, offsets = problem.loops
    order = _order(shape, strides)
    lengths = [shape[axis] if axis >= 0 else 1 for axis in order]
    steps = [[operand[axis] if axis >= 0 else 0 for axis in order] for operand in strides]
    a, b = lengths[-2:]
    block = gathered(len(problem.operands), DTYPES[problem.dtype].itemsize)
    if all(operand[-1] == 1 for operand in steps):
        tile_a, tile_b = (1, min(b, RUN)) if b >= SHORTEST_RUN else (min(a, block // b), b)
    else:
        tile_b = min(b, EDGE)
        tile_a = min(a, block // tile_b)
        tile_b = min(b, block // tile_a)
    tiles = -(-a // tile_a) * -(-b // tile_b) * int(np.prod(lengths[:-2], dtype=np.int64))
    return make_plan(problem.operands, lengths, steps, offsets, (tile_a, tile_b)), tiles, tile_a * tile_b


def _order(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> list[int]:
    """The loops with the two innermost last; -1 stands for a loop of one iteration."""
    last = len(shape) - 1
    if last == 0:
        return [-1, 0]
    second = last - 1
    for operand in strides:
        # a loop along which an operand is contiguous that is not so along the innermost
        unit = [axis for axis in range(last) if abs(operand[axis]) == 1]
        if unit and abs(operand[last]) != 1:
            second = unit[-1]
    return [axis for axis in range(last) if axis != second] + [second, last]


@helper
def _gather(buffer, source, na, nb, sa, sb):  # type: ignore[no-untyped-def]
    """buffer[i * nb + j] = source[i * sa + j * sb], the source's neighbours one after the other."""
    if abs(sb) <= abs(sa):
        for i in range(na):
            for j in range(nb):
                store_scalar(buffer, i * nb + j, load_scalar(source, i * sa + j * sb))
    else:
        for j in range(nb):
            for i in range(na):
                store_scalar(buffer, i * nb + j, load_scalar(source, i * sa + j * sb))


@helper
def _scatter(target, buffer, na, nb, sa, sb):  # type: ignore[no-untyped-def]
    """target[i * sa + j * sb] = buffer[i * nb + j]"""
    for i in range(na):
        for j in range(nb):
            store_scalar(target, i * sa + j * sb, load_scalar(buffer, i * nb + j))


@functools.cache
def make_rows(size: int) -> RangeKernel:
    """Blocks of elements of `size` bytes through the kernel at `args.compute`."""
    elem = f"u{8 * size}"
    stack, words = STACK, STACK // 8

    @range_kernel("activation_rows", ARGS.types(), spec=(size, stack))
    def rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = args.plan
        operands, loops = load_word(plan, OPERANDS), load_word(plan, LOOPS)
        tile_a, tile_b = load_word(plan, TILE_A), load_word(plan, TILE_B)
        loop_a, loop_b = loop_at(plan, loops - 2), loop_at(plan, loops - 1)
        a, b = load_word(loop_a, 0), load_word(loop_b, 0)
        blocks_a, blocks_b = (a + tile_a - 1) // tile_a, (b + tile_b - 1) // tile_b
        bases, addresses = stack_words(8), stack_words(8)
        buffers = stack_words(words)
        buffer_bytes = stack // operands // 64 * 64
        block = stack_words(80)
        store_bases(args, plan, bases, size)
        store_parameters(args, block)
        for tile in range(lo, hi):
            begin_b = (tile % blocks_b) * tile_b
            begin_a = (tile // blocks_b % blocks_a) * tile_a
            na, nb = min(tile_a, a - begin_a), min(tile_b, b - begin_b)
            store_addresses(plan, bases, addresses, size, tile // (blocks_b * blocks_a), loops - 2)
            for k in range(operands):
                sa, sb = load_word(loop_a, 1 + k), load_word(loop_b, 1 + k)
                address = load_word(addresses, k) + size * (begin_a * sa + begin_b * sb)
                store_word(addresses, k, address)
                operand = operand_at(plan, k)
                if sb != 1 or (na != 1 and sa != nb):
                    buffer = buffers + buffer_bytes * k
                    if not load_word(operand, IS_OUT):
                        source = pointer_from_address(address, elem)
                        _gather(pointer_from_address(buffer, elem), source, na, nb, sa, sb)
                    address = buffer
                store_word(block, load_word(operand, SLOT), address)
            store_word(block, INT_SLOT, na * nb)
            store_word(block, INT_SLOT + 1, na * nb)
            call_range(args.compute, block, worker, 0, 1)
            for k in range(operands):
                sa, sb = load_word(loop_a, 1 + k), load_word(loop_b, 1 + k)
                if load_word(operand_at(plan, k), IS_OUT) and (sb != 1 or (na != 1 and sa != nb)):
                    buffer = pointer_from_address(buffers + buffer_bytes * k, elem)
                    _scatter(pointer_from_address(load_word(addresses, k), elem), buffer, na, nb, sa, sb)

    return rows
