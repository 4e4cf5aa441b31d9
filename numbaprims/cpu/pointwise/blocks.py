"""Any strides, without a copy of the arrays: blocks of elements pass through the kernels for contiguous runs.

The loops of a problem are cut into blocks of a x b elements of the two innermost ones.  An operand whose block is
contiguous is used where it lies, and so is one that has a single element for all of a run; of the others the block is
gathered into a buffer on the stack, and results are scattered from one.  So there is one kernel for each element size,
and the arithmetic is compiled once for all layouts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numba.core import types

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.pointwise.form import ARGS, Form
from numbaprims.cpu.simd import (
    advance,
    block_of,
    call_range,
    copy_fields,
    load,
    load_scalar,
    load_wide_rows,
    load_word,
    pointer_from_address,
    record,
    stack_record,
    stack_words,
    store,
    store_narrow_rows,
    store_scalar,
    store_word,
    transpose,
)
from numbaprims.dtypes import DTYPES

# Words of a plan: operands, loops, and the block that a tile takes of the two innermost ones; then of each operand its
# slot, whether it is written, whether it is used where it lies whatever its strides, and an element's bytes; then of
# each loop, the outermost first, its length and every operand's stride.  Lengths and strides count elements.
OPERANDS, LOOPS, TILE_A, TILE_B, HEAD = 0, 1, 2, 3, 4
SLOT, IS_OUT, IN_PLACE, SIZE, OPERAND = 0, 1, 2, 3, 4


# Elements of a block that is gathered, and bytes of stack for those of all operands: five of float64 have 512 in each,
# two of float32, the common case, use 8 KiB of the first-level cache.
BLOCK = 1024
STACK = 24 << 10
# Elements of a run that is used where it lies.
RUN = 8192
# A shorter run is gathered together with others: to call the kernel takes some 10 ns.
SHORTEST_RUN = 256
# The same where an operand would be gathered for the sake of one element.
SHORTEST_OF_ONE = 128
# Edge of a gathered block whose operands are contiguous along different loops: 32 elements of 4 bytes are two
# cache lines, so that each line of a transposed operand is used in full while it is near.
EDGE = 32


def any_strides(
    form: Form, shape: Sequence[int], strides: Sequence[Sequence[int]], *, single: bool = False, in_order: bool = False
) -> tuple[Form, np.ndarray, int]:
    """How a form walks loops over its results and operands: (form, plan, tiles).

    `strides` has the results first; with `single` a tile is one element, `in_order` a run of the loops as they are.
    """
    arrays = (*form.results, *form.operands)
    order = _order(shape, () if in_order else strides)
    lengths = [shape[axis] if axis >= 0 else 1 for axis in order]
    steps = [[each[axis] if axis >= 0 else 0 for axis in order] for each in strides]
    a, b = lengths[-2:]
    ones = [each[-1] == 0 and k >= len(form.results) for k, each in enumerate(steps)]
    rows = all(one or each[-1] == 1 for one, each in zip(ones, steps, strict=True))
    tile = 1, 1
    if single:
        ones = [False] * len(ones)
    elif rows and b >= (SHORTEST_OF_ONE if any(ones) else SHORTEST_RUN):
        tile = 1, min(b, RUN)
    else:
        ones = [False] * len(ones)
        largest = max(DTYPES[each.dtype].itemsize for each in arrays)
        block = min(BLOCK, STACK // (largest * len(arrays)) // EDGE * EDGE)
        turned = not in_order and any(abs(each[-1]) > 1 and abs(each[-2]) == 1 for each in steps)
        tile_b = min(b, EDGE if turned else block)
        tile_a = min(a, block // tile_b)
        tile = tile_a, min(b, block // tile_a)
    kinds = [each._replace(kind="one" if one else "row") for each, one in zip(arrays, ones, strict=True)]
    words = [len(arrays), len(lengths), *tile]
    for k, array in enumerate(kinds):
        words += [array.slot, int(k < len(form.results)), int(single or array.kind == "one")]
        words.append(DTYPES[array.dtype].itemsize)
    for axis, length in enumerate(lengths):
        words += [length, *(each[axis] for each in steps)]
    tiles = -(-a // tile[0]) * -(-b // tile[1]) * math.prod(lengths[:-2])
    form = form._replace(operands=tuple(kinds[len(form.results) :]))
    return form, np.array(words, np.int64), tiles


def _order(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """The loops with the two innermost last; -1 stands for a loop of one iteration."""
    last = len(shape) - 1
    if last == 0:
        return [-1, 0]
    second = last - 1
    for steps in strides:
        # a loop along which an operand is contiguous that is not so along the innermost
        unit = [axis for axis in range(last) if abs(steps[axis]) == 1]
        if unit and abs(steps[last]) > 1:
            second = unit[-1]
    return [axis for axis in range(last) if axis != second] + [second, last]


@helper
def _gather(buffer, source, na, nb, sa, sb):  # type: ignore[no-untyped-def]
    """buffer[i * nb + j] = source[i * sa + j * sb], the source's neighbours one after the other."""
    if abs(sb) <= abs(sa) or sa == 0:
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


@helper
def _gather_vectors(buffer, source, na, nb, sa, sb, T):  # type: ignore[no-untyped-def]
    """`_gather` by vectors of T elements where the source is contiguous along a loop: T x T are turned at a time."""
    whole_a, whole_b = na - na % T, nb - nb % T
    if sb == 1:
        for i in range(na):
            for j in range(0, whole_b, T):
                store(buffer, i * nb + j, load(source, i * sa + j, T))
            for j in range(whole_b, nb):
                store_scalar(buffer, i * nb + j, load_scalar(source, i * sa + j))
    elif sa == 1:
        for j in range(0, whole_b, T):
            for i in range(0, whole_a, T):
                rows = load_wide_rows(advance(source, i + j * sb), sb, T, T, T)
                store_narrow_rows(advance(buffer, i * nb + j), nb, T, T, transpose(rows))
            for i in range(whole_a, na):
                for k in range(j, j + T):
                    store_scalar(buffer, i * nb + k, load_scalar(source, i + k * sb))
        for j in range(whole_b, nb):
            for i in range(na):
                store_scalar(buffer, i * nb + j, load_scalar(source, i + j * sb))
    else:
        _gather(buffer, source, na, nb, sa, sb)


@helper
def _scatter_vectors(target, buffer, na, nb, sa, sb, T):  # type: ignore[no-untyped-def]
    """`_scatter` by vectors of T elements where the target is contiguous along a loop."""
    whole_a, whole_b = na - na % T, nb - nb % T
    if sb == 1:
        for i in range(na):
            for j in range(0, whole_b, T):
                store(target, i * sa + j, load(buffer, i * nb + j, T))
            for j in range(whole_b, nb):
                store_scalar(target, i * sa + j, load_scalar(buffer, i * nb + j))
    elif sa == 1:
        for j in range(0, whole_b, T):
            for i in range(0, whole_a, T):
                rows = load_wide_rows(advance(buffer, i * nb + j), nb, T, T, T)
                store_narrow_rows(advance(target, i + j * sb), sb, T, T, transpose(rows))
            for i in range(whole_a, na):
                for k in range(j, j + T):
                    store_scalar(target, i + k * sb, load_scalar(buffer, i * nb + k))
        for j in range(whole_b, nb):
            for i in range(na):
                store_scalar(target, i + j * sb, load_scalar(buffer, i * nb + j))
    else:
        _scatter(target, buffer, na, nb, sa, sb)


def sizes_of(form: Form) -> tuple[int, int]:
    """The smallest and the largest elements of a form, in bytes: `make_blocks` knows two sizes."""
    found = {DTYPES[each.dtype].itemsize for each in (*form.results, *form.operands)}
    return min(found), max(found)


@functools.cache
def make_blocks(size: int, other: int, vector_bytes: int) -> RangeKernel:
    """Blocks of elements of `size` or `other` bytes through the kernel at the argument `compute`."""
    elem, elem_other, two = f"u{8 * size}", f"u{8 * other}", size != other
    stack, words = STACK, STACK // 8
    # what is smaller than 4 bytes is widened on its way into registers
    T, T_other = vector_bytes // max(4, size), vector_bytes // max(4, other)

    @range_kernel("pointwise_blocks", types.int64, spec=(size, other, vector_bytes, stack))
    def blocks(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan, compute = record(ARGS, args).plan, record(ARGS, args).compute
        operands, loops = load_word(plan, OPERANDS), load_word(plan, LOOPS)
        tile_a, tile_b = load_word(plan, TILE_A), load_word(plan, TILE_B)
        first = plan + 8 * (HEAD + OPERAND * operands)
        loop_b = first + 8 * (1 + operands) * (loops - 1)
        loop_a = loop_b - 8 * (1 + operands)
        a, b = load_word(loop_a, 0), load_word(loop_b, 0)
        blocks_a, blocks_b = (a + tile_a - 1) // tile_a, (b + tile_b - 1) // tile_b
        addresses = stack_words(8)
        buffers = stack_words(words)
        buffer_bytes = stack // operands // 64 * 64
        block = stack_record(ARGS)
        copy_fields(block, record(ARGS, args), "f0 f1 f2 f3 f4 f5")
        for tile in range(lo, hi):
            begin_b = (tile % blocks_b) * tile_b
            begin_a = (tile // blocks_b % blocks_a) * tile_a
            na, nb = min(tile_a, a - begin_a), min(tile_b, b - begin_b)
            for k in range(operands):
                at = begin_a * load_word(loop_a, 1 + k) + begin_b * load_word(loop_b, 1 + k)
                start = load_word(args, load_word(plan, HEAD + OPERAND * k + SLOT))
                store_word(addresses, k, start + load_word(plan, HEAD + OPERAND * k + SIZE) * at)
            index = tile // (blocks_b * blocks_a)
            for d in range(loops - 3, -1, -1):
                loop = first + 8 * (1 + operands) * d
                digit = index % load_word(loop, 0)
                index = index // load_word(loop, 0)
                for k in range(operands):
                    far = load_word(plan, HEAD + OPERAND * k + SIZE) * digit * load_word(loop, 1 + k)
                    store_word(addresses, k, load_word(addresses, k) + far)
            for k in range(operands):
                sa, sb = load_word(loop_a, 1 + k), load_word(loop_b, 1 + k)
                address = load_word(addresses, k)
                operand = HEAD + OPERAND * k
                if not load_word(plan, operand + IN_PLACE) and (sb != 1 or (na != 1 and sa != nb)):
                    buffer = buffers + buffer_bytes * k
                    if not load_word(plan, operand + IS_OUT):
                        if two and load_word(plan, operand + SIZE) == other:
                            source = pointer_from_address(address, elem_other)
                            target = pointer_from_address(buffer, elem_other)
                            _gather_vectors(target, source, na, nb, sa, sb, T_other)
                        else:
                            source = pointer_from_address(address, elem)
                            _gather_vectors(pointer_from_address(buffer, elem), source, na, nb, sa, sb, T)
                    address = buffer
                store_word(block_of(block), load_word(plan, operand + SLOT), address)
            block.n = na * nb
            block.tile = na * nb
            block.first = (tile // (blocks_b * blocks_a) * a + begin_a) * b + begin_b
            call_range(compute, block, worker, 0, 1)
            for k in range(operands):
                sa, sb = load_word(loop_a, 1 + k), load_word(loop_b, 1 + k)
                moved = load_word(plan, HEAD + OPERAND * k + IS_OUT) and not load_word(
                    plan, HEAD + OPERAND * k + IN_PLACE
                )
                if moved and (sb != 1 or (na != 1 and sa != nb)):
                    buffer, address = buffers + buffer_bytes * k, load_word(addresses, k)
                    if two and load_word(plan, HEAD + OPERAND * k + SIZE) == other:
                        target = pointer_from_address(address, elem_other)
                        _scatter_vectors(target, pointer_from_address(buffer, elem_other), na, nb, sa, sb, T_other)
                    else:
                        target = pointer_from_address(address, elem)
                        _scatter_vectors(target, pointer_from_address(buffer, elem), na, nb, sa, sb, T)

    return blocks
