"""The pooling problem: windows over one to three spatial dimensions."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES


@dataclasses.dataclass(frozen=True)
class PoolingProblem(Problem):
    """Windows over x (n, c, *size), or the gradient of x.

    Arrays of a launch. Forward: out, indices (or None), x. Gradient (dx is of shape (n, c, *size)): of max dx, dy,
    and indices or, where they are computed again, x; of avg dx, dy; of lp dx, dy, x, y.  In a launch they stand at
    the places `ARRAYS` names.
    """

    stem: ClassVar[str] = "pooling"
    op: str
    """"max", "avg" or "lp"."""
    direction: str
    """"forward" or "backward"."""
    dtype: str
    n: int
    c: int
    size: tuple[int, ...]
    """Of the input's spatial dimensions."""
    out: tuple[int, ...]
    """Of the output's."""
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    """Padding in front of each spatial dimension."""
    after: tuple[int, ...]
    """Padding behind; a window may reach beyond it (ceil mode), and an average counts it only where it may."""
    dilation: tuple[int, ...]
    layout: str
    """"channels_first" (contiguous planes), "channels_last" (contiguous pixels) or "strided"."""
    adaptive: bool = False
    """Window i reaches from floor(i size / out) to ceil((i + 1) size / out); kernel to dilation are then 0."""
    count_include_pad: bool = True
    p: float = 2.0
    """Of lp: (sum |x|**p)**(1 / p); compiled for 1 and 2."""
    indices: str = ""
    """"" or "i64": of max, the place of the largest in its plane is written (forward) or read (backward)."""
    strides: tuple[tuple[int, ...] | None, ...] = dataclasses.field(compare=False, default=())
    """Of each array of `ARRAYS`, in elements over (n, c, *spatial); None for one that the problem does not have."""

    @property
    def empty(self) -> bool:
        return 0 in (self.n, self.c, *(self.out if self.direction == "forward" else self.size))

    @property
    def taps(self) -> int:
        """Elements of the largest window."""
        if self.adaptive:
            return math.prod(-(-size // out) + 1 for size, out in zip(self.size, self.out, strict=True))
        return math.prod(self.kernel)

    def bench_command(self) -> str:
        rank, whole = len(self.size), self.adaptive and set(self.out) == {1}
        kind = f"{'global' if whole else 'adaptive'}_{self.op}" if self.adaptive else self.op
        window = self.size if whole else self.out if self.adaptive else self.kernel
        # a line is a column of one element
        flat, none = ((1,), (0,)) if rank == 1 else ((), ())
        shape = "x".join(map(str, (self.n, self.c, *flat, *self.size, *flat, *window)))
        dtype = "int8" if self.dtype in ("i8", "u8") else self.dtype
        words = f"numbaprims bench pooling --kind {kind} --shapes {shape} --dtype {dtype}"
        if not self.adaptive:
            for name, values in (
                ("stride", (*flat, *self.stride)), ("padding", (*none, *self.before)),
                ("dilation", (*flat, *self.dilation)),
            ):  # fmt: skip
                words += "" if set(values) == {int(name != "padding")} else f" --{name} {'x'.join(map(str, values))}"
            fields = (self.out, self.size, self.kernel, self.stride, self.before, self.dilation)
            words += " --ceil" * any(
                out > (size + 2 * pad - apart * (taps - 1) - 1) // step + 1
                for out, size, taps, step, pad, apart in zip(*fields, strict=True)
            )
        words += " --layout NHWC" if self.layout == "channels_last" else ""
        return words + (" --backward" if self.direction == "backward" else "")

    def flops(self) -> float:
        return float(self.n * self.c * math.prod(self.out) * self.taps)

    def bytes_moved(self) -> float:
        size = DTYPES[self.dtype].itemsize
        inputs, outputs = self.n * self.c * math.prod(self.size), self.n * self.c * math.prod(self.out)
        moved = (inputs + outputs) * size
        if self.indices:
            moved += outputs * DTYPES[self.indices].itemsize
        elif self.direction == "backward" and self.op != "avg":
            moved += inputs * size + (outputs * size if self.op == "lp" else 0)
        return float(moved)

    def roundings(self) -> int:
        return 1 if self.op == "max" and self.direction == "forward" else self.taps + 4


#: Arrays of a launch, in order; None stands for those that a problem does not have.
ARRAYS = ("out", "indices", "x", "dy", "y")
"""`out` is the result of both directions (y, or dx)."""
