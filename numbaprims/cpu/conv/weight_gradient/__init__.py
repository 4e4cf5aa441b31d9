"""Gradients of the weight of a convolution as a product on the CPU."""
