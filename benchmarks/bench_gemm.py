"""gemm beside NumPy, torch (MKL) and oneDNN."""

STEM = "gemm"


def bench_gemm(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
