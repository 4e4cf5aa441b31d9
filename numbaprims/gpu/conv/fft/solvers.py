"""The solver `fft`: overlap and save on tiles of 16 x 16 or 32 x 32, products by gemm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import LARGEST, common_values
from numbaprims.gpu.conv.fft import cost
from numbaprims.gpu.conv.fft.domain import FORMS, Cut, Grid, Operand, cuts, grid_of, order_of, summed
from numbaprims.gpu.conv.fft.inverse import make_inverse
from numbaprims.gpu.conv.fft.spectra import make_spectra
from numbaprims.gpu.conv.fft.tile import SIZES, tiles_of
from numbaprims.gpu.conv.transformed import Pose, multiply_step, pose, ranked
from numbaprims.gpu.conv.winograd.solvers import common_refusal
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import ceil_div
from numbaprims.gpu.launch import Addresses, Nested, Step, make_launcher, program_of, step
from numbaprims.gpu.solver import Solver

LEAST = 4
"""Outputs of a tile along a side: with fewer, most of a spectrum is for nothing."""
MOST_FILTERS = 2 << 30
"""Bytes of the filters' spectra, 2 N * N numbers for each."""
MOST_GROUPS = 65535


class Image(NamedTuple):
    """What a transform reads or writes: strides in elements, sizes, and how its tiles are cut."""

    group: int
    steps: tuple[int, int, int, int, int]
    """Of n, c, d, h, w."""
    size: tuple[int, int]
    part: tuple[int, int]
    """Of a tile, as far as it is looked at."""
    pad: tuple[int, int] = (0, 0)
    grid: tuple[int, int, int, int] = (1, 1, 1, 1)
    """Tiles downwards, across, and what is from one to the next."""
    planes: int = 1
    """Of an image of the result."""
    depth: tuple[int, int, int, int] = (1, 1, 1, 0)
    """Of the source: planes, steps from one to the next of a plane of the result and of a tap, padding."""


def with_depth(steps: tuple[int, int, int, int], depth: int) -> tuple[int, int, int, int, int]:
    """Strides of n, c, d, h, w."""
    return (*steps[:2], depth, *steps[2:])


def fitting(problem: Any) -> list[int]:
    """The tiles that a window fits, and whose spectra of all filters are not too large."""
    q = pose(problem)
    words = 2 * q.groups * summed(q) * q.out_channels * DTYPES[problem.accumulate].itemsize
    fit = [n for n in SIZES if max(problem.kernel[1:]) <= n - LEAST + 1]
    return [n for n in fit if words * n * n <= MOST_FILTERS]


class Fft(Solver):
    """Spectra of overlapping tiles, a product for each frequency, and back (Mathieu, Henaff and LeCun 2014).

    A tile of N x N takes 3 N^2 (form "four": 4 N^2) operations for each pair of channels, whatever the window, and
    gives (N - R + 1) x (N - S + 1) outputs.  Stride 1.  Half precisions are transformed and multiplied in float32.
    Where the settings allow it, spectra are rounded to tfloat32 for the products: a transform does not magnify what
    that costs (errors of 16 channels and 5 x 5 taps: 0.84 of those of `implicit_mma` with "four", 1.2 with "three").
    """

    name = "fft"
    amplification = 8

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction == "bias":
            return "it multiplies, and this is a sum"
        found = common_refusal(p, depth=True)
        if found is not None:
            return found
        if p.stride[1:] != (1, 1):
            return "it takes stride 1, but along a depth"
        if p.direction == "data" and p.stride[0] != 1:
            return "the data gradient of a stride is no convolution of one stride"
        if max(p.kernel[1:]) > SIZES[-1] - LEAST + 1:
            return f"its largest tile has a side of {SIZES[-1]}, too small for windows of {p.kernel[1]} x {p.kernel[2]}"
        q, sizes = pose(p), fitting(p)
        if not sizes:
            return "the spectra of its filters would take more than 2 GiB"
        if q.groups > MOST_GROUPS:
            return f"it takes at most {MOST_GROUPS} groups"
        grid = grid_of(p, sizes[0])
        if max(q.images * grid.rows * grid.columns, summed(q) * q.out_channels) >= LARGEST:
            return "there are more tiles or filters than 32-bit indices"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        found: list[tuple[int, float, Config]] = []
        for n in fitting(problem):
            for form in FORMS:
                seconds = cost.seconds(problem, target, n, form)
                for place, solver in enumerate(ranked(cuts(problem, n, form)[0].product, target)[:2]):
                    found.append((place, seconds, {"n": n, "form": form, "gemm": solver.name}))
        return tuple(config for _, _, config in sorted(found, key=lambda entry: entry[:2]))

    def estimate(self, problem: Any, target: Any) -> float:
        return min(cost.seconds(problem, target, n, form) for n in fitting(problem) for form in FORMS)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        cut = cuts(problem, int(config["n"]), str(config["form"]))[0]
        elements = cut.wide.nbytes // DTYPES[problem.accumulate].itemsize
        array, view = weights.origin.empty((elements,), problem.accumulate)
        view.owner = array
        transform = self._filters(problem, pose(problem), config, cut, None)
        make_launcher([transform])(view, None, weights)
        return view

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        # a plan whose arrays lie on the host prepares nothing: its weights are transformed in each call
        ways = {kept: self._driver(problem, target, config, kept) for kept in {False, problem.prepared}}

        def launch(  # type: ignore[no-untyped-def]
            a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0
        ):
            ways[a5 is not None](a0, a1, a2, a3, a4, a5, a6, f0, f1, f2, f3, f4, f5)

        launch.program = lambda: program_of(ways[problem.prepared])  # type: ignore[attr-defined]
        return launch

    def _driver(self, problem: Any, target: Any, config: Config, kept: bool) -> Launcher:
        q, n = pose(problem), int(config["n"])
        made = cuts(problem, n, str(config["form"]))
        wide: str | int = 5 if kept else "wide"
        stages: list[Step | Nested] = []
        weight = problem.direction == "weight"
        if not weight and not kept:
            stages.append(self._filters(problem, q, config, made[0], "wide"))
        for cut in made:
            stages.append(self._plain(problem, q, config, cut))
            if weight:
                stages.append(self._pixels(problem, q, config, cut))
            a, b = (wide, "plain") if cut.wide_first else ("plain", wide)
            stages.append(multiply_step(cut.product, target, str(config["gemm"]), "result", a, b))
            if not weight:
                stages.append(self._outputs(problem, q, config, cut))
        if weight:
            stages.append(self._gradients(problem, q, config, made[0]))
        names = ("plain", "result") if kept else ("plain", "wide", "result")
        # room for the largest slice
        return make_launcher(stages, {name: max(getattr(cut, name).nbytes for cut in made) for name in names})

    # ------------------------------------------------------------ the transforms

    def _plain(self, problem: Any, q: Pose, config: Config, cut: Cut) -> Step:
        """Spectra of the tiles of x (dy for the data gradient)."""
        n, grid = int(config["n"]), grid_of(problem, int(config["n"]))
        d = q.depth
        image = Image(
            q.x_channels * q.x_steps[1], with_depth(q.x_steps, d.x_step), q.x, (n, n), q.pad,
            (grid.rows, grid.columns, *grid.step), d.out, (d.x, d.stride, d.gap, d.pad),
        )  # fmt: skip
        place = 2 if problem.direction == "weight" else 1
        return spectra_step(
            problem, config, cut, cut.plain, "plain", image, (q.x_channels, d.taps), cut.tiles, order_of(problem),
            lambda arrays, at: (at["plain"], arrays[place].pointer),
        )  # fmt: skip

    @staticmethod
    def _result(q: Pose, grid: Grid) -> Image:
        """The image of the result (forward), or of dy for the weight's gradient."""
        d = q.depth
        return Image(
            q.out_channels * q.out_steps[1], with_depth(q.out_steps, d.out_step), q.out, grid.step, (0, 0),
            (grid.rows, grid.columns, *grid.step), d.out, (d.out, 1, 1, 0),
        )  # fmt: skip

    def _pixels(self, problem: Any, q: Pose, config: Config, cut: Cut) -> Step:
        """Spectra of the tiles of dy, for the weight's gradient."""
        grid = grid_of(problem, int(config["n"]))
        image = self._result(q, grid)
        return spectra_step(
            problem, config, cut, cut.wide, "wide", image, (q.out_channels, 1), cut.tiles, "channels",
            lambda arrays, at: (at["wide"], arrays[1].pointer),
        )  # fmt: skip

    def _filters(self, problem: Any, q: Pose, config: Config, cut: Cut, to: str | None) -> Step:
        """Spectra of the filters, into a region or the first array: images of one tile, one an output channel."""
        window = problem.kernel[1:]
        image = Image(q.w_group, with_depth(q.w_steps, q.depth.w_step), window, window, depth=(q.depth.taps, 0, 1, 0))
        begin = q.w_start * DTYPES[problem.w_dtype].itemsize
        return spectra_step(
            problem, config, cut._replace(first=0), cut.wide, "wide", image, (q.x_channels, q.depth.taps),
            q.out_channels, "tiles",
            lambda arrays, at: (at[to] if to else arrays[0].pointer, arrays[2].pointer + begin),
        )  # fmt: skip

    def _outputs(self, problem: Any, q: Pose, config: Config, cut: Cut) -> Step:
        """The results of a slice."""
        order = order_of(problem)
        given = problem.y_order if problem.direction == "forward" else problem.x_order
        image = self._result(q, grid_of(problem, int(config["n"])))
        c = (q.out_channels * q.c_steps[1], *with_depth(q.c_steps, q.depth.c_step))
        lanes = "items" if order == given_order(given) == "channels" else "pixels"
        return inverse_step(problem, config, cut, image, c, (q.out_channels, cut.tiles), order, lanes)

    def _gradients(self, problem: Any, q: Pose, config: Config, cut: Cut) -> Step:
        """The weight's gradient: images of one tile; taps along the depth take the place of images, channels that of
        planes, for that is how the channels of x lie in the products."""
        window, w, c = problem.kernel[1:], problem.strides.w, problem.strides.c
        image = Image(q.w_group, (w[2], w[0], w[1], *w[3:]), window, window, planes=q.x_channels)
        steps = (q.out_channels * c[0], c[2], c[0], c[1], *c[3:])
        return inverse_step(
            problem, config, cut._replace(first=0), image, steps, (q.out_channels, summed(q)), "tiles", "pixels"
        )


def given_order(order: str) -> str:
    """What an image has side by side."""
    return "channels" if order == "channels_last" else "tiles"


def spectra_step(
    problem: Any, config: Config, cut: Cut, operand: Operand, role: str, image: Image, channels: tuple[int, int],
    tiles: int, order: str, pointers: Callable[[Any, Addresses], tuple[int, int]],
) -> Step:  # fmt: skip
    """The transform of so many channels, taps along the depth, and tiles."""
    p, n = problem, int(config["n"])
    if role == "plain":
        dtype, lies = p.in_dtype, p.y_order if p.direction == "data" else p.x_order
    else:
        dtype, lies = (p.y_dtype, p.y_order) if p.direction == "weight" else (p.w_dtype, p.w_order)
    lanes = "items" if order == given_order(lies) == "channels" else "pixels"
    kernel = make_spectra(dtype, p.accumulate, n, str(config["form"]), role, order, lanes)
    rows = channels[0] * channels[1]
    numbers = (
        rows * tiles, tiles if order == "tiles" else rows, cut.first, *image.grid, *image.pad, *image.part, *image.size,
        channels[0], image.planes, *image.depth, image.group, *image.steps, *operand[:6],
    )  # fmt: skip
    grid = (ceil_div(rows * tiles, tiles_of(p.accumulate, n)), p.groups)
    return step(kernel, grid, lambda arrays, _, at: (*pointers(arrays, at), *numbers))


def inverse_step(
    problem: Any, config: Config, cut: Cut, image: Image, c: tuple[int, ...], counts: tuple[int, int], order: str,
    lanes: str,
) -> Step:  # fmt: skip
    """The way back to `counts` channels and tiles; `c` are the steps of c: group, n, c, d, h, w."""
    p, n = problem, int(config["n"])
    channels, tiles = counts
    kernel = make_inverse(
        p.in_dtype, p.out_dtype, n, str(config["form"]), order, lanes, compiled_kind(p.activation.kind)
    )
    common = common_values(p)
    numbers = (
        channels * tiles, tiles if order == "tiles" else channels, cut.first, *image.grid[:2], *image.part, *image.size,
        image.planes, *cut.result[:5], image.group, *image.steps, *c, channels * p.strides.bias,
    )  # fmt: skip
    grid = (ceil_div(channels * tiles, tiles_of(p.accumulate, n)), p.groups)
    return step(
        kernel, grid, lambda arrays, floats, at: (*common(arrays, floats), at["result"], *numbers)
    )  # fmt: skip
