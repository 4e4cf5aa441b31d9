"""Resizing beside torch in both layouts and onnxruntime."""

STEM = "resize"


def bench_resize(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
