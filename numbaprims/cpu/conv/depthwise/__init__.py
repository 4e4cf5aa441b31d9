"""Depthwise convolution on the CPU: every group has one channel."""
