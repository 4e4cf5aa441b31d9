"""The solver of the weight's gradient: g' = G^T [sum over tiles of (A y' A^T) (B^T d B)] G, the sums by gemm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import LARGEST, common_values
from numbaprims.gpu.conv.transformed import (
    Depth,
    Domain,
    Pose,
    batched_product,
    multiply_step,
    pose,
    ranked,
    slices,
)
from numbaprims.gpu.conv.winograd import cost
from numbaprims.gpu.conv.winograd.axes import Axis, best_axis
from numbaprims.gpu.conv.winograd.solvers import MOST_TAPS, Source, common_refusal, input_step
from numbaprims.gpu.conv.winograd.window import make_window
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import ceil_div, round_up
from numbaprims.gpu.launch import Nested, Step, make_launcher, step
from numbaprims.gpu.solver import Solver
from numbaprims.ops._gemm_problem import GemmProblem

FEW_TILES = 16
"""Sums of few tiles are mostly written and read again: then F(2x2, 3x3), fewer positions for more tiles."""


class Sums(NamedTuple):
    """One slice of tiles: the domain of x's transform, V, and of y's, Y, and the product of the two."""

    first: int
    v: Domain
    y: Domain
    product: GemmProblem

    @property
    def bytes(self) -> tuple[int, int]:
        """Of V and Y."""
        return self.v.bytes[0], self.y.bytes[0]


class WinogradWeight(Solver):
    """The weight's gradient with F(4x4, 3x3), F(2x2, 3x3) for small images; other windows by pieces.

    The error of an element, in 2^-24 sum |x y'|, was at most 20 with random numbers (of the definition 3).
    """

    name = "winograd_weight"
    amplification = 24

    def _cuts(self, problem: Any) -> tuple[Axis | None, ...]:
        images = problem.n * problem.y_size[0]
        m = 4 if images * ceil_div(problem.y_size[1], 4) * ceil_div(problem.y_size[2], 4) >= FEW_TILES else 2
        return tuple(
            Axis(m, 3) if (taps, stride) == (3, 1) else best_axis(taps, stride, out)
            for taps, stride, out in zip(problem.kernel[1:], problem.stride[1:], problem.y_size[1:], strict=True)
        )

    def axes(self, problem: Any) -> tuple[Axis, Axis]:
        """The cut along the height and the width."""
        h, w = self._cuts(problem)
        assert h is not None and w is not None
        return h, w

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "weight":
            return f"direction {problem.direction} is not the weight's gradient"
        found = common_refusal(problem, depth=True)
        if found is not None:
            return found
        taps = problem.kernel[1] * problem.kernel[2]
        if not 1 < taps <= MOST_TAPS:
            return f"it takes windows of 2 to {MOST_TAPS} taps, not {taps}"
        if None in self._cuts(problem):
            return "the window is cut into more pieces along an axis than it keeps"
        q = pose(problem)
        part = self._slices(problem, q)[0]
        h, w = self.axes(problem)
        tiles = q.images * ceil_div(q.out[0], h.m) * ceil_div(q.out[1], w.m)
        rows = q.groups * max(part.v.channels, part.y.channels)
        if max(tiles, rows * part.v.tiles, q.groups * part.v.channels * part.y.channels) >= LARGEST:
            return "there are more transforms than 32-bit indices"
        return None

    def _slices(self, problem: Any, q: Pose) -> list[Sums]:
        h, w = self.axes(problem)
        size = DTYPES[problem.accumulate].itemsize
        tiles = q.images * ceil_div(q.out[0], h.m) * ceil_div(q.out[1], w.m)
        channels, positions = q.x_channels * q.depth.taps * len(h.firsts) * len(w.firsts), h.n * w.n
        order = "channels" if problem.x_order == "channels_last" else "tiles"
        found = []
        for first, count in slices(tiles, positions * q.groups * (channels + q.out_channels) * size):
            v, y = (
                Domain(positions, q.groups, each, 1, count, problem.accumulate, order)
                for each in (channels, q.out_channels)
            )
            m = self._steps(q, channels)
            product = batched_product(
                (q.out_channels, channels, count), (positions, q.groups), (y.v[2], y.v[3]), (v.v[3], v.v[2]),
                (m[2], 1), (y.v[:2], v.v[:2], m[:2]), problem.accumulate, accumulate=first > 0,
            )  # fmt: skip
            found.append(Sums(first, v, y, product))
        return found

    @staticmethod
    def _steps(q: Pose, channels: int) -> tuple[int, int, int]:
        """Strides of the sums: position, group, out; channels of x lie side by side."""
        pitch = round_up(channels, 4)
        return q.groups * q.out_channels * pitch, q.out_channels * pitch, pitch

    def _sum_bytes(self, problem: Any, q: Pose, part: Sums) -> int:
        of_position = self._steps(q, part.v.channels)[0]
        return round_up(part.v.positions * of_position * DTYPES[problem.accumulate].itemsize, 256)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        product = self._slices(problem, pose(problem))[0].product
        return tuple({"gemm": solver.name} for solver in ranked(product, target, rounded=False))

    def estimate(self, problem: Any, target: Any) -> float:
        q, (h, w) = pose(problem), self.axes(problem)
        size_in, size_out = DTYPES[problem.in_dtype].itemsize, DTYPES[problem.out_dtype].itemsize
        parts = self._slices(problem, q)
        tiles = sum(part.v.tiles for part in parts)
        x = q.images * q.groups * parts[0].v.channels * q.x[0] * q.x[1] * size_in
        y = q.images * q.groups * q.out_channels * q.out[0] * q.out[1] * size_in
        seconds = 0.0
        for part in parts:
            share = part.v.tiles / tiles
            for nbytes, domain, of in zip((x, y), (part.v, part.y), part.bytes, strict=True):
                threads = q.groups * domain.channels * domain.tiles
                seconds += cost.sweep_seconds(share * nbytes + of, threads, cost.IN * domain.positions, target)
            seconds += ranked(part.product, target, rounded=False)[0].estimate(part.product, target)
        positions, channels = parts[0].v.positions, parts[0].v.channels
        threads = q.groups * q.out_channels * channels
        nbytes = threads * h.r * w.r * size_out * (2 if problem.has_c else 1) + self._sum_bytes(problem, q, parts[0])
        return seconds + cost.sweep_seconds(nbytes, threads, cost.OUT * positions + cost.END * h.r * w.r, target)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        q, axes = pose(problem), self.axes(problem)
        d = q.depth
        of_y = Source(
            1, problem.in_dtype, q.out_channels, q.out, (0, 0), q.out_steps, Depth(d.out, d.out, x_step=d.out_step)
        )
        of_x = Source(2, problem.in_dtype, q.x_channels, q.x, q.pad, q.x_steps, d)
        stages: list[Step | Nested] = []
        every = self._slices(problem, q)
        for part in every:
            tiles, order = (part.first, part.v.tiles), part.v.order
            stages += [
                input_step("input", axes, of_x, q.out, q.groups, tiles, order, part.v.v, "x"),
                input_step("gradient", axes, of_y, q.out, q.groups, tiles, order, part.y.v, "dy"),
                multiply_step(part.product, target, str(config["gemm"]), "sums", "dy", "x", rounded=False),
            ]
        stages.append(self._window(problem, q, part.v.channels))
        v, y = (max(part.bytes[which] for part in every) for which in range(2))
        return make_launcher(stages, {"sums": self._sum_bytes(problem, q, every[0]), "x": v, "dy": y})

    def _window(self, problem: Any, q: Pose, channels: int) -> Step:
        """The taps, of the sums."""
        h, w = self.axes(problem)
        work = q.groups * q.out_channels * channels
        numbers = (
            work, q.out_channels, channels, q.x_channels, h.stride, w.stride, *problem.kernel[1:], len(h.firsts),
            len(w.firsts), h.word, w.word, *self._steps(q, channels), *problem.strides.w, *problem.strides.c,
        )  # fmt: skip
        common = common_values(problem)
        kernel = make_window(
            problem.in_dtype, problem.out_dtype, h.m, h.r, w.m, w.r, compiled_kind(problem.activation.kind)
        )
        return step(
            kernel, ceil_div(work, kernel.threads),
            lambda arrays, floats, at: (*common(arrays, floats), at["sums"], *numbers),
        )  # fmt: skip
