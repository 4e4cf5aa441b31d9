"""Layer, rms, group and instance norm beside torch and onnxruntime."""

STEM = "norm"


def bench_norm(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
