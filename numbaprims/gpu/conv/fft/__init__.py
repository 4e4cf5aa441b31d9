"""Convolution by Fourier transforms of tiles on a GPU, for large windows."""

from numbaprims.gpu.conv.fft.solvers import Fft

__all__ = ["Fft"]
