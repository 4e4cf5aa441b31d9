"""activations into a given output beside torch, NumPy and numexpr."""

STEM = "activation"


def bench_activation(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
