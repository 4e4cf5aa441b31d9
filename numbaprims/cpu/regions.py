"""Regions: a program's scratch memory by name, and where each of them is.

A solver says how many bytes it needs of what; nobody else adds up bytes.  Shared regions lie first, each at a line of
the cache, and behind them each worker's own.  Kernels read them by name (`Arguments(shared=..., own=...)`), programs
that are joined hand them on by name (`Part`, `Bind`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from numbaprims.cpu.simd.arguments import EACH

LINE = 64
"""Bytes that regions begin at multiples of."""


def whole_lines(nbytes: int) -> int:
    """So many bytes, and what is missing to a whole line of the cache."""
    return -(-nbytes // LINE) * LINE


@dataclasses.dataclass(frozen=True)
class Regions:
    """Bytes of regions that all workers share, and of those that each has for itself."""

    shared: Mapping[str, int] = dataclasses.field(default_factory=dict)
    own: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def shared_bytes(self) -> int:
        """Of all shared regions."""
        return sum(map(whole_lines, self.shared.values()))

    @property
    def own_bytes(self) -> int:
        """Of one worker's."""
        return sum(map(whole_lines, self.own.values()))

    @property
    def nbytes(self) -> int:
        """Bytes that one thread's call needs."""
        return self.shared_bytes + self.own_bytes

    @property
    def places(self) -> dict[str, int]:
        """Bytes from the beginning of the scratch memory to each region, of its own ones the first worker's; from a
        worker's to the next's."""
        at, places = 0, dict[str, int]()
        for name, nbytes in (*self.shared.items(), *self.own.items()):
            if name in places:
                raise ValueError(f"two regions have the name {name}")
            places[name] = at
            at += whole_lines(nbytes)
        if self.own:
            places[EACH] = at - places[next(iter(self.own))]
        return places
