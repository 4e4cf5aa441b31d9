"""Where the 16-byte pieces of a tile stand in shared memory.

Shared memory has 32 banks of 4 bytes; eight threads that access 16 bytes each are served at once if their pieces lie
in different eighths of the 128-byte lines.  ldmatrix reads one piece column of eight consecutive rows, so the rows'
pieces are permuted: piece p of row r goes where p xor a number of r would be, another number for each of eight rows.
No padding is needed, and a tile that a tensor copy wrote with 128-byte swizzle has this very order.
"""

from __future__ import annotations

from typing import Any

from numbaprims.gpu.jit import device_function, types

PIECE = 16
"""Bytes."""


@device_function
def swizzled(row: Any, piece: Any, row_bytes: Any) -> Any:
    """Byte offset, uint32, of 16-byte piece `piece` of row `row`, rows of 64, 128, 256 ... bytes (a literal).

    The tile must start at a multiple of 128 bytes, of 1024 where a tensor copy writes it.
    """
    if row_bytes == 64:  # two rows share a line
        turn = (row >> types.uint32(1)) & types.uint32(3)
    else:
        turn = row & types.uint32(7)
    return row * types.uint32(row_bytes) + ((piece ^ turn) << types.uint32(4))
