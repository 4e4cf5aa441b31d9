"""What one core does in a second, by family of CPUs: the figures that estimates are made of.

A solver's file says how many cycles, bytes and calls its work takes; how long these last is said here, or found by
`numbaprims calibrate`. An entry that was measured names the machine; the others are estimates.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FAMILIES", "PROFILES", "CpuRates", "profile"]

#: Times that it takes to wake workers: less work is left to the calling thread.  Relu of 65,536 floats took 4.9 us in
#: one thread, 3.5 or 5.2, from process to process, in two; a cast of 64 x 3136 floats 14.6 us, 8.5 or 11.5, and 30 and
#: 45 where workers sleep, 10 ms after the last call (Zen 4).
WORTH = 1.4
#: The same of work whose parts have to be merged: sums of 64 columns of 3136 floats took 8.2 us in one thread, 9.5 in
#: two, of 4704 13.1 and 12.5 (Zen 4).
CUT_WORTH = 3.5
#: Workers that should have something to do.
WORKERS = 8


#: What files that earlier versions kept leave out.
UNSAID = ("share", "single", "dots", "stores", "strings", "follows", "beside")


class CpuRates(NamedTuple):
    """What one core does in a second, and what calls cost."""

    clock: float
    """Cycles."""
    l1: float
    """Bytes read from the first-level cache; `l2` and `l3` likewise."""
    l2: float
    l3: float
    memory: float
    """Bytes to and from memory, as the fastest copy moves them."""
    fma: float = 2.0
    """Multiply-adds of whole vectors in a cycle."""
    call: float = 0.6e-6
    """Seconds to enter a program in the calling thread."""
    wake: float = 4e-6
    """Seconds until several workers are at work."""
    phase: float = 0.3e-6
    """Seconds that several workers take to end a phase and begin the next."""
    share: float = 1.0
    """The part of the third-level cache in which a core finds again what it has read: others use it too."""
    single: float = 1.0
    """The part of that share which one core alone has, where several have one each."""
    dots: float = 2.0
    """Times the operations of multiply-adds of float32 that dot products of bfloat16 do, where there are any."""
    stores: float = 1.0
    """Times as long as reading that writing takes in the second-level cache."""
    ahead: int = 4096
    """Bytes ahead of a reading from memory that are asked for; 0 where the core does better by itself."""
    strings: int = 0
    """Bytes from which on a run is copied by a string instruction in the caches; 0 where vectors are as fast."""
    follows: bool = False
    """Whether a core asks by itself for pieces of lines one below the other, be they in a page each."""
    beside: bool = False
    """Whether a core reads long rows from memory faster four side by side than one by one, or pieces of many."""
    source: str = ""
    """Where the figures come from."""

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> CpuRates:
        """Of a file that anybody may have written; ValueError for what no core can be like."""
        # files of earlier versions do not say all
        document = {name: cls._field_defaults[name] for name in UNSAID} | dict(document)
        *numbers, ahead, strings, follows, beside, source = (document.get(name) for name in cls._fields)
        able = all(isinstance(n, (int, float)) and 0 < n < 1e15 for n in numbers)
        if not able or max(document["share"], document["single"]) > 1:
            raise ValueError(f"not all of its rates are numbers that a core can have: {numbers}")
        sizes = all(isinstance(size, int) and 0 <= size <= 1 << 20 for size in (ahead, strings))
        if not sizes or not isinstance(follows, bool) or not isinstance(beside, bool) or not isinstance(source, str):
            said = f"look {ahead!r} bytes ahead, copy {strings!r} at once, follow {follows!r}, read beside {beside!r}"
            raise ValueError(f"its rates {said} and come from {source!r}")
        return cls._make((*numbers, ahead, strings, follows, beside, source))

    def cycles(self, count: float) -> float:
        """Seconds of so many cycles."""
        return count / self.clock

    def vectors(self, count: float) -> float:
        """Seconds of vector arithmetic that two units do in `count` cycles."""
        return 2.0 * count / (self.fma * self.clock)

    def third(self, l3: int) -> float:
        """Bytes of a third-level cache that a core may count on."""
        return self.share * l3

    @property
    def waits(self) -> bool:
        """Whether the third level gives little more than memory: the bound of both is what a core has under way.

        A direct product hides nothing of such reading (768^3 took 7.8 ms for 6.3 of multiply-adds and 1.6 of reading
        B), but for few rows, which read rows of B from end to end (Emerald Rapids, 1.43 times memory's rate; a Granite
        Rapids has 1.64, a Zen 5 2.2).
        """
        return self.l3 <= 1.7 * self.memory

    def worth(self, seconds: float) -> float:
        """How much of the work for which workers are woken some seconds of one core are: from 1 on they are."""
        return seconds / (WORTH * self.wake)

    def waking(self, seconds: float) -> dict[str, Any]:
        """What a program says of its work."""
        worth = self.worth(seconds)
        return {"parallel": worth > 1, "worth": worth}

    def idle(self, seconds: float, tiles: int, merged: bool) -> float:
        """Times as long as with tiles for all workers some seconds of one core's work take, whose parts are merged."""
        worth = (CUT_WORTH if merged else WORTH) * self.wake
        if seconds <= worth or tiles >= WORKERS:
            return 1.0
        return (seconds / max(1, tiles) + worth) / (seconds / WORKERS + worth)

    def grain(self, tiles: int, seconds: float, parts: int = 8) -> int:
        """Tiles that a worker takes at a time: what takes as long as to wake it, and parts enough for all of them."""
        return max(1, min(tiles // parts, int(self.wake * tiles / max(seconds, 1e-9))))

    def two_turns(self, vector_bytes: int) -> bool:
        """Whether vectors of so many bytes take two turns in the core's units.

        Loads of 64 bytes wait then for stores that lie as far behind a multiple of 4096 bytes as they do themselves;
        those of half vectors do not (Zen 4).
        """
        return vector_bytes == 64 and self.fma < 1.5

    def flops(self, lanes: int) -> float:
        """Operations a second: multiply-adds of vectors of so many lanes."""
        return 2.0 * self.fma * self.clock * lanes


#: Of one core, by LLVM's name of the CPU.
PROFILES = {
    # EPYC of the fifth generation, virtual, 2 cores, 1 MiB and 32 MiB: `numbaprims bench`
    # (waking workers by what OpenMP's own regions save)
    "znver5": CpuRates(4.1e9, 400e9, 200e9, 105e9, 48e9, wake=3.3e-6, strings=4096, follows=True),
    # EPYC of the fourth generation, virtual, 2 cores, 1 MiB and 32 MiB: `numbaprims calibrate`. A vector of 64 bytes
    # takes two turns in its units. One core finds 16 to 20 MiB of the third level again, two all of it: ReLU of 23 MB
    # took 0.69 ms on one thread and 0.44 past the caches, on two 0.23 and 0.44.
    "znver4": CpuRates(
        3.68e9, 207e9, 115e9, 99e9, 40e9, 1.0, call=0.54e-6, wake=2.9e-6, phase=0.26e-6, single=0.5, ahead=0
    ),
    # Xeon of the fifth generation, virtual, 2 cores, 2 MiB and 260 MiB: `numbaprims calibrate`. One core finds 65 to
    # 80 MiB of the third level again, two 130 to 160, where nothing else is in it: copies of 32 MB ran at 28 GB/s on
    # one, of 48 MB at 14. Between other functions two arrays of 33 MB took 4.9 ms, past the caches 2.5.
    "sapphirerapids": CpuRates(
        2.7e9, 300e9, 130e9, 30e9, 21e9, 2.0, 0.77e-6, 3.8e-6, 0.31e-6, share=0.35, single=0.55, dots=0.5, stores=2.2
    ),
    # EPYC of the third generation, virtual, 2 cores, 512 KiB and 32 MiB, of which the machine's other users leave half:
    # `numbaprims calibrate`
    "znver3": CpuRates(
        3.05e9, 180e9, 93e9, 60e9, 23e9, call=0.79e-6, wake=3.7e-6, phase=0.15e-6, share=0.5, beside=True
    ),
    # Not measured: estimates of sustained rates in a cloud, after what the makers say of clocks, units and caches.
    "haswell": CpuRates(3.4e9, 275e9, 98e9, 61e9, 15e9),
    "skylake-avx512": CpuRates(2.7e9, 359e9, 140e9, 40e9, 14e9),
    "icelake-server": CpuRates(2.9e9, 385e9, 140e9, 40e9, 15e9),
    # Xeon of the sixth generation, virtual, 2 cores, 2 MiB and 480 MiB, which LLVM took for a rocketlake: `numbaprims
    # calibrate`, but for the share. Of the third level one core reads 64 to 90 MiB again, two 120; where results are
    # written 86 are there: training 16 x 64 x 112 x 112 in two threads took 5.1 ms with 120 counted on, 2.5 so.
    "graniterapids": CpuRates(
        3.8e9, 288e9, 152e9, 26.8e9, 16.3e9, 1.8, 0.5e-6, 2.65e-6, 0.28e-6, 0.18, single=0.85, dots=0.52, stores=2.3
    ),
    # Published: clock; four units of 16 bytes and three loads a cycle (Arm's Software Optimization Guides of Neoverse
    # V1 and V2, N1's has two of each), of which nine tenths. Graviton 3, 4 and 2.
    "neoverse-v1": CpuRates(2.6e9, 110e9, 75e9, 35e9, 22e9, fma=4.0),
    "neoverse-v2": CpuRates(2.8e9, 120e9, 80e9, 40e9, 28e9, fma=4.0),
    "neoverse-n1": CpuRates(2.5e9, 75e9, 55e9, 25e9, 16e9),
    # Published: clocks of the fast cores, four units of 16 bytes and three loads a cycle; memory at three
    # quarters of what the maker says of the plain chips, 68, 100, 100 and 120 GB/s, most of which one core can take.
    "apple-m1": CpuRates(3.2e9, 140e9, 95e9, 60e9, 51e9, fma=4.0),
    "apple-m2": CpuRates(3.5e9, 150e9, 105e9, 85e9, 75e9, fma=4.0),
    "apple-m3": CpuRates(4.0e9, 175e9, 120e9, 85e9, 75e9, fma=4.0),
    "apple-m4": CpuRates(4.4e9, 190e9, 130e9, 100e9, 90e9, fma=4.0),
}
MEASURED = ("znver3", "znver4", "znver5", "sapphirerapids", "graniterapids")
#: Other names of these families.
FAMILIES = {
    "znver2": "znver3", "broadwell": "haswell", "skylake": "haswell",
    "cascadelake": "skylake-avx512", "cooperlake": "skylake-avx512",
    "icelake-client": "icelake-server", "rocketlake": "icelake-server",
    "emeraldrapids": "sapphirerapids", "graniterapids-d": "graniterapids",
    # two vector units, as N1
    "neoverse-n2": "neoverse-n1", "neoverse-v3": "neoverse-v2",
}  # fmt: skip
#: Third-level caches up to here are those of few cores, on a ring.
RING = 20 << 20


@functools.cache
def profile(name: str, isa: str, vector_bytes: int, l3: int) -> CpuRates:
    """The rates of a CPU by its family, or of a cautious one of its instruction set and caches."""
    family = FAMILIES.get(name, name)
    known = PROFILES.get(family)
    if known is not None:
        return known._replace(source=f"profile {family}" + ("" if family in MEASURED else ", not measured"))
    wide = vector_bytes >= 32
    clock, memory = 3e9, 15e9 if wide else 12e9
    far = memory if not l3 else 50e9 if l3 <= RING else 30e9
    near = (200e9, 100e9) if wide else (100e9, 50e9)
    return CpuRates(clock, *near, far, memory, source=f"estimated from the ISA, {isa}")
