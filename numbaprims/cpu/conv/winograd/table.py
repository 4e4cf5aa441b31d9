"""What Winograd's kernels take: the arrays of one block of tiles, and the address of a table with the problem.

The table poses every direction as a forward one: the data gradient is the convolution of y's gradient with the
filters turned round and their channels exchanged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numbaprims.cpu.conv.arguments import ARGS, bias_dtype
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.records import Record
from numbaprims.dtypes import DTYPES

# x: the input.  v: its transform, [n * n][rows / mr][c_blocks][mr][W].  u: transformed filters,
# [panels][n * n][channels][NR].  m: products of one panel, [n * n][rows][NR].  first, count: the tiles of the block.
# x_channel, out_channel: where the group's channels begin.  panel: which NR channels of the result.  blocks, more:
# vectors of channels that are in v, and whether their products are added to those before, where not all channels are
# transformed at once.  room: address of the worker's scratch memory.  buffer to right: what transforms hand to the
# kernels of pixels.py.
BLOCK = Arguments(
    arrays=("x", "v", "u", "m", "out", "bias", "c", "w"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "table", "first", "count", "x_channel", "out_channel", "panel", "activation", "has_c", "has_bias", "bias_step",
        "blocks", "more", "room", "buffer", "shifts", "rows", "row_step", "columns", "channels", "at", "at_c", "at_h",
        "down", "left", "right",
    ),
)  # fmt: skip

# A call.  Shared: transformed filters, or what a step of a weight gradient transforms, and its sums.  A worker's own:
# the number of the block whose transform it holds, that, products of it, filters, and what kernels take (`room`).
CALL = ARGS.with_regions(shared=("filters", "all_v", "all_u", "all_m"), own=("held", "v", "m", "u", "room"))

# x_*, o_*, c_*, w_*: strides in elements; w_start: where tap (0, 0) lies, w_group: from one group's filters to the
# next's.  tiles: of one image's height and width, and in all.  block: tiles of one block, rows: those in memory, a
# multiple of MR.  mr: tiles whose transforms lie together, a register tile's where products read them end to end, or
# all.  v_step, m_step, u_step: elements from one position to the next, u_group from one group to the next.
# far: whether the result exceeds the second-level cache.  m_h, m_w: outputs of a tile, taps_h, taps_w: of a window,
# where kernels serve all sizes.  x_blocks: vectors of x's channels, c_blocks: as many for each piece of the window.
# pieces: address of the first taps of the pieces, those along the height, then pieces_w along the width.
# y_table: address of the table of y's gradient as an input.  chunk: vectors of channels that are transformed at once,
# some_panels: panels whose sums are kept at once, m_panel: elements from one of them to the next, lanes: of a vector.
# v_block, v_tile, v_part: elements from one vector (or panel) of channels, tile and part of a spectrum to the next;
# in_h, in_w: pixels of a tile that are read.  combined: whether alpha or c follow.  The kernels are addresses.
TABLE = Record(
    "groups", "x_channels", "out_channels", "x_h", "x_w", "out_h", "out_w", "pad_h", "pad_w",
    "x_sn", "x_sc", "x_sh", "x_sw", "o_sn", "o_sk", "o_sh", "o_sw", "c_sn", "c_sk", "c_sh", "c_sw",
    "w_sk", "w_sc", "w_sr", "w_ss", "w_start", "w_group", "w_size", "tiles_h", "tiles_w", "tiles", "block",
    "blocks", "rows", "mr", "c_blocks", "channels", "panels", "vectors", "positions", "v_step", "m_step", "u_step",
    "u_group", "sum_size",
    "input", "products", "output", "weights", "read", "write", "read_weights", "combined",
    "far", "m_h", "m_w", "taps_h", "taps_w", "x_blocks", "pieces", "pieces_w", "y_table",
    "chunk", "some_panels", "m_panel", "lanes", "v_block", "v_tile", "v_part", "in_h", "in_w",
)  # fmt: skip


class Pose(NamedTuple):
    """A convolution with stride 1, forward or of the data, as one forward."""

    n: int
    groups: int
    x_channels: int
    out_channels: int
    x: tuple[int, int]
    out: tuple[int, int]
    pad: tuple[int, int]
    x_steps: tuple[int, int, int, int]
    out_steps: tuple[int, int, int, int]
    c_steps: tuple[int, int, int, int]
    w_steps: tuple[int, int, int, int]
    w_start: int
    w_group: int
    x_dtype: str
    out_dtype: str
    bias_dtype: str
    w_dtype: str


def _planar(steps: Any) -> tuple[int, int, int, int]:
    """Strides without that of the depth."""
    return steps[0], steps[1], steps[3], steps[4]


def _image(steps: Any, width: int) -> tuple[int, int, int, int]:
    """Strides of images. A single column has stride 1 here, not the problem's 0: kernels point at the first column of a
    window, which padding puts in front of the image, and count their lanes of neighbours from there."""
    return (*_planar(steps)[:3], 1 if width == 1 else steps[4])


def forward_pose(problem: Any) -> Pose:
    """The forward problem that a problem belongs to; c lies as the result."""
    p, s = problem, problem.strides
    w = _planar(s.w)
    return Pose(
        p.n, p.groups, p.group_c, p.group_k, p.x_size[1:], p.y_size[1:], p.padding[1:], _image(s.x, p.x_size[2]),
        _image(s.y, p.y_size[2]), _planar(s.c), w, 0, p.group_k * w[0], p.x_dtype, p.y_dtype, bias_dtype(p), p.w_dtype,
    )  # fmt: skip


def pose(problem: Any) -> Pose:
    """The forward form of a problem of either direction."""
    q = forward_pose(problem)
    if problem.direction == "forward":
        return q
    (r, t), w = problem.kernel[1:], q.w_steps
    return q._replace(
        x_channels=q.out_channels, out_channels=q.x_channels, x=q.out, out=q.x,
        pad=(r - 1 - q.pad[0], t - 1 - q.pad[1]),
        x_steps=q.out_steps, out_steps=q.x_steps, w_steps=(w[1], w[0], -w[2], -w[3]),
        w_start=(r - 1) * w[2] + (t - 1) * w[3], x_dtype=q.out_dtype, out_dtype=q.x_dtype,
    )  # fmt: skip


def pose_words(q: Pose) -> dict[str, int]:
    """The table's words that follow from the problem alone."""
    words = {
        "groups": q.groups, "x_channels": q.x_channels, "out_channels": q.out_channels, "w_start": q.w_start,
        "w_group": q.w_group,
        "w_size": DTYPES[q.w_dtype].itemsize,
    }  # fmt: skip
    words |= dict(zip(("x_h", "x_w", "out_h", "out_w", "pad_h", "pad_w"), (*q.x, *q.out, *q.pad), strict=True))
    for letter, steps in (("x", q.x_steps), ("o", q.out_steps), ("c", q.c_steps)):
        names = ("sn", "sk" if letter in "oc" else "sc", "sh", "sw")
        words |= {f"{letter}_{name}": step for name, step in zip(names, steps, strict=True)}
    words |= {f"w_{name}": step for name, step in zip(("sk", "sc", "sr", "ss"), q.w_steps, strict=True)}
    return words
