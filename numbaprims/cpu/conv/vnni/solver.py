"""int8 and bf16 convolutions by dot instructions: a product without its column matrix, in groups of 32 bits.

Bound: 4 (bytes) or 2 (bf16) times the operations of float32 where the instructions run at its rate.  A tile copies
the input under its windows once, channels in groups of 4 (or 2) behind one another for each place; rows of a window
are then runs of groups, which the register tile reads for up to 8 pixels at a time, against panels of 64 filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from numbaprims.cpu.conv.arguments import bias_dtype, geometry_table
from numbaprims.cpu.conv.implicit.passes import too_many
from numbaprims.cpu.conv.vnni.driver import DOT, make_drive, make_pack_drive
from numbaprims.cpu.conv.vnni.gradient import forward_phases, joined
from numbaprims.cpu.conv.vnni.kernels import (
    make_multiply,
    make_pack_weights,
    make_requantize,
    make_stage,
    make_transpose,
)
from numbaprims.cpu.conv.weight_gradient.solver import box
from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address, make_finish
from numbaprims.cpu.gemm.pieces import WORDS
from numbaprims.cpu.gemm.solvers import SIGN_BITS, SLACK
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.simd.dot import dot_feature
from numbaprims.cpu.solver import Config, Regions, Solver, run
from numbaprims.dtypes import DTYPES

# Vectors of filters of a tile -> its pixels, each of which needs a register for its address.
ROWS = {4: 6, 3: 8, 2: 8, 1: 8}
FASTER = {"bf16": 0.85, "u8s8": 3.3}
"""Of how many operations of float32 a dot instruction's take the time; of bf16 that of `CpuRates.dots`."""


def strides_of(problem: Any) -> list[int]:
    """Places of the copy between neighbours in y: a window of one tap copies only what it takes."""
    compact = [taps == 1 for taps in problem.kernel]
    # without channels that are neighbours rows are copied through squares of 16 pixels
    compact[2] = compact[2] and problem.strides.x[4] != 1
    return [1 if short else stride for short, stride in zip(compact, problem.stride, strict=True)]


class ImplicitGemmVnni(Solver):
    """Windows read as runs of groups of channels."""

    name = "implicit_gemm_dot"
    whole: ClassVar[int] = 1
    """Groups of a panel of weights are a multiple of so many; where more than one, a kernel gathers pixels too."""

    block: ClassVar[int] = 1
    """Words that so many groups are when they are packed: in pieces more, of float32 in pairs fewer."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction not in ("forward", "data"):
            return f"it computes results and gradients by data, not direction {p.direction}"
        if p.accumulate != "i32":
            if p.in_dtype != "bf16":
                return "it takes int8, uint8 x int8 and bfloat16"
            if dot_feature("bf16", lanes("f32", target.vector_bytes)) == "portable":
                return "this machine has no dot instruction for bfloat16"
            return too_many(p)
        if p.zeros in ("weight", "both"):
            return "its weights have no zero points"
        if p.requantized and p.has_c:
            return "it adds no array to sums that it requantizes"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        W = lanes("i32", target.vector_bytes)
        filters = problem.group_k if problem.direction == "forward" else problem.group_c
        wide = target.isa in ("avx512", "neon")
        vectors = ceil_div(filters, W)
        nv = min((4, 3, 2, 1) if wide else (2, 1), key=lambda n: round_up(vectors, n))
        yield {"mr": ROWS[nv] if wide else 4, "nv": nv, "pixels": 400}

    wide: ClassVar[int] = 1
    """Panels whose sums are ended together, where channels are neighbours in the result."""

    @property
    def pieces(self) -> int:
        """Into how many a number is cut."""
        return max(1, self.block // WORDS)

    def _kind(self, problem: Any) -> tuple[str, int]:
        """The dot instruction, and how many channels a group has."""
        return ("u8s8", 4) if problem.accumulate == "i32" else ("bf16", 2)

    def peak(self, problem: Any, target: Any) -> float:
        """Operations a second that its tile reaches."""
        kind = self._kind(problem)[0]
        more = FASTER[kind] * (target.rates.dots if kind == "bf16" else 1.0)
        return float(cost.REACHED * target.rates.flops(lanes("i32", target.vector_bytes)) * more)

    def there(self, problem: Any) -> int:
        """As `DOT` says of tiles that take rows of the copy."""
        return 0

    def offset(self, problem: Any) -> int:
        """What is added to the bytes that are copied."""
        return 128 if problem.x_dtype == "i8" else 0

    def kernels(self, problem: Any, target: Any, config: Config) -> dict[str, int]:
        """Addresses of the kernels of products."""
        W = lanes("i32", target.vector_bytes)
        kind = self._kind(problem)[0]
        return {"multiply": make_multiply(kind, int(config["mr"]), int(config["nv"]), W).address}

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        if p.direction == "data":
            return sum(self.estimate(phase.problem, target) for phase in forward_phases(p))
        config = next(iter(self.configs(p, target)))
        group = self._kind(p)[1]
        nr = int(config["nv"]) * lanes("i32", target.vector_bytes)
        words = ceil_div(p.group_c, group)
        filters = p.groups * round_up(p.group_k, nr)
        padded = 2.0 * p.n * p.pixels * filters * round_up(words * p.taps, self.whole) * group
        rates = target.rates
        seconds = 5 * rates.call + padded / self.peak(p, target)
        cycles = p.n * p.pixels * filters * (0.492 if p.y_order == "channels_last" else 1.025)
        places = p.n * (p.pixels if p.taps == 1 else p.x_size[0] * p.x_size[1] * p.x_size[2] * 1.3)
        near = p.x_order == "channels_last" and p.group_c % group == 0 and p.groups == 1
        cycles += places * p.groups * words * (0.41 if near else 1.435 if p.strides.x[4] == 1 else 16.4)
        if not p.prepared:
            plain = p.taps > 1 and p.w_order == "planes" or p.strides.w[0] == 1
            cycles += filters * words * p.taps * (2.46 if plain else 12.3)
        return float(seconds + rates.cycles(cycles))

    def _cut(self, problem: Any, target: Any, config: Config) -> tuple[dict[str, int], int, Regions, tuple[Any, ...]]:
        """The words of DOT without kernels, the bytes of packed weights, its regions, and what the words point to."""
        p, s = problem, problem.strides
        W = lanes("i32", target.vector_bytes)
        group = self._kind(p)[1]
        nr = int(config["nv"]) * W
        words = ceil_div(p.group_c, group)
        size = box(p, int(config["pixels"]))
        counts = [ceil_div(length, part) for length, part in zip((p.n, *p.y_size[:2]), size, strict=True)]
        step = strides_of(p)
        source = [stride // apart for stride, apart in zip(p.stride, step, strict=True)]
        boxes = [
            (count - 1) * apart + (taps - 1) * gap + 1
            for count, apart, taps, gap in zip((*size[1:], p.y_size[2]), step, p.kernel, p.dilation, strict=True)
        ]
        pixels = size[0] * size[1] * size[2] * p.y_size[2]
        merge_x = p.padding[2] == 0 and source[1] * s.x[3] == boxes[2] * source[2] * s.x[4]
        merge_x = merge_x and (boxes[2] - 1) * source[2] < p.x_size[2]
        merge = 2
        for steps in [s.y] + ([s.c] if p.has_c else []):
            if p.y_size[1] > 1 and steps[3] != p.y_size[2] * steps[4]:
                merge = 0
            elif p.y_size[0] > 1 and steps[2] != p.y_size[1] * p.y_size[2] * steps[4]:
                merge = min(merge, 1)
        together = p.dilation[2] == 1
        row = p.kernel[2] if together else 1
        shifts = np.array(
            [
                ((z * p.dilation[0] * boxes[1] + r * p.dilation[1]) * boxes[2] + t * p.dilation[2]) * words
                for z in range(p.kernel[0]) for r in range(p.kernel[1]) for t in range(0, p.kernel[2], row)
            ], np.int64,
        )  # fmt: skip
        weights = np.asarray(s.w[2:], np.int64) @ np.indices(p.kernel).reshape(3, -1)
        plain = next((sign for sign in (1, -1) if (sign * weights == np.arange(p.taps)).all()), 0)
        panels = ceil_div(p.group_k, nr)
        groups = round_up(words * p.taps, self.whole)
        groups = groups // self.whole * self.block
        panel_words = (groups + (1 if group == 4 else 0)) * nr
        # enough tiles for the threads of a machine, as long as a copy serves enough filters
        tiles = counts[0] * counts[1] * counts[2] * p.groups
        k_blocks = max(1, min(ceil_div(8, tiles), panels if p.taps > 1 else panels // 4))
        k_panels = ceil_div(panels, k_blocks)
        table = geometry_table(p)
        there = self.there(p)
        line = boxes[2] if there == 1 else round_up(p.y_size[2], WORDS)
        kept = size[0] * size[1] * round_up(size[2] * line, WORDS) if there else pixels
        room = round_up(kept, max(W, int(config["mr"]))) + max(W, int(config["mr"]))
        # a step that is no multiple of 4 kB: rows of a square would share the sets of the first-level cache
        transposed_step = round_up(pixels, W) + (W if there or round_up(pixels, W) % 256 == 0 else 0)
        channels_last = s.y[1] == 1 or p.k == 1
        wide = self.wide if channels_last else 1
        gathered = 4 * groups * round_up(pixels, int(config["mr"])) if self.whole > 1 and not there else 0
        # boxes of x that are what their copies would be
        d, h, w = p.x_size
        dense = s.x[1] == 1 and s.x[4] == p.c and (h == 1 or s.x[3] == w * p.c)
        dense = dense and (d == 1 or s.x[2] == h * w * p.c) and (p.n == 1 or s.x[0] == d * h * w * p.c)
        planes = size[2] == p.y_size[1] and (size[0] == 1 or size[1] == p.y_size[0])
        same = p.taps == 1 and p.stride == (1, 1, 1) and p.padding == (0, 0, 0) and p.groups == 1
        x_there = there and dense and same and (size[0] * size[1] == 1 or planes) and p.c == words * group
        ints = {
            "geometry": int(table.ctypes.data), "weights": int(weights.ctypes.data),
            "plain": plain, "shifts": int(shifts.ctypes.data),
            "runs": len(shifts), "run": row * words, "taps": p.taps, "words": words, "has_c": int(p.has_c),
            "has_bias": int(p.bias), "bias_step": s.bias, "in_size": DTYPES[p.x_dtype].itemsize,
            "out_size": DTYPES[p.y_dtype].itemsize, "mr": int(config["mr"]), "nr": nr, "panels": panels,
            "panel_words": panel_words, "w_group": p.group_k * s.w[0],
            "box_n": size[0], "box_o": size[1], "box_p": size[2],
            "chunks_o": counts[1], "chunks_p": counts[2], "k_panels": k_panels,
            "k_blocks": ceil_div(panels, k_panels), "step_d": step[0], "step_h": step[1], "step_w": step[2],
            "box_d": boxes[0], "box_h": boxes[1], "box_w": boxes[2], "merge_x": int(merge_x), "merge": merge,
            "channels_last": int(channels_last), "offset": self.offset(p), "transposed_step": transposed_step,
            "there": there, "x_there": int(x_there), "wide": wide,
        }  # fmt: skip
        packed = 4 * p.groups * panels * panel_words + SLACK
        own = {
            # rows of tiles past the last pixel are multiplied, too
            "copy": (size[0] * boxes[0] * boxes[1] * boxes[2] + 2 * WORDS * step[2]) * words * 4 + SLACK,
            "places": 8 * pixels,
            "sums": room * nr * wide * 4,
            "transposed": 0 if channels_last else nr * transposed_step * 4 + SLACK,
            "gathered": gathered,
        }
        return ints, packed, Regions({"weights_packed": 0 if p.prepared else packed}, own), (table, weights, shifts)

    def _program(
        self, problem: Any, target: Any, config: Config, only_pack: bool, w_group: int | None = None
    ) -> tuple[Program, int]:
        p, acc = problem, problem.accumulate
        W = lanes("i32", target.vector_bytes)
        group = self._kind(p)[1]
        ints, packed, regions, keep = self._cut(p, target, config)
        if w_group is not None:
            ints["w_group"] = w_group
        feature = dot_feature("u8s8", W)
        # float32 is copied as it lies
        x_dtype, w_dtype = ("i32" if dtype == "f32" else dtype for dtype in (p.x_dtype, p.w_dtype))
        pack = make_pack_weights(w_dtype, ints["nr"], group, feature, W, self.whole, self.pieces)
        ints |= {
            "pack": pack.address,
        }  # fmt: skip
        panels = p.groups * ints["panels"]
        phases = [(make_pack_drive(), panels, ceil_div(panels, 8))]
        if not only_pack:
            ints |= {
                "stage": make_stage(x_dtype, group, SIGN_BITS if ints["offset"] else 0, W).address,
                "transpose": 0 if ints["channels_last"] else make_transpose(acc, W).address,
            } | self.kernels(p, target, config)  # fmt: skip
            if p.requantized:
                ints |= {
                    "requantize": make_requantize(p.y_dtype, W).address,
                    "activation": int(p.activation.kind == "relu"),
                }  # fmt: skip
            else:
                ints |= {
                    "finish": make_finish(acc, p.y_dtype, bias_dtype(p), W).address,
                    "activation": activation_address(p, target),
                }  # fmt: skip
            if p.prepared:
                phases = []
            boxes = ceil_div(p.n, ints["box_n"]) * ints["chunks_o"] * ints["chunks_p"]
            phases.append((make_drive(), boxes * p.groups * ints["k_blocks"], 1))
        program = Program.of(
            DOT, DOT.of(ints), phases, keep=keep, parallel=not only_pack and cost.worth_threads(problem, target),
            regions=regions,
        )  # fmt: skip
        return program, packed

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        if problem.direction == "data":
            return max(self.workspace(phase.problem, target, config) for phase in forward_phases(problem))
        return super().workspace(problem, target, config)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return self._cut(problem, target, config)[2]

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        program, size = self._program(problem, target, config, only_pack=True)
        packed = np.zeros(size + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        run(program, packed, None, weights, None, None, packed)
        return packed

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        if problem.direction == "forward":
            return self._program(problem, target, config, only_pack=False)[0]
        programs = [
            self._program(phase.problem, target, config, only_pack=False, w_group=phase.w_group)[0]
            for phase in forward_phases(problem)
        ]
        return joined(problem, programs)
