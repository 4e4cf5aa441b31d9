"""A walk forwards: what a stack runs, sequence after sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.program import Bind, Part, Program, Region, array, join
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.stack.arguments import BLOCK_WORDS, STAGE, WALK
from numbaprims.cpu.stack.emit import Form
from numbaprims.cpu.stack.kernels import make_stage
from numbaprims.cpu.stack.planner import Sequence, seconds, sequences
from numbaprims.cpu.stack.stages import LINE, most_rows
from numbaprims.cpu.stack.walk import make_walk
from numbaprims.cpu.windows.arguments import THIRD, windows
from numbaprims.dtypes import DTYPES

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
    """How an array lies: bytes from image to image, from block to block of channels and from row to row, and elements
    from pixel to pixel."""

    def __init__(self, dtype: str, strides: tuple[int, ...], block: int) -> None:
        self.dtype, self.pixel = dtype, strides[3]
        n, c, h = (step * DTYPES[dtype].itemsize for step in strides[:3])
        self.n, self.c, self.pitch = n, c * block, h


class Walk:
    """A vector is a part of a row of a plane."""

    walk = "planes"

    def channels(self, problem: Any, target: Any) -> int:
        """Of a vector; 0 where it is a part of a row."""
        return 0

    def between(self, problem: Any, size: Any) -> tuple[int, ...]:
        """Strides of results between two sequences."""
        h, w = size
        return (problem.c * h * w, h * w, w, 1)

    def seconds(self, problem: Any, target: Any) -> float:
        """By the count of cycles and the bytes beyond the caches."""
        p = problem
        time = target.rates.call
        for sequence in sequences(p, target, self.channels(p, target)):
            time += seconds(sequence, p.n * -(-p.c // sequence.elements), target)
        # lines that lie a pixel apart come from memory at a third of its bandwidth (Zen 4, 16x56x56x96)
        apart = p.bytes_moved() > target.l3 and 0 < self.channels(p, target) < p.c
        return float(time + (3.0 if apart else 1.0) * p.bytes_moved() / target.bandwidth(p.bytes_moved()))

    def sequences(self, problem: Any, target: Any) -> Program:
        """Sequences, one after another."""
        p = problem
        compute = DTYPES[p.dtype].accumulate
        item = DTYPES[compute].itemsize
        parts, cut = [], list(sequences(p, target, self.channels(p, target)))
        block = cut[0].elements
        # results between sequences, in two arrays that are swapped
        between = [p.n * p.c * h * w * item for h, w in (each.sizes[-1] for each in cut[:-1])]
        sizes = {f"between_{k}": max(between[k::2], default=0) for k in (0, 1)}
        number = added = 0
        source = _Lies(p.dtype, p.strides[1], block)
        place: Bind | Region = array(1)
        for k, sequence in enumerate(cut):
            last = k + 1 == len(cut)
            lies = p.strides[0] if last else self.between(p, sequence.sizes[-1])
            result = _Lies(p.dtype if last else compute, lies, block)
            to = array(0) if last else Region(f"between_{k % 2}")
            adds = sum(stage.added for stage in sequence.stages)
            more = [_Lies(p.dtype, steps, block) for steps in p.strides[ADDED + added : ADDED + added + adds]]
            program = self.single(p, target, sequence, source, result, more, number)
            arrays: list[Bind | Region] = [to, place, array(2), *(array(ADDED + added + j) for j in range(adds))]
            parts.append(Part(program, arrays, []))
            number += sum(stage.numbers for stage in sequence.stages)
            added += adds
            source, place = result, to
        return parts[0].program if len(parts) == 1 else join(parts, shared=sizes)

    def single(
        self, p: Any, target: Any, sequence: Sequence, source: _Lies, result: _Lies, more: list[_Lies], number: int
    ) -> Program:  # fmt: skip
        """The program of one sequence; `number` is the place of its first parameter."""
        compute = DTYPES[p.dtype].accumulate
        item = DTYPES[compute].itemsize
        layout, depth, keep = sequence.layout(), len(sequence.stages), list[Any]()
        blocks = np.zeros((depth, BLOCK_WORDS), np.int64)
        most = max(w for _, w in sequence.sizes) * max(sequence.elements, abs(source.pixel)) + 2 * LINE
        W, tail = sequence.W, p.c % sequence.elements != 0
        adds = 0

        def kept(made: np.ndarray) -> int:
            keep.append(made)
            return int(made.ctypes.data)

        c_step, number_step = p.strides[2]
        for d, stage in enumerate(sequence.stages):
            first, last = d == 0, d == depth - 1
            (h, w), (oh, ow) = sequence.sizes[d : d + 2]
            row = outside(source.dtype if first else compute, stage.empty, most)
            form = Form(
                self.walk, stage.text, compute, source.dtype if first else "", result.dtype if last else "",
                p.dtype if stage.added else "", W, tail if sequence.pixels else max(w, ow) <= W,
                0.0 if last else sequence.stages[d + 1].empty,
                p.bytes_moved() > (target.l2 if sequence.pixels else target.third / 4),
            )  # fmt: skip
            values = {
                "height": h, "width": w, "out_width": ow, "out_height": oh,
                "pitch": source.pitch if first else layout.pitches[d], "past_pitch": layout.pitches[d],
                "out_pitch": result.pitch if last else layout.pitches[d + 1],
                "kernel": make_stage(form).address, "extent": stage.extent, "stride": stage.stride,
                "before": stage.before, "most": most_rows(sequence.stages, sequence.rows)[d], "kept": layout.past[d],
                "parameter": number * number_step * item, "parameters_step": number_step,
                "parameters_channel": c_step, "pixel": source.pixel, "out_pixel": result.pixel, "adds": -1,
                # a row that is walked backwards begins with its last pixel
                "outside": kept(row) + row.itemsize * (most - LINE - sequence.elements) * (first and source.pixel < 0),
            }  # fmt: skip
            if stage.window is not None and stage.window.op == "avg":
                values["shares"] = kept(shares(stage, (h, w), (oh, ow), compute))
            if stage.added:
                values["adds"] = adds
                for name, lies in zip(("added", "added_next"), more[adds : adds + stage.added], strict=False):
                    values |= {f"{name}_pitch": lies.pitch, f"{name}_pixel": lies.pixel}
            adds += stage.added
            number += stage.numbers
            for name, value in values.items():
                blocks[d, STAGE.slot(name)] = value
        planes = p.n * -(-p.c // sequence.elements)
        tiles = planes * sequence.tiles
        ints = {
            "c": p.c, "planes": planes, "rows": sequence.tile, "depth": depth, "stages": kept(blocks),
            "blocks": planes // p.n, "block": sequence.elements, "parameters_c": c_step * item * sequence.elements,
        }  # fmt: skip
        for name, lies in [("out", result), ("x", source), *((f"added_{j}", each) for j, each in enumerate(more))]:
            ints |= {f"{name}_n": lies.n, f"{name}_c": lies.c}
        work = seconds(sequence, planes, target)
        chunk = target.rates.grain(tiles, work)
        return Program.of(
            WALK, ints, [(make_walk(), tiles, chunk)], keep=tuple(keep),
            regions=Regions(own={"own_stages": blocks.nbytes, **layout.own}),
            **target.rates.waking(work),
        )  # fmt: skip


class Pixels(Walk):
    """A vector is channels of one place."""

    walk = "channels"

    def channels(self, problem: Any, target: Any) -> int:
        return int(lanes(DTYPES[problem.dtype].accumulate, target.vector_bytes))

    def between(self, problem: Any, size: Any) -> tuple[int, ...]:
        h, w = size
        return (h * w * problem.c, 1, w * problem.c, problem.c)
