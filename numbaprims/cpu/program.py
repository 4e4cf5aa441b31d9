"""Programs: what a call runs, as data that can be printed, joined and run by one interpreter (interpreter.py).

A program is *runs* of *phases*.  A phase is a kernel over all its tiles and begins when the one before has ended on
every worker; a run takes its phases in order, `steps` times.  A phase's arguments are a *block* of 8-byte words: the
integers that its solver has set, and words that are bound to those of the call: the addresses of its arrays and of its
scratch memory, and its floats.

    words of a call: 0 to 6 arrays, 7 the scratch memory, 8 to 13 floats, from FURTHER on further arrays
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims.cpu import threads
from numbaprims.cpu.interpreter import make_interpreter
from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program_words import (
    ARRAYS,
    B_BIND,
    B_WORDS,
    BLOCK_WORDS,
    FIXED,
    FURTHER,
    MOST_WORDS as MOST_WORDS,
    PER_WORKER as PER_WORKER,
    PHASE_WORDS,
    R_BLOCK,
    R_PHASE,
    RUN,
    RUN_WORDS,
    SCRATCH as SCRATCH,
    TOGETHER,
    WHOLE,
)
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.simd.arguments import FLOAT_SLOT, INT_SLOT, SCRATCH as WORKSPACE, Arguments


class Phase(NamedTuple):
    """A kernel over all its tiles."""

    kernel: RangeKernel
    tiles: int
    chunk: int
    """Tiles that are taken at a time; or `PER_WORKER`."""
    one_queue: bool = False
    """Whether workers take the next chunk of all: for few tiles of different sizes that keep nothing for the next."""
    block: int = 0
    """Which of the run's blocks it takes its arguments from."""
    back: bool = False
    """Whether a worker takes its last chunk first: what the phase before has read last is still in a cache."""


class Bind(NamedTuple):
    """What a word of arguments is set to: a word of the call, or bytes from where that points to."""

    word: int
    offset: int = 0
    stride: int = 0
    """Bytes further at each step."""


class Block(NamedTuple):
    """Arguments of phases, by name; what is neither fixed nor bound is 0."""

    args: Arguments
    fixed: Mapping[str, int | float]
    binds: Mapping[str, Bind] | None = None
    """None: the arrays, scratch memory and floats of the call in their order."""

    @classmethod
    def of(
        cls, args: Arguments, fixed: Mapping[str, int | float], binds: Mapping[str, Bind] | None, regions: Regions
    ) -> Block:
        """With the places of the program's regions that have a name in these arguments."""
        fixed = {**fixed, **{name: at for name, at in regions.places.items() if name in args.slots}}
        return cls(args, fixed, binds and {**binds, WORKSPACE: Bind(SCRATCH)})

    @property
    def words(self) -> int:
        """Words that it takes among a worker's arguments."""
        first, blocks = self._span
        return max(self.args.words, first + FIXED * blocks)

    @property
    def _span(self) -> tuple[int, int]:
        """(the first word that is fixed, how many times FIXED of them)."""
        first, used = INT_SLOT if self.binds is None else 0, map(self.args.slots.__getitem__, self.fixed)
        return first, max(0, -(-(max(self.args.used, 1 + max(used, default=0)) - first) // FIXED))

    def assemble(self, at: int) -> tuple[list[int], list[int], list[int]]:
        """(head without addresses, fixed words, bound words), for a place `at` among a worker's arguments."""
        slots, floats = self.args.slots, self.args.floats
        first, blocks = self._span
        fixed = [0] * (blocks * FIXED)
        for name, value in self.fixed.items():
            fixed[slots[name] - first] = _bits(value) if name in floats else int(value)
        binds = (self.binds or {}).items()
        moves = [(name, bind) for name, bind in binds if bind.stride]
        bound: list[int] = []
        for name, bind in (*moves, *(item for item in binds if not item[1].stride)) if moves else binds:
            bound += (slots[name], *bind)
        return [8 * at, int(self.binds is None), first, blocks, len(binds), len(moves)], fixed, bound


class Run(NamedTuple):
    """Phases in their order, `steps` times."""

    phases: tuple[Phase, ...]
    blocks: tuple[Block, ...]
    steps: int = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What a call runs.

    `shared` and `worker` are bytes of scratch memory, of all workers and of each; `keep` is what its integers point to.
    Without `parallel` one thread runs it, whoever calls; `worth` is its part of the work for which threads are woken.
    """

    runs: tuple[Run, ...]
    shared: int = 0
    worker: int = 0
    parallel: bool = True
    worth: float = 0.0
    keep: tuple[Any, ...] = ()
    rows: tuple[int, ...] = ()
    """Where tiles of the only phase are rows apart from each other: of each array the bytes from row to row."""

    @classmethod
    def of(
        cls,
        args: Arguments,
        ints: Mapping[str, int],
        phases: Iterable[Phase | tuple[RangeKernel, int, int]],
        *,
        steps: int = 1,
        regions: Regions | None = None,
        binds: Mapping[str, Bind] | None = None,
        **more: Any,
    ) -> Program:
        """One run whose phases have their arguments in common: the call's arrays and floats, or what is bound, these
        integers, and the places of regions."""
        block = Block(args, ints, binds)
        if regions and (regions.shared or regions.own):
            for have, named, who in (
                (regions.shared, args.shared, "workers share"),
                (regions.own, args.own, "one has"),
            ):
                if unknown := [name for name in have if name not in named]:
                    raise ValueError(f"{sorted(unknown)} are no regions that {who}; those are {named}")
            block = Block.of(args, ints, binds, regions)
            more |= {"shared": regions.shared_bytes, "worker": regions.own_bytes}
        return cls((Run(tuple(Phase(*phase) for phase in phases), (block,), steps),), **more)

    def __post_init__(self) -> None:
        words = self._assemble()
        object.__setattr__(self, "_words", words)
        object.__setattr__(self, "address", int(words.ctypes.data))

    address: int = dataclasses.field(init=False, repr=False, default=0)

    @property
    def most_workers(self) -> int:
        """More workers than chunks would only wake threads for nothing."""
        if not self.parallel:
            return 1
        chunks = [_chunks(phase) for run in self.runs for phase in run.phases]
        return max(chunks, default=1)

    @property
    def many(self) -> bool:
        """Whether it takes more arrays than seven."""
        blocks = [block for run in self.runs for block in run.blocks]
        return any(bind.word >= FURTHER for block in blocks for bind in (block.binds or {}).values())

    def _assemble(self) -> np.ndarray:
        """The words that the interpreter reads; addresses in them point into themselves."""
        runs = [run for run in self.runs if run.steps and any(phase.tiles for phase in run.phases)]
        first = make_interpreter(True).address, 0, id(None), threads.shared_address(), len(runs)
        words = [*first, *[0] * (RUN_WORDS * len(runs))]
        if self.most_workers > 1:
            words[TOGETHER] = make_interpreter(False).address
        addresses = list[int]()  # of words that are places of others

        def put(more: Sequence[int], *pointers: int) -> int:
            place = len(words)
            words.extend(more)
            addresses.extend(place + pointer for pointer in pointers)
            return 8 * place

        for index, run in enumerate(runs):
            at, blocks, args = 0, list[int](), []
            for block in run.blocks:
                head, fixed, bound = block.assemble(at)
                blocks += [*head[:4], put(fixed), *head[4:], put(bound)]
                args.append(8 * at)
                at += block.words
            if at > MOST_WORDS:
                raise ValueError(f"{at} words of arguments; a run has at most {MOST_WORDS}")
            phases, chunks = list[int](), 0
            for phase in run.phases:
                if phase.chunk == PER_WORKER and phase.tiles != 1:
                    raise ValueError(f"{phase.tiles} tiles for each worker; there is one")
                if phase.tiles:
                    tiles = phase.tiles if phase.chunk != PER_WORKER else PER_WORKER
                    own = _chunks(phase)
                    phases += (phase.kernel.address, tiles, max(1, phase.chunk), own)
                    phases += (int(phase.one_queue), int(phase.back), args[phase.block])
                    chunks += own
            starts = [BLOCK_WORDS * number for number in range(len(run.blocks))]
            block_at = put(blocks, *(start + word for start in starts for word in (B_WORDS, B_BIND)))
            head_at = RUN + RUN_WORDS * index
            words[head_at : head_at + RUN_WORDS] = (
                len(phases) // PHASE_WORDS, run.steps, chunks, put(phases), len(run.blocks), block_at
            )  # fmt: skip
            addresses += (head_at + R_PHASE, head_at + R_BLOCK)
        made = np.empty(len(words), np.int64)
        base = int(made.ctypes.data)
        for place in addresses:
            words[place] += base
        made[:] = words
        return made

    def __str__(self) -> str:
        lines = []
        for run in self.runs:
            indent = ""
            if run.steps != 1:
                lines.append(f"{run.steps} times:")
                indent = "  "
            for phase in run.phases:
                cut = "once for all workers" if phase.chunk == PER_WORKER else f"{phase.tiles} tiles"
                if 1 < phase.chunk < phase.tiles:
                    cut += f", {phase.chunk} at a time"
                cut += ", one queue" * phase.one_queue + ", the last ones first" * phase.back
                lines.append(f"{indent}{phase.kernel.name}: {cut}")
        if self.shared or self.worker:
            lines.append(f"scratch: {self.shared} bytes shared, {self.worker} a worker")
        if self.most_workers == 1:
            lines.append("in the calling thread")
        return "\n".join(lines)


def _bits(value: float) -> int:
    """Of a float64."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def _chunks(phase: Phase) -> int:
    return 1 if phase.chunk == PER_WORKER else -(-phase.tiles // max(1, phase.chunk))


class Region(NamedTuple):
    """Bytes into a region that joined programs share."""

    name: str
    offset: int = 0


class Part(NamedTuple):
    """A program as a part of another: what its arrays and floats are there."""

    program: Program
    arrays: Sequence[Bind | Region | int | None]
    """Of its arrays, in order; None for one that it does not have, a number for one that always lies at that address,
    which steps do not move."""
    floats: Sequence[int | float]
    """An int is the number of a float of the call, a float a constant."""


#: Of the work for which threads are woken what each further program has to bring: they wait for one another behind it.
#: Gradients of group norm, five programs of 7.6 and 4.6 us in one thread, took 10.2 and 8.6 in two (Zen 5).
TURN = 0.2


def scratch(offset: int = 0) -> Bind:
    """So many bytes into the scratch memory of the joined program."""
    return Bind(SCRATCH, offset)


def array(number: int, offset: int = 0) -> Bind:
    """So many bytes into an array of the call."""
    return Bind(number if number < ARRAYS else FURTHER + number - ARRAYS, offset)


def join(
    parts: Iterable[Part],
    *,
    shared: int | Mapping[str, int] = 0,
    parallel: bool = True,
    keep: tuple[Any, ...] = (),
) -> Program:
    """One program that runs others, one after another.

    `shared` bytes at the start of its scratch memory are for what they hand on, or regions by name; their own scratch
    memory lies behind, all in the same place.
    """
    runs: list[Run] = []
    regions = Regions({"shared": shared} if isinstance(shared, int) else shared)
    places, shared = regions.places, regions.shared_bytes
    parts = [part._replace(arrays=[_placed(each, places) for each in part.arrays]) for part in parts]
    for part in parts:
        for run in part.program.runs:
            blocks = tuple(_bound(block, part, shared) for block in run.blocks)
            runs.append(run._replace(blocks=blocks))
    programs = [part.program for part in parts]
    worth = max(0.0, sum(program.worth for program in programs) - TURN * (len(programs) - 1))
    return Program(
        tuple(runs),
        shared=shared + max((program.shared for program in programs), default=0),
        worker=max((program.worker for program in programs), default=0),
        parallel=parallel and (any(program.parallel for program in programs) or worth > 1),
        worth=worth,
        keep=(*keep, *programs),
    )


def _placed(array: Bind | Region | int | None, places: Mapping[str, int]) -> Bind | int | None:
    return scratch(places[array.name] + array.offset) if isinstance(array, Region) else array


def _bound(block: Block, part: Part, own: int) -> Block:
    """A block whose words of the part's call are words of the joined one."""
    binds: dict[str, Bind] = {}
    fixed: dict[str, int | float] = dict(block.fixed)
    given = block.binds
    if given is None:
        given = {name: Bind(slot) for name, slot in block.args.slots.items() if slot < WHOLE}
    for name, bind in given.items():
        word = bind.word
        if word == SCRATCH:
            binds[name] = bind._replace(offset=own + bind.offset)
        elif FLOAT_SLOT <= word < WHOLE:
            number = word - FLOAT_SLOT
            value = part.floats[number] if number < len(part.floats) else 0.0
            if isinstance(value, int):
                binds[name] = Bind(FLOAT_SLOT + value)
            else:
                fixed[name] = value
        else:
            number = word if word < ARRAYS else word - FURTHER + ARRAYS
            target = part.arrays[number] if number < len(part.arrays) else None
            if isinstance(target, int):
                fixed[name] = target + bind.offset
            elif isinstance(target, Bind):
                binds[name] = Bind(target.word, target.offset + bind.offset, target.stride + bind.stride)
    return Block(block.args, fixed, binds)
