"""Formulas that the CPU and the GPU compute alike, written once over a `Value` that each of the two defines."""
