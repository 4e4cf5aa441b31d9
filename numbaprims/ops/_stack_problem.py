"""The problem of a stack, steps that run one after another over every image and channel, and of its gradient."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES
from numbaprims.stacks.operations import Size, Step, Window, sizes_of


@dataclasses.dataclass(frozen=True)
class StackProblem(Problem):
    """``y = steps(x)`` of x (n, c, height, width).

    Arrays of a launch: y, x, the parameters (c, numbers) in the type that is computed in, and what is added, in the
    order of the operations.  Of the gradient: those of `GRADIENTS`.
    """

    stem: ClassVar[str] = "stack"
    dtype: str
    n: int
    c: int
    size: Size
    """Height and width of x."""
    steps: tuple[str, ...]
    """Texts of the steps."""
    layout: str
    """"channels_first" (contiguous planes), "channels_last" (contiguous pixels) or "strided"."""
    most: int = 0
    """Steps of a sequence, at most; 0: any number."""
    limit: int = 0
    """Bytes of a cache that a sequence may take; 0: the solver decides."""
    direction: str = "forward"
    """"forward" or "backward"."""
    of_parameters: tuple[int, ...] = ()
    """Parameters of a channel whose gradients are wanted."""
    of_added: tuple[int, ...] = ()
    """Arrays that are added whose gradients are wanted."""
    strides: tuple[Any, ...] = dataclasses.field(compare=False, default=())
    """Of each array of a launch, in elements: over (n, c, height, width), of the parameters over (c, numbers); None for
    one that the problem does not have."""
    in_place: bool = dataclasses.field(compare=False, default=False)
    """Whether y lies where x does."""

    @property
    def parsed(self) -> tuple[Step, ...]:
        return tuple(Step.parse(text) for text in self.steps)

    @property
    def sizes(self) -> list[Size]:
        """Height and width of x, and behind each step."""
        return sizes_of(self.parsed, self.size)

    @property
    def numbers(self) -> int:
        """Parameters of a channel."""
        return sum(step.numbers for step in self.parsed)

    @property
    def backward(self) -> bool:
        return self.direction == "backward"

    @property
    def empty(self) -> bool:
        return 0 in (self.n, self.c, *self.sizes[0 if self.backward else -1])

    def flops(self) -> float:
        total = 0.0
        for step, (h, w) in zip(self.parsed, self.sizes[1:], strict=True):
            each = sum(each.kernel[0] * each.kernel[1] if isinstance(each, Window) else 1 for each in step.operations)
            total += float(self.n * self.c * h * w * each)
        return 3 * total if self.backward else total

    def bytes_moved(self) -> float:
        """x and what is added read, y written, or dy read and dx written too: nothing between the steps."""
        item = DTYPES[self.dtype].itemsize
        elements = self.size[0] * self.size[1] + self.sizes[-1][0] * self.sizes[-1][1]
        for step, (h, w) in zip(self.parsed, self.sizes[1:], strict=True):
            elements += step.arrays * h * w
        if self.backward:
            elements += self.size[0] * self.size[1]
        return float(self.n * self.c * elements * item)

    def roundings(self) -> int:
        windows = (step.window for step in self.parsed)
        each = 4 * sum(len(step.operations) for step in self.parsed) + sum(w.numbers for w in windows if w) + 8
        return each if not self.backward else 2 * each + self.n * self.size[0] * self.size[1]

    def bench_command(self) -> str:
        texts = [text for step in self.steps for text in step.split()]
        # the shortest run of operations that gives all of them when it is repeated
        block = next((k for k in range(1, len(texts)) if texts[:k] * (len(texts) // k) == texts), len(texts))
        shape = "x".join(map(str, (self.n, self.c, *self.size, len(texts) // max(1, block))))
        words = f"numbaprims bench stack --kind {'+'.join(texts[:block])} --shapes {shape} --dtype {self.dtype}"
        words += " --layout NHWC" if self.layout == "channels_last" else ""
        words += " --backward" if self.backward else ""
        return words + "".join(f" --{name} {value}" for name in ("most", "limit") if (value := getattr(self, name)))


#: Arrays of a gradient's launch, in order; an array that is added, and its gradient, have four places each.
GRADIENTS = (
    "dx", "dy", "x", "parameters", "dparameters", *(f"added{k}" for k in range(4)), *(f"dadded{k}" for k in range(4)),
)  # fmt: skip
