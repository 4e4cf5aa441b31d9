"""What every activation kernel takes."""

from __future__ import annotations

from numbaprims.cpu.simd import Arguments

# Forward: out = f(x), with prelu's weight or glu's gate beside x.  Backward: out (dx) from dy and x or y;
# glu's second half goes to dgate.  p0, p1, p2: the kind's parameters in the order of the table of kinds. n:
# elements; tile: elements of a tile. compute: address of the kernel that computes contiguous runs, for the
# kernels that only move data. plan: address of the problem's loops (see plan.py).  channels: how many there
# are, for prelu's weight. half: elements from gate and dgate, which begin where x and out do, to the halves
# that they stand for; 0 where addresses are those of the halves.
ARGS = Arguments(
    arrays=("out", "x", "dy", "y", "weight", "gate", "dgate", "workspace"),
    floats=("p0", "p1", "p2"),
    ints=("n", "tile", "compute", "plan", "channels", "half"),
)

#: Arrays by name -> their slot.
SLOTS = {name: slot for slot, name in enumerate(ARGS.arrays)}
