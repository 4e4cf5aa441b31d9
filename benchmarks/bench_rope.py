"""Rotary position embedding beside torch and onnxruntime."""

STEM = "rope"


def bench_rope(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
