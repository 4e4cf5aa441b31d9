"""What a stack is made of: element-wise operations, windows, and the steps that they form.

An operation is one thing that is done to each element or window of an image (n, c, height, width).  Operations form
steps: an element-wise one joins the step before it, a window begins a new one unless the step has none yet (Weber et
al., BrainSlug, 2018, section 4.1).  Every operation has a text, by which problems and kernels know it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Size = tuple[int, int]

#: Element-wise operations that are no activation -> the parameters of a channel.
NUMBERS = {
    "batch_norm": 3,  # (x - p0) * p1 + p2
    "affine": 2,  # x * p0 + p1
    "bias": 1,  # x + p0
    "scale": 1,  # x * p0
    "add": 0,  # x + the element of a further array
}


#: What windows do.
WINDOWS = ("max", "avg", "depthwise")
#: Those whose parameters have gradients: of sums and products, and of slopes below 0.
DIFFERENTIABLE = ("batch_norm", "affine", "bias", "scale", "prelu", "leaky_relu")


class Pointwise(NamedTuple):
    """An element-wise operation: of `NUMBERS`, or a kind of activation."""

    kind: str
    numbers: int = 0
    """Parameters of a channel."""

    @property
    def text(self) -> str:
        return f"{self.kind}/{self.numbers}"


class Window(NamedTuple):
    """Pooling over height and width, or a depthwise convolution (a correlation, as `numbaprims.conv`)."""

    op: str
    """"max", "avg", or "depthwise": a sum with a weight for each channel and element, rows after one another, which
    stand among the parameters."""
    kernel: Size
    stride: Size
    before: Size = (0, 0)
    """Padding in front of each dimension, and behind it."""
    after: Size = (0, 0)
    dilation: Size = (1, 1)
    ceil: bool = False
    """Whether the last window may reach out behind (torch's ceil_mode)."""
    count_include_pad: bool = True

    @property
    def text(self) -> str:
        pairs = (self.kernel, self.stride, self.before, self.after, self.dilation)
        words = (self.op, *(f"{h}x{w}" for h, w in pairs), int(self.ceil), int(self.count_include_pad))
        return "/".join(map(str, words))

    @property
    def numbers(self) -> int:
        """Parameters of a channel: the weights of a depthwise convolution."""
        return self.kernel[0] * self.kernel[1] if self.op == "depthwise" else 0

    @property
    def extents(self) -> Size:
        """Elements from the first to the last of a window."""
        return (self.kernel[0] - 1) * self.dilation[0] + 1, (self.kernel[1] - 1) * self.dilation[1] + 1

    def out_size(self, size: Size) -> Size:
        """Height and width of the result."""
        return self._along(0, size[0]), self._along(1, size[1])

    def _along(self, d: int, length: int) -> int:
        room = length + self.before[d] + self.after[d] - self.extents[d]
        step = self.stride[d]
        outputs = max(0, (room + (step - 1 if self.ceil else 0)) // step + 1)
        # the last window begins inside or in the padding in front
        return outputs - int(self.ceil and (outputs - 1) * step >= length + self.before[d])

    def rows_read(self, lo: int, hi: int, height: int) -> Size:
        """The rows of the input that rows [lo, hi) of the result are made of."""
        first = lo * self.stride[0] - self.before[0]
        return max(0, first), min(height, (hi - 1) * self.stride[0] - self.before[0] + self.extents[0])


Operation = Pointwise | Window


@functools.cache
def parse(text: str) -> Operation:
    """The operation of a text.

    >>> parse("relu/0")
    Pointwise(kind='relu', numbers=0)
    >>> parse(Window("max", (3, 3), (1, 1), (1, 1), (1, 1)).text).kernel
    (3, 3)
    """
    kind, *words = text.split("/")
    try:
        if len(words) == 1:
            return Pointwise(kind, int(words[0]))
        sizes = (tuple(map(int, word.split("x"))) for word in words[:5])
        kernel, stride, before, after, dilation = ((h, w) for h, w in sizes)
        return Window(kind, kernel, stride, before, after, dilation, words[5] == "1", words[6] == "1")
    except (IndexError, ValueError):
        raise ValueError(f"{text!r} is the text of no operation of a stack, as Pointwise and Window have it") from None


def texts_of(operations: Iterable[Operation | str]) -> tuple[str, ...]:
    """The texts of operations; TypeError where one is none."""
    try:
        return tuple(each if isinstance(each, str) else each.text for each in operations)
    except (AttributeError, TypeError):
        words = "it must be made of Pointwise and Window, or of their texts"
        raise TypeError(f"operations is {operations!r}; {words}") from None


def relu_behind_maxima(operations: Iterable[Operation]) -> list[Operation]:
    """The operations with each ReLU right in front of a maximum behind it: of fewer elements, and in one pass with what
    follows.  The results are equal (but for the sign of a 0), NaN included."""
    found: list[Operation] = []
    for each in operations:
        ahead = isinstance(each, Window) and each.op == "max" and bool(found) and found[-1] == Pointwise("relu")
        found.insert(len(found) - ahead, each)
    return found


class Step(NamedTuple):
    """Operations of which one at most is a window: what one pass over a tile computes."""

    operations: tuple[Operation, ...]

    @property
    def text(self) -> str:
        return " ".join(operation.text for operation in self.operations)

    @classmethod
    @functools.cache
    def parse(cls, text: str) -> Step:
        """The step of a text."""
        return cls(tuple(parse(word) for word in text.split()))

    @property
    def window(self) -> Window | None:
        return next((each for each in self.operations if isinstance(each, Window)), None)

    @property
    def numbers(self) -> int:
        """Parameters of a channel."""
        return sum(each.numbers for each in self.operations)

    @property
    def arrays(self) -> int:
        """Further arrays that are added."""
        return sum(isinstance(each, Pointwise) and each.kind == "add" for each in self.operations)

    def out_size(self, size: Size) -> Size:
        """Height and width of the result."""
        return size if self.window is None else self.window.out_size(size)


def steps_of(operations: Iterable[Operation]) -> tuple[Step, ...]:
    """The steps of consecutive operations.

    >>> relu, pool = Pointwise("relu"), Window("max", (2, 2), (2, 2))
    >>> [len(step.operations) for step in steps_of([relu, pool, relu, pool, pool, relu])]
    [3, 1, 2]
    """
    steps: list[list[Operation]] = []
    for each in operations:
        full = isinstance(each, Window) and steps and any(isinstance(other, Window) for other in steps[-1])
        if full or not steps:
            steps.append([])
        steps[-1].append(each)
    return tuple(Step(tuple(step)) for step in steps)


def sizes_of(steps: Sequence[Step], size: Size) -> list[Size]:
    """Height and width before the first step, and behind each."""
    sizes = [size]
    for step in steps:
        sizes.append(step.out_size(sizes[-1]))
    return sizes
