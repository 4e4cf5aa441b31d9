"""The k first elements by size: sorted lists of what is beyond a bound, or a radix sort of what may be among them."""

from __future__ import annotations

from numbaprims.cpu.topk.solvers import SOLVERS as SOLVERS
