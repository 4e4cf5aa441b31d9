"""The problem that a convolution poses: its geometry in one canonical form, in every direction."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.ops.epilogue import Activation

Triple = tuple[int, int, int]
Steps = tuple[int, int, int, int, int]


class ConvStrides(NamedTuple):
    """Exact strides of one call, in elements; what `bind` needs beyond the problem."""

    x: Steps
    """Of n, c, d, h, w."""
    w: Steps
    """Of k, c (within a group), z, r, s."""
    y: Steps
    """Of n, k, o, p, q."""
    c: Steps
    """Of the accumulated array, in the order of the result's."""
    bias: int


@dataclasses.dataclass(frozen=True)
class ConvProblem(Problem):
    """One convolution, its data gradient, weight gradient or bias gradient.

    y[n, k, o] = sum over c and taps z of x[n, c, o * stride - padding + z * dilation] * w[k, c, z], c over the channels
    of k's group; the three names of each triple stand for depth, height and width, and what is absent has size 1.
    Direction "forward" makes y of (x, w), "data" x of (y, w), "weight" w of (y, x), "bias" one sum a channel of y.
    A transposed convolution is direction "data" with an epilogue.
    """

    stem: ClassVar[str] = "conv"
    direction: str
    n: int
    c: int
    k: int
    groups: int
    x_size: Triple
    kernel: Triple
    y_size: Triple
    stride: Triple
    dilation: Triple
    padding: Triple
    """Before the first element; what is behind the last follows from the sizes."""
    x_dtype: str
    w_dtype: str
    y_dtype: str
    x_order: str
    """"planes" (w has step 1, and h and d follow without gaps), "rows" (w has step 1), "channels_last" (c has step 1),
    or "strided"."""
    w_order: str
    y_order: str
    has_c: bool
    """Whether beta times an array is added."""
    bias: bool
    """Whether one value a channel of the result is added."""
    activation: Activation
    scaled: bool
    """Whether alpha is anything but 1."""
    zeros: str = "none"
    """Zero points of integers that are not 0: "none", "input", "weight" or "both"."""
    requantized: bool = False
    """Whether int32 sums are scaled, rounded and saturated to 8 bits."""
    prepared: bool = False
    """Whether the weights were packed or transformed before (a plan)."""
    strides: ConvStrides = dataclasses.field(
        compare=False, default=ConvStrides((0,) * 5, (0,) * 5, (0,) * 5, (0,) * 5, 0)
    )

    @property
    def in_dtype(self) -> str:
        """The type of the operands (of x for integers)."""
        return self.y_dtype if self.direction in ("data", "bias") else self.x_dtype

    @property
    def out_dtype(self) -> str:
        """The type of the result."""
        return {"forward": self.y_dtype, "data": self.x_dtype, "weight": self.w_dtype, "bias": self.w_dtype}[
            self.direction
        ]

    @property
    def accumulate(self) -> str:
        """The type in which products are summed."""
        return arrays.DTYPES[self.in_dtype].accumulate

    @property
    def group_c(self) -> int:
        """Channels of x in one group."""
        return self.c // self.groups

    @property
    def group_k(self) -> int:
        """Channels of y in one group."""
        return self.k // self.groups

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return self.kernel[0] * self.kernel[1] * self.kernel[2]

    @property
    def pixels(self) -> int:
        """Elements of one channel of one image of y."""
        return self.y_size[0] * self.y_size[1] * self.y_size[2]

    @property
    def depthwise(self) -> bool:
        """Whether every group has one channel of x (and any number of y: the multiplier); one group, one of each."""
        return self.group_c == 1 and (self.groups > 1 or self.k == 1)

    @property
    def planar(self) -> bool:
        """Whether there is one plane only: of x, of the window and of y, none of them padding."""
        return self.x_size[0] == self.kernel[0] == self.y_size[0] == 1 and self.padding[0] == 0

    @property
    def empty(self) -> bool:
        return 0 in (self.n, self.group_c, self.group_k, *self.x_size, *self.y_size)

    @property
    def ends(self) -> bool:
        """Whether something is to be done once the sums are complete."""
        return self.scaled or self.has_c or self.bias or self.requantized or self.activation.kind != "identity"

    def flops(self) -> float:
        if self.direction == "bias":
            return float(self.n * self.k * self.pixels)
        return 2.0 * self.n * self.k * self.pixels * self.group_c * self.taps

    def bytes_moved(self) -> float:
        size = {name: arrays.DTYPES[name].itemsize for name in (self.x_dtype, self.w_dtype, self.y_dtype)}
        x = self.n * self.c * self.x_size[0] * self.x_size[1] * self.x_size[2] * size[self.x_dtype]
        w = self.k * self.group_c * self.taps * size[self.w_dtype]
        y = self.n * self.k * self.pixels * size[self.y_dtype]
        if self.direction == "bias":
            return float(y)
        again = {"forward": y, "data": x, "weight": w}[self.direction] if self.has_c else 0
        return float(x + w + y + again)

    def roundings(self) -> int:
        if self.accumulate == "i32":
            return int(self.requantized)  # a half may be rounded either way
        pixels = self.n * self.pixels
        sums = {"forward": self.group_c * self.taps, "data": self.group_k * self.taps, "weight": pixels, "bias": pixels}
        return sums[self.direction] + 4

    def bench_command(self) -> str:
        (d, h, w), (z, r, s) = self.x_size, self.kernel
        words = [f"numbaprims bench conv --n {self.n} --c {self.c} --k {self.k} --h {h} --w {w} --r {r} --s {s}"]
        if (d, z) != (1, 1):
            words.append(f"--d {d} --z {z}")
        for name, values, default in (
            ("stride", self.stride, 1), ("pad", self.padding, 0), ("dilation", self.dilation, 1)
        ):  # fmt: skip
            used = values if (d, z) != (1, 1) else values[1:]
            if set(used) != {default}:
                words.append(f"--{name} " + (str(used[0]) if len(set(used)) == 1 else ",".join(map(str, used))))
        if self.groups > 1:
            words.append(f"--groups {self.groups}")
        words.append(f"--dtype {'int8' if self.accumulate == 'i32' else self.in_dtype}")
        if self.x_order == "channels_last":
            words.append("--layout NHWC")
        if self.direction != "forward":
            words.append(f"--direction {self.direction}")
        elif self.bias:
            words.append("--bias")
        if self.direction == "forward" and self.activation.kind != "identity":
            words.append(f"--activation {self.activation.kind}")
        return " ".join(words)


def order_of(steps: Steps, sizes: tuple[int, int, int, int, int]) -> str:
    """How an (n, c, d, h, w) array lies in memory, by its strides in elements."""
    _, c, d, h, w = sizes
    along = w == 1 or steps[4] == 1
    if c > 1 and steps[1] == 1 and not (along and w > 1):
        return "channels_last"
    if not along:
        return "strided"
    planes = (h == 1 or steps[3] == w) and (d == 1 or steps[2] == h * w)
    return "planes" if planes else "rows"


def five(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, last: bool) -> tuple[Any, Any]:
    """Sizes and strides (in elements) as n, c, d, h, w, from an array's own; `last` for channels behind."""
    steps = tuple(0 if length == 1 else stride // itemsize for length, stride in zip(shape, strides, strict=True))
    if last:
        shape, steps = (shape[0], shape[-1], *shape[1:-1]), (steps[0], steps[-1], *steps[1:-1])
    missing = 5 - len(shape)
    return (*shape[:2], *(1,) * missing, *shape[2:]), (*steps[:2], *(0,) * missing, *steps[2:])


def three(values: tuple[int, ...], filling: int) -> Triple:
    """Values of the spatial dimensions there are, with `filling` for those in front of them."""
    depth, height, width = (*(filling,) * (3 - len(values)), *values)
    return depth, height, width
