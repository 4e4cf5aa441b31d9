"""The definitions: every primitive in NumPy float64, written to be read. The tests' oracle."""
