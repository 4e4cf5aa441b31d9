"""One program of the launches of several calls: what they hand on lies in its scratch memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims import settings
from numbaprims.cpu import target
from numbaprims.cpu.call_entry import ALIGN
from numbaprims.cpu.drivers import MOST_FURTHER
from numbaprims.cpu.interleave import MOST, in_turns
from numbaprims.cpu.launch import make_launcher as make_launcher
from numbaprims.cpu.program import ARRAYS, Bind, Part, Program, array as word_of, join, scratch
from numbaprims.cpu.recording import Launch, Recording, extent, stand_in as stand_in


class Joined(NamedTuple):
    """A program, and the arrays that it takes behind those of the call: what the calls read that none of them gets."""

    program: Program
    constants: tuple[np.ndarray, ...]


class _Memory:
    """Bytes that one or more arrays of launches lie in."""

    def __init__(self, array: np.ndarray, number: int | None, at: int) -> None:
        low, high = extent(array.shape, array.strides, array.itemsize)
        self.start, self.low, self.high = array.ctypes.data, array.ctypes.data + low, array.ctypes.data + high
        self.number, self.written = number, False
        self.first = self.last = at
        self.offset = 0

    def holds(self, low: int, high: int) -> bool:
        return self.low <= low and high <= self.high

    def bind(self, address: int) -> Bind:
        """What an array that begins at an address is in the program."""
        if self.number is not None:
            return word_of(self.number, address - self.start)
        return scratch(self.offset + address - self.low)


#: A launch's program, and of its arrays each and what it lies in.
_Found = tuple[Program, Launch, list[tuple[np.ndarray, _Memory | None] | None]]
#: Tiles of launches that take turns, at least: every worker should have some.
FEWEST = 8
#: The part of the second-level cache that launches take at a time which write side by side.
BESIDE = 64


def recorded(call: Callable[[], Any]) -> tuple[Any, Recording]:
    """What a function of public calls gives, and its launches, of which none has run."""
    recording = Recording()
    with settings.trial(recording):
        return call(), recording


def joined(recording: Recording, arrays: Sequence[np.ndarray], results: int) -> Joined | str:
    """The program of recorded launches over arrays of the call, its `results` first; in words why there is none.

    Arrays that no launch writes and that are none of the call's are constants: they are read where they lie.
    """
    if not recording.whole:
        return "not everything that is computed is a launch"
    memories = [_Memory(array, number, -1) for number, array in enumerate(arrays)]
    of_call = tuple(memories)
    for array in recording.pieced:
        pieced = _Memory(array, None, len(recording.launches))
        if not any(each.holds(pieced.low, pieced.high) for each in of_call):  # as where it is a result
            if any(each.low < pieced.high and pieced.low < each.high for each in of_call):
                return "an array of the call is a part of what is written piece by piece"
            memories.append(pieced)
    moving: dict[int, np.ndarray] = {}
    found: list[_Found] = []
    for at, launch in enumerate(recording.launches):
        if launch.program is None:
            return "a solver runs no program"
        places: list[tuple[np.ndarray, _Memory | None] | None] = [None] * len(launch.arrays)
        for number in (*launch.outputs, *range(len(launch.arrays))):
            array = launch.arrays[number]
            if array is None or not array.size:
                continue
            low, high = (array.ctypes.data + by for by in extent(array.shape, array.strides, array.itemsize))
            memory = next((each for each in memories if each.holds(low, high)), None)
            if memory is None and number in launch.outputs:
                memory = _Memory(array, None, at)
                memories.append(memory)
            if memory is None and any(each.low < high and low < each.high for each in memories):
                return "a call reads more than another has written"
            if memory is None and _moves(launch.program, number):
                moving[array.ctypes.data] = array
            if memory is not None:
                memory.first, memory.last = min(memory.first, at), at
                memory.written = memory.written or number in launch.outputs
            places[number] = array, memory
        found.append((launch.program, launch, places))
    if not all(memory.written for memory in memories[:results]):
        return "a result is not written by a launch"
    if len(arrays) + len(moving) > ARRAYS + MOST_FURTHER:
        return f"{len(arrays) + len(moving)} arrays are more than a program takes"
    numbers = {address: len(arrays) + k for k, address in enumerate(moving)}
    teams = _teams(found)
    temporary = [memory for memory in memories if memory.number is None and memory.written]
    shared = _lay_out(sorted(temporary, key=lambda memory: memory.first))
    parts = [
        Part(program, [place and _target(*place, numbers) for place in places], launch.floats)
        for program, launch, places in found
    ]
    kept = [place[0] for *_, places in found for place in places if place and place[1] is None]
    program = join(parts, shared=shared, keep=(*kept, *recording.kept))
    runs = list(program.runs)
    for at, count in reversed(teams):
        # each launch before it may have several runs
        place = sum(len(each.runs) for each, *_ in found[:at])
        own = found[at : at + count]
        runs[place : place + count] = [in_turns(runs[place : place + count], *_tiles(own))]
    return Joined(dataclasses.replace(program, runs=tuple(runs)), tuple(moving.values()))


def with_constants(launch: Any, given: Sequence[Any], floats: Sequence[float]) -> Callable[..., None] | None:
    """A launcher of fewer arrays: `given` are those of its program, each the number of one of the call, None, or an
    array that is always the same.  None where it runs no program, or steps walk through what is always the same."""
    program = getattr(launch, "program", None)
    constants = {number: each for number, each in enumerate(given) if isinstance(each, np.ndarray)}
    if program is None or any(_moves(program, number) for number in constants):
        return None
    places = [word_of(each) if isinstance(each, int) else each for each in given]
    for number, array in constants.items():
        places[number] = int(array.ctypes.data)
    return make_launcher(join([Part(program, places, floats)], keep=tuple(constants.values())))


def _teams(found: Sequence[_Found]) -> list[tuple[int, int]]:
    """Launches that take turns over the same rows: (the first, how many) of each such range."""
    teams, at = [], 0
    while at < len(found):
        count = 1
        while at + count < len(found) and _in_turns(found[at : at + count + 1]):
            count += 1
        if count > 1:
            teams.append((at, count))
            for *_, places in found[at : at + count]:
                for _, memory in filter(None, places):
                    if memory is not None:
                        memory.first, memory.last = min(memory.first, at), max(memory.last, at + count - 1)
        at += count
    return teams


def _in_turns(found: Sequence[_Found]) -> bool:
    """Whether launches may take turns: what one of them writes and another touches belongs to the same rows of both."""
    if len(found) > MOST or not all(program.rows and not program.shared for program, *_ in found):
        return False
    rows = [program.runs[0].phases[0].tiles for program, *_ in found]
    tiles, _ = _tiles(found)
    if tiles < FEWEST or any(each % tiles for each in rows):
        return False
    if len({program.worker for program, *_ in found} - {0}) > 1:
        return False
    touched: dict[int, tuple[int, bool, bool]] = {}
    for count, (program, launch, places) in zip(rows, found, strict=True):
        for number, (place, step) in enumerate(zip(places, program.rows, strict=False)):
            array, memory = place or (None, None)
            if array is None or memory is None:
                continue
            at = array.ctypes.data - memory.low
            low, high = (at + by for by in extent(array.shape, array.strides, array.itemsize))
            # the bytes that a common tile has, and whether those of this launch's first rows lie in the first of them
            own = step * (count // tiles)
            before, even, written = touched.setdefault(id(memory), (own, True, False))
            even &= own == before and 0 <= low and high - (tiles - 1) * own <= own
            touched[id(memory)] = own, even, written or number in launch.outputs
    return all(even or not written for _, even, written in touched.values())


def _tiles(found: Sequence[_Found]) -> tuple[int, int]:
    """(tiles that launches have in common, how many of them are taken at a time)

    They take a quarter of the second-level cache, in which one launch finds what another left.  Where launches hand on
    nothing and write side by side in the caches, they take less, so that the result's lines follow one another: two
    of 1024 x 1024 took 266 us, 238 so; past the caches, 32 x 14 x 14 x 512, 1220 and 1730 (Zen 4).
    """
    tiles = min(program.runs[0].phases[0].tiles for program, *_ in found)
    arrays = {array.ctypes.data: array.nbytes for *_, places in found for array, _ in filter(None, places)}
    own, written, read = target.current(), set[int](), set[int]()
    for _, launch, places in found:
        for number, place in enumerate(places):
            (written if number in launch.outputs else read).add(id(place and place[1]))
    near = written.isdisjoint(read) and sum(arrays.values()) <= own.l3
    return tiles, max(1, own.l2 * tiles // ((BESIDE if near else 4) * sum(arrays.values())))


def _target(array: np.ndarray, memory: _Memory | None, numbers: dict[int, int]) -> Bind | int:
    """What an array of a launch is in the joined program."""
    address = int(array.ctypes.data)
    if memory is not None:
        return memory.bind(address)
    return word_of(numbers[address]) if address in numbers else address


def _moves(program: Program, number: int) -> bool:
    """Whether the steps of a loop walk through an array."""
    blocks = (block for run in program.runs for block in run.blocks)
    word = word_of(number).word
    return any(bind.stride and bind.word == word for block in blocks for bind in (block.binds or {}).values())


def _lay_out(memories: Sequence[_Memory]) -> int:
    """Give each of them its place, in common with those that are not alive at the same time; the bytes of all."""
    end = 0
    placed: list[_Memory] = []
    for memory in memories:
        beside = [each for each in placed if each.last >= memory.first]
        size = memory.high - memory.low
        for offset in sorted({0, *(_after(each) for each in beside)}):
            if all(offset + size <= each.offset or _after(each) <= offset for each in beside):
                break
        memory.offset = offset
        placed.append(memory)
        end = max(end, _after(memory))
    return end


def _after(memory: _Memory) -> int:
    """Where the next may begin."""
    return -(-(memory.offset + memory.high - memory.low) // ALIGN) * ALIGN
