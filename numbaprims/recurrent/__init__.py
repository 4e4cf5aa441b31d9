"""Recurrent networks as data, before any kernel: their weights, and the lengths of their sequences."""
