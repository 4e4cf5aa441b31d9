"""Local response normalisation beside torch in both layouts and onnxruntime."""

STEM = "lrn"


def bench_lrn(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
