"""Element-wise stacks as formulas without a reduction, by names that say their operations.

"stack:one:batch_norm/3,relu/0" takes x, three parameters and nothing that is added; parameters have a value for each
row ("one"), or lie beside one another, the same row for all ("along").  Any formula's name may end with an activation
of its first result; that of a gradient, with the activation that its dy is the gradient of.

"stack_gradient:one:batch_norm/3,relu/0:1,2:" is the gradient: of dy and x it computes the operations again, and gives
dx, the sums of a row for parameters 1 and 2, and dy as it arrives at each array that is added and named behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from numbaprims.formulas.activations import ARITHMETIC
from numbaprims.formulas.gradients import ARITHMETIC as SLOPES
from numbaprims.formulas.graph import COSTS, Node, apply, constant, mad, negative, reduce_sum, select
from numbaprims.ops.activation_kinds import KINDS, SPECIAL
from numbaprims.stacks.operations import NUMBERS

PREFIX, GRADIENT, KIND, SLOPE, ENDING = "stack", "stack_gradient", "kind:", "slope:", "+"


def name_of(texts: Sequence[str], parameters: str) -> str:
    """The formula of operations by their texts."""
    return f"{PREFIX}:{parameters}:{','.join(texts)}"


def operands_of(name: str) -> tuple[tuple[str, str], ...]:
    """(name, kind) of what a formula takes: x, parameters, what is added."""
    _, parameters, texts = name.split(":")
    words = [text.partition("/") for text in texts.split(",")]
    numbers = sum(int(count) for _, _, count in words)
    added = sum(kind == "add" for kind, _, _ in words)
    return (
        ("x", "row"),
        *((f"p{k}", parameters) for k in range(numbers)),
        *((f"added{k}", "row") for k in range(added)),
    )


def activation(kind: str, x: Node, *numbers: Node | float) -> Node:
    """A kind by the name of its kernel."""
    op = f"{KIND}{kind}"
    COSTS.setdefault(op, 3 if kind in ARITHMETIC else 14)
    return apply(op, x, *numbers)


def gradient(kind: str, dy: Node, x: Node, *numbers: Node | float) -> Node:
    """dy times the derivative of a kind at x."""
    reads = KINDS[kind].reads if kind in KINDS else "x"
    # of relu, whose y is above 0 where x is, x does as well
    y = activation(kind, x, *numbers) if reads == "y" and kind != "relu" else x
    return _slope(kind, dy, x, y, numbers)


def parse_ended(name: str) -> tuple[str, str, tuple[float, ...]]:
    """(formula, kind, numbers) of a name that ends with an activation: "batch_norm+leaky_relu=0.01"."""
    base, _, ending = name.partition(ENDING)
    kind, *numbers = ending.split("=")
    return base, kind, tuple(map(float, numbers))


def ended(name: str, kind: str, numbers: Sequence[float]) -> str:
    """The name of a formula whose first result an activation takes."""
    return ENDING.join((name, "=".join((kind, *map(repr, numbers)))))


class Done(NamedTuple):
    """An operation that was run: what it took, and what it gave."""

    kind: str
    x: Node
    own: list[Node]
    y: Node


def _steps(texts: Sequence[str], x: Node, own: Iterator[Node], added: Iterator[Node]) -> Iterator[Done]:
    """The operations, one after another."""
    for text in texts:
        kind, _, count = text.partition("/")
        p, before = [next(own) for _ in range(int(count))], x
        if kind == "batch_norm":
            x = mad(apply("sub", x, p[0]), p[1], p[2])
        elif kind == "affine":
            x = mad(x, *p)
        elif kind in ("bias", "add"):
            x = apply("add", x, next(added) if kind == "add" else p[0])
        elif kind == "scale":
            x = x * p[0]
        else:
            x = activation("leaky_relu" if kind == "prelu" else kind, x, *p)
        yield Done(kind, before, p, x)


def run(name: str, x: Node, *more: Node) -> Node:
    """The last operation's result."""
    texts = name.split(":")[2].split(",")
    numbers = sum(int(text.partition("/")[2]) for text in texts)
    for done in _steps(texts, x, iter(more[:numbers]), iter(more[numbers:])):
        x = done.y
    return x


# ---------------------------------------------------------------- gradients


class Gradient(NamedTuple):
    """What a gradient's name says."""

    texts: tuple[str, ...]
    parameters: str
    numbers: tuple[int, ...]
    """Parameters whose gradients are wanted."""
    added: tuple[int, ...]
    """The same of arrays that are added."""

    @property
    def name(self) -> str:
        wanted = (",".join(map(str, each)) for each in (self.numbers, self.added))
        return ":".join((GRADIENT, self.parameters, ",".join(self.texts), *wanted))

    @classmethod
    def parse(cls, name: str) -> Gradient:
        _, parameters, texts, *wanted = name.split(":")
        numbers, added = (tuple(int(word) for word in words.split(",") if word) for words in wanted)
        return cls(tuple(texts.split(",")), parameters, numbers, added)

    @property
    def reads(self) -> tuple[bool, ...]:
        """Of each operation, whether its gradient takes what the operation was given or gave."""
        found, at = [], 0
        for text in self.texts:
            kind, _, count = text.partition("/")
            wanted = [at + k in self.numbers for k in range(int(count))]
            at += len(wanted)
            taken = wanted[1:2] if kind == "batch_norm" else wanted[:1] if kind in ("affine", "scale") else []
            found.append(any(taken) or kind not in ("identity", "add", *NUMBERS))
        return tuple(found)

    @property
    def seen(self) -> tuple[int, ...]:
        """Arrays that are added in front of an operation that reads."""
        places = [at for at, text in enumerate(self.texts) if text == "add/0"]
        return tuple(k for k, at in enumerate(places) if any(self.reads[at + 1 :]))

    @property
    def operands(self) -> tuple[tuple[str, str], ...]:
        """(name, kind): dy and what the operations take, without arrays that are added and make no difference."""
        every = operands_of(name_of(self.texts, self.parameters))
        unseen = {f"added{k}" for k in range(self.texts.count("add/0"))} - {f"added{k}" for k in self.seen}
        return ("dy", "row"), *(each for each in every if each[0] not in unseen)

    @property
    def results(self) -> tuple[tuple[str, str], ...]:
        return (
            ("dx", "row"),
            *((f"dp{k}", "one") for k in self.numbers),
            *((f"dadded{k}", "row") for k in self.added),
        )

    def run(self, dy: Node, x: Node, *more: Node) -> tuple[Node, ...]:
        """The chain rule from the last operation to the first."""
        at, adds = len(more) - len(self.seen), self.texts.count("add/0")
        given = dict(zip(self.seen, more[at:], strict=True))
        # nobody reads behind an array that was not seen: any number may stand for it
        added = (given.get(k, constant(0.0)) for k in range(adds))
        found, arrived = dict[int, Node](), dict[int, Node]()
        for kind, taken, own, y in reversed(list(_steps(self.texts, x, iter(more[:at]), added))):
            at -= len(own)
            wanted = [at + k in self.numbers for k in range(len(own))]
            if kind == "batch_norm":
                if wanted[1]:
                    found[at + 1] = reduce_sum(dy * apply("sub", taken, own[0]))
                if wanted[0] or wanted[2]:
                    found[at + 2] = reduce_sum(dy)
                    found[at] = negative(found[at + 2] * own[1])
                dy = dy * own[1]
            elif kind in ("affine", "scale"):
                if wanted[0]:
                    found[at] = reduce_sum(dy * taken)
                if wanted[1:] == [True]:
                    found[at + 1] = reduce_sum(dy)
                dy = dy * own[0]
            elif kind == "bias":
                if wanted[0]:
                    found[at] = reduce_sum(dy)
            elif kind == "add":
                adds -= 1
                arrived[adds] = dy
            else:
                if any(wanted):  # a slope below 0
                    found[at] = reduce_sum(select(taken > 0.0, 0.0, taken * dy))
                dy = _slope(kind, dy, taken, y, own)
        return dy, *(found[k] for k in self.numbers), *(arrived[k] for k in self.added)


def _slope(kind: str, dy: Node, x: Node, y: Node, own: Sequence[Node | float]) -> Node:
    """dx of an activation by the name of its kernel."""
    if kind == "identity":
        return dy
    op = f"{SLOPE}{kind}"
    COSTS.setdefault(op, 3 if kind in SLOPES else 20)
    return apply(op, dy, y if KINDS[SPECIAL.get(kind, kind)].reads == "y" else x, *own)
