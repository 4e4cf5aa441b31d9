"""The tiles of a product: which part of out a block computes, and which sums a thread keeps in registers.

A block computes BM x BN elements, a warp WARP_M x WARP_N of them, a thread TM x TN.  The 32 threads of a warp stand
LM x LN; each takes rows and columns in vectors of 16 bytes, LM (LN) vectors apart, so that the eight threads that load
at a time read 128 neighbouring bytes of shared memory, or the same ones: no bank conflicts.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """Sizes of a tile."""

    tm: int
    tn: int
    """Sums of a thread."""
    lm: int
    ln: int
    """Threads of a warp, 32 in all."""
    wm: int
    wn: int
    """Warps of a block."""
    bk: int
    """Words of k that are in shared memory at a time (a word of int8 is four elements)."""
    stages: int
    """How many such blocks of k there are, under way or being multiplied."""

    @property
    def bm(self) -> int:
        return self.tm * self.lm * self.wm

    @property
    def bn(self) -> int:
        return self.tn * self.ln * self.wn

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn

    @property
    def name(self) -> str:
        return f"{self.bm}x{self.bn}"

    def residents(self, word: int) -> int:
        """Blocks that a multiprocessor is to hold: 16 warps of 128 registers, or 12 of 168 where the sums of a thread
        are 64 registers that are used in pairs (32 float64, which spill at 128)."""
        return max(1, (384 if word == 8 and self.tm * self.tn >= 32 else 512) // self.threads)

    def registers(self, word: int) -> int:
        """What a thread may use for that."""
        return min(255, 65536 // (self.threads * self.residents(word)) // 8 * 8)

    def shared(self, word: int) -> int:
        """Bytes of shared memory, words of `word` bytes: the blocks of k, and later the sums in their place."""
        pad = padding(word)
        blocks = self.stages * self.bk * (self.bm + self.bn + 2 * pad)
        return max(blocks, self.bm * (self.bn + pad)) * word


def padding(word: int) -> int:
    """Words behind each row of a tile in shared memory.

    8 neighbours in k and 4 in m are stored by one warp at a time where k has unit stride: rows 4 words of 4 bytes (2 of
    8 bytes, 16 threads at a time) off a multiple of 32 banks spread them over all banks, and keep rows 16-byte aligned.
    """
    return 16 // word


TILES = {
    # Multiply-adds for each word loaded from shared memory: 4, 2.7, 2.7, 2, 2, 2.  Blocks of 32 k leave 86 % of the
    # instructions to the multiply-adds, blocks of 16 k 82 %; two of them, since one takes 4 us to be multiplied.
    "128x128": Tile(8, 8, 4, 8, 4, 2, 32, 2),
    "128x64": Tile(8, 4, 4, 8, 4, 2, 16, 3),
    "64x64": Tile(8, 4, 4, 8, 2, 2, 16, 3),
    "32x32": Tile(4, 4, 4, 8, 2, 1, 16, 4),
    "128x16": Tile(4, 4, 8, 4, 4, 1, 16, 4),
    "16x128": Tile(4, 4, 4, 8, 1, 4, 16, 4),
}
