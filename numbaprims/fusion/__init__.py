"""Fusion: operators that run as few native calls, planned once and executed many times."""
