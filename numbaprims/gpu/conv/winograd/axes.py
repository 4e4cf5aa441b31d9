"""One axis of the tiles and windows: F(m, r), and how a longer window or a stride is cut into pieces that share it.

The products of all pieces add up before the inverse transform, as those of all channels do: a piece is a few more
channels, those of x from its first tap on.  A stride splits the taps, and the pixels that they meet, into those of each
remainder by it, which are pieces too.
"""

from __future__ import annotations

from typing import NamedTuple

from numbaprims.gpu.gemm.arguments import ceil_div

MOST_POINTS, MOST_OUTPUTS = 8, 6
"""Of a tile: those of F(6, 3), whose errors are the largest that are taken."""

MOST_FIRSTS = 16
"""First taps of pieces along one axis: they travel as 4 bits each of one int64."""


class Axis(NamedTuple):
    """F(m, r) along one axis, for each of the pieces of a window."""

    m: int
    """Outputs of a tile."""
    r: int
    """Taps of a piece."""
    stride: int = 1
    firsts: tuple[int, ...] = (0,)
    """The first taps of the pieces."""

    @property
    def n(self) -> int:
        """Positions in the transform's domain."""
        return self.m + self.r - 1

    @property
    def word(self) -> int:
        """The first taps, 4 bits each; as an int64."""
        word = sum(first << (4 * i) for i, first in enumerate(self.firsts))
        return word - (1 << 64) if word >> 63 else word


def firsts(taps: int, stride: int, r: int) -> tuple[int, ...]:
    """The first taps of pieces of up to r, for each remainder by the stride.

    >>> firsts(7, 1, 4), firsts(3, 2, 2)
    ((0, 4), (0, 1))
    """
    return tuple(
        first + stride * r * i
        for first in range(min(stride, taps))
        for i in range(ceil_div(ceil_div(taps - first, stride), r))
    )


def best_axis(taps: int, stride: int, outputs: int) -> Axis | None:
    """The cut with the fewest products for an output; None where no cut has few enough pieces."""
    found = []
    for r in range(1, min(ceil_div(taps, stride), MOST_POINTS - 1) + 1):
        begin = firsts(taps, stride, r)
        if len(begin) > MOST_FIRSTS or max(begin) >= 16:
            continue
        # one tap is multiplied as it is
        for m in range(1, min(MOST_POINTS + 1 - r, MOST_OUTPUTS, max(outputs, 1)) + 1 if r > 1 else 2):
            axis = Axis(m, r, stride, begin)
            found.append((len(begin) * axis.n * ceil_div(outputs, m), axis.n, axis))
    return min(found)[2] if found else None
