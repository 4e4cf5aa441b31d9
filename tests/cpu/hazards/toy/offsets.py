"""Two imports away from the kernels."""

OFFSET = 0
