"""How a window is cut along one axis into pieces that share the transforms of one F(m, r).

The products of all pieces add up before the inverse transform, as the products of all channels do: a piece is a few
more channels, those of x from its first tap on.  A stride s splits the taps, and the pixels that they meet, into those
of each remainder by s, which are pieces too.
"""

from __future__ import annotations

from typing import NamedTuple

from numbaprims.cpu.conv.winograd.transform_in import PLACES
from numbaprims.cpu.gemm.cost import ceil_div

MOST_POINTS = 8  # those of F(6, 3), whose errors are the largest that are taken
MOST_OUTPUTS = 6  # F(7, 2), with powers to the sixth in A^T, lost six times as much as F(4, 2)


class Axis(NamedTuple):
    """One axis of the tiles and windows."""

    m: int
    """Outputs of a tile."""
    r: int
    """Taps of a piece."""
    stride: int
    firsts: tuple[int, ...]
    """The first taps of the pieces."""

    @property
    def n(self) -> int:
        """Positions in the transform's domain."""
        return self.m + self.r - 1


def whole(m: int, taps: int) -> Axis:
    """F(m, taps) for a window of stride 1 that is not cut."""
    return Axis(m, taps, 1, (0,))


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


def best_axis(taps: int, stride: int, outputs: int) -> Axis:
    """The cut with the fewest products for an output, of those with at most MOST_POINTS positions."""
    found = []
    longest = ceil_div(taps, stride)
    for r in range(1, min(longest, MOST_POINTS - 1) + 1):
        begin = firsts(taps, stride, r)
        for m in range(1, min(MOST_POINTS + 1 - r, MOST_OUTPUTS, max(outputs, 1)) + 1):
            if r == 1 and m > 1:
                break
            axis = Axis(m, r, stride, begin)
            products = len(begin) * axis.n * ceil_div(outputs, m)
            if len(begin) <= PLACES:
                found.append((products, axis.n, axis))
    # the definition itself, as far as the table of first taps reaches
    return min(found)[2] if found else Axis(1, 1, stride, firsts(taps, stride, 1))
