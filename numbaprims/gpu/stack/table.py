"""The table of a launch: what `emit` reads of every pass, 64 bytes of int32 each, behind what all share.

It is a parameter by value, so it lies in constant memory and no copy goes before the kernel; all threads of a block
read the same word.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

import numpy as np

from numbaprims.gpu.seam import struct_of
from numbaprims.gpu.stack.planning import MOST_PASSES, Region

#: Words of the header.
PASSES, ROWS, COLUMNS, CHANNELS, GROUPS, PATCHES, ACROSS, FAR, IMAGE, CHANNEL = range(10)
#: Bytes in front of the strides of x, out, the parameters and four arrays that are added, int64.
STRIDES = 40
ENTRIES = STRIDES + 7 * 4 * 8
"""Bytes in front of the passes."""
#: Words of a pass; six of `planning.Span` for each dimension.
KIND, PARAMETER, ADDED, MAGIC, HEIGHT, WIDTH = 0, 1, 2, 3, 4, 10
ENTRY = 64
NBYTES = ENTRIES + MOST_PASSES * ENTRY


class Entry:
    """A pass."""

    def __init__(self, kind: int, zeros: bool, parameter: int, added: int, region: Region) -> None:
        pitch = region[1].held
        # n // pitch is n * magic >> 32 while n * pitch < 2**32
        magic = -(-(1 << 32) // pitch) if pitch > 1 else 0
        self.words = (kind + (zeros << 16), parameter, added, magic, *region[0], *region[1])


def make(header: Several[int], strides: Several[Several[int]], entries: Several[Entry]) -> Any:
    """The struct: `header` in the order of its words, strides of seven arrays."""
    raw = np.zeros(NBYTES, np.uint8)
    raw[:STRIDES].view(np.int32)[:] = header
    for at, each in enumerate(strides):
        raw[STRIDES + 32 * at :][: 8 * len(each)].view(np.int64)[:] = each
    for at, entry in enumerate(entries):
        raw[ENTRIES + ENTRY * at :][:ENTRY].view(np.uint32)[:] = np.array(entry.words, np.int64).astype(np.uint32)
    return struct_of(raw)
