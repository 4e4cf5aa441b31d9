"""Convolution on the CPU by sums over all taps in registers."""
