"""What `python tests/fuzz.py` draws, where it puts the operands, and how it judges the results."""
