"""One case: hold every contender to the reference, time all of them interleaved, make a record of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from numbaprims.bench.cases import OURS, Case, Contender, Workload, stem_module
from numbaprims.bench.operands import spoil
from numbaprims.tuning.timing import Clock, Measurements, Ratio, Schedule, measure

ROOF, READ = "roofline", "roofline of reading"


def run_case(
    case: Case, threads: int, roofline: Any, schedule: Schedule, *, memory: float | None = None,
    clock: Clock | None = None, more: Iterable[str] = (), rivals: Sequence[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure a case on the current threads; a record as it stands in the JSON file.

    `roofline` is a `Roofline`, or the one of a GPU; `memory` is what there is for operands (None: an eighth of the
    machine's, half of it where the stem counts EVERYTHING that is alive at a time), `clock` the device's; `more` names
    further numbers of the workload that are wanted, `rivals` those that are measured (None: all).

    A contender whose result is wrong, or that raises, is not timed: its reason stands under "refused".
    When that happens to ours, the record has "error" and no times at all.
    """
    module = stem_module(case.stem)
    record: dict[str, Any] = {
        "stem": case.stem,
        "suite": case.suite,
        "label": case.label,
        "sizes": dict(case.sizes),
        "switches": dict(case.switches),
        "dtype": case.dtype,
        "threads": threads,
        "command": f"{case.command} --threads {threads}",
    }
    needed = module.memory(case)
    everything = getattr(module, "EVERYTHING", False)
    if needed > (physical_memory() / (2 if everything else 8) if memory is None else memory):
        part = "half of the device's" if memory else f"{'half' if everything else 'an eighth'} of this machine's"
        record["error"] = f"the operands take {needed / 1e9:.1f} GB, more than {part} memory"
        return record
    try:
        work = module.workload(case, threads)
        work.contenders = {n: c for n, c in work.contenders.items() if rivals is None or n in (OURS, *rivals)}
        record["solver"] = work.solver()
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}"
        return record
    refused = check_contenders(work)
    if OURS in refused:
        record["error"] = refused[OURS]
        return record
    roofs = {bound: roofline.probe(bound, case.dtype, work.level or work.bytes) for bound in _bounds(work)}
    calls = {name: contender.call for name, contender in work.contenders.items() if name not in refused}
    probes = {_roof(bound): probe.call for bound, probe in roofs.items() if probe.call}
    if work.bound == "update" and probes and hasattr(roofline, "read"):  # its goal is stated in terms of reading
        read = roofline.read(work.bytes)
        probes[READ] = read.call
    times = measure({**calls, **probes}, schedule, clock=clock, warm=True)  # the checks have called them
    record.update(_measured(work, times, {bound: probe.amount for bound, probe in roofs.items()}))
    if READ in probes:
        percent = _scaled(times.speedup(OURS, over=READ), 100 * work.bytes / read.amount)
        record["percent_of_read"] = percent.value
    for name in more:
        if name in work.more:
            try:
                record[name] = work.more[name]()
            except Exception as error:
                refused[name] = f"{type(error).__name__}: {error}"
    if refused:
        record["refused"] = refused
    return record


def check_contenders(work: Workload) -> dict[str, str]:
    """Run each contender once on a poisoned output; name -> what is wrong with its result."""
    refused = {}
    for name, contender in work.contenders.items():
        wrong = _wrong(work, contender)
        if wrong is not None:
            refused[name] = wrong
    return refused


def _wrong(work: Workload, contender: Contender) -> str | None:
    if contender.reset is not None:
        contender.reset()
    elif work.output is not None:
        spoil(work.output)
    try:
        with np.errstate(all="ignore"):  # results count, not flags: OpenBLAS on ARM64 in emulation leaves some
            contender.call()
        result = contender.result()
    except Exception as error:
        # inductor's begins "backend='inductor' raised:" and says in the next line what
        return f"{type(error).__name__}: {' '.join(str(error).splitlines()[:2])}"
    wrong = (contender.check or work.check)(result)
    if contender.reset is not None:
        contender.reset()
    return None if wrong is None else f"wrong result: {wrong}"


def _bounds(work: Workload) -> list[str]:
    return work.bound.replace(" and ", " or ").split(" or ")


def _in_turn(parts: Sequence[tuple[float, float]], work: Workload, each: Mapping[str, Ratio]) -> dict[str, Ratio]:
    """Of parts that run one after the other: what stands under each roof, percent of its share."""
    found = dict.fromkeys(each, Ratio(0.0, 0.0, 0.0))
    for nbytes, flops in parts:
        shares = {"read": _scaled(each["read"], nbytes / work.bytes), "fma": _scaled(each["fma"], flops / work.flops)}
        lowest = max(shares, key=lambda bound: shares[bound].value)
        found[lowest] = _sum([found[lowest], shares[lowest]])
    return found


def _sum(ratios: Iterable[Ratio]) -> Ratio:
    value, low, high = map(sum, zip(*((each.value, each.low, each.high) for each in ratios), strict=True))
    return Ratio(value, low, high)


def _roof(bound: str) -> str:
    return f"{ROOF} {bound}"


def _share(work: Workload, times: Measurements, bound: str, probe_amount: float) -> tuple[Ratio, float]:
    """(percent of a roof, its operations or bytes a second)"""
    amount = work.flops if bound == "fma" else work.bytes
    if _roof(bound) in times:
        # Paired by round: both blocks fell into the same state of the machine.
        percent = _scaled(times.speedup(OURS, over=_roof(bound)), 100 * amount / probe_amount)
        return percent, probe_amount / times[_roof(bound)].seconds
    # a peak by formula
    return Ratio.of([100 * amount / seconds / probe_amount for seconds in times[OURS].blocks]), probe_amount


def _measured(work: Workload, times: Measurements, amounts: Mapping[str, float]) -> dict[str, Any]:
    ours = times[OURS]
    shares = {bound: _share(work, times, bound, amount) for bound, amount in amounts.items()}
    if work.parts:
        turns = _in_turn(work.parts, work, {bound: share for bound, (share, _) in shares.items()})
        shares = {bound: (turns[bound], rate) for bound, (_, rate) in shares.items()}
    lowest = max(shares, key=lambda bound: shares[bound][0].value)  # the roof that is reached first
    percent, rate = shares[lowest]
    if work.parts:
        lowest, percent = work.bound, _sum(share for share, _ in shares.values())
    found = {
        name: {
            "seconds": times[name].seconds,
            "speedup": times.speedup(OURS, over=name).value,
            "low": times.speedup(OURS, over=name).low,
            "high": times.speedup(OURS, over=name).high,
            "form": work.contenders[name].form,
        }
        for name in work.contenders
        if name in times and name != OURS
    }
    for entry in found.values():
        if not entry["form"]:
            del entry["form"]
    return {
        "seconds": ours.seconds,
        "best": ours.best,
        "spread": ours.spread,
        "rounds": len(ours.blocks),
        "gflops": work.flops / ours.seconds / 1e9,
        "gbs": work.bytes / ours.seconds / 1e9,
        "bytes": work.bytes,
        "flops": work.flops,
        "roof": {
            "bound": lowest,
            "rate": rate / 1e9,
            "percent": percent.value,
            "low": percent.low,
            "high": percent.high,
            **({"percents": {bound: share.value for bound, (share, _) in shares.items()}} if len(shares) > 1 else {}),
        },
        "rivals": found,
    }


def _scaled(ratio: Ratio, factor: float) -> Ratio:
    return Ratio(ratio.value * factor, ratio.low * factor, ratio.high * factor)


def physical_memory() -> float:
    """Bytes of memory of the machine; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
