"""A range kernel over the library's own drivers, for hazards of threads."""

import numpy as np

from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import address_of, load_word, store_word
from numbaprims.cpu.simd.arguments import Arguments

ARGS = Arguments(arrays=("out", "a"), ints=("rounds",))
TILES = 257


def make_mix():
    @range_kernel("mix", ARGS.types(out="i64", a="i64"), spec=())
    def mix(args, worker, lo, hi):
        out, a = address_of(args.out), address_of(args.a)
        for i in range(lo, hi):
            x = load_word(a, i)
            for _ in range(args.rounds):
                x = x * 6364136223846793005 + 1442695040888963407 + i
            store_word(out, i, x)

    return mix


def launcher(rounds):
    """launch(out, a): out[i] = `rounds` steps of a linear generator from a[i], one tile each."""
    return make_launcher(Program.of(ARGS, {"rounds": rounds}, [(make_mix(), TILES, 4)]))


def data(seed=0):
    return np.arange(TILES, dtype=np.int64) * 977 + seed


def expected(a, rounds):
    x, i = a.copy(), np.arange(TILES, dtype=np.int64)
    with np.errstate(over="ignore"):
        for _ in range(rounds):
            x = x * np.int64(6364136223846793005) + np.int64(1442695040888963407) + i
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
