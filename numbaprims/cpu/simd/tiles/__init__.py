"""Register tiles: the inner loops of products and convolutions, sums held in registers throughout."""
