"""The table of instructions: which builder makes the closure of which opcode."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .machine import Step
from .parse import Instruction

if TYPE_CHECKING:
    from .operands import Context

    Builder = Callable[[Context, Instruction], Step]

BUILDERS: dict[str, Builder] = {}
COLLECTIVES: dict[str, int] = {}  # opcode -> threads that run it together


def instruction(*opcodes: str) -> Callable[[Builder], Builder]:
    """Register the builder of these opcodes."""

    def register(builder: Builder) -> Builder:
        for opcode in opcodes:
            if opcode in BUILDERS:
                raise ValueError(f"{opcode} has two builders")
            BUILDERS[opcode] = builder
        return builder

    return register


def collective(threads: int, *opcodes: str) -> Callable[[Builder], Builder]:
    """As `instruction`, for what whole warps or warpgroups execute together: the scheduler waits for all of them."""
    COLLECTIVES.update(dict.fromkeys(opcodes, threads))
    return instruction(*opcodes)
