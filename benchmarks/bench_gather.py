"""Pads, indices and parts of arrays beside torch, NumPy and onnxruntime."""

STEM = "gather"


def bench_gather(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
