"""Elements of an array at other places on a GPU: a thread an element, or 16 bytes."""

from numbaprims.gpu.gather.solvers import SOLVERS as SOLVERS
