"""Layers of conv's suites: what a row of shapes/conv.toml means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Pair = tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """A convolution: input (n, c, h, w), k filters of (c / groups, r, s); pairs are (rows, columns)."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    count: int = 1

    @property
    def output(self) -> tuple[int, int, int]:
        """(k, p, q)"""
        p, q = (
            (side + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
            for side, taps, stride, pad, dilation in zip(
                (self.h, self.w), (self.r, self.s), self.stride, self.padding, self.dilation, strict=True
            )
        )
        return self.k, p, q

    @property
    def flops(self) -> int:
        """Additions and multiplications by the definition, padding counted as values."""
        k, p, q = self.output
        return 2 * self.n * k * p * q * (self.c // self.groups) * self.r * self.s

    @property
    def is_depthwise(self) -> bool:
        """One input channel for each group."""
        return self.groups == self.c > 1


def pair(value: int | str | Sequence[int]) -> Pair:
    """2, "2", "2x1" or "2,1", [2, 1] as (rows, columns).

    >>> pair("2x1"), pair(3)
    ((2, 1), (3, 3))
    """
    words = (
        value.replace("x", ",").split(",")
        if isinstance(value, str)
        else [value]
        if isinstance(value, int)
        else list(value)
    )
    numbers = [int(word) for word in words]
    if len(numbers) not in (1, 2) or min(numbers) < 0:
        raise ValueError(f"{value!r} given, allowed are a number or two, as in 2 or 2x1")
    return numbers[0], numbers[-1]


def text(value: Pair) -> str:
    """What `pair` reads: "2", or "2x1" where rows and columns differ."""
    return str(value[0]) if value[0] == value[1] else f"{value[0]}x{value[1]}"


def layers(suite: Mapping[str, Any], batches: Sequence[int]) -> list[Layer]:
    """The layers of a suite with each batch size; with its own where a layer names them."""
    found = []
    for row in suite["layers"]:
        fields = {name: row[name] for name in ("c", "h", "w", "k", "r", "s")}
        fields |= {name: pair(row[name]) for name in ("stride", "padding", "dilation") if name in row}
        fields |= {name: row[name] for name in ("groups", "count") if name in row}
        found += [Layer(n=n, **fields) for n in row.get("n", batches)]
    return found
