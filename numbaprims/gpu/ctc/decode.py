"""Decoding: a block for each step's best class, a thread for each sample's search."""

from __future__ import annotations

import functools
import math
from typing import Any

from numbaprims.formulas import beams
from numbaprims.formulas.beams import FLOATS, NONE
from numbaprims.gpu.device.block import barrier, block_max
from numbaprims.gpu.device.math import exp, log1p
from numbaprims.gpu.device.memory import REGISTER, advance, narrow, widen
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)

THREADS = 128
WARPS = THREADS // 32
I64 = types.int64


@functools.cache
def make_best(dtype: str) -> GpuKernel:
    """The largest class of a step of a sample, the first of equal ones, NaN never; blank behind the last step."""
    number, storage = REGISTER[dtype], types.CPointer(STORAGE[dtype])
    signature = types.void(types.CPointer(types.int64), types.CPointer(number), storage, *[types.int64] * 5)

    @gpu_kernel("ctc_best", signature, spec=(dtype,), threads=THREADS, registers=64)
    def ctc_best(best, score, x, batch, classes, x_t, x_n, x_c):  # type: ignore[no-untyped-def]
        numbers, places = shared_array((WARPS,), number), shared_array((THREADS,), types.int64)
        row = I64(block_index())
        t = row // batch
        at = t * x_t + (row - t * batch) * x_n
        most, place = number(-math.inf), classes
        c = I64(thread_index())
        while c < classes:
            y = widen(x[at + c * x_c], dtype)
            if y > most:
                most, place = y, c
            c += THREADS
        largest = block_max(most, numbers, WARPS)
        places[thread_index()] = place if most == largest else classes
        barrier()
        if thread_index() == 0:
            first = classes
            for other in range(THREADS):
                first = min(first, places[other])
            best[row] = first if first < classes else I64(0)
            score[row] = largest

    return ctc_best


@functools.cache
def make_greedy(dtype: str) -> GpuKernel:
    """A sample's path without repetitions and blanks, by one thread; its score is added up in float64."""
    number = REGISTER[dtype]
    place = types.CPointer(types.int64)
    signature = types.void(
        place, place, types.CPointer(STORAGE[dtype]), place, types.CPointer(number), place, *[types.int64] * 3
    )

    @gpu_kernel("ctc_greedy", signature, spec=(dtype, "f64"), threads=32, registers=64)
    def ctc_greedy(out, count, score, best, value, table, batch, steps, blank):  # type: ignore[no-untyped-def]
        n = I64(block_index()) * 32 + I64(thread_index())
        if n < batch:
            found, before, total = I64(0), I64(NONE), types.float64(0.0)
            for t in range(table[n]):
                label = best[t * batch + n]
                total += types.float64(value[t * batch + n])
                if label != blank and label != before:
                    out[n * steps + found] = label
                    found += 1
                before = label
            for k in range(found, steps):
                out[n * steps + k] = blank
            count[n] = found
            score[n] = narrow(number(total), dtype)

    return ctc_greedy


@device_function
def both(a, b):  # type: ignore[no-untyped-def]
    """log(e**a + e**b) of float64."""
    most, least = max(a, b), min(a, b)
    if least > -math.inf and most < math.inf:
        most = most + log1p(exp(types.float64(least - most)))
    return most


@device_function
def as_double(x, i, dtype):  # type: ignore[no-untyped-def]
    """An element as float64."""
    return types.float64(widen(x[i], dtype))


search, trace = beams.make_search(device_function, as_double, both, advance)


@functools.cache
def make_beams(dtype: str) -> GpuKernel:
    """The best prefixes of a sample, by one thread, in logarithms of float64."""
    number, place = REGISTER[dtype], types.CPointer(types.int64)
    storage = types.CPointer(STORAGE[dtype])
    signature = types.void(
        place, place, storage, storage, place, types.CPointer(types.float64), place, *[types.int64] * 10
    )

    @gpu_kernel("ctc_beams", signature, spec=(dtype, "f64"), threads=32, registers=255)
    def ctc_beams(  # type: ignore[no-untyped-def]
        out, count, score, x, table, floats, ints, batch, steps, classes, blank, x_t, x_n, x_c, width, paths, nodes
    ):
        n = I64(block_index()) * 32 + I64(thread_index())
        if n < batch:
            room = advance(floats, n * FLOATS * (width + 1))
            words = advance(ints, n * (4 * nodes + beams.INTS * (width + 1)))
            found = search(x, n * x_n, x_t, x_c, table[n], classes, blank, width, nodes, room, words, dtype)
            for path in range(paths):
                at = n * paths + path
                labels, total = trace(out, at * steps, steps, blank, I64(path), found, nodes, room, words)
                count[at] = labels
                score[at] = narrow(number(total), dtype)

    return ctc_beams


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_best, ("f32",), ("LDG.E", "BAR")),
    (make_best, ("bf16",), ("LDG.E.U16",)),
    (make_greedy, ("f16",), ("LDG.E", "STG.E.64")),
    (make_beams, ("f32",), ("LDG.E",)),
]
