"""cp.async: copies that are in flight until the thread that started them waits for their group."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import access
from .dtypes import UNSIGNED, Array
from .memory import IN_FLIGHT, READY
from .parse import Instruction

if TYPE_CHECKING:
    from .machine import Batch


@dataclass
class InFlight:
    """One cp.async of several threads: which, into which group of each, where to, and what."""

    lanes: Array
    group: Array
    offsets: Array
    data: Array  # one unsigned integer (complex128 for 16 bytes) for each


class AsyncCopies:
    """Data becomes readable in shared memory at the wait, not before: reading it earlier is reported as a race."""

    def __init__(self, batch: "Batch") -> None:
        self.batch = batch
        self.pending: list[InFlight] = []
        self.committed: Array = np.zeros(batch.threads, np.int64)

    def start(
        self, ins: Instruction, lanes: Array, target: Array, source: Array, nbytes: int, valid: Array | None
    ) -> None:
        batch = self.batch
        offsets = access.shared_offsets(batch, ins, lanes, target, nbytes, "cp.async write")
        granules = access.shared_granules(batch, offsets, nbytes)
        access.check_shared_state(batch, ins, lanes, granules, False, "cp.async write")
        if batch.shared_races is not None:  # it may write from now on
            conflict = batch.shared_races.write(granules, lanes)
            if conflict is not None:
                access.report_race(batch, ins, lanes, conflict, "cp.async write", "shared")
        access.check_alignment(batch, ins, lanes, source, nbytes, "cp.async source")
        data: Array = np.zeros(len(lanes), UNSIGNED[nbytes])
        whole = np.ones(len(lanes), np.bool_) if valid is None else valid >= nbytes
        if whole.any():
            data[whole] = access.load_global(batch, ins, lanes[whole], source[whole], nbytes, nbytes, "cp.async read")
        if valid is not None and not whole.all():
            pieces = data.view(np.uint8).reshape(-1, nbytes)
            for byte in range(int(valid[~whole].max())):  # the rest stays zero
                some = ~whole & (valid > byte)
                pieces[some, byte] = access.load_global(
                    batch, ins, lanes[some], source[some] + byte, 1, 1, "cp.async read"
                )
        batch.shared.state[granules] = IN_FLIGHT
        self.pending.append(InFlight(lanes, self.committed[lanes], offsets, data))

    def commit(self, lanes: Array) -> None:
        self.committed[lanes] += 1

    def wait(self, ins: Instruction, lanes: Array, keep: int, everything: bool) -> None:
        """Complete these threads' groups but the last `keep` committed; `everything` takes uncommitted ones too."""
        batch = self.batch
        waits = np.zeros(batch.threads, np.bool_)
        waits[lanes] = True
        left = []
        for copy in self.pending:
            done = waits[copy.lanes]
            if not everything:
                done = done & (copy.group < self.committed[copy.lanes] - keep)
            if not done.any():
                left.append(copy)
                continue
            self._arrive(copy, done)
            if not done.all():
                stay = ~done
                left.append(InFlight(copy.lanes[stay], copy.group[stay], copy.offsets[stay], copy.data[stay]))
        self.pending = left

    def _arrive(self, copy: InFlight, done: Array) -> None:
        batch = self.batch
        lanes, offsets, data = copy.lanes[done], copy.offsets[done], copy.data[done]
        nbytes = data.itemsize
        batch.shared.bytes.view(data.dtype)[offsets // nbytes] = data
        granules = access.shared_granules(batch, offsets, nbytes)
        batch.shared.state[granules] = READY
        if batch.shared_races is not None:  # other threads need a barrier after this wait
            batch.shared_races.writer[granules] = lanes[:, None]
            block, warp = np.divmod(lanes >> 5, batch.clocks.warps)
            batch.shared_races.written[granules] = batch.clocks.own[block, warp][:, None]
        batch.mbarriers.note_generic_write(granules, lanes)
