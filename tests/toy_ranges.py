"""Toy kernels whose every word is known, for the tests of programs and what runs them."""

import numpy as np

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    atomic_add_word,
    float_bits,
    load_scalar,
    load_word,
    store_scalar,
    store_word,
)

ARRAYS = ("out", "a", "b", "c", "d", "e", "f", "scratch")
ARGS = Arguments(arrays=ARRAYS, floats=("p", "q", "r", "s", "t", "u"), ints=("n", "m", "k"))
TYPES = ARGS.types(out="i64", a="i64")
GUARD = 48


def program_of(ints, phases, **more):
    return Program.of(ARGS, dict(zip(ARGS.ints, ints, strict=False)), phases, **more)


def make_count(times: int) -> RangeKernel:
    """out[tile + GUARD] += times, a[worker] += 1: atomically, so that nothing done twice is lost."""

    @range_kernel("test_count", TYPES, spec=(times,))
    def count(args, worker, lo, hi):
        atomic_add_word(address_of(args.a) + 8 * worker, 1)
        for tile in range(lo, hi):
            atomic_add_word(address_of(args.out) + 8 * (tile + GUARD), times)

    return count


def make_order() -> RangeKernel:
    """out[a[0]] = the first tile, a[0] += 1."""

    @range_kernel("test_order", TYPES, spec=())
    def order(args, worker, lo, hi):
        store_scalar(args.out, atomic_add_word(address_of(args.a), 1), lo)

    return order


def make_dump() -> RangeKernel:
    """Everything that a kernel is given, as bits."""

    @range_kernel("test_dump", TYPES, spec=())
    def dump(args, worker, lo, hi):
        out = args.out
        store_scalar(out, 0, address_of(args.out))
        store_scalar(out, 1, address_of(args.a))
        store_scalar(out, 2, address_of(args.b))
        store_scalar(out, 3, address_of(args.c))
        store_scalar(out, 4, address_of(args.d))
        store_scalar(out, 5, address_of(args.e))
        store_scalar(out, 6, address_of(args.f))
        store_scalar(out, 7, address_of(args.scratch))
        store_scalar(out, 8, float_bits(args.p))
        store_scalar(out, 9, float_bits(args.q))
        store_scalar(out, 10, float_bits(args.r))
        store_scalar(out, 11, float_bits(args.s))
        store_scalar(out, 12, float_bits(args.t))
        store_scalar(out, 13, float_bits(args.u))
        store_scalar(out, 14, args.n)
        store_scalar(out, 15, args.m)
        store_scalar(out, 16, args.k)

    return dump


@helper
def wrapped(i, n):
    return i - n if i >= n else i


def make_mix(back: bool) -> RangeKernel:
    """out from a, or a from out: a neighbour's value times 3 (5 on the way back) plus the step, modulo 1000003."""
    factor, far = (5, 7) if back else (3, 1)

    @range_kernel("test_mix", TYPES, spec=(back,))
    def mix(args, worker, lo, hi):
        for i in range(lo, hi):
            j = wrapped(i + far, args.n)
            if back:
                store_scalar(args.a, i, (load_scalar(args.out, j) * factor + args.step) % 1000003)
            else:
                store_scalar(args.out, i, (load_scalar(args.a, j) * factor + args.step) % 1000003)

    return mix


def make_meet() -> RangeKernel:
    """Fill this worker's scratch with the tile's number, wait for k workers, and see whether the number is there still.

    out[tile]: 1 if it was, -1 if not, -2 if the others did not come.  a[worker] counts visits.  n and m are the
    words of the shared part and of each worker's; word 0 of the shared part counts the workers.
    """

    @range_kernel("test_meet", TYPES, spec=())
    def meet(args, worker, lo, hi):
        shared = address_of(args.scratch)
        own = shared + 8 * (args.n + args.m * worker)
        atomic_add_word(address_of(args.a) + 8 * worker, 1)
        for tile in range(lo, hi):
            for i in range(args.m):
                store_word(own, i, tile)
            atomic_add_word(shared, 1)
            waited = 0
            while atomic_add_word(shared, 0) < args.k and waited < 1 << 27:
                waited += 1
            found = 1
            for i in range(args.m):
                if load_word(own, i) != tile:
                    found = -1
            store_scalar(args.out, tile, -2 if waited == 1 << 27 else found)

    return meet


def make_clear() -> RangeKernel:
    """The first word of the scratch memory becomes 0."""

    @range_kernel("test_clear", TYPES, spec=())
    def clear(args, worker, lo, hi):
        store_word(address_of(args.scratch), 0, 0)

    return clear


def make_reverse(back: bool) -> RangeKernel:
    """The shared scratch from a; then out from the shared scratch, back to front."""

    @range_kernel("test_reverse", TYPES, spec=(back,))
    def reverse(args, worker, lo, hi):
        shared = address_of(args.scratch)
        for i in range(lo, hi):
            if back:
                store_scalar(args.out, i, load_word(shared, args.n - 1 - i))
            else:
                store_word(shared, i, load_scalar(args.a, i))

    return reverse


ONCE, TWICE, ORDER, DUMP = make_count(1), make_count(2), make_order(), make_dump()
THERE, BACK = make_mix(False), make_mix(True)


def mixed(a, steps):
    """What `steps` steps of THERE and BACK make of a."""
    for step in range(steps):
        out = (np.roll(a, -1) * 3 + step) % 1000003
        a = (np.roll(out, -7) * 5 + step) % 1000003
    return a


INTS = [2**62, -(2**63), 2**53 + 1]
