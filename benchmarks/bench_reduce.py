"""Reductions of arrays beside torch and NumPy."""

STEM = "reduce"


def bench_reduce(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
