"""Measuring: the one clock of the library. The search and the database of measured times stand on it."""
