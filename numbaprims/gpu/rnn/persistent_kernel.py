"""One launch for all steps of a layer: each block keeps its units' rows of the recurrent weights in shared memory.

A step of a block: it copies the states of all sequences from the second-level cache to shared memory, multiplies them
by its rows, ends its own units by the cell's formula, and waits for the other blocks of its direction.  A warp takes
four rows of up to eight sequences, its lanes along a row; on tensor cores 16 rows of eight sequences.

Bytes of a step: states, batch * state, once a block from the second-level cache; weights and states from shared memory,
(4 + columns) rows a warp for 4 columns sums, or 24 for 128.  Latencies, in this order, about 0.5 us each on an H200 by
those of loads and atomics (270 and 700 clocks): stores of states, the barrier's atomic, its look, the states.  That is
2 us where two launches take 6.  Input products of the next step come while a block waits.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.copy import copy_async, copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.dots import ROWS, add_products, pointer_to, sum_apart
from numbaprims.gpu.device.grid import grid_arrive, grid_wait
from numbaprims.gpu.device.memory import REGISTER, advance, narrow, repeat, widen
from numbaprims.gpu.device.mma import ldmatrix, mma
from numbaprims.gpu.device.packs import lanes
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, warp_index
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    block_index_y,
    device_function,
    gpu_kernel,
    grid_size,
    shared_array,
    thread_index,
    types,
)
from numbaprims.gpu.rnn.cells import INTS, Form, end_of_step
from numbaprims.ops._rnn_problem import GATES as GATES_OF

THREADS = 256
WARPS = THREADS // 32


def pad_of(tensor: bool) -> int:
    """Elements between rows in shared memory: eight rows of ldmatrix then lie in different banks."""
    return 8 if tensor else 0


@functools.cache
def make_persistent(form: Form, lengths: bool, columns: int, tensor: bool, shared: int) -> GpuKernel:
    """All steps; the grid's second dimension counts directions.

    hx: the states that the next product takes, of even and, `other` elements behind, of odd steps.  w, b: weights and
    biases of each direction.  arrived: a counter a direction, 128 bytes apart, 0 before.  units: of a block.  chunk:
    sequences whose states lie in shared memory at a time.  whole: whether weights begin at multiples of 16 bytes.
    """
    text, dtype, I32, I64, U32 = form.text, form.dtype, types.int32, types.int64, types.uint32
    number, gates = REGISTER[form.compute], GATES_OF[form.kind]
    V = lanes(dtype)
    SUMS, SHARE, HIGH, PAD = ROWS * columns, 32 // (ROWS * columns), 16 if tensor else ROWS, pad_of(tensor)
    ITEM, WIDE, STORED = DTYPES[dtype].itemsize, DTYPES[form.compute].itemsize, STORAGE[dtype]
    G_D, G_ROW, G_STEP, HIDDEN = (INTS.index(name) for name in ("g_d", "g_row", "g_step", "hidden"))
    stored = types.CPointer(STORED)
    pointers = types.Tuple(tuple(types.CPointer(STORAGE[each]) for each in form.types))
    signature = types.void(
        pointers, types.UniTuple(I64, len(INTS)), types.CPointer(I64), U32, U32, I32, I32, number, stored, stored,
        stored, stored, types.CPointer(U32), U32, U32, U32, I64, I32, I32,
    )  # fmt: skip

    @device_function
    def put(found, sums, b, row, column, rows, live, units, first, mine, hidden, total, biased):  # type: ignore[no-untyped-def]
        if row < rows and column < live:
            if biased:
                gate = quotient(row, units)
                unit = U32(first + min(U32(row - gate * units), U32(mine - 1)))
                total += widen(b[I64(U32(gate * hidden + unit))], dtype)
            found[sums + I64(U32(column * rows + row))] = total

    @device_function
    def multiply(room, row, rows, states, column, live, pitch, state):  # type: ignore[no-untyped-def]
        lane = lane_index()
        left = U32(min(U32(row + (lane & U32(15))), U32(rows - 1)) * pitch + (lane >> U32(4)) * U32(8))
        right = U32(states + min(U32(column + (lane & U32(7))), U32(live - 1)) * pitch + (lane >> U32(3)) * U32(8))
        left, right = shared_address(room, I64(left)), shared_address(room, I64(right))
        even = odd = repeat(number(0), 4)
        k = U32(0)
        while k < state:
            x, y, z = ldmatrix(left, 0), ldmatrix(U32(left + 32), 0), ldmatrix(right, 0)
            even = mma(x, (z[0], z[1]), even, dtype, dtype)
            odd = mma(y, (z[2], z[3]), odd, dtype, dtype)
            left, right, k = U32(left + 64), U32(right + 64), U32(k + 32)
        return even[0] + odd[0], even[1] + odd[1], even[2] + odd[2], even[3] + odd[3]

    @device_function
    def copy_row(room, to, source, start, state):  # type: ignore[no-untyped-def]
        k = U32(lane_index() * V)
        while k < state:
            copy_async(shared_address(room, I64(U32(to + k))), source, start + I64(k), 16)
            k = U32(k + 32 * V)

    @device_function
    def rows_of(step, steps, back, offsets, batch):  # type: ignore[no-untyped-def]
        """Where the rows of a step begin, and how many there are."""
        time = I64(step)
        if back > 0:
            time = I64(steps - 1 - step)
        n, at = batch, time
        if lengths:
            at = offsets[time]
            n = U32(offsets[time + 1] - at)
        return at, n

    @device_function
    def fetch_given(found, sums, g, ints, d, at, begin, live, units, mine, first, chunk):  # type: ignore[no-untyped-def]
        """Start to copy the input products of this block's units, which lie as the sums do, with the next states."""
        rows = U32(gates * units)
        i = thread_index()
        while i < U32(live * rows):
            row = quotient(i, rows)
            r = U32(i - row * rows)
            gate = quotient(r, units)
            unit = U32(r - gate * units)
            if unit < mine:
                source = d * ints[G_D] + at * ints[G_STEP] + I64(U32(begin + row)) * ints[G_ROW]
                source += I64(U32(first + unit)) + I64(gate) * ints[HIDDEN]
                copy_async(shared_address(found, sums + I64(U32(chunk * rows + i))), g, source, WIDE)
            i = U32(i + THREADS)

    @gpu_kernel(
        "rnn_persistent", signature, spec=(*form, lengths, columns, tensor, shared), threads=THREADS, blocks_per_sm=1,
        shared=shared,
    )  # fmt: skip
    def rnn_persistent(  # type: ignore[no-untyped-def]
        p, ints, offsets, batch, hidden, steps, reverse, limit, w0, w1, b0, b1, arrived, state, units, chunk, other,
        biased, whole,
    ):  # fmt: skip
        room = shared_array(0, STORED, alignment=16)
        found = shared_array(0, number, alignment=16)  # the same memory
        d, t = I64(block_index_y()), thread_index()
        first = U32(block_index() * units)
        mine = U32(min(units, U32(hidden - first)))
        rows, pitch = U32(gates * units), U32(state + PAD)
        w, b = w0, b0
        if d > 0:
            w, b = w1, b1
        row = warp_index()
        while row < rows:
            gate = quotient(row, units)
            unit = U32(first + min(U32(row - gate * units), U32(mine - 1)))
            start = I64(U32(gate * hidden + unit)) * I64(state)
            if whole:
                copy_row(room, U32(row * pitch), w, start, state)
            else:
                k = lane_index()
                while k < state:
                    room[U32(row * pitch + k)] = w[start + I64(k)]
                    k = U32(k + 32)
            row = U32(row + WARPS)
        states = U32(rows * pitch)
        sums = I64(quotient(U32((states + chunk * pitch) * ITEM), U32(WIDE)))
        tiles = quotient(U32(rows + (HIGH - 1)), U32(HIGH))
        plane = I64(batch) * I64(state)
        here = d * plane
        there = here + other
        i = t
        while i < U32(batch * mine):
            # a sequence that begins late, from behind, begins with either
            row = quotient(i, mine)
            to = here + I64(row) * I64(state) + I64(first) + I64(U32(i - row * mine))
            p[3][to] = p[3][to + other] = narrow(p[2][to], dtype)
            i = U32(i + THREADS)
        counter = advance(arrived, d * 32)
        grid_arrive(counter)
        step = I32(0)
        at, n = rows_of(step, steps, d + reverse, offsets, batch)
        fetch_given(found, sums, p[1], ints, d, at, U32(0), min(chunk, n), units, mine, first, chunk)
        while step < steps:
            grid_wait(counter, U32(grid_size() * U32(step + 1)))
            begin = U32(0)
            while begin < n:
                live = U32(min(chunk, U32(n - begin)))
                if begin > 0:
                    barrier()
                    fetch_given(found, sums, p[1], ints, d, at, begin, live, units, mine, first, chunk)
                row = warp_index()
                while row < live:
                    start = here + I64(U32(begin + row)) * I64(state)
                    copy_row(room, U32(states + row * pitch), p[3], start, state)
                    row = U32(row + WARPS)
                copy_commit()
                copy_wait(0)
                barrier()
                tile = warp_index()
                while tile < U32(tiles * quotient(U32(live + (columns - 1)), U32(columns))):
                    column = quotient(tile, tiles)
                    row = U32(U32(tile - column * tiles) * HIGH)
                    column = U32(column * columns)
                    if tensor:
                        totals = multiply(room, row, rows, states, column, live, pitch, state)
                        for e in range(4):
                            total = totals[0]
                            totals = totals[1], totals[2], totals[3], totals[0]
                            r = U32(row + (lane_index() >> U32(2)) + (e >> 1) * 8)
                            c = U32(column + (lane_index() & U32(3)) * U32(2) + (e & 1))
                            put(found, sums, b, r, c, rows, live, units, first, mine, hidden, total, biased)
                    else:
                        totals = repeat(number(0), SUMS)
                        k = U32(lane_index() * V)
                        while k < state:
                            totals = add_products(
                                totals, room, I64(k), I64(row), I64(rows - 1), I64(states), I64(column), I64(live - 1),
                                I64(pitch), columns, dtype,
                            )  # fmt: skip
                            k = U32(k + 32 * V)
                        total = sum_apart(totals)
                        which = quotient(lane_index(), U32(SHARE))
                        if lane_index() == which * SHARE:
                            r = U32(row + quotient(which, U32(columns)))
                            c = U32(column + (which & U32(columns - 1)))
                            put(found, sums, b, r, c, rows, live, units, first, mine, hidden, total, biased)
                    tile = U32(tile + WARPS)
                barrier()
                i = t
                while i < U32(live * mine):
                    row = quotient(i, mine)
                    unit = U32(first + U32(i - row * mine))
                    s = pointer_to(found, sums - I64(begin) * I64(rows) - I64(first))
                    arrays = (s, p[1], p[2], advance(p[3], there - d * plane), p[4], p[5], p[6], p[7], p[8], p[9])
                    end_of_step(text, arrays, ints, d, I64(U32(begin + row)), I64(unit), at, limit)
                    i = U32(i + THREADS)
                begin = U32(begin + chunk)
            here, there = there, here
            step = I32(step + 1)
            grid_arrive(counter)
            if step < steps:
                at, n = rows_of(step, steps, d + reverse, offsets, batch)
                fetch_given(found, sums, p[1], ints, d, at, U32(0), min(chunk, n), units, mine, first, chunk)

    return rnn_persistent


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (
        make_persistent,
        (Form("lstm", "f32", "f32", persistent=True), False, 8, False, 1 << 16),
        ("FFMA", "LDS.128", "LDGSTS.E.BYPASS.128"),
    ),
    (
        make_persistent,
        (Form("gru", "bf16", "f32", False, False, True, persistent=True), True, 4, False, 1 << 16),
        ("FFMA", "LDS.128"),
    ),
    (
        make_persistent,
        (Form("lstm", "f16", "f32", persistent=True), True, 8, True, 1 << 16),
        ("HMMA.16816.F32", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128"),
    ),
    (
        make_persistent,
        (Form("rnn_tanh", "f64", "f64", False, True, persistent=True), False, 1, False, 1 << 16),
        ("DFMA", "LDS.128"),
    ),
]
