"""The first elements by size beside torch and NumPy."""

STEM = "topk"


def bench_topk(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
