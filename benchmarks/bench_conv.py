"""conv and its gradients beside torch (oneDNN) and onnxruntime."""

STEM = "conv"


def bench_conv(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
