"""Benchmarks on a GPU: the same cases and contenders, operands in device memory, time by the device's events."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, NamedTuple

from numbaprims.bench import cases, table
from numbaprims.bench.operands import on_gpu
from numbaprims.bench.roofline import Probe
from numbaprims.bench.runner import run_case
from numbaprims.tuning.timing import Schedule, measure

# A sample of this length holds so many launches that the device never waits for the host between two of them.
RESOLUTION = 1e-3
STREAM_BYTES = 1 << 30


class Peak(NamedTuple):
    """A roof by formula: operations a second, nothing to be timed."""

    amount: float
    form: str
    call: None = None


class GpuRoofline:
    """What a device can do: products by its data sheet's formula, memory by the driver's own copy.

    The copy is the roof of reading too: no call of the driver reads without writing.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._held = 0
        self._ends: tuple[Any, ...] = ()

    def probe(self, bound: str, dtype: str, size: float) -> Probe | Peak:
        """The roof over a case, as `Roofline.probe`."""
        if bound == "fma":
            kind = {"int8": "i8"}.get(dtype, dtype)
            return Peak(self._driver.target.peak(kind), "peak of the data sheet")
        return self.copy(size)

    def copy(self, size: float) -> Probe:
        """A copy inside the device, half of `size` read and half written."""
        from numbaprims.gpu.memory import empty

        count = max(1, int(size) // 2)
        if self._held < count:
            self._ends = tuple(empty((count,), "uint8", device=self._driver.device) for _ in range(2))
            self._held = count
        source, target = self._ends
        copy = self._driver.copy
        return Probe(lambda: copy(target.pointer, source.pointer, count, 0), 2.0 * count, "the driver's copy")

    def summary(self) -> dict[str, Any]:
        """GFLOP/s by formula, GB/s by formula and measured."""
        target = self._driver.target
        probe = self.copy(2 * STREAM_BYTES)
        schedule = Schedule(rounds=5, min_rounds=3, resolution=RESOLUTION, time_limit=2.0)
        times = measure({"copy": probe.call}, schedule, clock=self._driver.clock())
        return {
            **{f"fma_{dtype}": target.peak(dtype) / 1e9 for dtype in ("f32", "f64", "bf16")},
            "bandwidth": target.bandwidth / 1e9,
            "copy": probe.amount / times["copy"].seconds / 1e9,
        }


def open_device(name: str) -> Any:
    """The driver of ``--device``.

    Raises:
        ValueError: no GPU, or not the packages for one; in words.
    """
    try:
        from numbaprims.gpu import driver

        return driver.current(int(name.partition(":")[2] or 0))
    except (ImportError, RuntimeError) as error:
        raise ValueError(f"--device {name}: {error}") from None


def schedule(options: Namespace) -> Schedule:
    """How long each case is measured."""
    if options.quick:
        return Schedule(rounds=3, resolution=RESOLUTION, time_limit=options.time_limit or 1.0)
    return Schedule(resolution=RESOLUTION, time_limit=options.time_limit or 10.0)


def run(options: Namespace, document: dict[str, Any]) -> int:
    """Measure and print every case; put the records into the document; return how many failed."""
    if options.subject not in cases.STEMS:
        raise ValueError(f"{options.subject} is measured on the CPU only; allowed with --device are {cases.STEMS}")
    driver = open_device(options.device)
    target = driver.target
    document["machine"]["gpu"] = target.name
    document["machine"]["slug"] += f"-{target.name}".lower().replace(" ", "-")
    if options.quick and options.shapes is None:
        options.shapes = ["quick"]
    chosen = cases.stem_module(options.subject).cases(options)
    document["rooflines"], document["records"] = {}, []
    roofline = GpuRoofline(driver)
    summary = document["rooflines"][options.device] = roofline.summary()
    print(
        f"\n{target.name} ({target.arch}): f32 {summary['fma_f32'] / 1e3:.0f} TFLOP/s, bf16 "
        f"{summary['fma_bf16'] / 1e3:.0f} by formula; memory {summary['bandwidth']:.0f} GB/s by formula, "
        f"{summary['copy']:.0f} measured (the driver's copy)"
    )
    print(table.heading(options.subject, on_gpu=True))
    clock = driver.clock()
    for case in chosen:
        with on_gpu(driver):
            record = run_case(
                case, 1, roofline, schedule(options), memory=target.memory / 2, clock=clock, rivals=options.rivals
            )
        record["device"] = target.name
        record["command"] = f"{case.command} --device {options.device}"
        document["records"].append(record)
        print(table.line(record), flush=True)
    print("\n" + "\n".join(table.means(document["records"])))
    return sum("error" in record for record in document["records"])
