"""F(2x2, 3x3), F(4x4, 3x3), F(6x6, 3x3) and pieces of other windows: kernels for transforms, products by gemm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from numbaprims import settings
from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import LARGEST, common_values
from numbaprims.gpu.conv.transformed import Depth, Domain, Pose, multiply_step, pose, ranked, slices
from numbaprims.gpu.conv.winograd import cost
from numbaprims.gpu.conv.winograd.axes import Axis, best_axis
from numbaprims.gpu.conv.winograd.transform_in import THREADS, make_filter, make_input
from numbaprims.gpu.conv.winograd.transform_out import make_output, vector_of
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import C_VECTORS, OUT_VECTORS, ceil_div
from numbaprims.gpu.launch import Nested, Step, make_launcher, program_of, step
from numbaprims.gpu.solver import Solver

R = 3
MOST_TAPS = 196
"""14 x 14: the first taps of pieces have 4 bits each."""


def common_refusal(problem: Any, *, depth: bool = False) -> str | None:
    """What no solver of the family takes; without `depth` images only."""
    p = problem
    if not depth and not p.planar:
        return "it takes images, without a depth"
    if p.dilation[1:] != (1, 1):
        return "it takes dilation 1"
    if p.accumulate not in ("f32", "f64"):
        return "the transforms need fractions, which integers have not"
    if settings.current().accuracy == "high":
        return "its rounding errors exceed those of the definition, which accuracy 'high' excludes"
    return None


def source_order(problem: Any) -> str:
    """What V has side by side: what the input has."""
    order = problem.y_order if problem.direction == "data" else problem.x_order
    return "channels" if order == "channels_last" else "tiles"


class Source(NamedTuple):
    """What a transform of tiles reads."""

    array: int
    """Of a launch's arrays: 1 or 2."""
    dtype: str
    channels: int
    """Of one group, without pieces."""
    size: tuple[int, int]
    pad: tuple[int, int]
    steps: tuple[int, int, int, int]
    """n, c, h, w."""
    depth: Depth


def input_step(
    role: str, axes: tuple[Axis, Axis], source: Source, out: tuple[int, int], groups: int, tiles: tuple[int, int],
    order: str, v: tuple[int, int, int, int], to: str,
) -> Step:  # fmt: skip
    """The transform of `tiles` (the first, how many) of the outputs `out`, with its strides `v` (position, group,
    channel, tile), into a region."""
    h, w = axes
    first, count = tiles
    if role == "gradient":
        h, w = Axis(h.m, h.r), Axis(w.m, w.r)
    d = source.depth
    channels = source.channels * d.taps * len(h.firsts) * len(w.firsts)
    work = groups * channels * count
    numbers = (
        work, first, count, channels, source.channels, ceil_div(out[0], h.m), ceil_div(out[1], w.m), h.m * h.stride,
        w.m * w.stride, h.stride, w.stride, *source.pad, *source.size, d.out, d.x, d.stride, d.gap, d.pad,
        len(h.firsts), len(w.firsts), h.word, w.word, d.x_step, *source.steps, *v,
    )  # fmt: skip
    return step(
        make_input(source.dtype, h.m, h.r, w.m, w.r, order, role), ceil_div(work, THREADS),
        lambda arrays, _, at: (at[to], arrays[source.array].pointer, *numbers),
    )  # fmt: skip


class Winograd(Solver):
    """What the forward solvers share; a window is one piece or several (axes.py)."""

    amplification = 24
    worth: ClassVar[float] = 1.0
    """By how much longer it may take for its lost digits not to be worth it."""
    rounded: ClassVar[bool] = False
    """Whether the products may be of numbers rounded to tfloat32, where the settings allow it: their errors grow as
    those of float32 do, by the factor of the transform."""

    def axes(self, problem: Any) -> tuple[Axis, Axis]:
        """The cut along the height and the width."""
        raise AssertionError("a solver names its axes")

    def _refusal(self, problem: Any) -> str | None:
        """What neither of the two directions takes."""
        if problem.direction not in ("forward", "data"):
            return f"direction {problem.direction} is not one of forward and data"
        found = common_refusal(problem, depth=True)
        if found is not None:
            return found
        if problem.direction == "data" and problem.stride != (1, 1, 1):
            return "the data gradient of a stride is no convolution of one stride"
        q = pose(problem)
        tiles, domain = self._tiles(q, problem), self._domains(problem, q)[0][1]
        if max(tiles, q.groups * domain.channels * max(domain.outs, domain.tiles)) >= LARGEST:
            return "there are more tiles or channels than 32-bit indices"
        if max(domain.outs, domain.channels) * q.groups * domain.tiles >= LARGEST:
            return "there are more transforms than 32-bit indices"
        return None

    def _tiles(self, q: Pose, problem: Any) -> int:
        h, w = self.axes(problem)
        return q.images * ceil_div(q.out[0], h.m) * ceil_div(q.out[1], w.m)

    def _domains(self, problem: Any, q: Pose) -> list[tuple[int, Domain]]:
        """The first tile of each slice, and its products."""
        h, w = self.axes(problem)
        tiles, size = self._tiles(q, problem), DTYPES[problem.accumulate].itemsize
        channels = q.x_channels * q.depth.taps * len(h.firsts) * len(w.firsts)
        of_tile = h.n * w.n * q.groups * (channels + q.out_channels) * size
        order = source_order(problem)
        return [
            (first, Domain(h.n * w.n, q.groups, channels, q.out_channels, count, problem.accumulate, order))
            for first, count in slices(tiles, of_tile)
        ]

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        product = self._domains(problem, pose(problem))[0][1].product()
        return tuple({"gemm": solver.name} for solver in ranked(product, target, rounded=self.rounded))

    def estimate(self, problem: Any, target: Any) -> float:
        q = pose(problem)
        (h, w), domains = self.axes(problem), self._domains(problem, q)
        tiles, outputs = self._tiles(q, problem), h.m * w.m
        seconds = 0.0
        known: dict[int, float] = {}
        for _, domain in domains:
            if domain.tiles not in known:
                known[domain.tiles] = cost.slice_seconds(
                    problem, q, domain, domain.tiles / tiles, outputs, target, rounded=self.rounded
                )
            seconds += known[domain.tiles]
        if not problem.prepared:
            size = DTYPES[problem.in_dtype].itemsize
            seconds += cost.filter_seconds(q, domains[0][1], size, problem.taps, target)
        return seconds * self.worth

    def _product(self, domain: Domain, target: Any, config: Config, kept: bool) -> Nested:
        a, b = (5 if kept else "windows"), "tiles"
        if domain.order != "tiles":
            a, b = b, a
        return multiply_step(domain.product(), target, str(config["gemm"]), "products", a, b, self.rounded)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        q = pose(problem)
        nbytes = self._domains(problem, q)[0][1].bytes[2]
        array, view = weights.origin.empty((nbytes // DTYPES[problem.accumulate].itemsize,), problem.accumulate)
        view.owner = array
        make_launcher([self._filter(problem, q, None)])(view, None, weights)
        return view

    def _filter(self, problem: Any, q: Pose, to: str | None) -> Step:
        """The transform of the windows into a region, or the first array."""
        h, w = self.axes(problem)
        domain = self._domains(problem, q)[0][1]
        p, g, c, _ = domain.u
        work = q.groups * domain.channels * domain.outs
        numbers = (
            work, domain.outs, domain.channels, q.x_channels, h.stride, w.stride, *problem.kernel[1:], len(h.firsts),
            len(w.firsts), h.word, w.word, q.w_start, q.w_group, q.depth.w_step, *q.w_steps, p, g, c,
        )  # fmt: skip
        return step(
            make_filter(problem.w_dtype, h.m, h.r, w.m, w.r), ceil_div(work, THREADS),
            lambda arrays, _, at: (at[to] if to else arrays[0].pointer, arrays[2].pointer, *numbers),
        )  # fmt: skip

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        q = pose(problem)
        domains = self._domains(problem, q)
        # a plan whose arrays lie on the host prepares nothing: its weights are transformed in each call
        products = {
            (kept, domain.tiles): self._product(domain, target, config, kept)
            for kept in ({True, False} if problem.prepared else {False})
            for _, domain in domains
        }
        inverse = self._filter(problem, q, "windows")
        v, m, u = (max(domain.bytes[which] for _, domain in domains) for which in range(3))
        known: dict[tuple[int, int, bool], Launcher] = {}

        def make(key: tuple[int, int, bool]) -> Launcher:
            out, c, kept = key
            stages: list[Step | Nested] = [] if kept else [inverse]
            source = Source(1, problem.in_dtype, q.x_channels, q.x, q.pad, q.x_steps, q.depth)
            for first, domain in domains:
                tiles = (first, domain.tiles)
                stages += [
                    input_step(
                        "input", self.axes(problem), source, q.out, q.groups, tiles, domain.order, domain.v, "tiles"
                    ),
                    products[kept, domain.tiles],
                    self._output(problem, q, domain, first, out, c),
                ]
            regions = ({} if kept else {"windows": u}) | {"tiles": v, "products": m}
            return known.setdefault(key, make_launcher(stages, regions))

        make((0, 0, problem.prepared))

        def launch(  # type: ignore[no-untyped-def]
            a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0
        ):
            key = (a0.pointer & 15, 0 if a3 is None else a3.pointer & 15, a5 is not None)
            found = known.get(key) or make(key)
            found(a0, a1, a2, a3, a4, a5, a6, f0, f1, f2, f3, f4, f5)

        launch.program = lambda: program_of(make((0, 0, problem.prepared)))  # type: ignore[attr-defined]
        return launch

    def _output(self, problem: Any, q: Pose, domain: Domain, first: int, out: int, c: int) -> Step:
        """The result of a slice."""
        h, w = self.axes(problem)
        V = vector_of(problem.accumulate, w.m)
        nbytes = V * DTYPES[problem.out_dtype].itemsize
        flags = 0
        for bit, pointer, steps, step_d in (
            (OUT_VECTORS, out, q.out_steps, q.depth.out_step), (C_VECTORS, c, q.c_steps, q.depth.c_step)
        ):  # fmt: skip
            if steps[3] == 1 and pointer % nbytes == 0 and all(value % V == 0 for value in (*steps[:3], step_d)):
                flags |= bit
        work = q.groups * domain.outs * domain.tiles
        numbers = (
            work, first, domain.tiles, domain.outs, ceil_div(q.out[0], h.m), ceil_div(q.out[1], w.m), q.depth.out,
            *q.out, flags, *domain.m, q.depth.out_step, *q.out_steps, q.depth.c_step, *q.c_steps,
        )  # fmt: skip
        common = common_values(problem)
        kernel = make_output(
            problem.in_dtype, problem.out_dtype, h.m, h.r, w.m, w.r, domain.order,
            compiled_kind(problem.activation.kind),
        )  # fmt: skip
        return step(
            kernel, ceil_div(work, THREADS),
            lambda arrays, floats, at: (*common(arrays, floats), at["products"], *numbers),
        )  # fmt: skip


class Square(Winograd):
    """F(M x M, 3 x 3): stride 1."""

    M: ClassVar[int]

    def axes(self, problem: Any) -> tuple[Axis, Axis]:
        return Axis(self.M, R), Axis(self.M, R)

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kernel[1:] != (R, R):
            return f"it takes windows of 3 x 3, not {' x '.join(map(str, problem.kernel[1:]))}"
        if problem.stride[1:] != (1, 1):
            return "it takes stride 1"
        return self._refusal(problem)


class Winograd2(Square):
    """F(2x2, 3x3): 16 products for 36.

    The error of an element, in 2^-24 sum |x w|, was at most 2 with random numbers and 64 channels, as that of the
    definition.
    """

    name = "winograd_2x2"
    amplification = 4
    M = 2
    rounded = True


class Winograd4(Square):
    """F(4x4, 3x3): 36 products for 144.  The error is at most 31 in the same units."""

    name = "winograd_4x4"
    M = 4


class Winograd6(Square):
    """F(6x6, 3x3): 64 products for 324.  The error is at most 81 in the same units."""

    name = "winograd_6x6"
    M = 6
    worth = 1.08


class WinogradPieces(Winograd):
    """Windows of any size and stride, cut into pieces whose products add up in the transforms' domain."""

    name = "winograd_pieces"
    worth = 1.08

    def axes(self, problem: Any) -> tuple[Axis, Axis]:
        cuts = self._cuts(problem)
        assert cuts[0] is not None and cuts[1] is not None
        return cuts[0], cuts[1]

    def _cuts(self, problem: Any) -> tuple[Axis | None, ...]:
        out = pose(problem).out
        return tuple(map(best_axis, problem.kernel[1:], problem.stride[1:], out))

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kernel[1:] == (R, R) and problem.stride[1:] == (1, 1):
            return "3 x 3 with stride 1 has solvers of its own"
        taps = problem.kernel[1] * problem.kernel[2]
        if not 1 < taps <= MOST_TAPS:
            return f"it takes windows of 2 to {MOST_TAPS} taps, not {taps}"
        if 0 not in problem.y_size and None in self._cuts(problem):
            return "the window is cut into more pieces along an axis than it keeps"
        return self._refusal(problem)
