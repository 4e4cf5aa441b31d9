"""Pooling beside torch in both layouts, oneDNN and onnxruntime."""

STEM = "pooling"


def bench_pooling(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
