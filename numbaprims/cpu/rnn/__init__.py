"""Recurrent networks: the input product of all steps at once, then a time loop in one native call."""

from numbaprims.cpu.rnn.solvers import SOLVERS

__all__ = ["SOLVERS"]
