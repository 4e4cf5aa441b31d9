"""``numbaprims calibrate``: measure what estimates assume of this CPU, beside the profile of its family."""

import argparse
import json
import sys
import warnings

UNITS = {
    "clock": (1e-9, "GHz"), "fma": (1.0, "vectors a cycle"), "l1": (1e-9, "GB/s"), "l2": (1e-9, "GB/s"),
    "l3": (1e-9, "GB/s"), "memory": (1e-9, "GB/s"), "call": (1e6, "us"), "wake": (1e6, "us"), "phase": (1e6, "us"),
    "share": (100.0, "% of the third-level cache"), "single": (100.0, "% of that on one thread"),
    "dots": (1.0, "times float32's operations by dot products of bfloat16"),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--forget", action="store_true", help="measure nothing; remove what was measured before")
    parser.add_argument("--no-store", action="store_true", help="measure and show, and remember nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    from numbaprims.cpu import target
    from numbaprims.dispatch import registry
    from numbaprims.tuning import machine

    cpu = target.current()
    path = machine.path_of(cpu.fingerprint)
    if arguments.forget:
        try:
            removed = bool(path) and machine.forget(path)
        except OSError as error:
            print(f"numbaprims calibrate: {path} cannot be removed: {error}", file=sys.stderr)
            return 1
        registry.calibrated()
        if arguments.json:
            print(json.dumps({"removed": path if removed else None, "rates": cpu.rates.source}, indent=2))
        else:
            said = f"{path} removed" if removed else "nothing was measured before"
            print(f"{said}; rates: {cpu.rates.source}")
        return 0
    from numbaprims.bench.rates import measure_rates

    found, remarks = measure_rates()
    stored = False
    if not arguments.no_store and path:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            stored = machine.store(path, cpu.fingerprint, found._asdict())
        registry.calibrated()
    if arguments.json:
        document = {"measured": found._asdict(), "profile": cpu.rates._asdict(), "file": path if stored else None}
        print(json.dumps({**document, "remarks": remarks}, indent=2))
    else:
        print(f"{'':8}{'measured':>10}{'profile':>10}   {cpu.rates.source}, for {cpu.model}")
        for name, (scale, unit) in UNITS.items():
            print(f"{name:8}{getattr(found, name) * scale:10.3g}{getattr(cpu.rates, name) * scale:10.3g} {unit}")
        for line in remarks:
            print(line)
        print(f"kept in {path}" if stored else "not kept" if path else "not kept: the settings want no database")
    return 0 if stored or arguments.no_store else 1
