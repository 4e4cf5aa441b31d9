"""CTC beside torch."""

STEM = "ctc"


def bench_ctc(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
