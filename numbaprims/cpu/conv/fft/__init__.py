"""Convolution by Fourier transforms of tiles on the CPU, for large windows."""

from numbaprims.cpu.conv.fft.gradient_solver import FftWeight
from numbaprims.cpu.conv.fft.solvers import Fft

__all__ = ["Fft", "FftWeight"]
