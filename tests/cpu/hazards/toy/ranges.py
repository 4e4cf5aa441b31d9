"""A program over the library's own drivers, for hazards of threads: phases that read what others wrote, and steps."""

import numpy as np

from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import address_of, load_word, store_word
from numbaprims.cpu.simd.arguments import Arguments

ARGS = Arguments(arrays=("out", "a", "b", "c", "d", "e", "f", "scratch"), ints=("rounds",))
TILES, FAR, STEPS = 257, 97, 3


def make_mix():
    @range_kernel("mix", ARGS.types(out="i64", a="i64"), spec=())
    def mix(args, worker, lo, hi):
        to, source = address_of(args.scratch), address_of(args.a)
        if args.step > 0:
            source = address_of(args.out)
        for i in range(lo, hi):
            x = load_word(source, i)
            for _ in range(args.rounds):
                x = x * 6364136223846793005 + 1442695040888963407 + i
            store_word(to, i, x)

    return mix


def make_turn():
    @range_kernel("turn", ARGS.types(), spec=(TILES, FAR))
    def turn(args, worker, lo, hi):
        to, source = address_of(args.out), address_of(args.scratch)
        for i in range(lo, hi):
            store_word(to, i, load_word(source, (i + FAR) % TILES))

    return turn


def launcher(rounds):
    """launch(out, a): STEPS times `rounds` of a linear generator from each number, one tile each, and a turn of all."""
    phases = [(make_mix(), TILES, 4), (make_turn(), TILES, 7)]
    return make_launcher(Program.of(ARGS, {"rounds": rounds}, phases, steps=STEPS, shared=8 * TILES))


def data(seed=0):
    return np.arange(TILES, dtype=np.int64) * 977 + seed


def expected(a, rounds):
    x, i = a.copy(), np.arange(TILES, dtype=np.int64)
    with np.errstate(over="ignore"):
        for _ in range(STEPS):
            for _ in range(rounds):
                x = x * np.int64(6364136223846793005) + np.int64(1442695040888963407) + i
            x = np.roll(x, -FAR)
    return x


class Check:
    """Calls the launcher and compares; counts what was wrong."""

    def __init__(self, rounds=20):
        self.launch = launcher(rounds)
        self.a = data()
        self.want = expected(self.a, rounds)
        self.calls = self.wrong = 0

    def __call__(self, times=1):
        for _ in range(times):
            out = np.zeros_like(self.a)
            self.launch(out, self.a)
            self.calls += 1
            self.wrong += not np.array_equal(out, self.want)
        return self
