"""The pointwise engine: formulas without reductions over arrays of one shape.

form    what a kernel's code depends on: a formula by name, its arrays, how results leave
emit    contiguous runs, as an intrinsic for range kernels;  blocks  any strides, by way of those kernels
"""
