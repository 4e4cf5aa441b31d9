"""mbarrier objects of sm_80 and later, their phases and what they order, and the generic proxy's unfenced writes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import access, errors
from .dtypes import Array
from .memory import FRESH, IN_FLIGHT, READY
from .parse import Instruction

if TYPE_CHECKING:
    from .machine import Batch


@dataclass
class Copied:
    """Bytes that an asynchronous copy has put down, to be readable when the phase completes."""

    granules: Array
    lane: int


@dataclass
class Mbarrier:
    count: int
    pending: int  # arrivals missing in this phase
    transactions: int  # bytes expected and not yet copied
    phase: int
    created: Array  # clocks that a thread must know to use it
    gathered: Array  # clocks of those that have arrived in this phase
    completed: Array  # clocks that whoever sees the last phase complete comes to know
    copied: list[Copied]
    creator: int  # lane of the thread that initialised it, and how many fence.proxy.async that one had executed
    fences: int


class Mbarriers:
    """All mbarriers of a batch, by (block, address)."""

    def __init__(self, batch: "Batch") -> None:
        self.batch = batch
        self.objects: dict[tuple[int, int], Mbarrier] = {}
        # Kernels whose shared memory is read through the async proxy (wgmma, bulk stores): for each granule the
        # fence count + 1 of the thread that wrote it by an ordinary store, 0 if a bulk copy wrote it.
        self.proxy_stamps: Array | None = None
        self.proxy_writers: Array = np.zeros(0, np.int32)
        if batch.checks.races and any(_reads_by_proxy(ins) for ins in batch.program.instructions):
            self.proxy_stamps = np.zeros(len(batch.shared.state), np.int32)
            self.proxy_writers = np.zeros(len(batch.shared.state), np.int32)

    # ------------------------------------------------------------------ phases
    def initialise(self, ins: Instruction, lane: int, address: int, count: int) -> None:
        batch = self.batch
        self._place(ins, lane, address, "mbarrier.init")
        clocks = np.zeros(batch.clocks.warps + 1, np.int32)
        key = int(batch.block_of[lane]), address
        fences = int(batch.proxy_fences[lane])
        self.objects[key] = Mbarrier(count, count, 0, 0, self._view(lane), clocks, clocks.copy(), [], lane, fences)
        self._mark(lane, address, READY)

    def invalidate(self, ins: Instruction, lane: int, address: int) -> None:
        self.get(ins, lane, address)
        del self.objects[int(self.batch.block_of[lane]), address]
        self._mark(lane, address, FRESH)

    def get(self, ins: Instruction, lane: int, address: int) -> Mbarrier:
        found = self.objects.get((int(self.batch.block_of[lane]), address))
        if found is None:
            self.batch.fail(
                errors.UninitialisedRead, ins, lane, f"mbarrier at shared byte {address} is not initialised"
            )
        assert found is not None
        known = self.batch.clocks.known[self.batch.clocks.place(lane)]
        if self.batch.checks.races and (known < found.created).any():
            self.batch.fail(
                errors.DataRace, ins, lane,
                f"mbarrier at shared byte {address}: nothing orders this after its initialisation",
            )  # fmt: skip
        return found

    def _view(self, lane: int) -> Array:
        """A clock that orders after the initialising thread's present: its own warp passes at once."""
        batch = self.batch
        block, warp = batch.clocks.place(lane)
        view: Array = np.zeros(batch.clocks.warps + 1, np.int32)
        view[warp] = batch.clocks.own[block, warp]
        batch.clocks.known[block, warp, warp] = view[warp]
        batch.clocks.own[block, warp] += 1
        return view

    def _place(self, ins: Instruction, lane: int, address: int, what: str) -> Array:
        lanes, where = np.array([lane]), np.array([address])
        offsets = access.shared_offsets(self.batch, ins, lanes, where, 8, what)
        granules = access.shared_granules(self.batch, offsets, 8)
        access.check_shared_state(self.batch, ins, lanes, granules, False, what)
        return granules

    def _mark(self, lane: int, address: int, state: int) -> None:
        batch = self.batch
        offset = address + int(batch.shared_row[lane])
        granule = batch.shared.granule
        batch.shared.state[offset // granule : (offset + 8) // granule] = state

    def arrive(self, ins: Instruction, lane: int, address: int, count: int, expected: int = 0) -> int:
        """Add to the bytes expected, then arrive `count` times; gives the phase that was current."""
        batch = self.batch
        barrier = self.get(ins, lane, address)
        phase = barrier.phase
        barrier.transactions += expected
        if count:
            if count > barrier.pending:
                batch.fail(
                    errors.Divergence, ins, lane,
                    f"{count} arrivals at an mbarrier that waits for {barrier.pending} of {barrier.count} more",
                )  # fmt: skip
            barrier.pending -= count
            block, warp = batch.clocks.place(lane)
            np.maximum(barrier.gathered, batch.clocks.release(block, warp), out=barrier.gathered)
        self._complete(barrier)
        batch.idle_yields = 0
        return phase

    def copy_done(self, ins: Instruction, lane: int, address: int, nbytes: int, granules: Array) -> None:
        """A bulk copy that signals this mbarrier has written its bytes."""
        batch = self.batch
        barrier = self.get(ins, lane, address)
        if batch.checks.races and int(batch.proxy_fences[barrier.creator]) == barrier.fences:
            batch.fail(
                errors.DataRace, ins, lane,
                f"a bulk copy signals the mbarrier at shared byte {address}, and no fence.proxy.async followed its "
                "initialisation",
            )  # fmt: skip
        barrier.transactions -= nbytes
        barrier.copied.append(Copied(granules, lane))
        barrier.gathered[-1] = max(int(barrier.gathered[-1]), int(batch.clocks.copies[batch.clocks.place(lane)[0]]))
        self._complete(barrier)

    def _complete(self, barrier: Mbarrier) -> None:
        if barrier.pending or barrier.transactions:
            return
        batch = self.batch
        for copy in barrier.copied:
            batch.shared.state[copy.granules] = READY
        barrier.copied.clear()
        barrier.phase += 1
        barrier.pending = barrier.count
        barrier.completed, barrier.gathered = barrier.gathered, np.zeros_like(barrier.gathered)
        batch.idle_yields = 0

    def test(self, ins: Instruction, lane: int, address: int, parity: int) -> bool:
        """Whether the phase of this parity has completed; if so, the thread sees what came before."""
        batch = self.batch
        barrier = self.get(ins, lane, address)
        if barrier.phase & 1 == parity & 1:
            return False
        batch.clocks.acquire(*batch.clocks.place(lane), barrier.completed)
        return True

    # ------------------------------------------------------------------ proxies
    def note_generic_write(self, granules: Array, lanes: Array) -> None:
        if self.proxy_stamps is not None:
            self.proxy_stamps[granules] = self.batch.proxy_fences[lanes][:, None] + 1
            self.proxy_writers[granules] = lanes[:, None]

    def note_bulk_write(self, granules: Array) -> None:
        if self.proxy_stamps is not None:
            self.proxy_stamps[granules] = 0

    def check_proxy(self, ins: Instruction, lane: int, granules: Array, what: str) -> None:
        """A read by the async proxy of what a thread stored and has not fenced since."""
        if self.proxy_stamps is None:
            return
        stamps = self.proxy_stamps[granules]
        unfenced = (stamps > 0) & (self.batch.proxy_fences[self.proxy_writers[granules]] < stamps)
        if unfenced.any():
            writer = int(self.proxy_writers[granules][unfenced][0])
            self.batch.fail(
                errors.DataRace, ins, lane,
                f"{what} reads what thread {int(self.batch.thread[writer])} stored without fence.proxy.async after it",
            )  # fmt: skip

    def begin_bulk_write(self, ins: Instruction, lane: int, granules: Array) -> None:
        """An asynchronous copy into these granules starts: nobody may read them until its mbarrier says so."""
        batch = self.batch
        access.check_shared_state(batch, ins, np.array([lane]), granules[None], False, "bulk copy")
        if batch.shared_races is not None:
            conflict = batch.shared_races.copied(granules, lane)
            if conflict is not None:
                access.report_race(batch, ins, np.array([lane]), conflict, "bulk copy", "shared")
        batch.shared.state[granules] = IN_FLIGHT
        self.note_bulk_write(granules)


def _reads_by_proxy(ins: Instruction) -> bool:
    return ins.opcode == "wgmma" or (ins.opcode == "cp" and "bulk" in ins.modifiers and "global" in ins.modifiers[:5])
