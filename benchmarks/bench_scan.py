"""Cumulative sums beside torch and NumPy."""

STEM = "scan"


def bench_scan(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
