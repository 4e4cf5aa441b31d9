"""Recurrent networks beside torch and onnxruntime."""

STEM = "rnn"


def bench_rnn(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
