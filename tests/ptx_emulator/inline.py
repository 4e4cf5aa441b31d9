"""Calls of .func functions, resolved by inlining the callee's instructions: the machine knows no call stack."""

import re
from dataclasses import replace

from .dtypes import width
from .errors import Unsupported
from .parse import Function, Instruction, Module, elements, split_operands

_NAME = re.compile(r"[%\w$.]+")
EXTERNAL = "external call"  # the opcode that stands for a call of a function that the module does not define


def inline_calls(module: Module) -> None:
    """Inline every call in every entry, to any depth. Recursion is Unsupported."""
    inliner = _Inliner(module)
    for function in module.functions.values():
        if function.is_entry:
            inliner.expand(function, ())


class _Inliner:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.count = 0

    def expand(self, function: Function, callers: tuple[str, ...]) -> None:
        if not any(instruction.opcode == "call" for instruction in function.instructions):
            return
        if function.name in callers:
            raise Unsupported(f"recursive call of {function.name}")
        output: list[Instruction] = []
        moved: list[int] = []  # where each old instruction begins in the output
        labels: dict[str, int] = {}
        for instruction in function.instructions:
            moved.append(len(output))
            if instruction.opcode == "call":
                self._one(function, instruction, output, labels, (*callers, function.name))
            else:
                output.append(instruction)
        moved.append(len(output))
        function.labels = {name: moved[index] for name, index in function.labels.items()} | labels
        function.instructions = output

    def _one(
        self,
        function: Function,
        call: Instruction,
        output: list[Instruction],
        labels: dict[str, int],
        callers: tuple[str, ...],
    ) -> None:
        operands = list(call.operands)
        results = split_operands(operands.pop(0)[1:-1]) if operands[0].startswith("(") else []
        callee = self.module.functions.get(operands[0])
        if callee is None:
            output.append(replace(call, opcode=EXTERNAL, operands=(operands[0],)))
            return
        if call.guard is not None:
            raise Unsupported(f"a predicated call: {call.text}")
        self.expand(callee, callers)
        arguments = split_operands(operands[1][1:-1]) if len(operands) > 1 else []
        self.count += 1
        prefix = f"call{self.count}$"
        names = {register: prefix + register for register in callee.registers}
        names |= {label: prefix + label for label in callee.labels}
        names |= {parameter.name: argument for parameter, argument in zip(callee.parameters, arguments, strict=True)}
        if callee.returns and results:
            names[callee.returns] = results[0]
        function.registers |= {prefix + name: kind for name, kind in callee.registers.items()}
        function.tables |= {prefix + name: [names[x] for x in table] for name, table in callee.tables.items()}
        for name, index in callee.labels.items():
            labels[prefix + name] = len(output) + index
        end = prefix + "end"
        for inner in callee.instructions:
            guard = names.get(inner.guard, inner.guard) if inner.guard else None
            if inner.opcode == "ret":
                output.append(replace(inner, opcode="bra", modifiers=(), operands=(end,), guard=guard))
            else:
                renamed = tuple(_NAME.sub(lambda m: names.get(m.group(), m.group()), text) for text in inner.operands)
                output.append(replace(inner, operands=renamed, guard=guard))
        labels[end] = len(output)


def call_parameters(function: Function) -> dict[str, str]:
    """The .param variables of inlined calls as registers, "name+offset" -> PTX type, from what fills them."""
    found: dict[str, str] = {}
    for instruction in function.instructions:
        if instruction.opcode == "st" and "param" in instruction.modifiers:
            name, offset = parameter_slot(instruction.operands[0])
            kind = instruction.modifiers[-1]
            for number, _ in enumerate(elements(instruction.operands[1])):
                found[f"{name}+{offset + number * width(kind)}"] = kind
    return found


def parameter_slot(address: str) -> tuple[str, int]:
    """ "[param0+8]" -> ("param0", 8)."""
    name, _, offset = address[1:-1].replace(" ", "").partition("+")
    return name, int(offset or 0)
