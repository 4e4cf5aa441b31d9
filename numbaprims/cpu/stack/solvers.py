"""The ways to run a stack, and what each is estimated to take."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Bind, Part, Program, array, join, scratch
from numbaprims.cpu.solver import Config, Solver
from numbaprims.cpu.stack.arguments import BLOCK_WORDS, STAGE, WALK
from numbaprims.cpu.stack.emit import Form, make_stage
from numbaprims.cpu.stack.planner import Sequence, flat, seconds, sequences, total
from numbaprims.cpu.stack.stages import LINE, most_rows
from numbaprims.cpu.stack.walk import make_walk
from numbaprims.cpu.windows.arguments import THIRD, windows
from numbaprims.dtypes import DTYPES

# Times that it takes to wake workers: less work is left to the calling thread.
WORTH = 2.5
#: The first array of a launch that is added.
ADDED = 3
#: Bits of -inf in the types that NumPy has not.
LOWEST = {"f16": 0xFC00, "bf16": 0xFF80}


def outside(dtype: str, value: float, n: int) -> np.ndarray:
    """A row of what stands for elements outside of the image."""
    if dtype in LOWEST:
        return np.full(n, LOWEST[dtype] if value else 0, np.uint16)
    return np.full(n, value, np.float64 if dtype == "f64" else np.float32)


def shares(stage: Any, size: Any, out: Any, dtype: str) -> np.ndarray:
    """An element's share of each row's averages, then of each column's."""
    w = stage.window
    parts = []
    for d in (0, 1):
        table = windows(
            size[d], out[d], w.kernel[d], w.stride[d], w.before[d], w.after[d], w.dilation[d], w.count_include_pad
        )
        parts.append(1.0 / np.maximum(table[:, THIRD], 1))
    made = np.concatenate([*parts, np.zeros(LINE)])  # vectors of columns are read whole
    return made.astype(np.float64 if dtype == "f64" else np.float32)


class _Lies:
    """How an array lies: bytes from image to image, from channel to channel and from row to row."""

    def __init__(self, dtype: str, strides: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.n, self.c, self.pitch = (step * DTYPES[dtype].itemsize for step in strides[:3])

    @classmethod
    def planes(cls, dtype: str, c: int, size: Any) -> _Lies:
        """Contiguous ones."""
        h, w = size
        return cls(dtype, (c * h * w, h * w, w))


class Planes(Solver):
    """A vector is a part of a row; planes of images are walked depth first."""

    name = "planes"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        for k, steps in enumerate(p.strides):
            if k != 2 and steps[3] != 1 and p.size[1] > 1:
                return "the rows of an image are not contiguous"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p = self.posed(problem)
        time = target.rates.call
        for sequence in self.sequences(p, target):
            time += seconds(sequence, p.n * p.c, target)
        return float(time + p.bytes_moved() / target.bandwidth(p.bytes_moved()))

    def posed(self, problem: Any) -> Any:
        """The problem as it is run: planes as single rows where nothing is a window."""
        p = problem
        if not flat(p):
            return p
        h, w = p.size
        steps = tuple(each if k == 2 else (*each[:2], h * w, 1) for k, each in enumerate(p.strides))
        return dataclasses.replace(p, size=(1, h * w), strides=steps)

    def sequences(self, problem: Any, target: Any) -> list[Sequence]:
        """As they are run."""
        return list(sequences(problem, target))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p = self.posed(problem)
        compute = DTYPES[p.dtype].accumulate
        item = DTYPES[compute].itemsize
        parts, cut = [], self.sequences(p, target)
        # results between sequences, in two arrays that are swapped
        between = [p.n * p.c * h * w * item for h, w in (each.sizes[-1] for each in cut[:-1])]
        sizes = [-(-max(between[k::2], default=0) // LINE) * LINE for k in (0, 1)]
        number = added = 0
        source, place = _Lies(p.dtype, p.strides[1]), array(1)
        for k, sequence in enumerate(cut):
            last = k + 1 == len(cut)
            result = _Lies(p.dtype, p.strides[0]) if last else _Lies.planes(compute, p.c, sequence.sizes[-1])
            to = array(0) if last else scratch(sizes[0] * (k % 2))
            adds = sum(stage.added for stage in sequence.stages)
            more = [_Lies(p.dtype, steps) for steps in p.strides[ADDED + added : ADDED + added + adds]]
            program = self.single(p, target, sequence, source, result, more, number)
            arrays: list[Bind | None] = [to, place, array(2), *(array(ADDED + added + j) for j in range(adds))]
            parts.append(Part(program, arrays, []))
            number += sum(stage.numbers for stage in sequence.stages)
            added += adds
            source, place = result, to
        return parts[0].program if len(parts) == 1 else join(parts, shared=sum(sizes))

    def single(
        self, p: Any, target: Any, sequence: Sequence, source: _Lies, result: _Lies, more: list[_Lies], number: int
    ) -> Program:  # fmt: skip
        """The program of one sequence; `number` is the place of its first parameter."""
        compute = DTYPES[p.dtype].accumulate
        item = DTYPES[compute].itemsize
        layout, depth, keep = sequence.layout(), len(sequence.stages), list[Any]()
        blocks = np.zeros((depth, BLOCK_WORDS), np.int64)
        most = max(p.c, *(w for _, w in sequence.sizes)) + LINE
        adds = 0

        def kept(made: np.ndarray) -> int:
            keep.append(made)
            return int(made.ctypes.data)

        c_step, number_step = p.strides[2]
        for d, stage in enumerate(sequence.stages):
            first, last = d == 0, d == depth - 1
            (h, w), (oh, ow) = sequence.sizes[d : d + 2]
            form = Form(
                stage.text, compute, source.dtype if first else "", result.dtype if last else "", p.dtype,
                sequence.W, max(w, ow) <= sequence.W, 0.0 if last else sequence.stages[d + 1].empty,
            )  # fmt: skip
            values = {
                "height": h, "width": w, "out_width": ow, "out_height": oh,
                "pitch": source.pitch if first else layout.pitches[d], "past_pitch": layout.pitches[d],
                "out_pitch": result.pitch if last else layout.pitches[d + 1],
                "kernel": self.kernel(form).address, "extent": stage.extent, "stride": stage.stride,
                "before": stage.before, "most": self.most(sequence)[d], "kept": layout.past[d],
                "parameter": number * number_step * item, "parameters_step": number_step, "adds": -1,
                "outside": kept(outside(source.dtype if first else compute, stage.empty, most)),
            }  # fmt: skip
            if stage.window is not None and stage.window.op == "avg":
                values["shares"] = kept(shares(stage, (h, w), (oh, ow), compute))
            if stage.added:
                values["adds"] = adds
                values["added_pitch"] = more[adds].pitch
                if stage.added > 1:
                    values["added_next_pitch"] = more[adds + 1].pitch
            adds += stage.added
            number += stage.numbers
            for name, value in values.items():
                blocks[d, STAGE.slot(name)] = value
        each = total(sequence)
        tiles = p.n * self.planes(p) * sequence.tiles
        ints = {
            "c": p.c, "patches": sequence.tiles, "rows": sequence.tile, "depth": depth, "stages": kept(blocks),
            "buffer_0": layout.buffers[0], "buffer_1": layout.buffers[1], "each": each, "channels": self.planes(p),
            "parameters_c": c_step * item,
        }  # fmt: skip
        for name, lies in [("out", result), ("x", source), *((f"added_{j}", each) for j, each in enumerate(more))]:
            ints |= {f"{name}_n": lies.n, f"{name}_c": lies.c}
        work = seconds(sequence, p.n * p.c, target)
        chunk = max(1, min(tiles // 8, int(target.rates.wake * tiles / max(work, 1e-9))))
        return Program.of(
            WALK, ints, [(make_walk(), tiles, chunk)], keep=tuple(keep), worker=each,
            parallel=work > WORTH * target.rates.wake,
        )  # fmt: skip

    def planes(self, problem: Any) -> int:
        """Of an image."""
        return int(problem.c)

    def kernel(self, form: Form) -> RangeKernel:
        """Of a stage."""
        return make_stage(form)

    def most(self, sequence: Sequence) -> tuple[int, ...]:
        """Rows of a band that each stage computes at most."""
        return most_rows(sequence.stages, sequence.rows)


SOLVERS = (Planes(),)
