"""What one core of this machine does in a second: the measurement behind ``numbaprims calibrate``."""

from __future__ import annotations

from datetime import date
from typing import Any

from numbaprims import settings
from numbaprims.bench.roofline import Roofline
from numbaprims.cpu import roofline, target, threads
from numbaprims.cpu.rates import CpuRates
from numbaprims.cpu.target import CpuTarget
from numbaprims.tuning.timing import Schedule, measure

# Short turns, many of them: some then fall between those of other processes.
_SCHEDULE = Schedule(block=2e-3, settle=0.5e-3, rounds=20)
#: Beyond the caches that a core reaches, if not as far as a benchmark's streams: half is read, half written.
LEAST_STREAM = 64 << 20
#: A cache of 300 MiB is filled in 20 ms.
_FILLED = Schedule(block=60e-3, settle=40e-3, rounds=3)
#: Seconds: a worker that takes longer to come waits for a core that another process has.
BUSY = 100e-6


def third_part(probes: Roofline, cpu: CpuTarget, workers: int, stream: int) -> float | None:
    """The part of the third-level cache that these workers find again, each its own: in eighths, the largest that is
    read more than half as much faster than memory as the smallest; None where none exceeds the second level."""
    parts = [part / 8 for part in range(1, 9) if part * cpu.l3 >= 16 * cpu.l2 * workers]
    if not cpu.l3 or not parts:
        return None
    sizes = {"memory": probes.read(stream, in_order=True)}
    sizes |= {str(part): probes.read(part * cpu.l3, in_order=True) for part in parts}
    times = measure({name: probe.call for name, probe in sizes.items()}, _FILLED)
    rates = {name: probe.amount / times[name].seconds for name, probe in sizes.items()}
    least = (rates[str(parts[0])] + rates["memory"]) / 2
    return max((part for part in parts if rates[str(part)] >= least), default=parts[0])


def measure_rates() -> tuple[CpuRates, list[str]]:
    """The rates of one core now and what other threads cost, and why some are the profile's.

    The best of several turns: other users of the machine only add.
    """
    cpu, remarks = target.current(), []
    with settings.config(threads=1):
        probes = Roofline()
        chain, cycles = roofline.clock()
        multiply, operations = roofline.fma_peak("f32")
        stream = max(LEAST_STREAM, 4 * cpu.l3)
        copies = {name: probe for name, probe in probes.copies(stream).items() if not name.startswith("np.")}
        calls = {"clock": chain, "fma": multiply, "call": roofline.nothing(1)}
        dots = roofline.dot_peak("bf16") if roofline.has_dot("bf16") else None
        calls |= {"dots": dots[0]} if dots else {}
        times = measure({**calls, **{name: probe.call for name, probe in copies.items()}}, _SCHEDULE)
        read = [(level["name"].lower(), level["read"] * 1e9) for _ in range(3) for level in probes.levels()]
        levels = {name: max(rate for level, rate in read if level == name) for name, _ in read}
        alone = third_part(probes, cpu, 1, stream)
    clock = cycles / times["clock"].best
    lanes = cpu.vector_bytes // 4
    found: dict[str, Any] = {
        "clock": clock,
        **levels,
        "memory": max(probe.amount / times[name].best for name, probe in copies.items()),
        "fma": operations / times["fma"].best / (2 * lanes * clock),
        "call": times["call"].best,
    }
    workers = threads.count()
    # of a cache of which one core finds a part, several may find one each
    together = third_part(probes, cpu, workers, stream) if workers > 1 else None
    if dots:
        found["dots"] = dots[1] / times["dots"].best / (operations / times["fma"].best)
    if alone is not None:
        share = max(alone, together or 0.0)
        found |= {"share": share, "single": alone / share}
    if workers == 1:
        remarks.append("wake and phase are the profile's: a call has one thread here")
    else:
        many = roofline.EMPTY_PHASES
        calls = {str(phases): roofline.nothing(workers, phases) for phases in (1, many)}
        waking = {name: timing.best for name, timing in measure(calls, _SCHEDULE).items()}
        phase = (waking[str(many)] - waking["1"]) / (many - 1)
        if 0 < phase < waking["1"] < BUSY:
            found |= {"wake": waking["1"], "phase": phase}
        else:
            remarks.append("wake and phase are the profile's: other processes keep the cores busy")
    return cpu.rates._replace(**found, source=f"calibrated {date.today().isoformat()}"), remarks
