"""A batch of blocks: registers, the threads' program counters, and the scheduler.

All threads of the batch live in one row of NumPy arrays, padded to whole warps. Threads at the same basic block form a
group and run it together. The group with the smallest program counter goes first, which lets divergent threads meet
again where their paths join; `order="random"` takes any group, to show what a kernel owes to that order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from .dtypes import UNSIGNED, Array, register_type
from .memory import BlockMemory, GlobalMemory
from .parse import Instruction
from .races import Clocks, GlobalRaces, SharedRaces

if TYPE_CHECKING:
    pass

Step = Callable[["Batch"], None]
Terminator = Callable[["Batch"], "int | None"]

Dim3 = tuple[int, int, int]
IDLE_YIELDS = 2000  # looks at an mbarrier in vain, by whichever threads, after which nobody is expected to come


@dataclass(frozen=True)
class Checks:
    """What is looked for besides faults, which always are. Each costs time; all of them are on unless told."""

    races: bool = True  # shared memory, within a block
    global_races: bool = True  # global memory, between blocks and within one
    uninitialised: bool = True
    max_steps: int = 20_000_000  # basic blocks run, after which a launch counts as endless


ALL_CHECKS = Checks()
NO_CHECKS = Checks(races=False, global_races=False, uninitialised=False)


@dataclass
class BasicBlock:
    steps: list[Step]
    terminator: Terminator
    lines: tuple[int, ...] = ()  # of the PTX


@dataclass
class SharedLayout:
    """Addresses of the shared variables of a block; gaps between them stay unallocated."""

    addresses: dict[str, int]
    nbytes: int
    valid: Array


@dataclass
class Program:
    """A kernel, translated once: everything that depends on neither the launch nor the memory."""

    name: str
    blocks: dict[int, BasicBlock]
    registers: list[str]  # PTX types
    slots: list[tuple[int, type[np.generic]]]  # (register, NumPy type): views that instructions use
    special: dict[str, int]  # "%tid.x" -> register
    shared_layout: Callable[[int], SharedLayout]
    variables: frozenset[str]  # global and constant ones that it names
    local_bytes: int
    granule: int  # bytes of shared memory that every shared access covers whole
    global_granule: int
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Launch:
    """What all batches of one launch have in common."""

    program: Program
    memory: GlobalMemory
    grid: Dim3
    block: Dim3
    shared: int
    parameters: Array  # bytes of the parameter block
    variables: dict[str, int]  # addresses of global and const variables
    checks: Checks
    order: str
    rng: np.random.Generator
    races: GlobalRaces | None
    worst_approximations: bool = False
    tensor_maps: dict[int, Any] = field(default_factory=dict)
    steps: int = 0
    visited: set[int] = field(default_factory=set)  # basic blocks that have run


class Batch:
    """The blocks [first, first + blocks) of a launch, run to their end."""

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        from .barriers import Barriers
        from .copies import AsyncCopies
        from .mbarrier import Mbarriers

        self.launch, self.program, self.checks = launch, launch.program, launch.checks
        self.first, self.blocks = first, blocks
        self.block_threads = int(np.prod(launch.block))
        self.warps = -(-self.block_threads // 32)
        self.padded = self.warps * 32
        self.threads = blocks * self.padded
        self.all_lanes: Array = np.arange(self.threads)
        self.thread: Array = self.all_lanes % self.padded  # within its block
        self.block_of: Array = self.all_lanes // self.padded
        self.live: Array = self.thread < self.block_threads
        self.memory = launch.memory
        layout = launch.program.shared_layout(launch.shared)
        granule = launch.program.granule
        self.shared = BlockMemory(blocks, layout.nbytes, layout.valid, granule)
        self.shared_row: Array = self.block_of * self.shared.stride
        self.local = BlockMemory(self.threads if launch.program.local_bytes else 0, launch.program.local_bytes)
        self.clocks = Clocks(blocks, self.warps)
        self.shared_races: SharedRaces | None = None
        if self.checks.races and layout.nbytes:
            self.shared_races = SharedRaces(self.clocks, blocks * self.shared.stride // granule, self.threads)
        self.global_races = launch.races
        self.active: Any = slice(None)
        self.full = bool(self.live.all())
        self.values = self._registers()
        self.barriers: Barriers = Barriers(self)
        self.copies: AsyncCopies = AsyncCopies(self)
        self.mbarriers: Mbarriers = Mbarriers(self)
        self.proxy_fences: Array = np.zeros(self.threads, np.int32)  # fence.proxy.async executed by each thread
        self.tensor_work: list[Any] = []  # wgmma whose operands may still be read
        self.tensor_groups: Array = np.zeros(blocks * -(-self.padded // 128), np.int64)  # committed by each warpgroup
        self.ready: dict[int, list[Array]] = {}
        self.blocked: set[int] = set()  # groups at a collective that still lacks lanes
        self.yielded: set[int] = set()  # groups that spin
        self.idle_yields = 0
        self.wants_yield = False

    # ------------------------------------------------------------------ registers
    def _registers(self) -> list[Array]:
        program = self.program
        by_width: dict[int, list[int]] = {}
        for number, kind in enumerate(program.registers):
            by_width.setdefault(np.dtype(register_type(kind)).itemsize, []).append(number)
        raw: dict[int, Array] = {}
        for nbytes, numbers in by_width.items():
            rows = np.zeros((len(numbers), self.threads), UNSIGNED[nbytes])
            raw |= dict(zip(numbers, rows, strict=True))
        for name, number in program.special.items():
            raw[number][:] = self._special(name)
        return [raw[number].view(kind) for number, kind in program.slots]

    def _special(self, name: str) -> Any:
        launch = self.launch
        block = self.block_of + self.first
        stem, _, axis = name.partition(".")
        size = {"%tid": launch.block, "%ctaid": launch.grid}.get(stem)
        if size is not None:
            linear = self.thread if stem == "%tid" else block
            divisor = {"x": 1, "y": size[0], "z": size[0] * size[1]}[axis]
            return linear // divisor % size["xyz".index(axis)]
        if stem in ("%ntid", "%nctaid"):
            return (launch.block if stem == "%ntid" else launch.grid)["xyz".index(axis)]
        lane = (self.all_lanes & 31).astype(np.uint64)
        one = np.uint64(1)
        layout = self.program.shared_layout(launch.shared)
        known: dict[str, Any] = {
            "%laneid": lane, "%warpid": self.thread >> 5, "%nwarpid": self.warps,
            "%lanemask_eq": one << lane, "%lanemask_lt": (one << lane) - one,
            "%lanemask_le": (one << (lane + one)) - one,
            "%lanemask_gt": ~((one << (lane + one)) - one) & np.uint64(0xFFFFFFFF),
            "%lanemask_ge": ~((one << lane) - one) & np.uint64(0xFFFFFFFF),
            "%dynamic_smem_size": launch.shared, "%total_smem_size": layout.nbytes,
            "%smid": block % 132, "%nsmid": 132, "%gridid": 0, "%clock": 0, "%clock64": 0, "%globaltimer": 0,
        }  # fmt: skip
        if name not in known and stem not in known:
            raise errors.Unsupported(f"special register {name}")
        return known.get(name, known.get(stem))

    # ------------------------------------------------------------------ who runs
    @property
    def lanes(self) -> Array:
        """Numbers of the active threads, ascending."""
        return self.all_lanes if isinstance(self.active, slice) else self.active

    def warpgroup(self, lanes: Any) -> Any:
        """Numbers, over the batch, of these threads' warpgroups: four warps from a multiple of four on in a block."""
        return self.block_of[lanes] * -(-self.padded // 128) + self.thread[lanes] // 128

    def activate(self, lanes: Array) -> None:
        self.active = slice(None) if len(lanes) == self.threads else lanes

    def row(self, value: Any) -> Array:
        """An operand as one value for each active thread."""
        return value if isinstance(value, np.ndarray) and value.ndim else np.full(len(self.lanes), value)

    def where(self, lane: int) -> str:
        block, thread = int(self.block_of[lane]) + self.first, int(self.thread[lane])
        grid, shape = self.launch.grid, self.launch.block

        def split(linear: int, size: Dim3) -> str:
            return f"({linear % size[0]},{linear // size[0] % size[1]},{linear // (size[0] * size[1])})"

        return f"block {split(block, grid)} thread {split(thread, shape)}"

    def fail(self, kind: type[errors.EmulatorError], instruction: Instruction, lane: int, message: str) -> None:
        at = f"PTX line {instruction.line}: {instruction.text}"
        source = f" (source {instruction.source})" if instruction.source else ""
        raise kind(f"{message}; {self.where(int(lane))}, {at}{source}")

    # ------------------------------------------------------------------ the scheduler
    def enqueue(self, pc: int, lanes: Array) -> None:
        if len(lanes):
            self.ready.setdefault(pc, []).append(lanes)
            self.blocked.discard(pc)

    def wait_for_lanes(self, pc: int, lanes: Array) -> None:
        """Keep a group at a collective until more of its threads arrive there."""
        if len(lanes):
            self.ready.setdefault(pc, []).append(lanes)
            self.blocked.add(pc)

    def exit(self, lanes: Array) -> None:
        self.live[lanes] = False
        self.idle_yields = 0
        self.barriers.after_exit(np.unique(self.block_of[lanes]))

    def _choose(self) -> int | None:
        able = [pc for pc in self.ready if pc not in self.blocked]
        if not able:
            return None
        fresh = [pc for pc in able if pc not in self.yielded]
        if not fresh:  # everybody spins: start a new round
            self.yielded.clear()
            fresh = able
        if self.launch.order == "random":
            return int(self.launch.rng.choice(sorted(fresh)))
        return min(fresh)

    def run(self) -> None:
        blocks, launch = self.program.blocks, self.launch
        self.enqueue(0, np.flatnonzero(self.live))
        with np.errstate(all="ignore"):
            while True:
                start = self._choose()
                if start is None:
                    if self.ready or self.barriers.anybody_waits():
                        raise errors.Deadlock(self._deadlock())
                    return
                parts = self.ready.pop(start)
                self.activate(parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts)))
                pc: int | None = start
                self.wants_yield = False
                while pc is not None:
                    block = blocks[pc]
                    for step in block.steps:
                        step(self)
                    launch.steps += 1
                    launch.visited.add(pc)
                    pc = block.terminator(self)
                    if pc is not None and (self.wants_yield or (self.ready and self._others_first(pc))):
                        self.enqueue(pc, self.lanes)
                        if self.wants_yield:
                            self._spin(pc)
                        break
                    if launch.steps > launch.checks.max_steps:
                        raise errors.Deadlock(f"{launch.steps} basic blocks run: an endless loop? " + self._deadlock())

    def _others_first(self, pc: int) -> bool:
        if self.launch.order == "random":
            return True
        return any(other <= pc for other in self.ready if other not in self.blocked and other not in self.yielded)

    def _spin(self, pc: int) -> None:
        self.yielded.add(pc)
        self.idle_yields += 1
        if self.idle_yields > IDLE_YIELDS:
            raise errors.Deadlock("threads wait for an mbarrier phase that never completes. " + self._deadlock())

    def _deadlock(self) -> str:
        said = []
        for pc, parts in sorted(self.ready.items()):
            lanes = np.concatenate(parts)
            instruction = self.program.instructions[min(pc, len(self.program.instructions) - 1)]
            said.append(
                f"{len(lanes)} threads ({self.where(int(lanes[0]))} first) are at PTX line {instruction.line}: "
                f"{instruction.text}"
            )
        said += self.barriers.describe()
        return "no thread can go on: " + "; ".join(said) if said else "no thread can go on"
