"""softmax, its logarithm and losses beside torch, onnxruntime and NumPy."""

STEM = "softmax"


def bench_softmax(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
