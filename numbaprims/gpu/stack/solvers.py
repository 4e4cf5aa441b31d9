"""The solvers of stacks on a GPU: sequences in shared memory, and each step by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.packs import lanes
from numbaprims.gpu.launch import Addresses, Step, by_alignment, make_launcher, step
from numbaprims.gpu.solver import Solver
from numbaprims.gpu.stack import planning, table
from numbaprims.gpu.stack.gradients import Gradient
from numbaprims.gpu.stack.kernels import make_sequence
from numbaprims.gpu.stack.planning import Room, Sequence, parts_of, strip_of
from numbaprims.gpu.stack.pointwise import HELD, make_pointwise
from numbaprims.stacks.operations import Operation, Step as Parsed

KIB = 1024
BLOCKS = (1 << 31) - 1
"""Of a launch."""
_SMALL = 512
"""Places of a plane."""
_SECTOR = 32
"""Bytes that memory moves at a time."""


def group_of(problem: Any) -> int:
    """Channels that a block computes side by side: where they are neighbours, a sector of them."""
    n, c, h, w = problem.strides[1]
    last = problem.layout == "channels_last" or (problem.layout == "strided" and abs(c) < abs(w))
    if not last or problem.layout == "channels_first":
        return 1
    return min(_SECTOR // DTYPES[problem.dtype].itemsize, 1 << (problem.c - 1).bit_length())


def room_of(problem: Any, target: Any, config: Config, most: int) -> Room:
    """What the sequences of a problem depend on."""
    group, kinds = group_of(problem), DTYPES[problem.dtype]
    limit = problem.limit or int(config["shared"]) * KIB
    return Room(
        problem.n * -(-problem.c // group), group, DTYPES[kinds.accumulate].itemsize, kinds.itemsize,
        min(limit, target.shared_per_block), most, int(config["threads"]),
    )  # fmt: skip


class _Program:
    """The launches of a problem whose sequences are known."""

    def __init__(self, problem: Any, room: Room, sequences: tuple[Sequence, ...]) -> None:
        self.problem, self.room, self.sequences = problem, room, sequences
        self.parts = [parts_of(each) for each in problem.parsed]
        self.sizes = problem.sizes
        self.accumulate = DTYPES[problem.dtype].accumulate
        before = [(0, 0)]
        for each in problem.parsed:
            before.append((before[-1][0] + each.numbers, before[-1][1] + each.arrays))
        self.before = before
        """Parameters and arrays that the steps before each take."""

    def texts(self, sequence: Sequence) -> list[str]:
        """The kinds of a sequence's passes."""
        texts = [*self.problem.steps[sequence.begin : sequence.end]]
        sources = ["stream"]
        if len(texts) > 1:
            first = self.parts[sequence.begin]
            texts[:1] = _words(first.before), _words((first.window, *first.after))
            sources = ["load", *["buffer"] * (len(texts) - 1)]
        found = []
        for source, text, region in zip(sources, texts, sequence.regions, strict=True):
            strip = strip_of(parts_of(Parsed.parse(text)), source != "buffer", region[0].held)
            found.append(f"{source}{strip}:{text}")
        return found

    def launcher(self) -> Launcher:
        """Sequences of one step share a kernel, and so do the others; results between lie in scratch memory."""
        kinds: dict[bool, list[str]] = {}
        shared: dict[bool, int] = {}
        for each in self.sequences:
            alone = each.end - each.begin == 1
            own = kinds.setdefault(alone, [])
            own += [text for text in dict.fromkeys(self.texts(each)) if text not in own]
            shared[alone] = max(shared.get(alone, 0), each.nbytes)
        steps: list[Step] = []
        regions: dict[str, int] = {}
        itemsize = DTYPES[self.accumulate].itemsize
        for number, each in enumerate(self.sequences):
            alone, final = each.end - each.begin == 1, each.end == len(self.parts)
            source = f"between{(number + 1) % 2}" if number else ""
            result = "" if final else f"between{number % 2}"
            if result:
                h, w = self.sizes[each.end]
                nbytes = self.problem.n * self.problem.c * h * w * itemsize
                regions[result] = max(regions.get(result, 0), nbytes)
            own, dtype = kinds[alone], self.problem.dtype
            x, out = (self.accumulate if between else dtype for between in (source, result))
            kernel = make_sequence("|".join(own), x, out, dtype, self.room.group, self.room.threads, shared[alone])
            for struct, blocks in self.tables(each, own):
                steps.append(step(kernel, blocks, _values(struct, source, result)))
        return make_launcher(steps, regions)

    def strides(self, sequence: Sequence) -> list[tuple[int, ...]]:
        """Of x and out of a sequence, the parameters, what is added."""
        y, x, parameters, *added = self.problem.strides
        if sequence.begin:
            x = self.between(sequence.begin)
        if sequence.end < len(self.parts):
            y = self.between(sequence.end)
        return [x, y, parameters, *added]

    def between(self, at: int) -> tuple[int, ...]:
        """The strides of the results before step `at` in scratch memory: channels behind where blocks take several."""
        c, (h, w) = self.problem.c, self.sizes[at]
        return (c * h * w, h * w, w, 1) if self.room.group == 1 else (c * h * w, 1, w * c, c)

    def tables(self, sequence: Sequence, kinds: list[str]) -> Iterator[tuple[Any, int]]:
        """(the table, how many blocks) of each launch of a sequence: one, where the planes are not too many."""
        entries = []
        texts, begin = self.texts(sequence), sequence.begin
        following = [*self.parts[begin : sequence.end], None]
        for number, (text, region) in enumerate(zip(texts, sequence.regions, strict=True)):
            at = begin + max(0, number - (len(texts) > 1))
            # a load has the operations in front of the first window, which the pass behind it then leaves out
            skipped = self.parts[begin].before if number == 1 else ()
            parameters, added = self.before[at]
            parameters += sum(each.numbers for each in skipped)
            added += sum(each.kind == "add" for each in skipped)
            follower = following[number] if len(texts) > 1 else None
            zeros = follower is not None and follower.window.op != "max"
            entries.append(table.Entry(kinds.index(text), zeros, parameters, added, region))
        down, across = sequence.patches
        n, c, group, patches = self.problem.n, self.problem.c, self.room.group, down * across
        groups = -(-c // group)
        wide = min(groups, max(1, BLOCKS // patches))
        high = min(n, max(1, BLOCKS // (patches * wide)))
        for image in range(0, n, high):
            for first in range(0, groups, wide):
                own = min(wide, groups - first)
                header = (
                    len(texts), *self.sizes[begin], c, own, patches, across, sequence.buffers.near, image, first * group
                )  # fmt: skip
                made = table.make(header, self.strides(sequence), entries)
                yield made, min(high, n - image) * own * patches


def _words(operations: tuple[Operation, ...]) -> str:
    return " ".join(each.text for each in operations)


def _values(struct: Any, source: str, result: str) -> Any:
    """The values of a launch's parameters."""

    def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
        y, x, *more = (0 if array is None else array.pointer for array in arrays[:7])
        return (at[result] if result else y, at[source] if source else x, *more, struct)

    return values


class DepthFirst(Solver):
    """Sequences of steps in shared memory, a patch at a time."""

    name = "depth_first"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return "it computes no gradient" if problem.backward else None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        """What the model finds best first, of equal ones the least; 256 threads are for measurements to choose.  A
        patch of a small plane leaves most of 128 threads idle."""
        small = problem.size[0] * problem.size[1] * group_of(problem) <= _SMALL
        memory = (16,) if small or problem.limit else (16, 32, 48)
        threads = (32, 64, 128) if small else (128,)
        every: list[Config] = [{"shared": k, "threads": t} for t in threads for k in memory]
        if len(every) > 1 and not problem.empty:
            every.sort(key=lambda config: self.cut(problem, target, config)[0])
        return [*every, *({"shared": k, "threads": 256} for k in memory)]

    def most(self, problem: Any) -> int:
        """Steps of a sequence."""
        return int(problem.most)

    def cut(self, problem: Any, target: Any, config: Config) -> tuple[float, tuple[Sequence, ...], Room]:
        """(seconds by formula, sequences, what they depend on)."""
        room = room_of(problem, target, config, self.most(problem))
        return (*planning.sequences(problem.steps, problem.size, room, target), room)

    def estimate(self, problem: Any, target: Any) -> float:
        if problem.empty:
            return planning.LAUNCH
        return self.cut(problem, target, next(iter(self.configs(problem, target))))[0]

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.empty:
            return make_launcher(())
        _, sequences, room = self.cut(problem, target, config)
        return _Program(problem, room, sequences).launcher()


class Naive(DepthFirst):
    """Each step by itself; refuses nothing.  Of a gradient the windows are of any size."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        if problem.backward and not problem.empty:
            return 2 * Gradient(problem, target, self, True).seconds()
        return super().estimate(problem, target)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.backward and not problem.empty:
            return Gradient(problem, target, self, True).launcher()
        return super().bind(problem, target, config)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        return ({"shared": 0, "threads": 128},)

    def most(self, problem: Any) -> int:
        return 1


class Tasks(Solver):
    """A gradient: windows and runs of operations forwards, then their gradients, a launch each."""

    name = "tasks"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.backward else "it computes gradients only"

    def _gradient(self, problem: Any, target: Any) -> Gradient:
        return Gradient(problem, target, DepthFirst(), False)

    def estimate(self, problem: Any, target: Any) -> float:
        return planning.LAUNCH if problem.empty else self._gradient(problem, target).seconds()

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        return make_launcher(()) if problem.empty else self._gradient(problem, target).launcher()


class Pointwise(Solver):
    """Element-wise operations alone, over planes or pixels that are contiguous: 16 bytes a thread and access."""

    name = "pointwise"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.backward:
            return "it computes no gradient"
        if len(problem.steps) != 1 or problem.parsed[0].window is not None:
            return "it computes element-wise operations only"
        if problem.layout == "strided":
            return "neither planes nor pixels are contiguous in all arrays"
        if problem.layout == "channels_last":
            h, w = problem.size
            if problem.n > 1 and any(strides[0] != h * w * problem.c for strides in _data(problem)):
                return "images do not follow one another"
            if problem.numbers > HELD:
                return f"{problem.numbers} parameters of a channel are more than a thread keeps"
        if max(problem.n * problem.c, 1) * problem.size[0] * problem.size[1] >= BLOCKS:
            return "its indices have 32 bits, and there are more elements"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        efficiency = 0.8 if self.width(problem) > 1 else 0.5
        return float(planning.LAUNCH + problem.bytes_moved() / (efficiency * target.bandwidth))

    def width(self, problem: Any) -> int:
        """Elements of an access: 16 bytes where all begin at multiples of it."""
        V = lanes(problem.dtype)
        if problem.layout == "channels_first":
            steps = [problem.size[0] * problem.size[1], *(s for strides in _data(problem) for s in strides[:2])]
        else:
            steps = [problem.c]
            V = min(V, 1 << (HELD // max(1, problem.numbers)).bit_length() - 1)
        while any(step % V for step in steps):
            V //= 2
        return V

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.empty:
            return make_launcher(())
        V = self.width(problem)
        if V == 1:
            return self._launcher(problem, target, 1)
        nbytes = V * DTYPES[problem.dtype].itemsize
        return by_alignment(
            lambda whole: self._launcher(problem, target, V if whole else 1), dict.fromkeys((0, 1, 3, 4, 5, 6), nbytes)
        )

    def _launcher(self, problem: Any, target: Any, V: int) -> Launcher:
        last, pixels, c = problem.layout == "channels_last", problem.size[0] * problem.size[1], problem.c
        kernel = make_pointwise(problem.steps[0], problem.dtype, V, last)
        resident = target.multiprocessors * target.resident_threads
        if last:
            T, count = c // V, problem.n * pixels
            units = shares = min(count, -(-resident // T))
            strides = [s for _ in _data(problem) for s in (c, 1)]
        else:
            count = pixels // V
            T = min(kernel.threads, 1 << (count - 1).bit_length())
            # four packs a thread, where that leaves none without work
            shares = max(1, min(-(-count // (4 * T)), -(-resident // (problem.n * c * T))))
            units = problem.n * c * shares
            strides = [s for each in _data(problem) for s in each[:2]]
        strides += [0] * (12 - len(strides))
        fixed = (*strides, *problem.strides[2], c, T, shares, units, count)

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (*(0 if array is None else array.pointer for array in arrays[:7]), *fixed)

        return make_launcher([step(kernel, -(-units * T // kernel.threads), values)])


def _data(problem: Any) -> list[tuple[int, ...]]:
    """The strides of y, x and what is added."""
    return [*problem.strides[:2], *problem.strides[3:]]


SOLVERS = (Tasks(), Pointwise(), DepthFirst(), Naive())
