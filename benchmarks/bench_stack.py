"""Stacks of pooling and element-wise layers beside torch, inductor, onnxruntime and our own layers one by one."""

STEM = "stack"


def bench_stack(benchmark, case, contender):
    benchmark.extra_info["command"] = case.command
    benchmark(contender.call)
