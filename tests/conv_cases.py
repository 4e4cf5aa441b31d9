"""Convolutions to test: geometries, their arrays in both layouts, and what they should give."""

import dataclasses
import functools
from importlib.util import find_spec
from typing import Any

import helpers
import numpy as np
from hypothesis import strategies as st

import numbaprims
from numbaprims import shapes
from numbaprims.dispatch import registry
from numbaprims.reference import conv as reference

DIRECTIONS = ("forward", "data", "weight")
#: Those whose solvers can be listed here.
DEVICES = ("cpu", "cuda") if find_spec("numba_cuda") else ("cpu",)
FUNCTIONS = {"forward": "conv", "data": "conv_backward_data", "weight": "conv_backward_weight"}


def is_exact(solver: str) -> bool:
    """Whether integers come out exact, in any order of their sums: those of a transform do not."""
    return amplification(solver) == 1


def amplification(solver: str) -> int:
    """The factor by which a solver's rounding errors may exceed those of the plain sum."""
    found = {s.amplification for device in DEVICES for s in registry.solvers("conv", device) if s.name == solver}
    assert len(found) == 1, f"{solver}: {found}"
    return found.pop()


@dataclasses.dataclass(frozen=True)
class Case:
    """One geometry: x as (N, C, spatial...), the weight as (K, C / groups, kernel...)."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1

    def __str__(self) -> str:
        words = ["x".join(map(str, self.x)), "x".join(map(str, self.w))]
        for name in ("stride", "padding", "dilation", "groups"):
            value = getattr(self, name)
            if value != Case.__dataclass_fields__[name].default:
                words.append(f"{name}={value}")
        return " ".join(words)

    @property
    def rank(self) -> int:
        return len(self.x) - 2

    @property
    def window(self) -> dict[str, Any]:
        """The keyword arguments of the public functions."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    def resolved(self) -> dict[str, Any]:
        """The keyword arguments of the definition, and the size of the result."""
        stride = shapes.per_dimension(self.stride, self.rank, "stride", 1)
        dilation = shapes.per_dimension(self.dilation, self.rank, "dilation", 1)
        pairs = shapes.resolve_padding(self.padding, self.x[2:], self.w[2:], stride, dilation)
        return {"stride": stride, "padding": tuple(p[0] for p in pairs), "dilation": dilation, "groups": self.groups}

    def y(self) -> tuple[int, ...]:
        """The shape of the result, (N, K, spatial...)."""
        stride = shapes.per_dimension(self.stride, self.rank, "stride", 1)
        dilation = shapes.per_dimension(self.dilation, self.rank, "dilation", 1)
        pairs = shapes.resolve_padding(self.padding, self.x[2:], self.w[2:], stride, dilation)
        size = map(shapes.output_size, self.x[2:], self.w[2:], stride, dilation, pairs)
        return (self.x[0], self.w[0], *size)

    def sums(self, direction: str) -> int:
        """How many products one element of the result adds up."""
        taps = int(np.prod(self.w[2:]))
        if direction == "forward":
            return self.w[1] * taps
        if direction == "data":
            return self.w[0] // self.groups * taps
        return self.x[0] * int(np.prod(self.y()[2:]))

    def operand_shapes(self, direction: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the two operands, channels first."""
        return {"forward": (self.x, self.w), "data": (self.y(), self.w), "weight": (self.y(), self.x)}[direction]

    def result_shape(self, direction: str) -> tuple[int, ...]:
        """The shape of the result, channels first."""
        return {"forward": self.y(), "data": self.x, "weight": self.w}[direction]

    def expected(self, direction: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The definition, channels first."""
        window = self.resolved()
        if direction == "forward":
            return reference.conv(first, second, self.y()[2:], **window)
        if direction == "data":
            return reference.conv_backward_data(first, second, self.x[2:], **window)
        return reference.conv_backward_weight(first, second, self.w[2:], **window)


#: What every solver meets: kernels, strides, paddings, groups and ranks, sizes around vectors and tiles.
CASES = (
    Case((1, 1, 1, 1), (1, 1, 1, 1)),
    Case((2, 5, 6, 7), (4, 5, 1, 1)),
    Case((1, 17, 9, 8), (18, 17, 1, 1), stride=2),
    Case((2, 8, 7, 7), (33, 8, 3, 3), padding=1),
    Case((1, 18, 10, 19), (13, 18, 3, 3), padding=1),
    Case((1, 4, 9, 8), (6, 4, 3, 3), padding=1, stride=2),
    Case((1, 3, 15, 14), (7, 3, 7, 7), padding=3, stride=2),
    Case((1, 3, 23, 23), (5, 3, 11, 11), stride=4),
    Case((1, 6, 12, 11), (8, 6, 5, 5), padding=2),
    Case((1, 5, 8, 21), (6, 5, 1, 7), padding=(0, 3)),
    Case((1, 5, 13, 6), (6, 5, 7, 1), padding=((3, 3), (0, 0))),
    Case((1, 4, 9, 10), (5, 4, 3, 3), padding="same", dilation=2),
    Case((1, 4, 8, 9), (5, 4, 2, 4), padding="same", stride=(2, 3)),
    Case((1, 4, 8, 8), (5, 4, 3, 3), padding=((1, 2), (0, 3)), stride=2, dilation=2),
    Case((2, 9, 6, 6), (15, 3, 3, 3), padding=1, groups=3),
    Case((1, 14, 5, 9), (6, 7, 1, 1), groups=2),
    Case((2, 7, 9, 9), (7, 1, 3, 3), padding=1, groups=7),
    Case((1, 18, 10, 11), (36, 1, 3, 3), padding=1, stride=2, groups=18),
    Case((1, 16, 7, 7), (16, 1, 5, 5), padding=2, groups=16),
    Case((1, 5, 20, 18), (5, 1, 3, 3), padding=2, dilation=2, groups=5),
    Case((1, 2, 3, 3), (4, 2, 3, 3)),
    Case((1, 2, 3, 4), (3, 2, 2, 2), padding=5),
    Case((3, 4, 5), (6, 4, 3), padding=1, stride=2),
    Case((1, 3, 40), (5, 3, 4), dilation=3),
    Case((1, 3, 4, 5, 6), (4, 3, 2, 3, 3), padding=1),
    Case((1, 4, 5, 4, 6), (4, 2, 3, 1, 2), stride=(1, 2, 2), padding=(1, 0, 1), groups=2),
    # one column, met from the left; planes of y that are padding only, before and behind; images of one result each
    Case((1, 32, 11, 1), (16, 32, 3, 3), padding=1),
    Case((2, 6, 8, 1), (4, 3, 1, 2), stride=(1, 3), padding=((2, 0), (3, 2)), groups=2),
    Case((1, 2, 1, 6, 7), (2, 2, 1, 1, 3), padding=(1, 0, 0)),
    Case((1, 4, 1, 6, 7), (4, 1, 1, 3, 3), padding=((0, 2), (1, 1), (1, 1)), groups=4),
    Case((1, 3, 1, 5, 6), (4, 3, 1, 3, 3), padding=((0, 1), (1, 1), (1, 1))),
    Case((3, 2, 3, 3), (4, 2, 3, 3)),
)

#: More than one block of everything.
LARGE = (
    Case((2, 70, 20, 33), (90, 70, 3, 3), padding=1),
    Case((1, 300, 14, 14), (130, 300, 1, 1)),
    Case((5, 64, 7, 7), (200, 64, 3, 3), padding=1),
    Case((1, 64, 56, 56), (64, 64, 3, 3), padding=1),
    Case((1, 64, 30, 30), (128, 64, 3, 3), padding=1, stride=2),
    Case((1, 3, 64, 64), (64, 3, 7, 7), padding=3, stride=2),
    Case((2, 96, 28, 28), (96, 1, 3, 3), padding=1, groups=96),
    Case((1, 48, 28, 28), (64, 48, 5, 5), padding=2),
)


@functools.cache
def large(direction: str) -> list[tuple[Case, np.ndarray, np.ndarray, np.ndarray]]:
    """[(case, its operands, the definition)]"""
    rng, found = np.random.default_rng(2), []
    for case in LARGE:
        first, second = (rng.standard_normal(s).astype(np.float32) for s in case.operand_shapes(direction))
        found.append((case, first, second, case.expected(direction, first.astype(float), second.astype(float))))
    return found


def to_layout(x: np.ndarray, layout: str) -> np.ndarray:
    """An array (N, C, spatial...) as the caller has it: channels behind, contiguous, for "NHWC"."""
    return x if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))


def from_layout(x: np.ndarray, layout: str) -> np.ndarray:
    """The same array with its channels first."""
    return x if layout == "NCHW" else np.moveaxis(x, -1, 1)


def arguments(case: Case, direction: str, layout: str = "NCHW") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What follows the two operands in a call: the shape of a gradient's result, and the keywords."""
    window = {**case.window, "layout": layout}
    if direction == "forward":
        return (), window
    if direction == "weight":
        return (case.w,), window
    shape = case.x if layout == "NCHW" else (case.x[0], *case.x[2:], case.x[1])
    return (shape,), window


def operand_layouts(direction: str, layout: str) -> tuple[str, str]:
    """The layouts of the two operands: weights have one only."""
    return layout, layout if direction == "weight" else "NCHW"


def refused(solver: str, direction: str, *args: Any, **kwargs: Any) -> str | None:
    """Why a solver refuses a call, or None."""
    return helpers.refused("conv", solver, *args, function=FUNCTIONS[direction], **kwargs)


@st.composite
def cases(draw: Any, largest: int = 24) -> Case:
    """Any geometry: ranks, kernels, strides, paddings, dilations, groups."""
    rank = draw(st.sampled_from((1, 2, 2, 2, 3)))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 5)))
    depthwise = draw(st.integers(0, 4)) == 0
    if depthwise:
        groups = draw(st.sampled_from((2, 7, 16, 17, 33, 130)))
    c = groups * (1 if depthwise else draw(st.integers(1, 9)))
    k = groups * draw(st.integers(1, 3 if depthwise else 12))
    kernel = tuple(draw(st.sampled_from((1, 1, 2, 3, 3, 3, 4, 5, 7))) for _ in range(rank))
    if draw(st.integers(0, 2)) == 0:
        kernel = (3,) * rank
    stride = tuple(draw(st.sampled_from((1, 1, 1, 2, 3))) for _ in range(rank))
    dilation = tuple(draw(st.sampled_from((1, 1, 1, 2))) for _ in range(rank))
    padding: Any = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(rank))
    if draw(st.integers(0, 3)) == 0:
        padding = "same"
    sizes = []
    for taps, gap in zip(kernel, dilation, strict=True):
        extent = shapes.window_extent(taps, gap)
        sizes.append(draw(st.integers(extent, max(extent, largest if rank < 3 else 8))))
    n = draw(st.sampled_from((1, 1, 2, 3)))
    return Case((n, c, *sizes), (k, c // groups, *kernel), stride, padding, dilation, groups)


def call_and_plan_agree(algorithm: str, given: Any, dtype: str, bound: float, **words: Any) -> None:
    """x, weight and bias, as stored, by a solver: what the definition gives, and by packed weights the same bits."""
    wide = [helpers.to_float64(each, dtype) for each in given]
    x, weight, bias = (helpers.in_library(each, dtype) for each in given)
    with numbaprims.config(device="reference"):
        want = numbaprims.conv(*wide, **words)
    with numbaprims.config(algorithm={"conv": algorithm}):
        y = numbaprims.conv(x, weight, bias, **words)
        planned = numbaprims.conv.plan(x.shape, weight, bias=bias, **words)(x)
    storage = y.view(np.uint16) if dtype in ("f16", "bf16") else y
    error = np.abs(helpers.to_float64(storage, dtype) - want).max()
    assert error <= bound * max(1.0, np.abs(want).max())
    np.testing.assert_array_equal(y.view(np.uint8), planned.view(np.uint8))
