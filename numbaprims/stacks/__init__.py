"""Stacks of layers as data, which import nothing of ours: operations, steps, and the sequences that a cache holds."""
