"""The loss and its gradient: a block for each sample, its threads side by side over the 2 S + 1 states of a step.

Steps follow one another, two barriers each; states of all steps lie in scratch memory for the gradient, of two for the
loss. Sums are in the order of the states, whatever the threads: each class's labels are added by the thread of its
first, along a chain, so that no atomic takes part.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from numbaprims.formulas.paths import FLOOR as FLOOR_OF
from numbaprims.gpu.ctc.values import INTS, add, normal, power, product, split
from numbaprims.gpu.device.block import barrier, block_sum
from numbaprims.gpu.device.math import exp, log
from numbaprims.gpu.device.memory import REGISTER, narrow, widen
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
ROUNDS = 16
LN2 = math.log(2.0)
I64 = types.int64


@device_function
def forward(
    x, table, am, ae, base, n, batch, columns, states, rows, blank, x_t, x_n, x_c, dtype, number, exponent, FLOOR
):  # type: ignore[no-untyped-def]
    """All steps of sample n; row 0 of `rows` is before the first.  (Place of the last row, steps, labels.)"""
    length, count, labels = table[n], table[batch + n], 2 * batch + n * columns
    s = I64(thread_index())
    while s < states:
        am[base + s] = number(1.0) if s == 0 else number(0.0)
        ae[base + s] = exponent(0) if s == 0 else exponent(FLOOR)
        s += THREADS
    barrier()
    old = base
    for t in range(length):
        new = base + (t + 1) % rows * states
        s = I64(thread_index())
        while s < 2 * count + 1:
            label = table[labels + s // 2] if s % 2 == 1 else blank
            m, e = am[old + s], ae[old + s]
            if s > 0:
                m, e = add(m, e, am[old + s - 1], ae[old + s - 1])
            if s % 2 == 1 and s > 1 and table[labels + s // 2 - 1] != label:
                m, e = add(m, e, am[old + s - 2], ae[old + s - 2])
            ym, ye = split(widen(x[t * x_t + n * x_n + label * x_c], dtype))
            m, e = product(m, e, ym, ye)
            if t % ROUNDS == ROUNDS - 1:
                m, e = normal(m, e)
            am[new + s] = m
            ae[new + s] = e
            s += THREADS
        old = new
        barrier()
    return old, length, count, labels


@device_function
def last_sum(am, ae, row, count):  # type: ignore[no-untyped-def]
    """The probability of all paths."""
    m, e = am[row + 2 * count], ae[row + 2 * count]
    if count > 0:
        m, e = add(m, e, am[row + 2 * count - 1], ae[row + 2 * count - 1])
    return normal(m, e)


def _pointers(dtype: str) -> tuple[Any, Any, int, list[Any]]:
    number = REGISTER[dtype]
    exponent = INTS[number]
    FLOOR = FLOOR_OF[64 if number == types.float64 else 32]
    scratch = [types.CPointer(number), types.CPointer(exponent)]
    return number, exponent, FLOOR, [types.CPointer(STORAGE[dtype]), types.CPointer(types.int64), *scratch]


@functools.cache
def make_loss(dtype: str, result: str) -> GpuKernel:
    """The loss of a sample; its one logarithm is taken in float64."""
    number, exponent, FLOOR, pointers = _pointers(dtype)
    signature = types.void(types.CPointer(STORAGE[result]), *pointers, *[types.int64] * 11)

    @gpu_kernel("ctc_loss", signature, spec=(dtype, result, "f64"), threads=THREADS, registers=64)
    def ctc_loss(  # type: ignore[no-untyped-def]
        out, x, table, am, ae, batch, columns, states, blank, x_t, x_n, x_c, rows, out_n, mean, zero_infinity
    ):
        n = I64(block_index())
        row, _, count, _ = forward(
            x, table, am, ae, n * rows * states, n, batch, columns, states, rows, blank, x_t, x_n, x_c, dtype, number,
            exponent, FLOOR,
        )  # fmt: skip
        if thread_index() == 0:
            m, e = last_sum(am, ae, row, count)
            loss = -(log(types.float64(m)) + types.float64(e) * LN2)
            if zero_infinity != 0 and loss == math.inf:
                loss = types.float64(0.0)
            if mean != 0:
                loss = loss / types.float64(max(count, I64(1)) * batch)
            out[n * out_n] = narrow(number(loss), result)

    return ctc_loss


@functools.cache
def make_gradient(dtype: str, logits: bool) -> GpuKernel:
    """The gradient of a sample: forwards once more, then backwards, a row of classes written a step."""
    number, exponent, FLOOR, pointers = _pointers(dtype)
    storage = types.CPointer(STORAGE[dtype])
    # after: what states make of what is behind them, and those times y; found: what each state stands for; chain: of
    # each label the next that is the same, and whether none before it is
    signature = types.void(
        storage, storage, *pointers, *pointers[2:], pointers[2], types.CPointer(types.int64), *[types.int64] * 15
    )

    @gpu_kernel("ctc_gradient", signature, spec=(dtype, logits), threads=THREADS, registers=224)
    def ctc_gradient(  # type: ignore[no-untyped-def]
        out, dy, x, table, am, ae, bm, be, found, chain, batch, columns, states, blank, x_t, x_n, x_c, rows, steps,
        classes, out_t, out_n, out_c, dy_n, mean,
    ):  # fmt: skip
        scratch = shared_array((WARPS,), number)
        n, thread = I64(block_index()), I64(thread_index())
        base, own, links = n * rows * states, n * 2 * states, n * 2 * columns
        row, length, count, labels = forward(
            x, table, am, ae, base, n, batch, columns, states, rows, blank, x_t, x_n, x_c, dtype, number, exponent,
            FLOOR,
        )  # fmt: skip
        pm, pe = last_sum(am, ae, row, count)
        if pm == number(0.0):
            length = I64(0)
        g = number(-widen(dy[n * dy_n], dtype))
        if mean != 0:
            g = number(g / number(max(count, I64(1)) * batch))
        inverse = number(number(1.0) / pm)
        k = thread
        while k < count:
            label, behind, first = table[labels + k], I64(-1), I64(1)
            for j in range(count):
                if table[labels + j] == label:
                    if j < k:
                        first = I64(0)
                    elif j > k and behind < 0:
                        behind = I64(j)
            chain[links + k] = behind
            chain[links + columns + k] = first
            k += THREADS
        s = thread
        while s < 2 * count + 1:
            ends = s >= 2 * count - 1
            bm[own + s] = number(1.0) if ends else number(0.0)
            be[own + s] = exponent(0) if ends else exponent(FLOOR)
            s += THREADS
        c = thread
        while c < classes:
            for t in range(length, steps):
                out[t * out_t + n * out_n + c * out_c] = narrow(number(0.0), dtype)
            c += THREADS
        for back in range(length):
            t = length - 1 - back
            row = base + (t + 1) * states
            source, to = t * x_t + n * x_n, t * out_t + n * out_n
            total = number(0.0)
            s = thread
            while s < 2 * count + 1:
                label = table[labels + s // 2] if s % 2 == 1 else blank
                m, e = bm[own + s], be[own + s]
                value = number(number(am[row + s] * power(exponent(ae[row + s] + e - pe))) * number(m * inverse))
                found[n * states + s] = value
                if s % 2 == 0:
                    total = number(total + value)
                ym, ye = split(widen(x[source + label * x_c], dtype))
                m, e = product(m, e, ym, ye)
                bm[own + states + s] = m
                be[own + states + s] = e
                s += THREADS
            c = thread
            while c < classes:
                value = number(0.0)
                if logits:
                    value = number(-exp(widen(x[source + c * x_c], dtype)))
                out[to + c * out_c] = narrow(number(value * g), dtype)
                c += THREADS
            barrier()
            total = block_sum(total, scratch, WARPS)
            if thread == 0:
                if logits:
                    total = number(total - exp(widen(x[source + blank * x_c], dtype)))
                out[to + blank * out_c] = narrow(number(total * g), dtype)
            k = thread
            while k < count:
                if chain[links + columns + k] != 0:
                    label, at, value = table[labels + k], k, number(0.0)
                    while at >= 0:
                        value = number(value + found[n * states + 2 * at + 1])
                        at = chain[links + at]
                    if logits:
                        value = number(value - exp(widen(x[source + label * x_c], dtype)))
                    out[to + label * out_c] = narrow(number(value * g), dtype)
                k += THREADS
            s = thread
            while s < 2 * count + 1:
                w = own + states + s
                m, e = bm[w], be[w]
                if s < 2 * count:
                    m, e = add(m, e, bm[w + 1], be[w + 1])
                if s % 2 == 1 and s < 2 * count - 1 and table[labels + s // 2 + 1] != table[labels + s // 2]:
                    m, e = add(m, e, bm[w + 2], be[w + 2])
                if back % ROUNDS == ROUNDS - 1:
                    m, e = normal(m, e)
                bm[own + s] = m
                be[own + s] = e
                s += THREADS
            barrier()

    return ctc_gradient


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_loss, ("f32", "f32"), ("LDG.E", "BAR")),
    (make_loss, ("f64", "f64"), ("LDG.E.64", "BAR")),
    (make_gradient, ("f32", False), ("LDG.E", "STG.E", "BAR")),
    (make_gradient, ("bf16", True), ("LDG.E.U16", "STG.E.U16", "BAR")),
]
