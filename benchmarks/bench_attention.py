"""Attention beside torch and onnxruntime."""

STEM = "attention"


def bench_attention(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
