"""What the kernels of the weight gradient take."""

from __future__ import annotations

from numbaprims.cpu.conv.arguments import ARGS
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.records import Record

# Panels lo ... hi - 1 of dy (a) with one panel of x (b): total[k, tap, c] (first: =, else +=), c < columns.
# pixels: how many; table: addresses of int64, where each pixel lies in b; shifts: by how much each tap moves it; room:
# address of what tiles multiply of b.
MULTIPLY = Arguments(
    arrays=("a", "b", "total", "table", "shifts"),
    ints=("rows", "columns", "pixels", "taps", "first", "k_step", "tap_step", "room"),
)

# Panels lo ... hi - 1 of dy, packed pixel by pixel, as blocks of 32 filters by 32 pixels that tiles multiply.
TURN = Arguments(arrays=("tiles", "source"), ints=("pixels",))

# The patches of lines lo ... hi - 1 (p) of one plane: out[pixel * width + ...], `channels` channels from source on.
# run: elements of x that lie side by side and belong to one row of the window: S, or S * C with channels last.
PATCHES = Arguments(
    arrays=("out", "source"), ints=("geometry", "channels", "run", "unit", "width", "d0", "p0", "columns")
)

# The sum over pixels is cut into chunks: boxes of box_n images, box_o planes and box_p lines of y; `slice_chunks` of
# them make a slice, whose sums lie apart from those of other slices and are added to them at the end, in order.
# A tile is a slice, a group, and a block of filters and one of channels.
# step_*: by how many places of the packed x two neighbours in y are apart; src_*: by how many elements of x two
# neighbours in the packed x are; box_d, box_h, box_w: places of the packed x.
# merge_x: 1 where rows of x follow one another without a gap in source and copy; merge_y: 1 where lines of y do, 2
# where planes do.
# patches: address of the kernel that gathers them, 0 where panels of channels are packed; width, run, unit: of patches.
# turn: 0, or the kernel that makes tiles of the packed dy, behind which there is room for those of x.
# end: address of ENDS; fused: 1 where a tile ends its own sums, a panel of channels at a time.
DRIVE = Arguments(
    arrays=ARGS.arrays,
    floats=ARGS.floats,
    ints=(
        "geometry", "patches", "pack_x", "pack_y", "multiply", "shifts", "taps", "in_size", "sum_size", "mr", "nr",
        "box_n", "box_o", "box_p", "chunks_o", "chunks_p", "chunks", "slice_chunks",
        "k_block", "k_blocks", "c_block", "c_blocks",
        "step_d", "step_h", "step_w", "src_d", "src_h", "src_w", "box_d", "box_h", "box_w", "merge_x", "merge_y",
        "width", "run", "unit", "columns",
        "sums_in_out", "k_step", "tap_step", "slice_step", "end", "fused", "turn",
    ),
    shared=("sums",),
    own=("packed_x", "packed_y", "places", "own_sums", "tiles", "tile_room"),
)  # fmt: skip

# The table at DRIVE's `end`: steps from one filter, tap or channel to the next in the sums, from one filter or
# channel to the next in out and c; places: address of int64 [2][taps], where a tap lies in out and in c; way: see
# make_end.  joined: the sums of all taps of a filter are one row, in the order of out.
ENDS = Record(
    "kernel", "slices", "slice_step", "k_step", "tap_step", "c_step", "taps", "places", "out_k", "out_c", "c_k", "c_c",
    "has_c", "way", "joined", "out_size",
)  # fmt: skip

# Filters lo ... hi - 1 and `channels` channels of the result: out = alpha * sum of the slices + beta * c.
END = Arguments(arrays=("out", "sums", "c"), floats=("alpha", "beta"), ints=("words", "channels"))
