"""The solvers of pooling on a GPU: `forward` and `backward` with indices of 32 or 64 bits, `large`, and `whole`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.launch import Addresses, Step, by_alignment, make_launcher, step
from numbaprims.gpu.reduce.posed import solver_of
from numbaprims.gpu.solver import Solver
from numbaprims.gpu.windows.backward import make_backward
from numbaprims.gpu.windows.forward import make_forward
from numbaprims.gpu.windows.geometry import THREADS
from numbaprims.gpu.windows.large import WARPS, make_large
from numbaprims.ops._pooling_problem import ARRAYS
from numbaprims.ops._reduction_problem import posed

LAUNCH = 3e-6
UNROLLED = 16
"""Taps of a window, or windows of an element, up to which their loops are unrolled."""
LIMIT = (1 << 31) - THREADS
MANY = 256
"""Elements of a window from which a warp looks for its largest."""
_NEXT = 4e-8
"""Seconds from one load of a thread's loop to the next, where no other thread hides it."""

Five = tuple[int, ...]
"""Strides over (n, c, z, y, x)."""


def _three(sizes: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Sizes of one to three dimensions as those of three."""
    return (fill,) * (3 - len(sizes)) + tuple(sizes)


def operation_of(problem: Any) -> str:
    """The kernel's word for what a problem computes."""
    if problem.op == "max":
        return "places" if problem.direction == "backward" else "max_places" if problem.indices else "max"
    return {1.0: "lp1", 2.0: "lp2"}.get(problem.p, "lp") if problem.op == "lp" else str(problem.op)


class Layout:
    """A problem as its kernels see it: three dimensions, and the strides of every array by name."""

    def __init__(self, problem: Any, wide: bool) -> None:
        self.problem, self.wide = problem, wide
        self.rank = len(problem.size)
        self.out, self.size = _three(problem.out, 1), _three(problem.size, 1)
        ones = _three((), 1)
        if problem.adaptive:
            self.kernel, self.stride, self.before, self.dilation, after = ones, ones, _three((), 0), ones, _three((), 0)
        else:
            self.kernel, self.stride, self.dilation = (
                _three(given, 1) for given in (problem.kernel, problem.stride, problem.dilation)
            )
            self.before, after = _three(problem.before, 0), _three(problem.after, 0)
        self.limit = tuple(size + behind for size, behind in zip(self.size, after, strict=True))
        self.dilated = self.dilation != ones
        self.strides: dict[str, Five] = {
            name: (*strides[:2], *_three(strides[2:], 0))
            for name, strides in zip(ARRAYS, problem.strides, strict=True)
            if strides is not None
        }
        result = self.strides["out"]
        self.last = problem.layout == "channels_last" or (
            problem.layout == "strided" and problem.c > 1 and abs(result[1]) < abs(result[4])
        )

    def lengths(self, name: str) -> Five:
        """The sizes of an array."""
        forward = self.problem.direction == "forward"
        windows = name in ("indices", "dy", "y") or (name == "out" and forward)
        return (self.problem.n, self.problem.c, *(self.out if windows else self.size))

    def reach(self, name: str) -> int:
        """Elements from the first of an array to the one that is furthest from it."""
        return sum((n - 1) * abs(s) for n, s in zip(self.lengths(name), self.strides[name], strict=True))

    def width(self, names: tuple[str, ...]) -> int:
        """Channels of an access: as many as lie side by side and aligned in every array, 16 bytes at most."""
        if not self.last or self.wide:
            return 1
        V = 2 if "indices" in names else 16 // DTYPES[self.problem.dtype].itemsize
        steps = [self.problem.c]
        for name in names:
            n, c, *rest = self.strides[name]
            if c != 1:
                return 1
            steps += [
                s for s, length in zip((n, *rest), self.lengths(name)[:1] + self.lengths(name)[2:], strict=True)
                if length > 1
            ]  # fmt: skip
        while any(each % V for each in steps):
            V //= 2
        return V

    def contiguous(self) -> Five:
        """The strides of scratch memory for a number a window, in the order of the threads."""
        c, (z, y, x) = self.problem.c, self.out
        if self.last:
            return (c * z * y * x, 1, c * y * x, c * x, c)
        return (c * z * y * x, z * y * x, y * x, x, 1)

    def numbers(self, V: int, over: tuple[int, ...]) -> tuple[int, ...]:
        """The integers that both kernels begin with; `over` are the sizes of what is computed."""
        channels = self.problem.c // V
        threads = self.problem.n * channels * math.prod(over)
        return (
            threads, channels, *self.out, *self.size, *self.kernel, *self.stride, *self.before, *self.dilation,
            *self.limit,
        )  # fmt: skip

    def spec(self, unrolled: tuple[int, ...], V: int) -> tuple[Any, ...]:
        """What both factories end with."""
        few = not (self.problem.adaptive or self.wide or self.dilated) and math.prod(unrolled) <= UNROLLED
        # a window has an element then; of norms gradients would be of elements that the window has not
        few &= all(before < k for before, k in zip(self.before, self.kernel, strict=True))
        few &= self.problem.op != "lp" or self.problem.direction == "forward"
        padded = self.problem.op == "avg" and self.problem.count_include_pad
        loops = unrolled if few else (0, 0, 0)
        return (loops, V, self.problem.adaptive, self.dilated, padded, self.last, self.wide)

    @property
    def cover(self) -> tuple[int, ...]:
        """The most windows that an element is in, along each dimension."""
        spans = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        return tuple(-(-span // stride) for span, stride in zip(spans, self.stride, strict=True))


def forward_step(layout: Layout, operation: str, V: int, large: bool = False) -> Step:
    """The step of a forward kernel, `large` a warp for each window; "places" go to scratch memory."""
    problem = layout.problem
    spec = layout.spec(layout.kernel, V)
    if large:
        kernel, each = make_large(operation, problem.dtype, *spec[2:5]), WARPS
    else:
        kernel, each = make_forward(operation, problem.dtype, layout.rank, *spec), THREADS
    numbers = layout.numbers(V, layout.out)
    none = (0,) * 5
    to = layout.contiguous() if operation == "places" else layout.strides.get("indices", none)
    fixed = (float(problem.p), *numbers, *layout.strides["out"], *to, *layout.strides["x"])

    def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
        out, indices, x = arrays[:3]
        places = at["places"] if operation == "places" else out.pointer if indices is None else indices.pointer
        return (out.pointer, places, x.pointer, *fixed)

    return step(kernel, -(-numbers[0] // each), values)


def backward_step(layout: Layout, operation: str, V: int) -> Step:
    """The step of a gradient's kernel; places that no array holds are in scratch memory."""
    problem = layout.problem
    kernel = make_backward(operation, problem.dtype, layout.rank, *layout.spec(layout.cover, V))
    numbers = layout.numbers(V, layout.size)
    none = (0,) * 5
    kept = layout.strides.get("indices", layout.contiguous())
    lying = (layout.strides["out"], layout.strides["dy"], kept, *(layout.strides.get(name, none) for name in "xy"))
    fixed = (float(problem.p), *numbers, *(stride for array in lying for stride in array))

    def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
        out, indices, x, dy, y = (0 if array is None else array.pointer for array in arrays[:5])
        return (out, dy, indices or at.get("places") or out, x or out, y or out, *fixed)

    return step(kernel, -(-numbers[0] // THREADS), values)


class _Pooling(Solver):
    wide = False

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        layout, operation = Layout(problem, self.wide), operation_of(problem)
        if problem.empty:
            return make_launcher(())
        if problem.direction == "forward":
            names = ("out", "x", *(("indices",) if problem.indices else ()))
            return _by_alignment(layout, names, lambda V: make_launcher([forward_step(layout, operation, V)]))
        if problem.op != "max" or problem.indices:
            names = tuple(layout.strides)
            return _by_alignment(layout, names, lambda V: make_launcher([backward_step(layout, operation, V)]))
        places = 8 * problem.n * problem.c * math.prod(problem.out)
        find = forward_step(layout, "places", 1, problem.taps >= MANY and not self.wide)
        return make_launcher([find, backward_step(layout, operation, 1)], {"places": places})


def _by_alignment(layout: Layout, names: tuple[str, ...], launcher: Callable[[int], Launcher]) -> Launcher:
    """A launcher of packs of channels where the arrays of a call allow them, else of single ones."""
    V = layout.width(names)
    if V == 1:
        return launcher(1)
    data = [ARRAYS.index(name) for name in names if name != "indices"]
    nbytes = V * DTYPES[layout.problem.dtype].itemsize
    # places are int64
    return by_alignment(lambda whole: launcher(V if whole else 1), dict.fromkeys(data, nbytes) | {1: 8 * V})


class Windows(_Pooling):
    """A thread for each result, or for a pack of neighbouring channels of it; offsets of 32 bits."""

    name = "windows"

    def why_not(self, problem: Any, target: Any) -> str | None:
        layout = Layout(problem, False)
        far = max(layout.reach(name) for name in layout.strides)
        results = problem.n * problem.c * max(math.prod(problem.out), math.prod(problem.size))
        if max(far, results) >= LIMIT:
            return "its offsets have 32 bits, and an array has elements beyond 2**31"
        if problem.adaptive and max((o + 1) * (s + 1) for o, s in zip(problem.out, problem.size, strict=True)) >= LIMIT:
            return "its offsets have 32 bits, and output size times size has more"
        if problem.op == "avg" and problem.dtype in ("i8", "u8") and problem.taps >= 1 << 22:
            return "its sums have 32 bits, and a window's have more"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return _seconds(problem, target, 8.0)


class Naive(_Pooling):
    """The same with offsets of 64 bits; refuses nothing."""

    name = "naive"
    wide = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return _seconds(problem, target, 40.0)


class Large(Windows):
    """A warp for each window, for those of many elements: global pooling."""

    name = "large"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "forward":
            return "it computes windows, not gradients"
        return super().why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        turns = -(-problem.taps // 32)
        issued = _results(problem) * 32 * (200.0 + 25.0 * turns) / (128.0 * target.multiprocessors * target.clock)
        # where its elements do not lie side by side, a sector of 32 bytes for each
        apart = 1 if problem.layout == "channels_first" else 32 // DTYPES[problem.dtype].itemsize
        moved = apart * problem.bytes_moved() / (0.8 * target.bandwidth)
        return float(LAUNCH + moved + issued + turns * _NEXT)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.empty:
            return make_launcher(())
        return make_launcher([forward_step(Layout(problem, False), operation_of(problem), 1, True)])


class Whole(Solver):
    """Global pooling by the reduce engine: some lanes for each plane, or lanes side by side for each channel."""

    name = "whole"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction != "forward" or p.indices or p.op not in ("avg", "max") or p.dtype in ("i8", "u8"):
            return "it computes averages and largest elements of floats, no places and no gradients"
        padded = any(p.before) or any(p.after) or any(apart > 1 for apart in p.dilation)
        if set(p.out) != {1} or not (p.adaptive or (p.kernel == p.size and not padded)):
            return "the windows are not whole planes"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        rows = _planes(problem)
        return float(solver_of(rows).estimate(rows, target))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.empty:
            return make_launcher(())
        rows = _planes(problem)
        inner = solver_of(rows).bind(rows, target, {})

        def launch(out, indices=None, x=None, *others, **floats):  # type: ignore[no-untyped-def]
            inner(out, x)

        launch.program = inner.program  # type: ignore[attr-defined]
        return launch


def _planes(problem: Any) -> Any:
    """The reduction of each plane."""
    shape = (problem.n, problem.c, *problem.size)
    out, x = problem.strides[0], problem.strides[2]
    steps = ((*out[:2], *(0,) * len(problem.size)), x)
    formula = "reduce:mean" if problem.op == "avg" else "reduce:max"
    return posed(formula, (problem.dtype,) * 2, shape, range(2, len(shape)), steps)


def _results(problem: Any) -> int:
    return int(problem.n * problem.c * math.prod(problem.out))


def _seconds(problem: Any, target: Any, instructions: float) -> float:
    """A launch, the bytes, the instructions (so many a tap, 100 a result), and a thread's loop."""
    issued = _results(problem) * (100.0 + instructions * problem.taps) / (128.0 * target.multiprocessors * target.clock)
    moved = problem.bytes_moved() / (0.8 * target.bandwidth)
    return float(LAUNCH + moved * (1 if problem.layout != "strided" else 4) + issued + problem.taps * _NEXT)


SOLVERS = (Windows(), Whole(), Large(), Naive())
