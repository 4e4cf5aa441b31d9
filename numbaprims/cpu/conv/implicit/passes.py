"""Forward convolutions and data gradients as one kind of walk.

The gradient of x at h = phase + j * stride sums dy[p] over the taps r with r * dilation = h + padding (mod stride), at
p = (h + padding - r * dilation) / stride: for one phase that is a convolution of stride 1 over j, whose taps step
backwards, and whose results lie `stride` apart.  Nothing is flipped or moved: signs and starts of steps say it all.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

Triple = tuple[int, int, int]
Steps = tuple[int, int, int, int, int]
MOST = 1024
"""Passes of a gradient: each takes 0.2 ms to plan."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """result[n, m, o] = sum over channels and taps t of input[n, channel, o * stride - padding + t * dilation] times
    weight[m, channel, t], in every group; steps count elements."""

    n: int
    groups: int
    rows: int
    """Channels of the result in one group."""
    depth: int
    """Channels of the input in one group."""
    size: Triple
    """Of the input."""
    grid: Triple
    """Of the result."""
    taps: Triple
    stride: Triple
    dilation: Triple
    """Negative where taps step backwards."""
    padding: Triple
    """Negative where windows begin inside."""
    x: Steps
    w: Steps
    """Of m, channel, and the taps."""
    w_base: int
    w_group: int
    y: Steps
    y_base: int
    c: Steps
    c_base: int

    @property
    def window(self) -> int:
        """Taps in all."""
        return self.taps[0] * self.taps[1] * self.taps[2]

    @property
    def pixels(self) -> int:
        """Results of one channel of one image."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def by_rows(self) -> bool:
        """Whether workers had better share the input than the weights: what they share goes from core to core."""
        return self.rows * self.depth * self.window > self.n * self.depth * math.prod(self.size)

    def flops(self) -> float:
        """Operations."""
        return 2.0 * self.n * self.groups * self.rows * self.depth * self.window * self.pixels


def inside(walk: Pass) -> bool:
    """Whether no window meets padding."""
    ends = zip(walk.size, walk.grid, walk.taps, walk.stride, walk.dilation, walk.padding, strict=True)
    return all(
        min(0, (taps - 1) * dilation) >= padding
        and (grid - 1) * stride - padding + max(0, (taps - 1) * dilation) < size
        for size, grid, taps, stride, dilation, padding in ends
    )


def flat(walk: Pass, has_c: bool) -> Pass:
    """A pass of one tap, over the pixels that it meets only: without a stride, and as few long rows as the steps of
    input, result and c allow.  Other passes as they are.

    A row of 49 pixels is transposed in 4 blocks of 16, 7 rows of 7 in 7; and it can be cut anywhere.
    """
    if walk.window != 1 or walk.padding != (0, 0, 0) or not inside(walk):
        return walk
    one, zero = (1, 1, 1), (0, 0, 0)
    x = along((*walk.x[:2], *_times(walk.x[2:], walk.stride)), walk.grid)
    n, (o, p, q) = walk.n, walk.grid
    made = dataclasses.replace(walk, size=walk.grid, stride=one, dilation=one, padding=zero, x=x)
    steps = [x, walk.y, walk.c] if has_c else [x, walk.y]
    pixels = o * p * q
    if any(p > 1 and s[3] != q * s[4] or o > 1 and s[2] != p * q * s[4] for s in steps):
        return made
    if n > 1 and all(s[0] == pixels * s[4] for s in steps):
        n, pixels = 1, n * pixels
    x, y, c = ((*s[:2], 0, 0, s[4]) for s in (x, walk.y, walk.c))
    return dataclasses.replace(made, n=n, size=(1, 1, pixels), grid=(1, 1, pixels), x=x, y=y, c=c)


def passes(problem: Any) -> list[Pass]:
    """The passes whose results together are the problem's: one forward, one a phase of the stride for data."""
    p, s = problem, problem.strides
    if p.direction == "forward":
        x, y, c = along(s.x, p.x_size), along(s.y, p.y_size), along(s.c, p.y_size)
        w_group = p.group_k * s.w[0]
        walk = Pass(
            p.n, p.groups, p.group_k, p.group_c, p.x_size, p.y_size, p.kernel, p.stride, p.dilation, p.padding,
            x, s.w, 0, w_group, y, 0, c, 0,
        )  # fmt: skip
        return [walk]
    found = []
    axes = [_phases(*axis) for axis in zip(p.x_size, p.kernel, p.stride, p.dilation, p.padding, strict=True)]
    for phase in itertools.product(*axes):
        grid, taps, dilation, padding, first, tap, step = (
            _three(axis[name] for axis in phase)
            for name in ("count", "taps", "dilation", "padding", "first", "tap", "step")
        )
        w = (s.w[1], s.w[0], *_times(s.w[2:], step))
        x = along((*s.x[:2], *_times(s.x[2:], p.stride)), grid)
        c = along((*s.c[:2], *_times(s.c[2:], p.stride)), grid)
        walk = Pass(
            p.n, p.groups, p.group_c, p.group_k, p.y_size, grid, taps, (1, 1, 1), dilation, padding,
            along(s.y, p.y_size), w, sum(_times(s.w[2:], tap)), p.group_k * s.w[0],
            x, sum(_times(s.x[2:], first)), c, sum(_times(s.c[2:], first)),
        )  # fmt: skip
        found.append(walk)
    return found


def too_many(problem: Any) -> str | None:
    """Why a gradient by data is not computed pass by pass."""
    count = math.prod(map(min, problem.stride, problem.x_size))
    if problem.direction == "data" and count > MOST:
        return f"a stride of {problem.stride} makes {count} products of it"
    return None


def _times(a: Triple, b: Triple) -> Triple:
    return a[0] * b[0], a[1] * b[1], a[2] * b[2]


def along(steps: Any, sizes: Triple) -> Steps:
    """Steps whose last is that from a pixel to the next, though rows (planes, images) may have one element only."""
    n, c, d, h, w = steps
    if sizes[2] == 1:
        w = h if sizes[1] > 1 else d if sizes[0] > 1 else n
    return n, c, d, h, w


def _three(values: Any) -> Triple:
    first, second, third = values
    return first, second, third


def _phases(size: int, taps: int, stride: int, dilation: int, padding: int) -> list[dict[str, int]]:
    """One axis of a data gradient: for each phase of the result its first element and how many it has, the first tap
    that meets it, how many do and how far apart, and the walk over dy."""
    apart = stride // math.gcd(stride, dilation)
    found = []
    for first in range(min(stride, size)):
        mine = [tap for tap in range(min(apart, taps)) if (first + padding - tap * dilation) % stride == 0]
        tap = mine[0] if mine else 0
        found.append(
            {
                "first": first, "count": -(-(size - first) // stride), "tap": tap, "step": apart,
                "taps": -(-(taps - tap) // apart) if mine else 0, "dilation": -(apart * dilation // stride),
                "padding": -((first + padding - tap * dilation) // stride),
            }
        )  # fmt: skip
    return found
