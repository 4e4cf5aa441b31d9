"""Quantisation and the layers of quantised networks beside onnxruntime."""

STEM = "quantize"


def bench_quantize(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
