"""Happens-before race detection with vector clocks, one component for each warp of a block.

Every access is stamped with its warp's own clock. `known[b, w, v]` is the latest clock of warp v that warp w of
block b has synchronised with; an access comes after an earlier one of warp v if `known[b, w, v]` reaches its stamp.
Asynchronous bulk copies have a component of their own, which only their mbarrier passes on.
Barriers and mbarriers join clocks, so that named barriers and producer-consumer rings need no rules of their own.
Within one warp, lanes count as unordered until a syncwarp or a barrier: since Volta they are.

Shared memory remembers the last writer of each granule and, for each warp, its last reading lane. Global memory
remembers the last writing thread only: a write by one block and an access by another in the same launch are a race,
unless the first block has executed a release in between, and the second an acquire after it: an atomic is both.
"""

from dataclasses import dataclass

import numpy as np

from .dtypes import Array

_NOBODY = -1
_SEVERAL_LANES = 32
_LOG = 512  # reads
_FIRST_COPY = 1 << 24  # stamps of copies lie above every clock of a warp


class Clocks:
    """Vector clocks of a batch of blocks."""

    def __init__(self, blocks: int, warps: int) -> None:
        self.warps = warps
        self.own: Array = np.ones((blocks, warps), np.int32)
        self.known: Array = np.zeros((blocks, warps, warps + 1), np.int32)  # the last column is for copies
        self.copies: Array = np.full(blocks, _FIRST_COPY, np.int32)
        self.floor = 0  # no warp's component of `known` is below: what is stamped so is ordered before everything

    def place(self, lane: int) -> tuple[int, int]:
        """Block and warp of a thread of the batch."""
        return divmod(lane >> 5, self.warps)

    def join(self, block: int | slice, members: Array | slice = slice(None)) -> None:
        """A barrier: each member comes to know whatever any member knows, and everything that members did."""
        if isinstance(block, slice):  # all blocks, all warps
            merged = self.known.max(1)
            np.maximum(merged[:, :-1], self.own, out=merged[:, :-1])
            self.known[:] = merged[:, None, :]
            self.own += 1
        else:
            number = np.arange(self.warps)[members]
            merged = self.known[block, number].max(0)
            merged[number] = np.maximum(merged[number], self.own[block, number])
            self.known[block, number] = merged
            self.own[block, number] += 1
        self._find_floor()

    def step(self, blocks: Array, warps: Array) -> None:
        """A syncwarp: orders the lanes of each warp, nothing else."""
        self.known[blocks, warps, warps] = self.own[blocks, warps]
        self.own[blocks, warps] += 1
        self._find_floor()

    def release(self, block: int, warp: int) -> Array:
        """What a warp publishes when it arrives at an mbarrier."""
        view = self.known[block, warp].copy()
        view[warp] = self.own[block, warp]
        self.own[block, warp] += 1
        return view

    def acquire(self, block: int, warp: int, view: Array) -> None:
        np.maximum(self.known[block, warp], view, out=self.known[block, warp])
        self._find_floor()

    def _find_floor(self) -> None:
        self.floor = int(self.known[:, :, :-1].min())


@dataclass(frozen=True)
class Conflict:
    """The first access of an instruction that is unordered."""

    position: int  # of the lane among those given
    other: int  # thread of the batch that came first, -1 if not known
    granule: int
    kind: str  # what the other one did: "wrote" or "read"


class SharedRaces:
    """Detector for the shared memory of a batch. Lanes are threads of the batch, padded to whole warps."""

    def __init__(self, clocks: Clocks, granules: int, threads: int) -> None:
        self.clocks = clocks
        self.threads = threads  # of the batch; as a writer, the number stands for an asynchronous copy
        self.writer: Array = np.full(granules, _NOBODY, np.int32)
        self.written: Array = np.zeros(granules, np.int32)
        self.atomic: Array = np.zeros(granules, np.bool_)
        # for each granule and warp: clock << 6 | lane, with lane 32 for several
        self.readers: Array = np.zeros((granules, clocks.warps), np.int32)
        # Reads that are not in `readers` yet: (granules, lanes, their clocks, the latest of these). Most are ordered by
        # a barrier before the next write comes and never have to be: that halves the time of a matrix product.
        self.pending_reads: Array = np.zeros(granules, np.int16)  # by wgmma that nobody has waited for
        self.log: list[tuple[Array, Array, Array, int]] = []

    def _place(self, lanes: Array) -> tuple[Array, Array]:
        warp = lanes >> 5
        block = warp // self.clocks.warps
        return block, warp - block * self.clocks.warps

    def _writer_unordered(self, granules: Array, lanes: Array, atomic: bool) -> Array | None:
        """(lanes, k) flags of granules whose last write is unordered, or None; `granules` is (lanes, k)."""
        stamp = self.written[granules]
        if stamp.max(initial=0) <= self.clocks.floor:
            return None
        writer = self.writer[granules]
        block, warp = self._place(lanes)
        by_copy = writer >= self.threads
        writer_warp = np.where(by_copy, self.clocks.warps, (writer >> 5) % self.clocks.warps)
        known = self.clocks.known[block[:, None], warp[:, None], writer_warp]
        bad = (known < stamp) & (writer != lanes[:, None]) & (writer != _NOBODY)
        if atomic:
            bad &= ~self.atomic[granules]
        return bad if bad.any() else None

    def read(self, granules: Array, lanes: Array) -> Conflict | None:
        bad = self._writer_unordered(granules, lanes, False)
        if bad is not None:
            return self._conflict(bad, granules, self.writer[granules], "wrote")
        self.note_reads(granules, lanes)
        return None

    def note_reads(self, granules: Array, lanes: Array) -> None:
        block, warp = self._place(lanes)
        stamps = self.clocks.own[block, warp]
        self.log.append((granules, lanes, stamps, int(stamps.max())))
        if len(self.log) > _LOG:
            self._settle()

    def _settle(self) -> None:
        """Enter the logged reads, without those that a barrier has ordered before everything to come."""
        for granules, lanes, stamps, latest in self.log:
            if latest > self.clocks.floor:
                self._enter(granules, lanes, stamps)
        self.log.clear()

    def _enter(self, granules: Array, lanes: Array, stamps: Array) -> None:
        _, warp = self._place(lanes)
        own = stamps << 6
        record = np.broadcast_to((own | (lanes & 31))[:, None], granules.shape)
        several = np.broadcast_to((own | _SEVERAL_LANES)[:, None], granules.shape)
        column = np.broadcast_to(warp[:, None], granules.shape)
        old = self.readers[granules, column]
        record = np.where((old >> 6 == record >> 6) & (old != record), several, record)
        self.readers[granules, column] = record
        lost = self.readers[granules, column] != record  # two lanes of this instruction read one granule
        if lost.any():
            self.readers[granules[lost], column[lost]] = several[lost]

    def write(self, granules: Array, lanes: Array, atomic: bool = False) -> Conflict | None:
        bad = self._writer_unordered(granules, lanes, atomic)
        if bad is not None:
            return self._conflict(bad, granules, self.writer[granules], "wrote")
        conflict = self._after_reads(granules, lanes)
        if conflict is not None:
            return conflict
        block, warp = self._place(lanes)
        self.writer[granules] = lanes[:, None]
        self.written[granules] = self.clocks.own[block, warp][:, None]
        self.atomic[granules] = atomic
        return None

    def _after_reads(self, granules: Array, lanes: Array) -> Conflict | None:
        self._settle()
        record = self.readers[granules]  # (lanes, k, warps)
        if (record.max(initial=0) >> 6) <= self.clocks.floor:
            return None
        block, warp = self._place(lanes)
        known = self.clocks.known[block, warp, :-1][:, None, :]
        bad = (record >> 6) > known
        same = (np.arange(self.clocks.warps) == warp[:, None])[:, None, :] & (
            (record & 63) == (lanes & 31)[:, None, None]
        )
        bad &= ~same
        if not bad.any():
            return None
        position, column, reader_warp = (int(axis[0]) for axis in np.nonzero(bad))
        lane = int(record[position, column, reader_warp]) & 63
        base = (int(lanes[position]) >> 5) // self.clocks.warps * self.clocks.warps + reader_warp
        other = base * 32 + lane if lane < _SEVERAL_LANES else base * 32
        return Conflict(position, other, int(granules[position, column]), "read")

    def lost_writes(self, granules: Array, lanes: Array) -> Array:
        """Flags of the lanes of one store whose granule another lane of the same store has written too."""
        return (self.writer[granules] != lanes[:, None]).any(1)

    def copied(self, granules: Array, lane: int) -> Conflict | None:
        """An asynchronous copy that `lane` started writes these granules (one row)."""
        lanes = np.array([lane])
        conflict = self.write(granules[None], lanes)
        if conflict is None:
            block = (lane >> 5) // self.clocks.warps
            self.clocks.copies[block] += 1
            self.writer[granules] = self.threads
            self.written[granules] = self.clocks.copies[block]
        return conflict

    @staticmethod
    def _conflict(bad: Array, granules: Array, other: Array, kind: str) -> Conflict:
        position, column = (int(axis[0]) for axis in np.nonzero(bad))
        return Conflict(position, int(other[position, column]), int(granules[position, column]), kind)


class GlobalRaces:
    """Detector for global memory over a whole launch: last writer of each granule, as launch thread + 1."""

    def __init__(self, nbytes: int, granule: int, blocks: int, threads_per_block: int) -> None:
        self.granule = granule
        self.per_block = threads_per_block
        self.writer: Array = np.zeros(-(-nbytes // granule), np.int64)
        self.written: Array = np.zeros(-(-nbytes // granule), np.int32)
        self.now = 1  # releases and acquires of the launch so far
        self.releases: list[list[tuple[int, Array]]] = [[] for _ in range(blocks)]  # when, and of which clocks
        self.acquired: Array = np.zeros(blocks, np.int32)  # when each block did last
        self.wrote = False

    def release(self, clocks: Clocks, threads: Array, first_block: int) -> None:
        """Publish what the warps of these threads know."""
        self.now += 1
        block, warp = threads // self.per_block, threads % self.per_block >> 5
        for each in np.unique(block):
            local, members = each - first_block, np.unique(warp[block == each])
            view = clocks.known[local, members, :-1].max(0)
            view[members] = clocks.own[local, members]
            clocks.own[local, members] += 1
            self.releases[each].append((self.now, view))

    def acquire(self, threads: Array) -> None:
        self.now += 1
        self.acquired[threads // self.per_block] = self.now

    def _unpublished(self, writer: Array, stamp: Array, acquired: Array) -> Array:
        """Flags of writes that are not released, or later than `acquired`."""
        block, warp = writer // self.per_block, writer % self.per_block >> 5
        found = np.ones(writer.shape, np.bool_)
        for each in np.unique(block):
            mine = np.flatnonzero(block == each)
            for time, view in self.releases[each]:
                found[mine] &= (time > acquired[mine]) | (view[warp[mine]] < stamp[mine])
        return found

    def check(self, clocks: Clocks, granules: Array, threads: Array, first_block: int, what: str) -> Conflict | None:
        """`threads` are numbered over the launch; an access is a conflict with an unordered write before it."""
        if not self.wrote:
            return None
        writer = self.writer[granules] - 1
        mine = (threads // self.per_block)[:, None]
        if not (writer >= 0).any():
            return None
        other = writer // self.per_block
        foreign = (writer >= 0) & (other != mine)
        if foreign.any():
            acquired = np.broadcast_to(self.acquired[mine], writer.shape)[foreign]
            foreign[foreign] = self._unpublished(writer[foreign], self.written[granules][foreign], acquired)
        near = (writer >= 0) & (other == mine) & (writer != threads[:, None])
        if near.any():
            warp = (threads % self.per_block >> 5)[:, None]
            known = clocks.known[mine - first_block, warp, np.where(near, writer % self.per_block >> 5, 0)]
            near &= known < self.written[granules]
        bad = foreign | near
        if not bad.any():
            return None
        position, column = (int(axis[0]) for axis in np.nonzero(bad))
        return Conflict(position, int(writer[position, column]), int(granules[position, column]), "wrote")

    def note(self, clocks: Clocks, granules: Array, threads: Array, first_block: int) -> None:
        self.wrote = True
        block, warp = threads // self.per_block - first_block, threads % self.per_block >> 5
        self.writer[granules] = threads[:, None] + 1
        self.written[granules] = clocks.own[block, warp][:, None]
