"""Depthwise convolution by the stage of a stack: a column of elements in registers, each weight met by four rows.

Windows step along the rows, so that an element of x is loaded once for four rows of results, without a mask or a
bounds check within the image; the activation is in the same pass.  Bound: one multiply-add a weight and vector.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from numbaprims.cpu.activation.formulas import FORWARD
from numbaprims.cpu.conv.arguments import itemsize
from numbaprims.cpu.conv.depthwise.solver import neighbours
from numbaprims.cpu.conv.depthwise.work import far_time
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Part, Program, Region, array, join
from numbaprims.cpu.simd import address_of, lanes, load, load_wide_scalar, scalar, store, store_scalar
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.solver import Config, Solver, run
from numbaprims.cpu.stack.channels import MOST_TAPS
from numbaprims.cpu.stack.forward import Pixels, Walk
from numbaprims.cpu.stack.planner import seconds, sequences
from numbaprims.ops._stack_problem import StackProblem
from numbaprims.stacks.operations import Operation, Pointwise, Window, steps_of

# out: the parameters of the stage, `number_step` apart, those of the next channel `channel_step`.
ARGS = Arguments(
    arrays=("out", "weight", "bias", "packed"),
    floats=("p0", "p1", "p2"),
    ints=("channels", "w_k", "w_row", "w_column", "has_bias", "bias_step", "number_step", "channel_step"),
)

#: Weights of the windows whose columns stay in registers along a row: 5 x 5 takes 1.1 to 1.7 times as long as by
#: `depthwise` in planes, 0.8 to 1.3 times with channels last (Zen 4).
CARRIED = 9
#: Times as long as in planes x takes from afar with channels last where a core `waits`: 64 channels of 112 x 112 took
#: 436 us, 160 in planes (an Emerald Rapids).
PIECES = 1.7
#: And in planes, and with channels last, where `depthwise` gains by asking for lines from the second level's size on:
#: 16 x 256 x 28 x 28 took 3.2 ms and 2.1, with channels last 4.2 and 2.6, 16 x 1024 x 7 x 7 2.0 and 0.9 (Zen 3).
UNASKED = 1.5, 3.0
# With 16 registers: times as long as by the count of cycles, and cycles more of each plane (Zen 3).
HALVED, PLANE = 1.5, 60.0


@functools.cache
def make_parameters(dtype: str, acc: str, R: int, S: int, NUMBERS: int, W: int) -> RangeKernel:
    """Kernel over blocks of W channels: weights, which a plan has `packed` in their places, bias, the activation's."""
    types = ARGS.types(out=acc, weight=dtype, bias=dtype, packed=acc)

    @range_kernel("conv_depthwise_parameters", types, spec=(dtype, acc, R, S, NUMBERS, W))
    def depthwise_parameters(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        out, step, far = args.out, args.number_step, args.channel_step
        for block in range(lo, hi):
            first = block * W
            last = min(first + W, args.channels)
            for r in range(R):
                for s in range(S):
                    at = (r * S + s) * step
                    if address_of(args.packed) != 0:
                        store(out, at + first, load(args.packed, at + first, W))
                    else:
                        for k in range(first, last):
                            x = load_wide_scalar(args.weight, k * args.w_k + r * args.w_row + s * args.w_column)
                            store_scalar(out, at + k * far, x)
            at = R * S * step
            if args.has_bias:
                for k in range(first, last):
                    store_scalar(out, at + k * far, load_wide_scalar(args.bias, k * args.bias_step))
                at += step
            for i in range(NUMBERS):
                number = args.p0
                if i == 1:
                    number = args.p1
                if i == 2:
                    number = args.p2
                for k in range(first, last):
                    store_scalar(out, at + i * step + k * far, scalar(number, acc))

    return depthwise_parameters


class _AsStack:
    """A convolution as a stack, the walk that takes it, and where parameters lie."""

    def __init__(self, problem: Any, target: Any) -> None:
        p, s = problem, problem.strides
        kernel, stride, pad, far = ((v[1], v[2]) for v in (p.kernel, p.stride, p.padding, p.dilation))
        behind = [
            max(0, (p.y_size[1 + d] - 1) * stride[d] + (kernel[d] - 1) * far[d] + 1 - p.x_size[1 + d] - pad[d])
            for d in (0, 1)
        ]
        kind = p.activation.kind
        self.numbers = FORWARD[kind][1] if kind in FORWARD else 0
        """Of the activation."""
        operations: list[Operation] = [Window("depthwise", kernel, stride, pad, (behind[0], behind[1]), far)]
        operations += [Pointwise("bias", 1)] * int(p.bias)
        operations += [Pointwise(kind, self.numbers)] * int(kind != "identity")
        self.pixels = not neighbours(p)[0]
        self.walk = Pixels() if self.pixels else Walk()
        self.W = lanes(p.accumulate, target.vector_bytes)
        self.total = p.taps + p.bias + self.numbers
        # parameters of neighbouring channels are one load where a vector is channels
        self.steps = (1, round_up(p.k, self.W)) if self.pixels else (self.total, 1)
        x, y = ((steps[0], steps[1], *steps[3:]) for steps in (s.x, s.y))
        layout = "channels_last" if self.pixels else "channels_first"
        self.problem = StackProblem(
            p.in_dtype, p.n, p.k, (p.x_size[1], p.x_size[2]), tuple(step.text for step in steps_of(operations)),
            layout, strides=(y, x, self.steps),
        )  # fmt: skip


def _parameters(problem: Any, stack: _AsStack, packs: bool = False) -> Program:
    """Writes the stage's parameters, or the weights alone that a plan keeps."""
    p, w = problem, problem.strides.w
    numbers = 0 if packs else stack.numbers
    bias = not packs and p.bias
    ints = {
        "channels": p.k, "w_k": w[0], "w_row": w[3], "w_column": w[4], "has_bias": int(bias),
        "bias_step": p.strides.bias, "channel_step": stack.steps[0], "number_step": stack.steps[1],
    }  # fmt: skip
    kernel = make_parameters(p.in_dtype, p.accumulate, p.kernel[1], p.kernel[2], numbers, stack.W)
    blocks = ceil_div(p.k, stack.W)
    return Program.of(ARGS, ints, [(kernel, blocks, ceil_div(blocks, 4))], parallel=False)


class DepthwiseWalk(Solver):
    """Every channel by itself, in the walk of a stack."""

    name = "depthwise_walk"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if not p.depthwise or p.group_k > 1:
            return "the groups have several channels of x or of the result"
        if p.direction != "forward":
            return "it goes forward only"
        if p.accumulate == "i32":
            return "it has no integers"
        if p.out_dtype != p.in_dtype:
            return "it stores the dtype of its operands"
        if not p.planar:
            return "it has two spatial dimensions"
        if p.scaled or p.has_c:
            return "its sums are ended by a bias and an activation, not by alpha or beta"
        kind = p.activation.kind
        if kind != "identity" and kind not in FORWARD:
            return f"a stage has no {kind}"
        if p.taps > CARRIED or max(p.dilation) > MOST_TAPS:
            return f"it takes windows of up to {CARRIED} weights, whose columns registers hold along a row"
        if not any(neighbours(p)):
            return "neither the columns of x and y are contiguous, nor their channels"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p, stack = problem, _AsStack(problem, target)
        whole = dataclasses.replace(stack.problem, limit=-1)  # planes of one tile
        (sequence,) = sequences(whole, target, stack.W if stack.pixels else 0)
        # counted on a CPU that does a multiply-add of whole vectors a cycle
        planes = p.n * ceil_div(p.k, sequence.elements)
        work = seconds(sequence, planes, target) / target.rates.fma
        if target.isa not in ("avx512", "neon"):
            work = HALVED * work + target.rates.cycles(PLANE * planes)
        pack = target.rates.cycles(p.k * p.taps * (0.3 if p.prepared and stack.pixels else 1.23))
        # of each pixel a vector of channels comes at a time, which prefetchers do not follow
        times = PIECES if stack.pixels and target.rates.waits else 1.0
        if target.rates.beside and p.bytes_moved() > target.rates.third(target.l3) / 4:
            times = UNASKED[stack.pixels]
        return float(2.5 * target.rates.call + work + pack + times * far_time(p, target))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        stack = _AsStack(problem, target)
        if not stack.pixels:
            return None
        packed = np.zeros(stack.steps[1] * problem.taps * itemsize(problem.accumulate) + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        run(_parameters(problem, stack, packs=True), packed, weights, None, None)
        return packed

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        program = self.program(problem, target, config)
        return program.shared + program.worker

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, stack = problem, _AsStack(problem, target)
        walk = stack.walk.sequences(stack.problem, target)
        place = Region("parameters")
        written = Part(_parameters(p, stack), [place, array(2), array(4), array(5)], [2, 3, 4])
        size = round_up(p.k, stack.W) * stack.total * itemsize(p.accumulate)
        return join([written, Part(walk, [array(0), array(1), place], [])], shared={"parameters": size})
