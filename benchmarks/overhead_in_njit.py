"""What a call inside `@njit` costs over the kernel that it runs: `python benchmarks/overhead_in_njit.py`.

A compiled loop makes the call; another one runs the same kernel with the same arguments, written once, by its address.
The third column is the public call from Python. Times are the least of some rounds, taken in turns, on one thread.
"""

from __future__ import annotations

import time

import numba
import numpy as np

import numbaprims
import numbaprims.jitted
from numbaprims import settings
from numbaprims.cpu.call_sites import Recording
from numbaprims.cpu.simd.arguments import FLOAT_SLOT, call_range

numbaprims.jitted.init()
ROUNDS, LEAST = 7, 20e-3


@numba.njit
def kernel_alone(n, kernel, args, tiles):
    for _ in range(n):
        call_range(kernel, args, 0, 0, tiles)


@numba.njit
def relu(n, x, out):
    for _ in range(n):
        numbaprims.relu(x, out=out)


@numba.njit
def gemv(n, a, x, out):
    for _ in range(n):
        numbaprims.gemv(a, x, out=out)


@numba.njit
def ger(n, x, y, out):
    for _ in range(n):
        numbaprims.ger(x, y, out=out)


@numba.njit
def linear(n, x, weight, bias, out):
    for _ in range(n):
        numbaprims.linear(x, weight, bias, out=out)


@numba.njit
def gemm(n, a, b, out):
    for _ in range(n):
        numbaprims.gemm(a, b, out=out)


def recorded(call):
    """(kernel, arguments, tiles) of a call that is one phase of one launch, and what must stay for them."""
    recording = Recording()
    with settings.trial(recording):
        call()
    (launch,) = recording.launches
    (run,) = launch.program.runs
    (phase,), (block,) = run.phases, run.blocks
    call, scratch = np.zeros(80, np.int64), np.zeros(launch.program.shared + launch.program.worker + 64, np.uint8)
    call[:7] = [0 if x is None else x.ctypes.data for x in launch.arrays]
    call[7] = -(-scratch.ctypes.data // 64) * 64
    call[FLOAT_SLOT : FLOAT_SLOT + 6] = np.array(launch.floats).view(np.int64)
    (_, as_in_the_call, first, *_), fixed, bound = block.assemble(0)
    words = call.copy() if as_in_the_call else np.zeros(max(80, block.words), np.int64)
    words[first : first + len(fixed)] = fixed
    for slot, word, offset, _ in zip(*[iter(bound)] * 4, strict=True):
        words[slot] = call[word] + offset
    return (phase.kernel.address, words.ctypes.data, phase.tiles), (launch, words, scratch)


def cases():
    """name, loop inside @njit, public function, its arrays with the result last"""
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.standard_normal(shape, np.float32)

    for n in (1, 16, 256):
        yield f"relu {n}", relu, numbaprims.relu, (drawn(n), drawn(n))
    for n in (4, 16, 64):
        yield f"ger {n} x {n}", ger, numbaprims.ger, (drawn(n), drawn(n), drawn(n, n))
        yield f"gemv {n} x {n}", gemv, numbaprims.gemv, (drawn(n, n), drawn(n), drawn(n))
        yield f"linear {n} -> {n}", linear, numbaprims.linear, (drawn(n), drawn(n, n), drawn(n), drawn(n))
        yield f"gemm {n} x {n} x {n}", gemm, numbaprims.gemm, (drawn(n, n), drawn(n, n), drawn(n, n))


def best(functions):
    """ns a call of each, for functions that make as many calls as they are told."""
    counts, least = {}, dict.fromkeys(functions, float("inf"))
    for name, function in functions.items():
        function(3)
        count = 8
        while True:
            begin = time.perf_counter()
            function(count)
            if time.perf_counter() - begin > LEAST:
                break
            count *= 2
        counts[name] = count
    for _ in range(ROUNDS):
        for name, function in functions.items():
            begin = time.perf_counter()
            function(counts[name])
            least[name] = min(least[name], 1e9 * (time.perf_counter() - begin) / counts[name])
    return least


def main():
    print(f"{'ns a call, float32':22} {'inside @njit':>13} {'kernel alone':>13} {'over it':>9} {'from Python':>12}")
    for name, loop, public, (*inputs, out) in cases():
        given, keep = recorded(lambda call=public, inputs=inputs, out=out: call(*inputs, out=out))

        def from_python(count, call=public, inputs=inputs, out=out):
            for _ in range(count):
                call(*inputs, out=out)

        with numbaprims.config(threads=1):
            times = best(
                {
                    "inside": lambda count, loop=loop, given=(*inputs, out): loop(count, *given),
                    "kernel": lambda count, given=given: kernel_alone(count, *given),
                    "python": from_python,
                }
            )
        del keep
        inside, kernel = times["inside"], times["kernel"]
        print(f"{name:22} {inside:13.0f} {kernel:13.0f} {inside - kernel:9.0f} {times['python']:12.0f}", flush=True)


if __name__ == "__main__":
    main()
