"""What orders memory between workers on Arm, which reorders more than x86: instructions for CPUs by name.

Why these suffice: docs/design/0003-threads.md.  This assembly has never run.
"""

import re
from collections import Counter

import pytest
from assembly import arm_assembly
from numba import types

from numbaprims.cpu.interpreter import make_interpreter
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.rnn.wave import make_wave
from numbaprims.cpu.scan.kernels import make_rows
from numbaprims.cpu.simd.arguments import store_word
from numbaprims.cpu.simd.atomics import add_release, load_acquire, load_relaxed, store_release, swap_if

pytestmark = pytest.mark.cpu

#: CPU -> how it loads with acquire, adds with release, and swaps without an order: Armv8.0, Graviton 2 and 3, Apple M1.
CPUS = {
    "generic": ("ldar", ("ldxr", "stlxr"), ("ldxr", "stxr")), "neoverse-n1": ("ldapr", ("ldaddl",), ("cas",)),
    "neoverse-v1": ("ldapr", ("ldaddl",), ("cas",)), "apple-m1": ("ldapr", ("ldaddl",), ("cas",)),
}  # fmt: skip
EACH = pytest.mark.parametrize("cpu", CPUS)


def ordered(text):
    """How often each instruction comes up that orders memory, or that nothing comes between."""
    words = (line.split()[0].replace("ur", "r") for line in text.splitlines() if line.startswith("\t"))  # at an offset
    return Counter(word for word in words if re.match(r"lda|stl|ld[a]?xr|st[l]?xr|ldadd|cas|swp|dmb", word))


@EACH
def test_each_operation(cpu):
    """One instruction each, or a loop of two; a relaxed load is one of any."""

    @range_kernel("test_atomics", types.int64, spec=())
    def kernel(args, worker, lo, hi):
        store_word(args, 8, load_relaxed(args))
        store_word(args, 9, load_acquire(args + 64))
        store_release(args + 128, worker)
        add_release(args + 192, lo)
        if swap_if(args + 256, hi, worker):
            store_word(args, 10, 1)

    acquire, add, swap = CPUS[cpu]
    assert ordered(arm_assembly(kernel, cpu)) == Counter([acquire, "stlr", *add, *swap])


@EACH
def test_interpreter(cpu):
    """Counts of chunks are read with acquire wherever they are, and written with release; queues order nothing."""
    found = ordered(arm_assembly(make_interpreter(False), cpu))
    acquire, add, swap = CPUS[cpu]
    loads = found.pop(acquire)
    assert loads >= 4, "late workers, skipped turns, waiting (its first looks and its others)"
    assert found == Counter(["stlr", *add, *swap])


@EACH
@pytest.mark.parametrize(
    ("make", "args", "releases"),
    [(make_wave, ("f32",), 1), (make_rows, ("parts", "i32", "i32", False, False, False, 4), 2)],
    ids=["rnn_wave", "scan_parts"],
)
def test_who_waits_for_a_neighbour(cpu, make, args, releases):
    """Flags of other tiles are read with acquire, and written with release behind what they stand for."""
    found = ordered(arm_assembly(make(*args), cpu))
    assert found.pop(CPUS[cpu][0]) >= 2
    assert found == Counter({"stlr": releases})
