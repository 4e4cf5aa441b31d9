"""Convolution on the CPU as a product without a column matrix (Chetlur et al. 2014)."""
