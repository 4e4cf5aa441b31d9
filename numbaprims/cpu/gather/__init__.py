"""Elements of an array at other places: by indices, and by the boxes of a pad."""

from __future__ import annotations

from numbaprims.cpu.gather.index_solvers import SOLVERS as SOLVERS
