"""bar.sync, bar.arrive, bar.red and their barrier.* twins: the block barriers and the named ones."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from .dtypes import Array
from .parse import Instruction

if TYPE_CHECKING:
    from .machine import Batch


@dataclass
class Waiting:
    """Who has arrived at one barrier of one block."""

    instruction: Instruction
    expected: int | None  # threads; None stands for all that have not exited
    arrived: list[Array] = field(default_factory=list)  # threads that wait or have only announced themselves
    groups: list[tuple[int, Array]] = field(default_factory=list)  # (where they go on, threads that wait)
    reduction: Any = None  # (operation, destination writer)
    inputs: list[Array] = field(default_factory=list)

    def count(self) -> int:
        return sum(len(lanes) for lanes in self.arrived)


class Barriers:
    def __init__(self, batch: "Batch") -> None:
        self.batch = batch
        self.waiting: dict[tuple[int, int], Waiting] = {}

    def anybody_waits(self) -> bool:
        return any(entry.groups for entry in self.waiting.values())

    def describe(self) -> list[str]:
        said = []
        for (block, number), entry in self.waiting.items():
            want = entry.expected or int(self._alive(block).sum())
            said.append(
                f"{entry.count()} of {want} threads of block {block + self.batch.first} are at barrier {number}, "
                f"PTX line {entry.instruction.line}: {entry.instruction.text}"
            )
        return said

    def _alive(self, block: int) -> Array:
        padded = self.batch.padded
        alive: Array = self.batch.live[block * padded : (block + 1) * padded]
        return alive

    def everybody(self, instruction: Instruction, next_pc: int) -> int | None:
        """The whole batch stands at the same plain barrier: release it at once. None if it does not."""
        batch = self.batch
        if self.waiting or len(batch.lanes) != int(batch.live.sum()):
            return None
        batch.clocks.join(slice(None))
        batch.idle_yields = 0
        return next_pc

    def arrive(
        self,
        instruction: Instruction,
        numbers: Array,
        expected: int | None,
        next_pc: int,
        waits: bool,
        reduction: Any = None,
        values: Array | None = None,
    ) -> None:
        """The active threads reach the barrier; those of each block that is complete go on."""
        batch = self.batch
        batch.idle_yields = 0
        lanes = batch.lanes
        if expected is not None and expected % 32:
            batch.fail(errors.Divergence, instruction, lanes[0], f"barrier for {expected} threads: not whole warps")
        keys = batch.block_of[lanes] * 16 + numbers
        for key in np.unique(keys):
            block, number = int(key) // 16, int(key) % 16
            mine = keys == key
            entry = self.waiting.setdefault((block, number), Waiting(instruction, expected))
            self._same_place(entry, instruction, lanes[mine], expected)
            entry.arrived.append(lanes[mine])
            if waits:
                entry.groups.append((next_pc, lanes[mine]))
            if reduction is not None and values is not None:
                entry.reduction = reduction
                entry.inputs.append(values[mine])
            self._release_if_complete(block, number)
        if not waits:
            batch.enqueue(next_pc, lanes)

    def _same_place(self, entry: Waiting, instruction: Instruction, lanes: Array, expected: int | None) -> None:
        if entry.expected != expected:
            self.batch.fail(
                errors.Divergence,
                instruction,
                lanes[0],
                f"barrier for {expected} threads, others gave {entry.expected}",
            )
        if expected is None and entry.instruction is not instruction:
            self.batch.fail(
                errors.Divergence, instruction, lanes[0],
                "barrier divergence: other threads of this block wait at another barrier, "
                f"PTX line {entry.instruction.line}",
            )  # fmt: skip

    def after_exit(self, blocks: Array) -> None:
        for block in blocks:
            for key in [key for key in self.waiting if key[0] == block]:
                self._release_if_complete(*key)

    def _release_if_complete(self, block: int, number: int) -> None:
        batch, entry = self.batch, self.waiting[block, number]
        want = int(self._alive(block).sum()) if entry.expected is None else entry.expected
        if entry.count() < want:
            return
        if entry.count() > want:
            batch.fail(
                errors.Divergence, entry.instruction, entry.arrived[-1][0],
                f"{entry.count()} threads at a barrier for {want}",
            )  # fmt: skip
        del self.waiting[block, number]
        everyone = np.concatenate(entry.arrived)
        batch.clocks.join(block, np.unique(batch.thread[everyone] >> 5))
        if entry.reduction is not None:
            operation, write = entry.reduction
            result = operation(np.concatenate(entry.inputs))
            saved = batch.active
            batch.activate(np.sort(everyone))
            write(batch, result)
            batch.active = saved
        for next_pc, lanes in entry.groups:
            batch.enqueue(next_pc, lanes)
