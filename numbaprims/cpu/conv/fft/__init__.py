"""Convolution by Fourier transforms of tiles on the CPU, for large windows."""

from numbaprims.cpu.conv.fft.solvers import Fft

__all__ = ["Fft"]
