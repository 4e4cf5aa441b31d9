"""Functions of elements beside torch and NumPy."""

STEM = "tensor"


def bench_tensor(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
