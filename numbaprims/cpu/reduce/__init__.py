"""The reduce engine: formulas with reductions (`numbaprims.formulas.reductions`) as range kernels.

variant  what a kernel's code depends on, and the plan of a problem's sizes and strides that it reads
emit     a formula's values and passes as vector code;  memory  where elements lie;  sums  reductions;  stores  results
kernels  range kernels of it: whole rows, chunks of rows, merged chunks
solvers  which there are, and what they are estimated to take
"""

from __future__ import annotations

from numbaprims.cpu.reduce.solvers import SOLVERS as SOLVERS
