"""Loops that intrinsics emit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

_I64 = ir.IntType(64)


def repeat(builder: Any, count: Any, state: list[Any], step: Callable[[list[Any]], list[Any]], label: str) -> list[Any]:
    """Emit `count` times `step`, which takes the values of the state and gives the next ones; the last are returned.

    `count` may be 0 or less: the state is then what it was.
    """
    before = builder.block
    body, after = builder.append_basic_block(label), builder.append_basic_block(label + "_end")
    builder.cbranch(builder.icmp_signed(">", count, ir.Constant(_I64, 0)), body, after)
    builder.position_at_end(body)
    left = builder.phi(_I64)
    phis = [builder.phi(value.type) for value in state]
    again = step(list(phis))
    less = builder.sub(left, ir.Constant(_I64, 1))
    end = builder.block
    builder.cbranch(builder.icmp_signed(">", less, ir.Constant(_I64, 0)), body, after)
    builder.position_at_end(after)
    merged = [builder.phi(value.type) for value in state]
    left.add_incoming(count, before)
    left.add_incoming(less, end)
    for group in (phis, merged):
        for phi, once, next_time in zip(group, state, again, strict=True):
            phi.add_incoming(once, before)
            phi.add_incoming(next_time, end)
    return merged
