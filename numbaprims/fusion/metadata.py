"""The metadata graph: which operators may follow one another in one call (Khan et al., MIOpen, section V.A).

A node takes an operator of one kind into one call, where it is something: a factor of the weights, an activation of
the epilogue, a window of a stack.  It says after which nodes it may stand and what it asks of the operator.  A path
from "start" through a node for each operator is an execution; its calls begin where a node does not go on with the call
of the node before it.  A further fused kernel is further nodes: nothing here knows combinations.

Where calls are programs, those of a path are joined, and the path is one native call; elsewhere each is one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES, FLOATS, LONG_NAMES
from numbaprims.fusion.calls import (
    BackwardCall,
    Call,
    ConvCall,
    ElementCall,
    GemmCall,
    Part,
    QuantizedCall,
    SoftmaxCall,
    StackCall,
    TrainCall,
)
from numbaprims.fusion.operators import Operator
from numbaprims.ops.epilogue import NOT_FUSED

START, END = "start", "end"
"""Before the first operator; behind any node where a call may end."""


class Ask(NamedTuple):
    """A constraint of a node."""

    words: str
    holds: Callable[[Any, Sequence[Operator]], bool]
    """Of the operator, and of those that are in the call already."""
    given: Callable[[Any], object]
    """What is there instead."""


def _dtypes(*dtypes: str) -> Ask:
    words = " or ".join(LONG_NAMES[each] for each in dtypes)
    return Ask(f"x of {words}", lambda it, joined: it.x.dtype in dtypes, lambda it: f"x is {LONG_NAMES[it.x.dtype]}")


_FLOAT = _dtypes(*FLOATS)
_BYTE = _dtypes("i8", "u8")
_SUMS = _dtypes("i32")
_ANY = _dtypes(*FLOATS, "i8", "u8")
_SUMMED = _dtypes(*FLOATS, "i32")
_SPATIAL = Ask("one value a channel", lambda it, joined: it.mode == "spatial", lambda it: f"mode is {it.mode!r}")
_GIVEN = Ask("given statistics", lambda it, joined: not it.training, lambda it: "training is True")
_OF_BATCH = Ask("statistics of the batch", lambda it, joined: it.training, lambda it: "training is False")
_FOLD = Ask("leave to fold", lambda it, joined: it.fold, lambda it: "fold is False")
_EPILOGUE = Ask(
    "an activation of one element and a few numbers",
    lambda it, joined: it.name not in NOT_FUSED,
    lambda it: f"{it.name} is none",
)
_RELU = Ask(
    "relu where sums are integers",
    lambda it, joined: it.x.dtype in FLOATS or it.name in ("relu", "identity"),
    lambda it: f"{it.name} of {LONG_NAMES[it.x.dtype]}",
)
_SHAPE_KEPT = Ask("an activation that keeps the shape", lambda it, joined: it.name != "glu", lambda it: "it is glu")
_WIDER = Ask(
    "the dtype of its sums",
    lambda it, joined: it.y.dtype in (it.x.dtype, DTYPES[it.x.dtype].accumulate),
    lambda it: f"{LONG_NAMES[it.x.dtype]} to {LONG_NAMES[it.y.dtype]}",
)
_NARROW = Ask(
    "a cast to int8 or uint8", lambda it, joined: it.y.dtype in ("i8", "u8"), lambda it: f"{LONG_NAMES[it.y.dtype]}"
)
_MATRIX = Ask("a matrix", lambda it, joined: len(it.x.shape) == 2, lambda it: f"x is {it.x.shape}")
_IMAGES = Ask("images", lambda it, joined: len(it.x.shape) > 2, lambda it: f"x is {it.x.shape}")
_BARE = Ask(
    "no padding behind what is folded in front, which it does not pass",
    lambda it, joined: not joined or not any(map(any, it.padding)),
    lambda it: f"it is padded by {it.padding}",
)
_FEW = Ask(  # what a step of a stack adds
    "at most two arrays that are added",
    lambda it, joined: sum(each.kind == "add" for each in joined) < 2,
    lambda it: "it is the third",
)


@dataclasses.dataclass(frozen=True, eq=False)  # each is one place, looked for among 42
class Node:
    """A place for an operator in a call."""

    name: str
    """The call, and what the operator is in it."""
    kind: str
    """Of the operators that it takes."""
    call: type[Call]
    role: str
    after: tuple[str, ...]
    """Nodes of the same call, `START`, or `END` for those where any call ends."""
    asks: tuple[Ask, ...] = ()
    does: str = ""
    """What becomes of the operator."""
    ends: bool = True
    """Whether the call may end here."""

    @functools.cached_property
    def family(self) -> str:
        return self.name.partition(".")[0]

    def refusal(self, operator: Operator, joined: Sequence[Operator]) -> str | None:
        """Why the node does not take an operator."""
        for ask in self.asks:
            if not ask.holds(operator, joined):
                return f"{self.name} takes {ask.words}, and {ask.given(operator)}"
        return None


def _epilogue(call: type[Call], first: str, shape: Ask, *asks: Ask) -> tuple[Node, ...]:
    """A product with what may be folded in front of it and what its epilogue takes."""
    kinds: dict[str, tuple[Ask, ...]] = {"bias": (), "scale": (), "batch_norm": (_GIVEN, _SPATIAL, _FOLD)}
    fronts = (START, END, *(f"{first}.front_{kind}" for kind in kinds))
    linear = (first, *(f"{first}.{word}" for word in ("bias", "scale", "batch_norm")))
    summed = (*linear, f"{first}.add", f"{first}.late_bias")
    before = (*summed, f"{first}.activation")
    fold = "folded into the weight and the bias, in float64, rounded once"
    return (
        *(
            Node(f"{first}.front_{kind}", kind, call, "front", fronts, (_FLOAT, shape, *own), fold, ends=False)
            for kind, own in kinds.items()
        ),
        Node(first, first, call, "product", fronts, (_ANY, *asks), "the product"),
        Node(f"{first}.bias", "bias", call, "affine", linear, (_SUMMED,), "added in the epilogue"),
        Node(f"{first}.scale", "scale", call, "affine", linear, (_FLOAT,), fold),
        Node(f"{first}.batch_norm", "batch_norm", call, "affine", linear, (_FLOAT, *kinds["batch_norm"]), fold),
        Node(f"{first}.add", "add", call, "add", linear, (_SUMMED,), "added in the epilogue (beta 1)"),
        Node(f"{first}.late_bias", "bias", call, "affine", (f"{first}.add",), (_SUMMED,), "added in the epilogue"),
        Node(f"{first}.activation", "activation", call, "activation", summed, (_EPILOGUE, _RELU), "in the epilogue"),
        Node(f"{first}.cast", "cast", call, "cast", before, (_WIDER,), "the dtype in which results are stored"),
    )


def _pass(call: type[Call], family: str, **own: tuple[Ask, ...]) -> tuple[Node, ...]:
    """Operators of which each may follow each, in one pass over the memory."""
    every = {"bias": (), "scale": (), "activation": (_SHAPE_KEPT,), "add": (_FEW,), **own}
    after = (START, END, *(f"{family}.{kind}" for kind in every))
    roles = {"activation": "activation", "add": "add", "pool": "window"}
    return tuple(
        Node(f"{family}.{kind}", kind, call, roles.get(kind, "affine"), after, (_FLOAT, *asks), "in the pass")
        for kind, asks in every.items()
    )


def _quantized(call: type[Call], first: str) -> tuple[Node, ...]:
    """A product of integers, scaled, rounded and saturated in its epilogue."""
    bias, scale = f"{first}.bias", f"{first}.scale"
    return (
        Node(first, "conv", call, "product", (START, END), (_BYTE,), "the product, exact sums", ends=False),
        Node(bias, "bias", call, "bias", (first,), (_SUMS,), "added to the sums", ends=False),
        Node(scale, "scale", call, "scale", (first, bias), (_SUMS,), "a factor of the sums", ends=False),
        Node(f"{first}.cast", "cast", call, "cast", (scale,), (_NARROW,), "rounded and saturated in the epilogue"),
    )


#: Where two paths make equally many calls, the nodes that stand first are taken.
NODES = (
    *_epilogue(ConvCall, "conv", _IMAGES, _BARE),
    *_epilogue(GemmCall, "gemm", _MATRIX),
    *_quantized(QuantizedCall, "qlinear_conv"),
    Node(
        "batch_norm_train", "batch_norm", TrainCall, "norm", (START, END), (_FLOAT, _OF_BATCH), "statistics, then y",
    ),
    Node(
        "batch_norm_train.activation", "activation", TrainCall, "activation", ("batch_norm_train",), (_EPILOGUE,),
        "of y, in its pass",
    ),
    Node(
        "batch_norm_backward.activation", "activation_backward", BackwardCall, "activation", (START, END),
        (_FLOAT, _EPILOGUE), "of dy, in its passes, at a y that is computed again", ends=False,
    ),
    Node(
        "batch_norm_backward", "batch_norm_backward", BackwardCall, "norm",
        (START, END, "batch_norm_backward.activation"), (_FLOAT,), "sums, then dx",
    ),
    Node("softmax", "softmax", SoftmaxCall, "softmax", (START, END), (_FLOAT,), "a pass over its rows"),
    *_pass(StackCall, "stack", batch_norm=(_GIVEN, _SPATIAL), pool=()),
    *_pass(ElementCall, "element", batch_norm=(_GIVEN,)),
)  # fmt: skip


class Path(NamedTuple):
    """Nodes for the first operators, the call that each is in, and why those that begin a call did not join."""

    nodes: tuple[Node, ...] = ()
    calls: tuple[int, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def programs(self) -> int:
        """How many calls it makes."""
        return self.calls[-1] + 1 if self.calls else 0

    def cost(self) -> tuple[int, tuple[int, ...]]:
        return self.programs, tuple(map(NODES.index, self.nodes))

    def made(self, operators: Sequence[Operator]) -> list[Call]:
        """The calls of a whole path."""
        return [
            self.nodes[self.calls.index(number)].call([
                Part(operator, node.role)
                for operator, node, at in zip(operators, self.nodes, self.calls, strict=True) if at == number
            ])
            for number in range(self.programs)
        ]  # fmt: skip

    def follow(self, node: Node, operator: Operator, operators: Sequence[Operator]) -> Path | str:
        """The path with one operator more, or why it does not go there."""
        last = self.nodes[-1] if self.nodes else None
        goes_on = last is not None and last.name in node.after
        joined = [each for each, at in zip(operators, self.calls, strict=False) if goes_on and at == self.calls[-1]]
        begins = START in node.after if last is None else END in node.after and last.ends
        refusal = node.refusal(operator, joined) if goes_on or begins else None
        if goes_on and refusal is None:
            return Path((*self.nodes, node), (*self.calls, self.calls[-1]), (*self.apart, ""))
        if refusal is not None and not (begins and node.refusal(operator, ()) is None):
            return refusal if node.role != "front" else ""  # it says nothing about the call that is under way
        if not begins:
            if last is None or node.family != last.family or last.role == "front":
                return ""  # no words about what is not near
            return f"{node.name} does not stand behind {last.name}"
        return Path(
            (*self.nodes, node), (*self.calls, self.programs), (*self.apart, self._why(node, operator, refusal))
        )

    def _why(self, node: Node, operator: Operator, refusal: str | None) -> str:
        """Why an operator that begins a call did not go on with the one before."""
        if not self.nodes:
            return ""
        last = self.nodes[-1]
        family = [
            each for each in NODES
            if each.family == last.family and each.kind == operator.kind and each.role != "front"
        ]  # fmt: skip
        asks = [each.refusal(operator, ()) or f"{each.name} does not stand behind {last.name}" for each in family]
        return refusal or "; ".join(asks) or f"{last.family} takes no {operator.kind}"


def search(operators: Sequence[Operator], most: int | None = None, alone: str = "") -> Path | str:
    """The path with the fewest calls, or in words which operator could not join and why.

    `most` is how many native calls there may be; `alone` says why calls are not joined, and is empty where they are.
    """
    if not operators:
        return "the plan has no operator"
    best = {START: Path()}
    for operator in operators:
        found: dict[str, Path] = {}
        refusals: list[str] = []
        for node in NODES:
            if node.kind != operator.kind:
                continue
            for path in best.values():
                longer = path.follow(node, operator, operators)
                if isinstance(longer, str):
                    refusals.append(longer)
                elif most is not None and (longer.programs if alone else 1) > most:
                    allowed = "one call is" if most == 1 else f"{most} calls are"
                    refusals += [longer.apart[-1], f"{node.name} begins another call, and {allowed} allowed", alone]
                elif node.name not in found or longer.cost() < found[node.name].cost():
                    found[node.name] = longer
        if not found:
            words = "; ".join(filter(None, dict.fromkeys(refusals))) or f"nothing takes a {operator.kind} there"
            return f"{operator.label} cannot join: {words}"
        best = found
    whole = [path for path in best.values() if path.nodes[-1].ends]
    if not whole:
        open_ends = sorted({path.nodes[-1].name for path in best.values()})
        return f"{operators[-1].label} cannot be the last one: {', '.join(open_ends)} wants more behind it"
    return min(whole, key=Path.cost)
