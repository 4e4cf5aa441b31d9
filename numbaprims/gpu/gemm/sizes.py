"""The tiles of a product: which part of out a block computes, and which sums a thread keeps in registers.

A block computes BM x BN elements, a warp WARP_M x WARP_N of them, a thread TM x TN.  The 32 threads of a warp stand
LM x LN; each takes rows and columns in vectors of 16 bytes, LM (LN) vectors apart, so that the threads that load at a
time read 128 neighbouring bytes of shared memory, or the same ones: no bank conflicts.
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
    mma: int = 0
    """k of one product of tensor cores (float64), whose lanes stand 8 x 4; 0 for ordinary multiply-adds."""

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
        """Blocks that a multiprocessor is to hold: 16 warps of 128 registers; 12 of 168 where the sums of a thread are
        64 registers and do not suffer that (32 float64, used in pairs; 128 threads, which load twice as many words each
        as 256); 8 of 255 where they are 128."""
        words = self.tm * self.tn * word // 4
        many = words == 64 and (word == 8 or self.threads == 128)
        return max(1, (256 if words > 64 else 384 if many else 512) // self.threads)

    def registers(self, word: int) -> int:
        """What a thread may use for that."""
        return min(255, 65536 // (self.threads * self.residents(word)) // 8 * 8)

    def shared(self, word: int) -> int:
        """Bytes of shared memory, words of `word` bytes: the blocks of k, and later the sums in their place."""
        pad = padding(word, self.mma)
        blocks = self.stages * self.bk * (self.bm + self.bn + 2 * pad)
        return max(blocks, self.bm * (self.bn + pad)) * word


def padding(word: int, mma: int = 0) -> int:
    """Words behind each row of a tile in shared memory, which keep rows 16-byte aligned.

    8 neighbours in k and 4 in m are stored by one warp at a time where k has unit stride: rows 4 words of 4 bytes (2 of
    8 bytes, 16 threads at a time) off a multiple of 32 banks spread them over all banks.  Tensor cores take 4
    neighbours in k and 4 in m of 8 bytes at a time: 4 words.
    """
    return 4 if mma else 16 // word


# 8 x 8 sums make 64 multiply-adds of 4 loads, 8 x 4 32 of 3, 4 x 4 16 of 2.  Of 4096 x 4096 x 4096 on an H100 128 x 128
# takes 2.9 ms, with k in blocks of 8 3.0; 16 x 8 sums in tiles of 256 x 128, one block of 8 warps, 3.1.
TILES = {
    "128x128": Tile(8, 8, 4, 8, 4, 2, 16, 3),
    "128x64": Tile(8, 4, 4, 8, 4, 2, 16, 3),
    "128x64_8x8": Tile(8, 8, 4, 8, 4, 1, 16, 4),
    "64x64": Tile(8, 4, 4, 8, 2, 2, 16, 3),
    "32x32": Tile(4, 4, 4, 8, 2, 1, 16, 4),
    "128x16": Tile(4, 4, 8, 4, 4, 1, 16, 4),
    "16x128": Tile(4, 4, 4, 8, 1, 4, 16, 4),
    # of tensor cores: 9.0 multiplies 8 k at a time, 8.0 4
    "128x128_k8": Tile(8, 8, 8, 4, 2, 4, 16, 3, 8),
    "128x64_k8": Tile(8, 8, 8, 4, 2, 2, 16, 3, 8),
    "64x64_k8": Tile(4, 8, 8, 4, 2, 2, 16, 3, 8),
    "128x128_k4": Tile(8, 8, 8, 4, 2, 4, 16, 3, 4),
    "64x64_k4": Tile(4, 8, 8, 4, 2, 2, 16, 3, 4),
}


def efficiency(tile: str) -> float:
    """The part of the peak that a tile's kernel leaves: multiply-adds among all the instructions of a block of k, of
    which 45 are copies, addresses and loops, and a load of 16 bytes counts four times: it is two accesses of a memory
    that four schedulers share.  Scaled to what an H100 reaches of its boost clock's peak (128 x 128: 49.7 of 66.9)."""
    size = TILES[tile]
    sums = size.tm * size.tn
    return 0.96 * sums / (sums + size.tm + size.tn + 45 / size.bk)
