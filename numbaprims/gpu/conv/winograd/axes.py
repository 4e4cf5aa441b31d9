"""One axis of the tiles and windows: F(m, r), and how a longer window or a stride is cut into pieces that share it."""

from __future__ import annotations

from typing import NamedTuple

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
