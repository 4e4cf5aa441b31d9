"""dropout and random numbers beside torch and NumPy."""

STEM = "random"


def bench_random(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
