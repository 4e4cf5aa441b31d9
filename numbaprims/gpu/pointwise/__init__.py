"""Formulas without reductions on a GPU: one kernel for contiguous runs, any strides and broadcasting.

form  what the code of a kernel depends on;  emit, turned  its code;  walk  programs, from loops over arrays

Bytes: each operand once and each result once.  y = f(x) in float32 moves 8 bytes an element, which an H100 does in 1.8
elements a clock and multiprocessor; that leaves 70 instructions an element before arithmetic shows (35 in half
precision), and the most expensive of the common formulas, gelu, takes 40.  So a thread moves 16 bytes an access, and
what matters is how many are in flight: with 32 registers a multiprocessor holds 2048 threads, 32 KiB of loads, twice
what 600 ns of latency at 3.35 TB/s need.  An H100 moves 64 Mi float32 in 180 us, at its copy's speed; as a loop over
as many threads as run at a time it took 194.  Two packs in flight help where arithmetic shows: gelu of bfloat16 takes
98 us by the formula of 21 instructions, 92 with two.  Stores past the caches (st.global.cs) change nothing.
"""
