"""Batch normalisation beside torch in both layouts, onnxruntime and NumPy."""

STEM = "batch_norm"


def bench_batch_norm(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
