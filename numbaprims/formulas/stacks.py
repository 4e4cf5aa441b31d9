"""Element-wise stacks as formulas without a reduction, by names that say their operations.

"stack:one:batch_norm/3,relu/0" takes x, three parameters and nothing that is added; parameters have a value for each
row ("one"), or lie beside one another, the same row for all ("along").  Any formula's name may end with an activation
of its first result; that of a gradient, with the activation that its dy is the gradient of.
"""

from __future__ import annotations

from collections.abc import Sequence

from numbaprims.formulas.activations import ARITHMETIC
from numbaprims.formulas.graph import COSTS, Node, apply, mad
from numbaprims.ops.activation_kinds import KINDS

PREFIX, KIND, GRADIENT, ENDING = "stack", "kind:", "gradient:", "+"


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
    op = f"{GRADIENT}{kind}"
    # a comparison and a choice are had again for less than memory takes
    COSTS.setdefault(op, 2 if kind in ARITHMETIC else 14)
    reads = KINDS[kind].reads if kind in KINDS else "x"
    if reads == "y" and kind != "relu":  # whose y is above 0 where x is
        x = activation(kind, x, *numbers)
    return apply(op, dy, x, *numbers)


def parse_ended(name: str) -> tuple[str, str, tuple[float, ...]]:
    """(formula, kind, numbers) of a name that ends with an activation: "batch_norm+leaky_relu=0.01"."""
    base, _, ending = name.partition(ENDING)
    kind, *numbers = ending.split("=")
    return base, kind, tuple(map(float, numbers))


def ended(name: str, kind: str, numbers: Sequence[float]) -> str:
    """The name of a formula whose first result an activation takes."""
    return ENDING.join((name, "=".join((kind, *map(repr, numbers)))))


def run(name: str, x: Node, *more: Node) -> Node:
    """The operations, one after another."""
    texts = name.split(":")[2].split(",")
    numbers = sum(int(text.partition("/")[2]) for text in texts)
    own, added = iter(more[:numbers]), iter(more[numbers:])
    for text in texts:
        kind, _, count = text.partition("/")
        p = [next(own) for _ in range(int(count))]
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
    return x
