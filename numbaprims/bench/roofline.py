"""What this machine can do, measured in the same run: FMA peak, bandwidth of reading, copying, updating."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbaprims.bench.cases import aligned_empty
from numbaprims.tuning.timing import Schedule, measure

# Larger than the caches of one core's reach, so that streams of this size come from memory.
STREAM_BYTES = 256 << 20
_QUICK = Schedule(rounds=5, min_rounds=3, time_limit=2.0)
_LEVEL = Schedule(block=6e-3, settle=2e-3, rounds=3)


@dataclass(frozen=True)
class Probe:
    """A roof as something to be timed: `amount` operations or bytes each call."""

    call: Callable[[], Any]
    amount: float
    form: str


class Roofline:
    """The probes of one thread count; call them while numbaprims.config(threads=...) says that count.

    Three ways of copying compete: plain stores, streaming stores (which don't read what they overwrite), and
    NumPy's; and two of reading: in order, and two pages at a time. The best at a size is the roof of that size.
    """

    def __init__(self) -> None:
        self._source = np.empty(0, np.float32)
        self._target = np.empty(0, np.float32)
        self._best_copy: dict[int, str] = {}
        self._best_read: dict[int, str] = {}

    def probe(self, bound: str, dtype: str, size: float) -> Probe:
        """The roof over a case: `bound` is fma, read, copy or update; `size` is the case's bytes."""
        if bound == "fma":
            return self.multiply_add(dtype)
        return {"read": self.read, "copy": self.copy, "update": self.update}[bound](size)

    def multiply_add(self, dtype: str) -> Probe:
        """Independent multiply-add chains; for bf16 and int8 of dot products where the CPU has them."""
        from numbaprims.cpu import roofline

        kind = {"bf16": "bf16", "int8": "u8s8"}.get(dtype)
        if kind is not None and roofline.best_is_dot(kind):
            call, operations = roofline.dot_peak(kind)
            return Probe(call, operations, f"independent {kind} dot chains")
        call, operations = roofline.fma_peak("f64" if dtype == "f64" else "f32")
        return Probe(call, operations, "independent FMA chains")

    def read(self, size: float, in_order: bool = False) -> Probe:
        """Sum of an array of `size` bytes, the faster of two ways, or the first."""
        from numbaprims.cpu import roofline

        x = self._buffer("_source", int(size) // 4)
        calls = {
            "vector sum": roofline.reader(x)[0],
            "vector sum, two pages at a time": roofline.reader(x, pages=True)[0],
        }
        form = "vector sum" if in_order else self._best_read.get(int(size))
        if form is None:
            times = measure(calls, _QUICK)
            form = self._best_read[int(size)] = min(times, key=lambda name: times[name].seconds)
        return Probe(calls[form], float(x.nbytes), form)

    def update(self, size: float) -> Probe:
        """x = x + constant, in place: half of `size` read, half written."""
        from numbaprims.cpu import roofline

        x = self._buffer("_source", int(size) // 8)
        return Probe(roofline.updater(x), 2.0 * x.nbytes, "in-place addition")

    def copies(self, size: float) -> dict[str, Probe]:
        """Every way of copying, half of `size` read and half written."""
        from numbaprims.cpu import roofline

        count = int(size) // 8
        x, y = self._buffer("_source", count), self._buffer("_target", count)
        calls = {
            "plain stores": roofline.copier(x, y, streaming=False),
            "streaming stores": roofline.copier(x, y, streaming=True),
            "np.copyto": lambda: np.copyto(y, x),
        }
        return {form: Probe(call, 2.0 * x.nbytes, form) for form, call in calls.items()}

    def copy(self, size: float) -> Probe:
        """The fastest copy at this size."""
        probes = self.copies(size)
        form = self._best_copy.get(int(size))
        if form is None:
            times = measure({name: probe.call for name, probe in probes.items()}, _QUICK)
            form = self._best_copy[int(size)] = min(times, key=lambda name: times[name].seconds)
        return probes[form]

    def _buffer(self, name: str, count: int) -> np.ndarray:
        count = max(count, 1)
        held: np.ndarray = getattr(self, name)
        if held.size < count:
            held = aligned_empty((count,), np.float32)
            held.fill(1.0)  # touch the pages; a value that sums and additions keep finite
            setattr(self, name, held)
        return held[:count]

    def levels(self) -> list[dict[str, Any]]:
        """Reading from each cache, the nearest first: its name, the bytes that all threads have of it, GB/s.

        Every thread reads half of it; of one that others may share an eighth, but more than the second level holds.
        """
        from numbaprims.cpu import roofline, target, threads

        cpu, count = target.current(), threads.count()
        third = min(cpu.l3 // 2, max(cpu.l3 // 8, 2 * cpu.l2))
        caches = [("L1", cpu.l1d // 2, cpu.l1d * count), ("L2", cpu.l2 // 2, cpu.l2 * count), ("L3", third, cpu.l3)]
        caches = [cache for cache in caches if cache[1]]
        probes = {
            (name, pages): roofline.cache_reader(self._buffer("_source", size // 4), pages=pages)
            for name, size, _ in caches
            for pages in (False, True)
        }
        times = measure({f"{name} {pages}": call for (name, pages), (call, _, _) in probes.items()}, _LEVEL)
        rates = {key: amount / times["{} {}".format(*key)].best / 1e9 for key, (_, _, amount) in probes.items()}
        return [
            {"name": name, "bytes": whole, "read": max(rates[name, False], rates[name, True])}
            for name, _, whole in caches
        ]

    @staticmethod
    def round_trip() -> float | None:
        """Seconds from one core to another and back now; None on one thread."""
        from numbaprims.cpu import roofline

        return roofline.round_trip()

    def summary(self) -> dict[str, Any]:
        """GFLOP/s and GB/s of this machine on the current threads, streams far larger than the caches."""
        probes = {
            **{f"fma_{dtype}": self.multiply_add(dtype) for dtype in ("f32", "f64", "bf16", "int8")},
            "read": self.read(STREAM_BYTES),
            "update": self.update(2 * STREAM_BYTES),
        }
        copies = self.copies(2 * STREAM_BYTES)
        times = measure({name: probe.call for name, probe in {**probes, **copies}.items()}, _QUICK)
        found: dict[str, Any] = {name: probe.amount / times[name].seconds / 1e9 for name, probe in probes.items()}
        rates = {form: probe.amount / times[form].seconds / 1e9 for form, probe in copies.items()}
        best = max(rates, key=lambda form: rates[form])
        levels = [*self.levels(), {"name": "memory", "bytes": None, "read": found["read"]}]
        return {**found, "copy": rates[best], "copy_form": best, "copies": rates, "levels": levels}
