"""Convolution on the CPU as a product with a column matrix (Chellapilla et al. 2006)."""
