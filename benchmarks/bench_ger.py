"""ger, the rank-1 update in place, beside NumPy, torch, SciPy and numexpr."""

STEM = "ger"


def bench_ger(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
