"""Connectionist temporal classification on a GPU: kernels  of the loss and its gradient;  decode  searches."""

from numbaprims.gpu.ctc.solvers import SOLVERS as SOLVERS
