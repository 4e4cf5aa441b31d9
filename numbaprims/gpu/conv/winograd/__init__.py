"""Minimal filtering on a GPU (Winograd 1980; Lavin and Gray 2016): fewer products for small windows."""

from numbaprims.gpu.conv.winograd.fused import WinogradFused
from numbaprims.gpu.conv.winograd.gradient import WinogradWeight
from numbaprims.gpu.conv.winograd.solvers import Winograd2, Winograd4, Winograd6, WinogradPieces

__all__ = ["Winograd2", "Winograd4", "Winograd6", "WinogradFused", "WinogradPieces", "WinogradWeight"]
