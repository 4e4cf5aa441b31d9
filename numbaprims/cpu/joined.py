"""One program of the launches of several calls: what they hand on lies in its scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims import settings
from numbaprims.cpu.call_entry import ALIGN
from numbaprims.cpu.drivers import MOST_FURTHER
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
    moving: dict[int, np.ndarray] = {}
    found: list[tuple[Program, Launch, list[tuple[np.ndarray, _Memory | None] | None]]] = []
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
                memory.last, memory.written = at, memory.written or number in launch.outputs
            places[number] = array, memory
        found.append((launch.program, launch, places))
    if not all(memory.written for memory in memories[:results]):
        return "a result is not written by a launch"
    if len(arrays) + len(moving) > ARRAYS + MOST_FURTHER:
        return f"{len(arrays) + len(moving)} arrays are more than a program takes"
    numbers = {address: len(arrays) + k for k, address in enumerate(moving)}
    shared = _lay_out([memory for memory in memories if memory.number is None])
    parts = [
        Part(program, [place and _target(*place, numbers) for place in places], launch.floats)
        for program, launch, places in found
    ]
    kept = [place[0] for *_, places in found for place in places if place and place[1] is None]
    return Joined(join(parts, shared=shared, keep=tuple(kept)), tuple(moving.values()))


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
