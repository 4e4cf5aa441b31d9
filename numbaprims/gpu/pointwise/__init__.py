"""Formulas without reductions on a GPU: one kernel for contiguous runs, any strides and broadcasting.

form  what the code of a kernel depends on;  emit, turned  its code;  walk  programs, from loops over arrays

Bytes: each operand once and each result once.  y = f(x) in float32 moves 8 bytes an element, which an H100 does in 1.8
elements a clock and multiprocessor; that leaves 70 instructions an element before arithmetic shows (35 in half
precision), and the most expensive of the common formulas, gelu, takes 40.  So a thread moves 16 bytes an access, and
what matters is how many are in flight: with 32 registers a multiprocessor holds 2048 threads, 32 KiB of loads, twice
what 600 ns of latency at 3.35 TB/s need.
"""
