"""From a kind's name, a literal in a kernel, to the code of its formula, for one number or a tuple of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numbaprims.formulas.gradients import leaky_relu as prelu_gradient
from numbaprims.gpu.activation import formulas, gradients
from numbaprims.gpu.device.emit import I32, intrinsic, string_literal, tuple_of, types, unpack
from numbaprims.gpu.device.value import Value

#: The place of a kind in the switch of the kernel that holds the cheap ones.
FORWARD_CODES = {kind: code for code, kind in enumerate(formulas.CHEAP)}
BACKWARD_CODES = {kind: code for code, kind in enumerate(gradients.CHEAP)}
SWITCH = "switch"
"""The kind of a kernel that is told at run time which of the cheap ones to compute."""

Elements = list[list[Value]]
Apply = Callable[[str, list[Value], list[Value]], tuple[Value, ...]]


def _forward(kind: str, x: list[Value], parameters: list[Value]) -> tuple[Value, ...]:
    formula, count = formulas.FORWARD[kind]
    return (formula(*x, *parameters[:count]),)


def _binary(kind: str, x: list[Value], parameters: list[Value]) -> tuple[Value, ...]:
    return (formulas.BINARY[kind](*x),)


def _backward(kind: str, x: list[Value], parameters: list[Value]) -> tuple[Value, ...]:
    formula, count = gradients.BACKWARD[kind]
    return (formula(*x, *parameters[:count]),)


def _prelu_backward(kind: str, x: list[Value], parameters: list[Value]) -> tuple[Value, ...]:
    return (prelu_gradient(*x),)


def _glu_backward(kind: str, x: list[Value], parameters: list[Value]) -> tuple[Value, ...]:
    return gradients.glu(*x)


#: What a kernel computes -> (the code of one element, how many arrays it reads, the kinds that a switch holds)
OPERATIONS: dict[str, tuple[Apply, int, tuple[str, ...]]] = {
    "forward": (_forward, 1, formulas.CHEAP),  # x
    "binary": (_binary, 2, ()),  # x and prelu's weight or glu's gate
    "backward": (_backward, 2, gradients.CHEAP),  # dy and x or y
    "prelu_backward": (_prelu_backward, 3, ()),  # dy, x, weight
    "glu_backward": (_glu_backward, 3, ()),  # dy, x, gate
}


def _lanes(builder: Any, sig: Any, args: Any, places: Sequence[int]) -> Elements:
    """The operands of each lane."""
    columns = [[Value(builder, part) for part in unpack(builder, args[place], sig.args[place])] for place in places]
    return [list(lane) for lane in zip(*columns, strict=True)]


def _compute(apply: Apply, kind: str, lanes: Elements, parameters: list[Value]) -> list[list[Any]]:
    """For each result the values of all lanes."""
    rows = [apply(kind, lane, parameters) for lane in lanes]
    return [[value.value for value in column] for column in zip(*rows, strict=True)]


def _switch(
    builder: Any, code: Any, apply: Apply, kinds: tuple[str, ...], lanes: Elements, parameters: list[Value]
) -> list[list[Any]]:
    """A branch for each kind; all threads take the same one."""
    after = builder.append_basic_block("computed")
    default = builder.append_basic_block("default")
    choice = builder.switch(code, default)
    arms = []
    for number, kind in enumerate(kinds):
        block = default if number == 0 else builder.append_basic_block(kind)
        if number:
            choice.add_case(I32(number), block)
        builder.position_at_end(block)
        arms.append((builder.basic_block, _compute(apply, kind, lanes, parameters)[0]))
        builder.branch(after)
    builder.position_at_end(after)
    joined = []
    for lane in range(len(lanes)):
        phi = builder.phi(arms[0][1][lane].type)
        for block, values in arms:
            phi.add_incoming(values[lane], block)
        joined.append(phi)
    return [joined]


@intrinsic
def compute(typingctx, operation, kind, code, first, second, third, p0, p1, p2):  # type: ignore[no-untyped-def]
    """The results of an operation of `OPERATIONS`: a number or a tuple as the operands are, for glu's gradient two.

    `kind` is a name or `SWITCH`, which lets `code` choose; operands that the operation does not read are not looked at.
    """
    name, kernel = string_literal(operation), string_literal(kind)
    if name is None or kernel is None:
        return None
    apply, count, cheap = OPERATIONS[name]
    element = types.unliteral(first)
    number = element.dtype if isinstance(element, types.UniTuple) else element
    if number not in (types.float32, types.float64) or types.unliteral(code) != types.int32:
        return None
    result = types.UniTuple(element, 2) if name == "glu_backward" else element

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lanes = _lanes(builder, sig, args, range(3, 3 + count))
        parameters = [Value(builder, arg) for arg in args[6:]]
        if kernel == SWITCH:
            columns = _switch(builder, args[2], apply, cheap, lanes, parameters)
        else:
            columns = _compute(apply, kernel, lanes, parameters)
        if isinstance(element, types.UniTuple):
            packs = [tuple_of(context, builder, element, column) for column in columns]
        else:
            packs = [column[0] for column in columns]
        return packs[0] if len(packs) == 1 else tuple_of(context, builder, result, packs)

    return result(operation, kind, types.int32, first, second, third, number, number, number), codegen


@intrinsic
def forward_of(typingctx, kind, x, p0, p1, p2):  # type: ignore[no-untyped-def]
    """kind(x) of a number or of each of a tuple, for kernels that end in an activation; `kind` is a literal name."""
    kernel = string_literal(kind)
    if kernel is None:
        return None
    element = types.unliteral(x)
    number = element.dtype if isinstance(element, types.UniTuple) else element
    if number not in (types.float32, types.float64):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lanes = _lanes(builder, sig, args, [1])
        parameters = [Value(builder, arg) for arg in args[2:]]
        values = _compute(_forward, kernel, lanes, parameters)[0]
        return tuple_of(context, builder, element, values) if isinstance(element, types.UniTuple) else values[0]

    return element(kind, x, number, number, number), codegen
