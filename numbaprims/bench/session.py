"""A run over the cases of one primitive, for each thread count."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from numbaprims.bench import cases, results, rivals, table
from numbaprims.bench.roofline import Roofline
from numbaprims.bench.runner import run_case
from numbaprims.tuning.timing import Schedule


def schedule(options: Namespace) -> Schedule:
    """How long each case is measured."""
    if options.quick:
        return Schedule(block=6e-3, settle=2e-3, rounds=3, time_limit=options.time_limit or 1.0)
    return Schedule(time_limit=options.time_limit or 10.0)


def thread_counts(options: Namespace) -> list[int]:
    """The counts asked for; one thread and all of them by default."""
    from numbaprims.cpu import threads

    return options.threads or sorted({1, threads.default_threads()})


def run(options: Namespace, document: dict[str, Any]) -> int:
    """Measure and print every case; put the records into the document; return how many failed."""
    if options.quick and options.shapes is None:
        options.shapes = ["quick"]
    chosen = cases.stem_module(options.subject).cases(options)
    document["rooflines"], document["records"] = {}, []
    left_out = [name for name in cases.load_suites(options.subject) if name != "quick"]
    left_out = [name for name in left_out if name not in {case.suite for case in chosen}]
    if options.shapes is None and left_out:
        print(f"suites that do not run unless named: {', '.join(left_out)}")
    for count in thread_counts(options):
        with rivals.limit_threads(count):
            roofline = Roofline()
            summary = document["rooflines"][str(count)] = roofline.summary()
            print(f"\n{count} thread{'s' * (count > 1)}: {_describe(summary)}")
            print(table.heading(options.subject))
            for case in chosen:
                trip = roofline.round_trip()
                record = run_case(case, count, roofline, schedule(options), more=_more(options), rivals=options.rivals)
                if trip is not None:
                    record["round_trip"] = trip
                record["caches"] = {"l3": document["machine"]["l3"]}
                document["records"].append(record)
                print(table.line(record), flush=True)
                results.keep(options, document)
    failed = table.failures(document["records"])
    print("\n" + "\n".join([*table.means(document["records"]), *failed]))
    return len(failed)


def _more(options: Namespace) -> tuple[str, ...]:
    """Further numbers of each case: what a first call costs, and with --regret the times of every solver."""
    return ("cold", "regret") if options.regret else ("cold",)


def _describe(summary: dict[str, Any]) -> str:
    caches = ", ".join(f"{level['name']} {level['read']:.0f}" for level in summary["levels"][:-1])
    return (
        f"FMA peak {summary['fma_f32']:.0f} GFLOP/s f32, {summary['fma_f64']:.0f} f64, "
        f"{summary['fma_bf16']:.0f} bf16, {summary['fma_int8']:.0f} int8; read "
        f"{summary['read']:.1f} GB/s ({caches}), copy {summary['copy']:.1f} ({summary['copy_form']}), "
        f"update {summary['update']:.1f}"
    )
