"""Layers of conv's suites: what a row of shapes/conv.toml means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Steps = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """A convolution: input (n, c, h, w), k filters of (c / groups, r, s); steps are (rows, columns).

    A volume has depth d and filters of depth z, and steps of three numbers, the depth's first.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: Steps = (1, 1)
    padding: Steps = (0, 0)
    dilation: Steps = (1, 1)
    groups: int = 1
    count: int = 1
    d: int = 1
    z: int = 1

    @property
    def image(self) -> tuple[int, ...]:
        """(h, w), or (d, h, w)"""
        return (self.d, self.h, self.w)[-len(self.stride) :]

    @property
    def kernel(self) -> tuple[int, ...]:
        """(r, s), or (z, r, s)"""
        return (self.z, self.r, self.s)[-len(self.stride) :]

    @property
    def output(self) -> tuple[int, ...]:
        """(k, p, q), or (k, o, p, q)"""
        steps = zip(self.image, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return (
            self.k,
            *((side + 2 * pad - step * (taps - 1) - 1) // stride + 1 for side, taps, stride, pad, step in steps),
        )

    @property
    def flops(self) -> int:
        """Additions and multiplications by the definition, padding counted as values."""
        return 2 * self.n * math.prod(self.output) * (self.c // self.groups) * math.prod(self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """One input channel for each group."""
        return self.groups == self.c > 1


def steps(value: int | str | Sequence[int], dimensions: int = 2, name: str = "padding") -> Steps:
    """2, "2", "2x1" or "2,1", [2, 1] as numbers for (rows, columns), or for three dimensions; 0 is a padding only.

    >>> steps("2x1"), steps(3)
    ((2, 1), (3, 3))
    """
    words = (
        value.replace("x", ",").split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    )
    try:
        numbers = tuple(int(word) for word in words)
    except ValueError:
        numbers = ()
    least = 0 if name == "padding" else 1
    if len(numbers) not in (1, dimensions) or min(numbers) < least:
        allowed = "x".join("21221"[:dimensions])
        raise ValueError(
            f"{name}: {value!r} given, allowed are one number or {dimensions} from {least}, as in 2 or {allowed}"
        )
    return numbers * dimensions if len(numbers) == 1 else numbers


def text(value: Steps) -> str:
    """What `steps` reads: "2", or "2x1" where the dimensions differ."""
    return str(value[0]) if len(set(value)) == 1 else "x".join(map(str, value))


def layers(suite: Mapping[str, Any], batches: Sequence[int]) -> list[Layer]:
    """The layers of a suite with each batch size; with its own where a layer names them."""
    found = []
    for row in suite["layers"]:
        fields = {name: row[name] for name in ("c", "h", "w", "k", "r", "s")}
        fields |= {name: steps(row[name]) for name in ("stride", "padding", "dilation") if name in row}
        fields |= {name: row[name] for name in ("groups", "count") if name in row}
        found += [Layer(n=n, **fields) for n in row.get("n", batches)]
    return found
