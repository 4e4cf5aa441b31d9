"""gemv and its transpose beside NumPy, torch and SciPy."""

STEM = "gemv"


def bench_gemv(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
