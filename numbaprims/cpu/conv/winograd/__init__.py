"""Minimal filtering on the CPU (Winograd 1980; Lavin and Gray 2016): fewer products for small windows."""

from numbaprims.cpu.conv.winograd.fused_solver import WinogradFused
from numbaprims.cpu.conv.winograd.gradient_solver import WinogradWeight
from numbaprims.cpu.conv.winograd.solvers import Winograd2, Winograd4, Winograd6, WinogradPieces

__all__ = ["Winograd2", "Winograd4", "Winograd6", "WinogradFused", "WinogradPieces", "WinogradWeight"]
