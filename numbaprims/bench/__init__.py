"""Benchmarks that ship with the library: `numbaprims bench gemm|gemv|ger|activation|call|start`.

cases       what is measured: a case, its contenders, the suites of shapes in shapes/*.toml
stems/      one module a primitive: our call, the rivals in their best form, the check of both
rivals      the rivals' threads, the caps of the environment that would slow them down, the kernels they use
roofline    what the machine can do, measured in the same run: FMA peak, read, copy and update bandwidth
runner      one case: check every contender, time them interleaved, make a record of it
targets     the project's floors and aims;  table prints records and targets, plot draws them
results     where records are kept, and with which facts about the machine;  report writes them into the docs
"""
